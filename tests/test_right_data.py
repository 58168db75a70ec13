"""Wrong data are found, right data are left alone: real loaders with one known fault each, which is then taken away."""

import collections
import dataclasses
import itertools
import json
import multiprocessing
import os
import random
import re
import tempfile
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.loaders.batching import whole_batches
from workbench.loaders.settings import LoaderSettings
from workbench.measure.right_data import Reference, _Look, _speed_up, check, reference
from workbench.measure.right_stream import SampleLog, compare

SECONDS = 8.0  # epochs end long before


def checked(build, seconds=SECONDS, **knobs):
    """Reference and check of `build(**loader_kwargs)` under `knobs`, as a trial does it; nothing may be left alive."""
    settings = LoaderSettings(**knobs)
    kept = reference(build, seconds)
    kept = Reference.from_json(json.loads(json.dumps(kept.to_json())))
    result = check(build(**settings.loader_kwargs()), settings, kept, seconds, build)
    assert not multiprocessing.active_children()
    return result


def worker():
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


class Rows(Dataset):
    """64 rows, `row(i)` each; `corrupt` changes what comes out of any process but the one that built it."""

    def __init__(self, row, length=64, corrupt=None):
        self.row, self.length, self.corrupt, self.home = row, length, corrupt, os.getpid()

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        row = self.row(i)
        return self.corrupt(i, row) if self.corrupt and os.getpid() != self.home else row


def rows_loader(row, corrupt=None, length=64, **fixed):
    dataset = Rows(row, length, corrupt)
    return lambda **knobs: DataLoader(dataset, **{"batch_size": 4, **fixed, **knobs})


# --- datasets asked by index -----------------------------------------------------------------------------------------


class OpenFile(Dataset):
    """Reads 64 bytes at an offset; `lazily` opens the file in the process that reads, else all share one offset."""

    def __init__(self, lazily):
        self.lazily, self.file, self.owner = lazily, tempfile.NamedTemporaryFile(), os.getpid()
        self.file.write(b"".join(bytes([i]) * 64 for i in range(256)))
        self.file.flush()
        self.handle = self.file

    def __len__(self):
        return 256

    def __getitem__(self, i):
        if self.lazily and self.owner != os.getpid():
            self.handle, self.owner = open(self.file.name, "rb"), os.getpid()
        os.lseek(self.handle.fileno(), i * 64, os.SEEK_SET)
        time.sleep(0.0005)
        return i, torch.frombuffer(bytearray(os.read(self.handle.fileno(), 64).ljust(64, b"\0")), dtype=torch.uint8)


@pytest.mark.parametrize(("lazily", "status"), [(False, "wrong_data"), (True, "ok")])
def test_a_shared_file_offset_is_corruption_and_a_lazily_opened_file_is_not(lazily, status):
    dataset = OpenFile(lazily)
    result = checked(
        lambda **kw: DataLoader(dataset, batch_size=4, shuffle=True, **kw),
        num_workers=2,
        multiprocessing_context="fork",
    )
    assert result.status == status
    assert ("data differs from num_workers=0" in result.reason) == (status == "wrong_data")


def test_one_corrupted_batch_of_many_is_enough():
    build = rows_loader(lambda i: torch.arange(3) + i, corrupt=lambda i, row: row + (i == 13), length=256)
    result = checked(build, num_workers=2)
    assert result.status == "wrong_data"
    assert "1 of 64 batches" in result.reason
    assert checked(rows_loader(lambda i: torch.arange(3) + i, length=256), num_workers=2).status == "ok"


def test_random_augmentation_is_no_corruption_but_hides_none_either():
    def row(i):
        return {"image": torch.rand(3, 4), "noise": np.random.rand(2), "crop": random.random(), "label": i}

    assert checked(rows_loader(row, shuffle=True), num_workers=2).status == "ok"
    result = checked(rows_loader(row, lambda i, r: {**r, "label": 0}, shuffle=True), num_workers=2)
    assert result.status == "wrong_data"
    assert "in leaf label;" in result.reason


