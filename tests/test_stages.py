"""Stage costs against sums made by hand, and against pipelines whose stages wait and compute for known times."""

from __future__ import annotations

import array
import time
from dataclasses import asdict

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from workbench import lab
from workbench.errors import ProbeError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.stage_clock import COLUMN, FIELDS, RING, TRANSFORM_FIELDS, WIDTH, StageInit, WorkerClock
from workbench.measure.stage_reading import Lap, costs_between
from workbench.measure.stages import Stage, costs_from_json, measure_stages
from workbench.measure.transforms import Clocks, TimedCall
from workbench.measure.trial import TrialServer


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Burn:
    strength = 7

    def __call__(self, value):
        lab.burn(0.002)
        return value


def nap(value):
    time.sleep(0.003)
    return value


class Pipeline(Dataset):
    def __init__(self):
        self.transform = Compose(Burn(), nap)

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        assert isinstance(self.transform.transforms[0], Burn) and self.transform.transforms[0].strength == 7
        time.sleep(0.001)
        return self.transform(torch.ones(4))


class Batched(Dataset):
    def __len__(self):
        return 4000

    def __getitems__(self, indices):
        time.sleep(0.01)
        return [torch.tensor(index) for index in indices]

    def __getitem__(self, index):
        raise AssertionError("items are fetched one by one although the dataset fetches batches")


# -- pure --


def row(**values):
    made = array.array("d", bytes(8 * WIDTH))
    for name, value in values.items():
        made[COLUMN[name]] = value
    return made


def with_transform(made, number, *spent):
    at = len(FIELDS) + number * TRANSFORM_FIELDS
    made[at : at + TRANSFORM_FIELDS] = array.array("d", spent)
    return made


def test_costs_are_what_grew_between_two_snapshots():
    before = [row(batches=10, busy_seconds=1.0, detailed=10), row()]
    first = row(batches=20, busy_seconds=2.0, detailed=15, fetch_wall=0.5, fetch_cpu=0.2, fetch_starved=0.05,
                collate_wall=0.1, collate_cpu=0.05, collate_starved=0.01, handed=10, hand_wall=0.02, hand_cpu=0.01,
                hand_bytes=5000, process_cpu=0.9, thread_cpu=0.5, threads=8, first_seconds=0.3)  # fmt: skip
    with_transform(first, 1, 0.2, 0.1, 0.02)
    first[WIDTH - RING + 12] = 0.77
    lap = Lap(0.0, 2.0, 10, 80, next_seconds=1.5, next_cpu_seconds=0.5)
    costs = costs_between(before, [first, row()], lap, ["idle", "crop"], 2, 1024, 3)
    assert costs.fetch == Stage("fetch", pytest.approx(0.06), pytest.approx(0.02), pytest.approx(0.006))
    assert costs.transforms == (Stage("crop", pytest.approx(0.04), pytest.approx(0.02), pytest.approx(0.004)),)
    assert costs.transforms[0].waiting_seconds == pytest.approx(0.016)
    assert costs.collate == Stage("collate", pytest.approx(0.02), pytest.approx(0.01), pytest.approx(0.002))
    assert costs.hand_over == Stage("hand-over", pytest.approx(0.002), pytest.approx(0.001))
    assert costs.other_threads_cpu_seconds == pytest.approx((0.9 - 0.5) / 10 - 0.001)
    assert costs.worker_busy_fraction == pytest.approx(1.0 / (2 * 2.0))
    assert (costs.main_seconds_per_batch, costs.queue_wait_seconds) == (pytest.approx(0.05), pytest.approx(0.1))
    assert (costs.samples_per_batch, costs.samples_per_second, costs.pickled_bytes_per_batch) == (8, 40, 500)
    assert (costs.worker_batches, costs.threads_per_worker, costs.first_batch_seconds) == ((10, 0), 8, 0.3)
    assert sorted(costs.batch_walls)[-1] == pytest.approx(0.77) and len(costs.batch_walls) == 10
    assert costs_from_json(asdict(costs)) == costs


def test_without_a_detailed_batch_nothing_is_claimed():
    assert costs_between([row()], [row(batches=3)], Lap(0.0, 1.0, 3, 3), [], 1, 0, 1) is None
    assert costs_from_json(None) is None


def test_waiting_is_what_is_neither_cpu_nor_want_of_a_core():
    assert Stage("fetch", 1.0, 0.25, 0.5).waiting_seconds == pytest.approx(0.25)
    assert Stage("fetch", 1.0, 0.25).waiting_seconds == pytest.approx(0.75)
    assert Stage("fetch", 1.0, 1.1, 0.1).waiting_seconds == 0.0


# -- transforms --


def names_of(dataset):
    found = Clocks(dataset, lambda number, call, args, kwargs: call(*args, **kwargs), 24)
    found.on()
    return found.names


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_what_holds_transforms_is_opened():
    class Sequential:  # as torch.nn's, whose modules are called in turn
        def __init__(self, *modules):
            self._modules = {str(number): module for number, module in enumerate(modules)}

    twice = Burn()
    holder = Holder(
        transform=Compose(twice, Compose(nap, Burn())),
        target_transform=[nap],
        augmentations=(nap,),
        preprocess=Sequential(Burn()),
        path="transform.txt",
        transform_probability=0.5,
    )
    assert names_of(holder) == ["Burn", "nap", "Burn #2", "nap #2", "nap #3", "Burn #3"]
    timed = holder.transform.transforms[0]
    assert type(timed) is TimedCall and isinstance(timed, Burn) and timed.strength == 7
    timed.strength = 9
    assert twice.strength == 9 and repr(timed) == repr(twice)
    assert holder.augmentations[0](torch.ones(1)) == torch.ones(1)
    assert (holder.path, holder.transform_probability) == ("transform.txt", 0.5)


