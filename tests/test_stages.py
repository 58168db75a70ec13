"""Stage costs against sums made by hand, and against pipelines whose stages wait and compute for known times."""

from __future__ import annotations

import array
import functools
import itertools
import time
from dataclasses import asdict

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from workbench import lab
from workbench.errors import ProbeError
from workbench.loaders.settings import LoaderSettings
from workbench.measure import stage_clock
from workbench.measure.stage_clock import (
    COLUMN,
    FIELDS,
    RING,
    TRANSFORM_FIELDS,
    WIDTH,
    Moment,
    StageInit,
    Starvation,
    WorkerClock,
)
from workbench.measure.stage_costs import Stage, costs_from_json
from workbench.measure.stage_reading import Lap, costs_between, is_unsettled, whole_cycles
from workbench.measure.stages import measure_stages
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


def write_a_dot(path, batch):
    with open(path, "a") as file:
        file.write(".")


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


def test_a_lap_with_slow_rounds_is_cut_from_one_to_another():
    def ends(*lengths):
        return list(itertools.accumulate(lengths, initial=5.0))

    even = ends(*[1.0] * 10)
    assert (whole_cycles(even), is_unsettled(even)) == ((0, 10), False)
    periodic = ends(1, 1, 20, 1, 1, 1, 20, 1, 1, 1, 20, 1)
    assert (whole_cycles(periodic), is_unsettled(periodic)) == ((3, 11), False)
    assert not is_unsettled(periodic, expected=True) and is_unsettled(even, expected=True)  # a quiet stretch
    assert is_unsettled(ends(1, 20)) and is_unsettled(ends(20, 1, 1, 1, 20, 1, 1))
    assert whole_cycles(ends(1, 20)) == (0, 2)
    one_hiccup = ends(*[0.01] * 500, 0.04, *[0.01] * 500)
    assert (whole_cycles(one_hiccup), is_unsettled(one_hiccup)) == ((0, 1001), False)
    neighbours = ends(*[1] * 10, 10, 1, 10, *[1] * 10)
    assert whole_cycles(neighbours) == (0, 23)  # what lies between two that are close is no cycle


def test_busy_workers_are_held_against_the_whole_lap():
    lap = Lap(0.0, 1.0, 5, 40, whole_seconds=2.0)
    grown = row(batches=10, busy_seconds=1.5, detailed=1, fetch_wall=0.1)
    assert costs_between([row()], [grown], lap, [], 1, 0, 1).worker_busy_fraction == pytest.approx(0.75)


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


def test_one_slow_batch_does_not_leave_the_detailed_clocks_on(tmp_path):
    class Fetcher:
        collate_fn = staticmethod(len)

    clock = WorkerClock(str(tmp_path / "rows"), 0, 1)
    clock._plain = 10.0  # as if the first batch that was not timed in detail had lost its core for long
    for _ in range(2000):
        clock.fetch(lambda fetcher, samples: fetcher.collate_fn(samples), Fetcher(), [1, 2])
    assert clock._row[COLUMN["detailed"]] < 200


def test_what_the_clocks_of_transforms_take_is_no_part_of_any_stage(tmp_path, monkeypatch):
    class Fetcher:
        collate_fn = staticmethod(len)

    ticks = itertools.count()
    for name in ("perf_counter", "thread_time", "process_time"):  # every look takes a second
        monkeypatch.setattr(stage_clock.time, name, lambda: float(next(ticks)))
    monkeypatch.setattr(Starvation, "__call__", lambda self: 0.0)
    found = {}
    for transforms in (0, 3):
        dataset = Holder(transforms=[abs] * transforms)
        clock = WorkerClock(str(tmp_path / f"{transforms}"), 0, 1)
        clock.transforms = Clocks(dataset, clock.transform, 24)
        clock.calibrate()
        assert clock._row[len(FIELDS)] == 0.0 and clock._calls == 0  # nothing of the calibration is left
        clock.fetch(
            lambda fetcher, samples, d=dataset: [t(s) for s in samples for t in d.transforms], Fetcher(), [1] * 9
        )
        assert clock._calls == 9 * transforms
        spent = clock._row[len(FIELDS) : len(FIELDS) + 3 * TRANSFORM_FIELDS]
        assert list(spent) == pytest.approx([0.0] * 9)
        found[transforms] = clock._row[COLUMN["fetch_wall"]]
    assert found[3] == pytest.approx(max(0.0, found[0] - 27 * 0.1), abs=0.01)  # and not 27 calls of four looks each


def test_a_short_batch_that_waited_for_a_core_is_no_slow_batch(tmp_path, monkeypatch):
    clock, waited, walls = WorkerClock(str(tmp_path / "rows"), 0, 1), [0.0], iter([])
    monkeypatch.setattr(clock, "_starved", lambda: waited[0])
    monkeypatch.setattr(clock, "_now", lambda: Moment(0.0, 0.0, waited[0]))
    monkeypatch.setattr(stage_clock.time, "perf_counter", lambda: next(walls))
    clock._due = 10**9
    for seconds, starved in ((1e-4, 0.0), (1e-4, 0.0), (4e-3, 3.9e-3), (1e-4, 0.0), (4e-3, 0.0)):
        walls, waited[0] = iter([0.0, seconds]), waited[0] + starved
        clock.fetch(lambda fetcher, samples: samples, None, [1])
    found = [clock._row[WIDTH - RING + n] for n in range(5)]
    assert found == pytest.approx([1e-4, 1e-4, 1e-4, 1e-4, 4e-3])


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


def test_a_paced_loop_runs_the_step_on_every_batch_and_a_free_one_on_none(tmp_path):
    dots = tmp_path / "dots"
    step = functools.partial(write_a_dot, str(dots))
    with TrialServer(DataLoader(Pipeline(), batch_size=5, num_workers=1), step=step) as running:
        free = measure_stages(running, LoaderSettings(num_workers=1))
        assert free.step_seconds is None and not dots.exists()
        paced = measure_stages(running, LoaderSettings(num_workers=1), paced=True)
    assert paced.step_seconds is not None and len(dots.read_text()) >= paced.batches


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