@pytest.mark.parametrize("seed", range(6))
def test_augmentation_that_fires_rarely_is_not_taken_for_corruption(seed):
    torch.manual_seed(seed)
    flip = rows_loader(lambda i: -torch.ones(3) if torch.rand(()) < 0.02 else torch.ones(3), length=128)
    assert checked(flip, seconds=0.3, num_workers=2).status == "ok"


def test_augmentation_seeded_from_the_worker_is_no_corruption():
    def row(i):
        info = get_worker_info()
        return i, torch.tensor(np.random.default_rng([info.seed if info else 7, i]).random())

    assert checked(rows_loader(row), num_workers=2).status == "ok"


def test_data_that_change_with_every_build_are_not_compared():
    def build(**knobs):
        noise = torch.rand(64)
        dataset = Rows(lambda i: noise[i], corrupt=lambda i, row: row + 1)
        return DataLoader(dataset, batch_size=4, **knobs)

    result = checked(build, num_workers=2)
    assert result.status == "ok"
    assert any("built again" in note for note in result.notes)


@dataclasses.dataclass(frozen=True)
class Pair:
    ids: torch.Tensor
    mask: torch.Tensor


class Two(NamedTuple):
    x: torch.Tensor
    y: list


class Fields(dict):
    def __init__(self, rows):
        super().__init__(ids=torch.stack(rows), names=[f"row {int(r[0])}" for r in rows])


class HomeMade:
    def __init__(self, rows):
        self.ids, self.extra = torch.stack(rows), {"count": len(rows)}


def pad(rows):
    return torch.nn.utils.rnn.pad_sequence([torch.ones(1 + int(r[0]) % 7) * r[0] for r in rows], batch_first=True)


COLLATES = {
    "default": None,
    "ragged list": lambda rows: [torch.ones(1 + int(r[0]) % 5) for r in rows],
    "dict subclass": Fields,
    "frozen dataclass": lambda rows: Pair(torch.stack(rows), torch.ones(len(rows), 3)),
    "UserDict": lambda rows: collections.UserDict(ids=torch.stack(rows)),
    "home-made class": HomeMade,
    "named tuple": lambda rows: Two(torch.stack(rows), [1] * len(rows)),
    "strings": lambda rows: [f"text {int(r[0])}" for r in rows],
    "bytes and None": lambda rows: ([bytes(4)] * len(rows), None, 3.5),
    "bfloat16": lambda rows: torch.stack(rows).bfloat16(),
    "padded": pad,
}


@pytest.mark.parametrize("collate", COLLATES.values(), ids=COLLATES.keys())
def test_any_kind_of_batch_is_right_until_a_worker_changes_it(collate):
    fixed = {"collate_fn": collate, "shuffle": True, "multiprocessing_context": None}
    sound = checked(rows_loader(lambda i: torch.full((2,), float(i)), **fixed), num_workers=2)
    assert (sound.status, sound.reason) == ("ok", "")
    assert sound.worker_samples == (32, 32)
    assert (sound.batches, sound.samples, sound.epoch_complete) == (16, 64, True)


def test_a_batch_that_loses_its_class_is_wrong():
    home = os.getpid()

    def collate(rows):
        return Fields(rows) if os.getpid() == home else dict(Fields(rows))

    result = checked(rows_loader(lambda i: torch.full((2,), i), collate_fn=collate), num_workers=1)
    assert result.status == "wrong_data"
    assert result.reason.startswith("batch type changes: Fields{")


class Rewrapped(DataLoader):
    """A subclass that changes, repeats or drops batches on their way out when it has workers."""

    def __init__(self, *args, change, **kw):
        super().__init__(*args, **kw)
        self.change = change

    def __iter__(self):
        for k, batch in enumerate(super().__iter__()):
            yield from self.change(k, batch) if self.num_workers else [batch]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda k, b: [b], ""),
        (lambda k, b: [] if k == 3 else [b], "lost samples: 4 of 64"),
        (lambda k, b: [b, b] if k == 3 else [b], "repeated data: 4 of 64 samples came more often"),
        (lambda k, b: [b.tolist()], "batch type changes: Tensor(int64)"),
    ],
)
def test_a_loader_that_interferes_between_worker_and_loop_is_compared_as_a_stream(change, words):
    data = torch.arange(64)
    result = checked(lambda **kw: Rewrapped(data, batch_size=4, shuffle=True, change=change, **kw), num_workers=2)
    assert (result.status, words in result.reason) == ("wrong_data" if words else "ok", True)
    assert result.worker_samples is None