def test_transforms_of_wrapped_datasets_are_found_once():
    inner = Pipeline()
    assert names_of(Subset(inner, [0, 1])) == ["Burn", "nap"]
    assert names_of(Holder(datasets=[Pipeline()] * 2)) == ["Burn", "nap"]


def test_a_real_sequential_is_opened():
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())
    assert names_of(Holder(transform=model)) == ["ReLU", "Identity"]
    assert model(torch.tensor([-1.0])).item() == 0.0


def test_more_transforms_than_there_is_room_for_stay_as_they_are():
    holder = Holder(transforms=[nap, nap, nap])
    found = Clocks(holder, lambda *_: None, 2)
    assert found.names == ["nap", "nap #2"] and holder.transforms == [nap] * 3
    found.on()
    assert [type(item) is TimedCall for item in holder.transforms] == [True, True, False]
    found.off()
    assert holder.transforms == [nap] * 3


def test_between_detailed_batches_everything_is_the_users_own():
    holder = Holder(transform=Compose(nap, Burn()), augmentations=(nap, [nap]))
    before = list(holder.transform.transforms), holder.augmentations
    found = Clocks(holder, lambda number, call, args, kwargs: call(*args, **kwargs), 24)
    found.on()
    assert type(holder.augmentations[0]) is TimedCall and type(holder.augmentations[1][0]) is TimedCall
    found.off()
    assert (holder.transform.transforms, holder.augmentations) == before and holder.augmentations is before[1]


# -- clocks --


def test_detailed_clocks_skip_batches_that_are_too_short_for_them(tmp_path):
    class Fetcher:
        collate_fn = staticmethod(len)

    def fetch(fetcher, samples):
        return fetcher.collate_fn(samples)

    clock = WorkerClock(str(tmp_path / "rows"), 0, 1)
    assert [clock.fetch(fetch, Fetcher(), [1, 2]) for _ in range(2000)] == [2] * 2000
    assert clock._row[COLUMN["batches"]] == 2000
    assert 1 <= clock._row[COLUMN["detailed"]] < 200
    assert Fetcher.collate_fn is len


def test_an_error_in_collate_leaves_the_clocks_in_order(tmp_path):
    class Fetcher:
        def collate_fn(self, samples):
            raise ValueError("ragged")

    clock, fetcher = WorkerClock(str(tmp_path / "rows"), 0, 1), Fetcher()
    with pytest.raises(ValueError, match="ragged"):
        clock.fetch(lambda fetcher, samples: fetcher.collate_fn(samples), fetcher, [1])
    assert fetcher.collate_fn.__func__ is Fetcher.collate_fn


def test_the_users_own_worker_init_runs_first(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("workbench.measure.stage_clock.start_clocks", lambda *_: seen.append("clocks"))
    StageInit(lambda worker: seen.append(worker), str(tmp_path / "rows"), 2)(1)
    assert seen == [1, "clocks"]


# -- real workers --


@pytest.fixture(scope="module")
def server():
    with TrialServer(DataLoader(Pipeline(), batch_size=5, num_workers=2)) as running:
        yield running


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}])
def test_stages_are_told_apart(server, settings):
    costs = measure_stages(server, LoaderSettings(**settings), seconds=0.4)
    assert [stage.name for stage in costs.transforms] == ["Burn", "nap"]
    burn, waits = costs.transforms
    assert burn.cpu_seconds == pytest.approx(0.010, rel=0.25) and waits.cpu_seconds < 0.003
    assert waits.waiting_seconds > 0.012 and costs.fetch.waiting_seconds > 0.003
    assert costs.samples_per_batch == 5 and costs.bytes_per_batch == 80 and costs.tensors_per_batch == 1
    assert (costs.hand_over is not None) == bool(settings)
    assert len(costs.worker_batches) == max(1, settings.get("num_workers", 0)) and min(costs.worker_batches) > 0


def test_items_fetched_in_batches_stay_so():
    with TrialServer(DataLoader(Batched(), batch_size=4, num_workers=1)) as running:
        costs = measure_stages(running, LoaderSettings(num_workers=1), seconds=0.2)
    assert costs.fetch.waiting_seconds > 0.008


def test_what_is_no_dataloader_is_refused_with_a_reason():
    with TrialServer(plain_list) as running, pytest.raises(ProbeError, match="no batch through a DataLoader"):
        measure_stages(running, LoaderSettings(), seconds=0.05)


def plain_list():
    return [torch.ones(4)] * 1000


class OnlyInMainProcess(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if get_worker_info() is not None:
            raise OSError("handle is not open in a worker")
        return torch.tensor(index)


def test_a_loader_that_fails_says_why():
    with TrialServer(DataLoader(OnlyInMainProcess())) as running:
        with pytest.raises(ProbeError, match=r"of 1 worker.* could not be measured: OSError: .*not open in a worker"):
            measure_stages(running, LoaderSettings(num_workers=1), seconds=0.1)