class SlowFirst(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        time.sleep(0.1 if i == 0 else 0.0)
        return torch.tensor(i)


def test_out_of_order_arrivals_are_matched_to_what_was_asked_for():
    result = checked(lambda **kw: DataLoader(SlowFirst(), batch_size=5, **kw), num_workers=2, in_order=False)
    assert (result.status, result.samples, sum(result.worker_samples)) == ("ok", 60, 60)
    assert result.worker_samples[0] < result.worker_samples[1]


class Buckets:
    def __iter__(self):
        yield from ([0], [1, 2, 3], list(range(4, 20)))

    def __len__(self):
        return 3


class Batched(Rows):
    def __getitems__(self, indices):
        return [torch.tensor(2 * i) for i in indices]  # not what __getitem__ says: shows which one was used


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_samplers_batch_samplers_and_batched_fetches_are_kept(kind):
    data = TensorDataset(torch.arange(20))
    assert checked(lambda **kw: kind(data, batch_sampler=Buckets(), **kw), num_workers=2).samples == 20
    assert checked(lambda **kw: kind(data, batch_size=None, **kw), num_workers=2).status == "ok"
    assert checked(lambda **kw: kind(Batched(lambda i: i), batch_size=8, **kw), num_workers=2).worker_samples == (
        32,
        32,
    )
    sampler = DistributedSampler(data, num_replicas=3, rank=1, seed=3)
    sampler.set_epoch(5)
    result = checked(lambda **kw: kind(data, batch_size=5, sampler=sampler, **kw), num_workers=1)
    assert (result.status, result.samples, sampler.epoch) == ("ok", 7, 5)


def test_fewer_batches_than_workers_leave_workers_without_work():
    result = checked(rows_loader(lambda i: i, length=8), num_workers=3)
    assert (result.status, result.worker_samples) == ("ok", (4, 4, 0))
    assert result.notes == ("1 of 3 workers delivered nothing: an epoch has only 2 batches",)


class OwnsGenerator(Dataset):
    def __init__(self, per_worker):
        self.per_worker, self.rng = per_worker, random.Random(99)

    def __len__(self):
        return 100

    def __getitem__(self, i):
        if self.per_worker and get_worker_info():
            self.rng, self.per_worker = random.Random(get_worker_info().seed), False
        return i, torch.tensor(self.rng.random())


@pytest.mark.parametrize(("per_worker", "noted"), [(False, True), (True, False)])
def test_randomness_that_repeats_across_workers_is_a_note_and_no_fault(per_worker, noted):
    result = checked(lambda **kw: DataLoader(OwnsGenerator(per_worker), batch_size=5, **kw), num_workers=2)
    assert result.status == "ok"
    assert (result.notes == ("randomness repeats across workers: seed from get_worker_info().seed",)) == noted


def test_data_that_only_workers_can_fetch_are_left_uncompared():
    home, build = os.getpid(), rows_loader(lambda i: i)
    kept = reference(build, SECONDS)

    def only_workers(i):
        if os.getpid() == home:
            raise RuntimeError("no handle here")
        return i

    settings = LoaderSettings(num_workers=1)
    result = check(rows_loader(only_workers)(num_workers=1), settings, kept, SECONDS)
    assert result.status == "ok"
    assert "RuntimeError: no handle here" in result.notes[0]


def test_an_error_in_a_worker_is_the_callers_to_report_and_leaves_no_worker():
    def row(i):
        if i == 40 and get_worker_info():
            raise KeyError("row 40")
        return i

    with pytest.raises(KeyError, match="row 40"):
        checked(rows_loader(row), num_workers=2)
    assert not multiprocessing.active_children()


def test_random_states_are_as_before():
    generator = torch.Generator().manual_seed(4)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), generator.get_state()
    build = rows_loader(lambda i: torch.rand(2), shuffle=True, generator=generator)
    checked(build, num_workers=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert torch.equal(generator.get_state(), before[3])


def test_nothing_is_checked_where_nothing_can_differ():
    kept = reference(rows_loader(lambda i: i), SECONDS)
    assert check(None, LoaderSettings(), kept).status == "ok"


def test_batches_formed_on_the_worker_are_checked_like_any():
    def build(corrupt):
        loader = rows_loader(lambda i: (i, torch.rand(2)), corrupt, shuffle=True)
        return loader, lambda **kw: whole_batches(loader(**kw)) if kw else loader()

    for corrupt, status in ((None, "ok"), (lambda i, row: (i + 1, row[1]), "wrong_data")):
        zero, build_on_worker = build(corrupt)
        settings = LoaderSettings(num_workers=2, batch_on_worker=True)
        result = check(build_on_worker(**settings.loader_kwargs()), settings, reference(zero, SECONDS), SECONDS, zero)
        assert (result.status, result.samples, result.worker_samples) == (status, 64, (32, 32))
    stream = stream_loader(sharded)
    result = check(whole_batches(stream(num_workers=2)), settings, reference(stream, SECONDS), SECONDS, stream)
    assert (result.status, result.samples, result.epoch_complete) == ("ok", 240, True)


# --- streams ---------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    """`values` in order; `split(values, id, workers)` says which of them a worker yields."""

    def __init__(self, values, split, finish=lambda value: value):
        self.values, self.split, self.finish = values, split, finish

    def __iter__(self):
        for value in self.split(self.values, *worker()):
            yield self.finish(value)


def whole(values, i, n):
    return values


def sharded(values, i, n):
    return values[i::n]


def stream_loader(split, values=range(240), finish=torch.tensor, kind=DataLoader, **fixed):
    return lambda **knobs: kind(Stream(values, split, finish), **{"batch_size": 8, **fixed, **knobs})


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_stream_that_every_worker_yields_in_full_is_wrong(kind, workers):
    result = checked(stream_loader(whole, kind=kind), num_workers=workers)
    assert result.status == "wrong_data"
    assert f"dataset is not sharded by worker: each sample came {workers:.1f} times" in result.reason
    assert f"at most {1 / workers:.0%} of" in result.reason
    assert result.worker_samples == (240,) * workers
    assert checked(stream_loader(sharded, kind=kind), num_workers=workers).status == "ok"
    assert checked(stream_loader(whole, kind=kind), num_workers=1).status == "ok"


def test_repeats_are_found_under_random_augmentation_by_counting():
    noisy = {"finish": lambda value: torch.rand(3)}
    assert "2.0 times" in checked(stream_loader(whole, **noisy), num_workers=2).reason
    assert checked(stream_loader(sharded, **noisy), num_workers=2).status == "ok"


@pytest.mark.parametrize("finish", [torch.tensor, lambda value: (value, torch.rand(2))])
def test_an_endless_stream_is_judged_by_its_beginning(finish):
    def build(step):
        def split(values, i, n):
            return itertools.count(i, n) if step else itertools.count()

        return stream_loader(split, None, finish)

    wrong = checked(build(step=False), seconds=0.3, num_workers=2)
    # The beginning of both workers' streams: one may be a little ahead when time is up.
    assert re.search(r"each sample came (1\.[5-9]|2\.0) times", wrong.reason)
    assert not wrong.epoch_complete
    assert checked(build(step=True), seconds=0.3, num_workers=2).status == "ok"


def test_an_endless_stream_over_few_samples_may_repeat_itself():
    def cycled(values, i, n):
        return itertools.cycle(values[i::n])

    assert checked(stream_loader(cycled), seconds=0.3, num_workers=2).status == "ok"
    both = checked(stream_loader(lambda v, i, n: itertools.cycle(v)), seconds=0.3, num_workers=2)
    assert both.status == "wrong_data"


def test_an_endless_stream_may_start_a_small_shard_again():
    def uneven(values, i, n):
        return itertools.cycle([values, values[:60] if i == 0 else values[60:]][n > 1])

    assert checked(stream_loader(uneven), seconds=0.3, num_workers=2).status == "ok"


def test_sampling_with_replacement_is_no_repeat():
    def drawn(values, i, n):
        rng = random.Random(torch.initial_seed())
        return (rng.choice(values) for _ in itertools.count())

    assert checked(stream_loader(drawn, range(1000)), seconds=0.3, num_workers=2).status == "ok"


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (lambda v, i, n: v[i * (len(v) // n) : (i + 1) * (len(v) // n)], "lost samples: 1 of 241"),
        (lambda v, i, n: [v, v[:120], v[110:]][(n > 1) * (i + 1)], "repeated data: 10 of 241"),
        (lambda v, i, n: v[:0] if n > 1 else v, "lost samples: 241 of 241"),
        (sharded, ""),
    ],
)
def test_lost_and_overlapping_shards_are_counted(split, words):
    result = checked(stream_loader(split, range(241)), num_workers=2)
    assert (result.status, words in result.reason) == ("wrong_data" if words else "ok", True)


def test_a_tail_that_every_worker_drops_is_a_note_with_its_count():
    result = checked(stream_loader(sharded, range(240), drop_last=True, batch_size=16), num_workers=4)
    assert result.status == "ok"
    assert result.notes == ("48 of 240 samples are dropped: each worker leaves out its own unfilled last batch",)


def test_a_shuffled_stream_is_a_multiset():
    def shuffled(values, i, n):
        order = torch.randperm(len(values), generator=torch.Generator().manual_seed(5)).tolist()
        return [values[k] for k in order[i::n]]

    assert checked(stream_loader(shuffled), num_workers=3).status == "ok"


@pytest.mark.parametrize(("split", "status"), [(sharded, "ok"), (whole, "wrong_data")])
def test_padding_that_depends_on_the_batch_is_no_fault(split, status):
    def ones(value):
        return torch.full((1 + value % 7,), value)

    def collate(rows):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    assert checked(stream_loader(split, finish=ones, collate_fn=collate), num_workers=2).status == status


def test_whole_batches_from_the_stream_itself():
    def finish(k):
        return torch.full((24, 3), float(k)), torch.full((24,), k)

    sound = checked(stream_loader(sharded, range(50), finish, batch_size=None), num_workers=4)
    assert (sound.status, sound.samples, sound.worker_samples) == ("ok", 1200, (312, 312, 288, 288))
    assert checked(stream_loader(whole, range(50), finish, batch_size=None), num_workers=2).status == "wrong_data"


def test_fewer_shards_than_workers_is_a_note():
    def by_shard(values, i, n):
        return list(itertools.chain(*[values[:120], values[120:]][i::n]))

    result = checked(stream_loader(by_shard), num_workers=4)
    assert (result.status, result.worker_samples) == ("ok", (120, 120, 0, 0))
    assert result.notes == (
        "2 of 4 workers delivered nothing (2 shards): more than 2 workers cannot help; make more shards",
    )
    assert checked(stream_loader(by_shard), num_workers=2).notes == ()


def test_a_plain_iterable_is_compared_too():
    class Plain:
        def __init__(self, times):
            self.times = times

        def __iter__(self):
            return iter([torch.arange(8) + 8 * (k // self.times) for k in range(30 * self.times)])

    kept = reference(lambda: Plain(1), SECONDS)
    assert check(Plain(1), LoaderSettings(num_workers=2), kept, SECONDS).status == "ok"
    assert "2.0 times" in check(Plain(2), LoaderSettings(num_workers=2), kept, SECONDS).reason


class Reshuffled(IterableDataset):
    def __init__(self, shared):
        self._epoch = multiprocessing.Value("i", 7) if shared else None
        self.epoch = 7

    def set_epoch(self, epoch):
        self.epoch = epoch
        if self._epoch is not None:
            self._epoch.value = epoch

    def __iter__(self):
        epoch = self._epoch.value if self._epoch is not None else self.epoch
        i, n = worker()
        order = torch.randperm(128, generator=torch.Generator().manual_seed(epoch)).tolist()
        yield from ((torch.rand(()), k) for k in order[i::n])


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_an_epoch_number_that_never_reaches_living_workers_is_wrong(kind):
    def build(shared):
        dataset = Reshuffled(shared)
        return dataset, lambda **kw: kind(dataset, batch_size=8, **kw)

    dataset, loader = build(shared=False)
    result = checked(loader, num_workers=2, persistent_workers=True)
    assert result.status == "wrong_data"
    assert "set_epoch()" in result.reason
    assert dataset.epoch == 7
    assert checked(loader, num_workers=2).status == "ok"
    assert checked(build(shared=True)[1], num_workers=2, persistent_workers=True).status == "ok"


# --- comparing two logs, by hand -------------------------------------------------------------------------------------


def log(keys, complete=True, **fields):
    return SampleLog(len(keys), np.asarray(keys, dtype=np.uint64), complete, **fields)


@pytest.mark.parametrize(
    ("kept", "seen", "words"),
    [
        (log(range(100)), log(list(range(100))[::-1]), ""),
        (log(range(100)), log([*range(100), 7]), "1 of 100 samples came more often"),
        (log(range(100)), log([*range(99), 7]), "1 of 100 samples came more often"),
        (log(range(100)), log(range(97)), "3 of 100"),
        (log(range(100)), log([*range(60), 3, 4], complete=False), "2 of 62"),
        (log(range(100)), log([*range(60)], complete=False), ""),
        (log(range(100)), log([*range(100), *range(100)], complete=False), "200 samples came from an epoch of 100"),
        (log(range(100), False), log(range(50)), "the epoch ended after 50"),
        (log(range(100), False), log([k // 2 for k in range(400)], False), "each sample came 2.0 times"),
        (log([1, 2] * 50), log([2, 1] * 50), ""),
        (log(range(100), totals=(100, 104), reproducible=False), log(range(110)), ""),
        (log(range(100), totals=(100, 104), reproducible=False), log(range(150)), "1.5 times"),
        (log(range(100)), log([]), "100 of 100"),
        (log([]), log([]), ""),
        (log(range(10), False), log([1] * 10, False), ""),
        (log(range(160), False), log([*range(40), *range(40)], False, workers=np.repeat([0, 1], 40)), "2.0 times"),
        (log(range(160), False), log([*range(40), *range(40)], False, workers=np.repeat([0, 0], 40)), ""),
    ],
)
def test_two_logs(kept, seen, words):
    reason = compare(kept, seen, workers=2, droppable=0).reason
    assert words in reason
    assert bool(words) == bool(reason)


def test_a_worker_that_is_a_round_ahead_of_another_is_told_and_is_no_fault():
    """Shards of 60, 60 and 40 samples dealt in turn, for ever: worker 1 has the small one, and begins again."""
    alone = [*range(160), *range(160)]
    first, second = list(range(60)), [*range(120, 160), *range(20)]
    both = [key for pair in zip(first, second, strict=False) for key in pair]
    workers = np.tile([0, 1], len(first))
    found = compare(log(alone, False), log(both, False, workers=workers), workers=2, droppable=0)
    assert found.reason == ""
    assert found.notes == ()  # in the first half of a round, none is ahead
    found = compare(log(range(260), False), log(both, False, workers=workers), workers=2, droppable=0)
    assert found.reason == ""
    assert "20 of the first 120 samples came from more than one worker" in found.notes[0]


# -- a dataset that keeps what it has read --


def look(*gaps: float) -> _Look:
    """A look whose batches came so many seconds apart."""
    made = _Look()
    made.arrivals.extend(itertools.accumulate(gaps, initial=0.0))
    made.batches = len(gaps) + 1
    return made


def test_how_much_faster_a_second_look_was_rests_on_the_usual_batch_and_not_on_one_delay():
    assert _speed_up(look(*[0.02] * 12), look(*[0.002] * 30)) == pytest.approx(10)
    assert _speed_up(look(0.5, *[0.02] * 12), look(*[0.02] * 12)) == pytest.approx(1)
    assert _speed_up(look(*[0.02] * 5), look(*[0.002] * 30)) is None
    assert _speed_up(look(*[0.0001] * 30), look(*[0.00001] * 30)) is None


def test_only_a_second_look_that_was_far_faster_is_told():
    made = reference(lambda: DataLoader(list(range(40)), batch_size=2), 0.2)

    assert dataclasses.replace(made, second_look=2.9).note == dataclasses.replace(made, second_look=None).note == ""
    assert "began 6.0 times as fast" in dataclasses.replace(made, second_look=6.0).note
