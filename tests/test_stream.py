"""ShardStream and StreamLoader: every sample of every epoch once, whatever is stopped, resumed and split anew."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.resumed import PROPERTY
from tests.simulated_ranks import SimulatedRank
from workbench.errors import LayoutError, ResumeError, SettingsError, SourceError
from workbench.layouts.conversion import convert
from workbench.layouts.reader import ShardedReader, open_dataset
from workbench.streaming.loader import StreamLoader, merge_states
from workbench.streaming.order import EpochOrder, shuffled
from workbench.streaming.passes import Passes
from workbench.streaming.shards import TokenBlocks, as_shards
from workbench.streaming.spans import cut, outside, packed, size, united, unpacked
from workbench.streaming.split import Seat, share_of_rank, share_of_seat
from workbench.streaming.stream import ShardStream

spans_of_hundred = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda p: tuple(sorted(p)))).map(
    united
)


def numbered(counts: list[int]) -> list[range]:
    """Shards whose samples are the numbers from 0 on."""
    ends = list(itertools.accumulate(counts))
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


def sixty_by_four(**options: Any) -> ShardStream:
    return ShardStream(numbered([60] * 4), **{"window": 16, **options})


def ids_of(loader: Any, batches: int | None = None) -> list[list[int]]:
    """The batches of one pass, or its first ones, as lists of ids."""
    return [batch.tolist() for batch in itertools.islice(loader, batches)]


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


class CountingShards:
    """Shards that remember which of them were opened; the samples are (shard, row)."""

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.opened = counts, []

    def read(self, shard: int, start: int) -> Iterator[tuple[int, int]]:
        self.opened.append(shard)
        return ((shard, row) for row in range(start, self.counts[shard]))

    def fingerprint(self) -> str:
        return f"counting {self.counts}"


# ---------------------------------------------------------------------------------------------- spans, order, shares


@PROPERTY
@given(spans_of_hundred, st.integers(0, 99), st.integers(0, 99))
def test_spans_are_sets_and_paths(spans, start, stop):
    held = [position for begin, end in spans for position in range(begin, end)]
    assert unpacked(packed(spans)) == spans
    assert sorted(held + [p for a, b in outside(spans, 100) for p in range(a, b)]) == list(range(100))
    assert size(spans) == len(held)
    assert [p for a, b in cut(spans, start, stop) for p in range(a, b)] == held[start:stop]


def test_a_damaged_position_is_refused_in_one_sentence():
    with pytest.raises(ResumeError, match="damaged"):
        unpacked("no such text")


@PROPERTY
@given(st.integers(0, 300), st.integers(0, 2**64), st.integers(0, 9))
def test_shuffles_are_permutations(count, seed, epoch):
    assert sorted(shuffled(count, seed, epoch)) == list(range(count))


def test_the_same_seed_gives_the_same_order_in_every_version():
    assert EpochOrder.of([3, 0, 4], 5, 1, shuffle=True, window=4).shards == GOLDEN_SHARDS
    assert shuffled(8, 7).tolist() == GOLDEN_ROWS


GOLDEN_SHARDS = (2, 0)
GOLDEN_ROWS = [5, 4, 2, 3, 1, 0, 7, 6]


@PROPERTY
@given(spans_of_hundred, st.integers(1, 7), st.integers(0, 4), st.integers(1, 9))
def test_shares_cover_what_is_left_and_keep_to_the_policy(left, world_size, num_workers, batch_size):
    everything = [p for a, b in left for p in range(a, b)]
    for policy in ("exact", "drop", "pad"):
        ranks = [share_of_rank(left, rank, world_size, policy) for rank in range(world_size)]
        shares = [
            [
                share_of_seat(left, Seat(rank, world_size, worker, num_workers), policy, batch_size)
                for worker in range(max(1, num_workers))
            ]
            for rank in range(world_size)
        ]
        for rank, of_rank in zip(ranks, shares, strict=True):
            assert united_path(itertools.chain(*of_rank)) == united_path(rank)
            assert sum(size(share) % batch_size > 0 for share in of_rank) <= 1
        given_out = united_path(itertools.chain(*ranks))
        sizes = {size(rank) for rank in ranks}
        if policy == "exact":
            assert given_out == everything and max(sizes) - min(sizes) <= 1
        elif policy == "drop":
            assert given_out == everything[: len(given_out)] and len(everything) - len(given_out) < world_size
            assert len(sizes) == 1
        else:
            assert len(sizes) == 1 and set(given_out) == set(everything)
            assert len(given_out) - len(everything) < world_size


def united_path(path) -> list[int]:
    return [position for begin, end in path for position in range(begin, end)]


# ------------------------------------------------------------------------------------------- exactly once, by property

legs = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 12), st.integers(1, 4), st.integers(1, 5)),
    min_size=1,
    max_size=4,
)


DATA_SETS = [(layout, *shape) for layout in ("files", "parquet", "tar", "tokens") for shape in ((17, 5), (60, 3))]
"""Layout, samples and shards of data sets on disk whose samples are the numbers from 0 on."""


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> dict[tuple[str, int, int], ShardedReader]:
    """The data sets, opened."""
    folder, opened = tmp_path_factory.mktemp("layouts"), {}
    for layout, samples, shards in DATA_SETS:
        made = [{"__key__": f"{n:03d}", "txt": str(n), "tokens": [n]} for n in range(samples)]
        field = "tokens" if layout == "tokens" else "txt"
        named = [{"__key__": sample["__key__"], field: sample[field]} for sample in made]
        target = folder / f"{layout}-{samples}"
        convert(named, target, layout, shards=shards, processes=1)
        opened[layout, samples, shards] = open_dataset(target)
    return opened


def number_of(sample: dict[str, Any]) -> int:
    """What a sample of any of the layouts was made from."""
    if "tokens" in sample:
        return int(sample["tokens"][0])
    text = sample["txt"]
    return int(text.decode() if isinstance(text, bytes) else text)


AHEAD = {
    "source": [0, 0, 7, 30, 12, 30, 30, 30, 30],
    "seed": 0,
    "window": 1,
    "shuffle": False,
    "whole": False,
    "batch_size": 6,
    "epoch": 0,
}
"""Of four ranks one has a batch more than the others, which are in the next epoch before it."""


@PROPERTY
@given(
    source=st.one_of(st.lists(st.integers(0, 30), min_size=0, max_size=9), st.sampled_from(DATA_SETS)),
    seed=st.integers(0, 3),
    window=st.integers(1, 20),
    shuffle=st.booleans(),
    whole=st.booleans(),
    batch_size=st.integers(1, 8),
    epoch=st.integers(0, 2),
    persistent=st.booleans(),
    legs=legs,
)
@example(  # the same with workers that are made anew for the epoch that others had begun
    **AHEAD,
    persistent=False,
    legs=[(4, 1, 8, 1, 1), (4, 1, 1, 1, 1), (1, 2, 0, 1, 1), (1, 2, 0, 1, 1)],
)
@example(  # three ranks are an epoch ahead when all are merged, and the one that goes on is killed before it gets there
    **AHEAD,
    persistent=True,
    legs=[(4, 0, 8, 1, 1), (4, 0, 1, 1, 1), (1, 0, 0, 1, 1), (1, 0, 0, 1, 1)],
)
def test_every_sample_once_whatever_is_killed_and_split_anew(
    readers, source, seed, window, shuffle, whole, batch_size, epoch, persistent, legs
):
    on_disk = isinstance(source, tuple)

    def make(rank: int, world_size: int) -> ShardStream:
        options = {"batch_size": batch_size, "collate": np.array} if whole else {}
        return ShardStream(
            readers[source] if on_disk else numbered(source),
            transform=number_of if on_disk else None,
            seed=seed,
            window=window,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            **options,
        )

    handed_out: dict[int, Counter] = defaultdict(Counter)
    states, merged = None, None
    for number, (world_size, num_workers, steps, ahead, every) in enumerate(legs):
        same = states is not None and (world_size, num_workers) == legs[number - 1][:2]
        ranks = [
            SimulatedRank(
                make,
                rank,
                world_size,
                num_workers,
                batch_size=None if whole else batch_size,
                ahead=ahead,
                snapshot_every=every,
                state=states[rank] if same else None,
                merged=None if same else merged,
                epoch=epoch if states is None else None,
                persistent=persistent,
            )
            for rank in range(world_size)
        ]
        for rank in ranks:
            handed_out[rank.epoch].update(flat(list(itertools.islice(rank, steps))))
        states = [rank.state_dict() for rank in ranks]
        if number + 1 < len(legs) and legs[number + 1][:2] != (world_size, num_workers):
            assume(len({rank.epoch for rank in ranks}) <= 2)
            merged = merge_states(make(0, 1), states)
    last = max(rank.epoch for rank in ranks) + 1
    for rank in ranks:
        handed_out[rank.epoch].update(flat(list(rank)))
        while rank.epoch < last:
            rank.next_epoch()
            handed_out[rank.epoch].update(flat(list(rank)))
    everything = Counter(range(source[1] if on_disk else sum(source)))
    assert handed_out == {number: everything for number in range(epoch, last + 1)}


@PROPERTY
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    world_size=st.integers(1, 3),
    num_workers=st.integers(0, 3),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    cuts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    ahead=st.integers(1, 4),
    every=st.integers(1, 6),
)
def test_the_same_numbers_go_on_in_the_same_order(
    counts, world_size, num_workers, batch_size, drop_last, cuts, ahead, every
):
    def make(rank: int, world_size: int) -> ShardStream:
        return ShardStream(numbered(counts), window=8, rank=rank, world_size=world_size)

    for rank in range(world_size):
        shape = (make, rank, world_size, num_workers)
        options = {"batch_size": batch_size, "drop_last": drop_last, "ahead": ahead, "snapshot_every": every}
        uninterrupted, resumed, state = list(SimulatedRank(*shape, **options)), [], None
        for steps in [*cuts, None]:
            loader = SimulatedRank(*shape, **options, state=state)
            resumed += list(itertools.islice(loader, steps))
            state = pickle.loads(pickle.dumps(loader.state_dict()))
            if loader.finished:
                break
        assert resumed == uninterrupted


@PROPERTY
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    steps=st.integers(0, 20),
    policy=st.sampled_from(["drop", "pad"]),
)
def test_drop_and_pad_give_every_rank_the_same_and_lose_or_repeat_as_few_as_stated(
    counts, before, after, steps, policy
):
    def make(rank: int, world_size: int) -> ShardStream:
        return ShardStream(numbered(counts), remainder=policy, window=4, rank=rank, world_size=world_size)

    first = [SimulatedRank(make, rank, before, 0, batch_size=1) for rank in range(before)]
    handed_out = Counter(flat([batch for rank in first for batch in itertools.islice(rank, steps)]))
    merged = merge_states(make(0, 1), [rank.state_dict() for rank in first])
    second = [SimulatedRank(make, rank, after, 0, batch_size=1, merged=merged) for rank in range(after)]
    rest = [flat(list(rank)) for rank in second]
    assert len({len(of_rank) for of_rank in rest}) == 1
    ended = all(rank.finished for rank in first)  # then the rest is the next epoch
    handed_out.update([] if ended else flat(rest))
    everything = Counter(range(sum(counts)))
    lost, repeated = everything - handed_out, handed_out - everything
    if policy == "drop":
        assert not repeated and lost.total() < max(before, after)
    else:
        assert not lost and repeated.total() < before + after


# ------------------------------------------------------------------------------------------------ with real processes


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("loader_class", [StatefulDataLoader, StreamLoader])
def test_each_pass_is_the_next_epoch_in_old_and_new_workers(loader_class, num_workers, persistent):
    loader = loader_class(
        sixty_by_four(), batch_size=6, num_workers=num_workers, persistent_workers=persistent and num_workers > 0
    )
    epochs = [flat(ids_of(loader)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(240)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    loader.dataset.set_epoch(1)
    assert flat(ids_of(loader)) == epochs[1]
    assert flat(ids_of(loader)) == epochs[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_that_was_abandoned_is_followed_by_the_next_epoch(num_workers):
    loader = StreamLoader(sixty_by_four(), batch_size=6, num_workers=num_workers)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
    del iterator
    third = flat(ids_of(loader))
    loader.dataset.set_epoch(2)
    assert flat(ids_of(loader)) == third and sorted(third) == list(range(240))


@pytest.mark.parametrize("cut_point", [0, 1, 7, 19, 40])
def test_a_state_taken_with_batches_in_flight_goes_on_at_the_next_sample(cut_point):
    """Case 47: cuts at 0, 1, 7 and 19 batches of 6, and at the end of the epoch; S7: loaded with 0, 1 and 4 workers."""
    whole = ids_of(StreamLoader(sixty_by_four(), batch_size=6, num_workers=2))
    loader = StreamLoader(sixty_by_four(), batch_size=6, num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    before = ids_of(iterator, cut_point)
    state = loader.state_dict()
    del iterator, loader
    assert len(pickle.dumps(state)) < 2_000
    for num_workers in (2, 0, 1, 4) if cut_point in (7, 40) else (2,):
        resumed = StreamLoader(sixty_by_four(), batch_size=6, num_workers=num_workers)
        resumed.load_state_dict(state)
        after = ids_of(resumed)
        assert sorted(flat(before + after)) == list(range(240))
        if num_workers == 2:
            assert before + after == whole
        assert flat(ids_of(resumed)) != flat(whole), "the epoch after the resumed one is the next"


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_two_resumes_in_a_row(num_workers):
    whole = ids_of(StreamLoader(sixty_by_four(), batch_size=6, num_workers=num_workers))
    got, state = [], {}
    for batches in (7, 5, None):
        loader = StreamLoader(sixty_by_four(), batch_size=6, num_workers=num_workers)
        loader.load_state_dict(state)
        iterator = iter(loader)
        got += ids_of(iterator, batches)
        state = loader.state_dict()
        del iterator
    assert got == whole


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("ended", [False, True])
def test_at_the_end_of_an_epoch(num_workers, ended):
    """After the last batch the rest is empty; after the loop has seen the end, the next epoch begins."""
    loader = StreamLoader(sixty_by_four(), batch_size=6, num_workers=num_workers)
    iterator = iter(loader)
    ids_of(iterator, None if ended else 40)
    state = loader.state_dict()
    del iterator
    second = ids_of(loader)
    for workers in {num_workers, 1}:
        resumed = StreamLoader(sixty_by_four(), batch_size=6, num_workers=workers)
        resumed.load_state_dict(state)
        if not ended:
            assert ids_of(resumed) == []
        following = ids_of(resumed)
        assert following == second if workers == num_workers else sorted(flat(following)) == list(range(240))


def test_snapshots_taken_seldom_lose_nothing():
    for cut_point, num_workers in ((13, 2), (11, 1)):
        loader = StreamLoader(sixty_by_four(), batch_size=7, num_workers=2, snapshot_every_n_steps=10)
        iterator = iter(loader)
        before = ids_of(iterator, cut_point)
        state = loader.state_dict()
        del iterator
        resumed = StreamLoader(sixty_by_four(), batch_size=7, num_workers=num_workers)
        resumed.load_state_dict(state)
        assert sorted(flat(before + ids_of(resumed))) == list(range(240))


def test_processes_forked_from_one_do_not_share_epochs():
    """Trials and ranks are forked from one process: what one of them iterated must not move another's epoch."""
    stream = sixty_by_four()
    stream.set_epoch(3)
    loader = StreamLoader(stream, batch_size=24, num_workers=2)
    context = multiprocessing.get_context("fork")
    epochs = []
    for _ in range(2):
        answers = context.SimpleQueue()
        child = context.Process(target=lambda queue=answers: queue.put([flat(ids_of(loader)) for _ in range(2)]))
        child.start()
        epochs.append(answers.get())
        child.join()
    assert epochs[0] == epochs[1] and epochs[0][0] != epochs[0][1]
    assert epochs[0][0] == flat(ids_of(loader))


def test_spawned_workers_share_the_epoch():
    loader = StreamLoader(
        sixty_by_four(), batch_size=24, num_workers=1, multiprocessing_context="forkserver", persistent_workers=True
    )
    first, second = flat(ids_of(loader)), flat(ids_of(loader))
    assert sorted(first) == sorted(second) == list(range(240)) and first != second
    loader.dataset.set_epoch(0)
    assert flat(ids_of(loader)) == first


def test_ranks_saved_as_two_and_resumed_as_three():
    def make(rank: int, world_size: int, num_workers: int) -> StreamLoader:
        return StreamLoader(sixty_by_four(rank=rank, world_size=world_size), batch_size=6, num_workers=num_workers)

    got, states = [], []
    for rank in range(2):
        loader = make(rank, 2, 1)
        iterator = iter(loader)
        got += ids_of(iterator, 5)
        states.append(loader.state_dict())
        del iterator
    for rank in range(3):
        loader = make(rank, 3, 0)
        loader.load_state_dict(states)
        got += ids_of(loader)
    assert sorted(flat(got)) == list(range(240))
    with pytest.raises(ResumeError, match=r"had 2 ranks, and those of rank 1 are missing"):
        make(0, 3, 0).load_state_dict(states[0])


# -------------------------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (StreamLoader, {"num_workers": 0}),
        (StreamLoader, {"num_workers": 2}),
        (StatefulDataLoader, {"num_workers": 0}),
        (StatefulDataLoader, {"num_workers": 2}),
        (StatefulDataLoader, {"num_workers": 2, "persistent_workers": True}),
        (StatefulDataLoader, {"num_workers": 1, "multiprocessing_context": "spawn"}),
    ],
)
def test_what_other_ranks_had_begun_of_the_next_epoch_survives_a_second_resume(loader, options):
    def made(rank: int, world_size: int, kind: type = StreamLoader, **options: Any) -> StatefulDataLoader:
        stream = ShardStream(numbered([20, 20]), seed=3, rank=rank, world_size=world_size)
        return kind(stream, batch_size=5, **options)

    ahead, behind = made(0, 2), made(1, 2)
    handed_out = Counter(flat(ids_of(ahead)))
    began = next(iter(ahead)).tolist()
    handed_out.update(next(iter(behind)).tolist())

    first = made(0, 1, num_workers=options["num_workers"])
    first.load_state_dict([ahead.state_dict(), behind.state_dict()])
    handed_out.update(next(iter(first)).tolist())
    second = made(0, 1, loader, **options)
    second.load_state_dict(first.state_dict())
    handed_out.update(flat(ids_of(second)))

    assert handed_out == Counter(range(40))
    assert Counter(flat(ids_of(second))) + Counter(began) == Counter(range(40))
    assert Counter(flat(ids_of(second))) == Counter(range(40))


def test_what_lies_ahead_is_forgotten_when_another_state_is_loaded():
    passes = Passes()
    passes.leave(0, 4, ((0, 5), (7, 9)))
    assert (passes.left(0, 4), passes.left(0, 5), passes.left(1, 4)) == (((0, 5), (7, 9)), None, None)
    passes.leave(0, 4, ())
    assert passes.left(0, 4) == ()
    with pytest.raises(ResumeError, match=r"200,000 pieces, .* save states at an epoch's end"):
        passes.leave(
            0,
            4,
            tuple((at, at + 1) for at in np.cumsum(np.random.default_rng(0).integers(2, 90_000, 200_000)).tolist()),
        )


def test_loading_while_iterating_raises_and_never_restarts():
    loader = StreamLoader(sixty_by_four(), batch_size=6)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="already being iterated"):
        loader.load_state_dict(state)
    stream = sixty_by_four()
    samples = iter(stream)
    with pytest.raises(ResumeError, match=r"before iter\(\)"):
        stream.load_state_dict(stream.state_dict())
    del samples
    stream.load_state_dict(stream.state_dict())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (lambda: sixty_by_four(seed=1), "seed 0 then and 1 now"),
        (lambda: ShardStream(numbered([60] * 5), window=16), "samples 240 then and 300 now"),
        (lambda: sixty_by_four(window=8), "window 16"),
        (lambda: ShardStream(numbered([61, 59, 60, 60]), window=16), "shard manifest"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_another_stream_is_named_in_one_sentence(changed, named, num_workers):
    loader = StreamLoader(sixty_by_four(), batch_size=6, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator
    other = StreamLoader(changed(), batch_size=6, num_workers=num_workers)
    with pytest.raises(ResumeError, match=named) as caught:
        other.load_state_dict(state)
    assert "\n" not in str(caught.value)


def test_a_plain_loader_refuses_a_state_of_another_number_of_workers_and_says_the_way_out():
    loader = StatefulDataLoader(sixty_by_four(), batch_size=6, num_workers=2)
    iterator = iter(loader)
    before = ids_of(iterator, 7)
    state = loader.state_dict()
    del iterator
    plain = StatefulDataLoader(sixty_by_four(), batch_size=6, num_workers=1)
    plain.load_state_dict(state)
    with pytest.raises(ResumeError, match="worker 0 of 2 on rank 0 of 1 and is loaded by worker 0 of 1"):
        iter(plain)
    stream = sixty_by_four()
    stream.load_state_dict(merge_states(stream, [state]))
    loader = StatefulDataLoader(stream, batch_size=6, num_workers=1)
    assert sorted(flat(before + ids_of(loader))) == list(range(240))
    assert sorted(flat(ids_of(loader))) == list(range(240))


def test_a_state_can_be_taken_before_the_first_pass_and_starts_no_worker():
    loader = StreamLoader(sixty_by_four(), batch_size=6, num_workers=2)
    state = loader.state_dict()
    assert loader._iterator is None
    other = StreamLoader(sixty_by_four(), batch_size=6, num_workers=0)
    other.load_state_dict(state)
    assert sorted(flat(ids_of(other))) == list(range(240))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"window": 0}, "window=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"remainder": "keep"}, "remainder='keep'"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": 0}, "give both"),
        ({"drop_last": True}, "drop_last"),
    ],
)
def test_impossible_settings_are_refused(options, named):
    with pytest.raises(SettingsError, match=named):
        ShardStream([[1]], **options)


def test_nothing_to_stream_over():
    with pytest.raises(SourceError, match="names of files"):
        as_shards(["a.tar", "b.tar"])
    with pytest.raises(SourceError, match="int is nothing to stream over"):
        as_shards(3)
    assert list(ShardStream([])) == [] and list(ShardStream([[], []])) == []


def test_a_shard_that_holds_fewer_samples_than_it_says():
    shards = CountingShards([4, 4])
    shards.read = lambda shard, start: iter([(shard, start)])
    with pytest.raises(ResumeError, match="ended before row"):
        list(ShardStream(shards))


# ------------------------------------------------------------------------------------------------------ cost of resume


@pytest.mark.parametrize("fraction", [0.5, 0.99, 0.9999])
def test_a_resume_late_in_an_epoch_opens_one_shard_and_its_state_is_small(fraction):
    counts = [100] * 1_000
    stream = ShardStream(CountingShards(counts))
    place = stream.planned_state()
    samples = iter(stream)
    taken = int(fraction * 100_000)
    stream._taken = taken
    state = stream.state_dict()
    del samples
    assert place["epoch"] == 0 and len(pickle.dumps(state)) < 1_000
    resumed = ShardStream(CountingShards(counts))
    resumed.load_state_dict(state)
    first = next(iter(resumed))
    assert len(resumed.shards.opened) == 1
    order = EpochOrder.of(counts, 0, 0, shuffle=True, window=256)
    segment = next(order.segments(((taken, taken + 1),)))
    assert first == (segment.shard, segment.begin + int(segment.rows[0]))


def test_the_state_of_many_workers_and_a_thousand_shards_stays_under_ten_kilobytes():
    def make(rank: int, world_size: int) -> ShardStream:
        return ShardStream(CountingShards([100] * 1_000), rank=rank, world_size=world_size)

    states = []
    for rank in range(8):
        loader = SimulatedRank(make, rank, 8, 8, batch_size=32)
        list(itertools.islice(loader, 40 + rank))
        states.append(loader.state_dict())
    merged = merge_states(make(0, 1), states)
    assert len(pickle.dumps(merged)) < 1_500
    resumed = SimulatedRank(make, 0, 4, 8, batch_size=32, merged=merged)
    next(resumed)
    assert len(pickle.dumps(resumed.state_dict())) < 10_000


def test_streams_ship_small_and_keep_their_epoch():
    stream = sixty_by_four()
    stream.set_epoch(3)
    for copied in (pickle.loads(pickle.dumps(stream)), cloudpickle.loads(cloudpickle.dumps(stream))):
        assert copied.epoch == 3 and list(copied) == list(copy.deepcopy(stream))
    assert len(pickle.dumps(stream)) < 5_000


# ------------------------------------------------------------------------------------------------------- real layouts


def token_data(folder, documents: int = 40, shards: int = 4) -> list[np.ndarray]:
    ids = np.arange(documents * 100, dtype=np.uint16)
    arrays = np.array_split(ids, shards)
    for number, array in enumerate(arrays):
        np.save(folder / f"part-{number}.npy", array)
    return arrays


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_tokens_in_whole_batches(tmp_path, shuffle, num_workers):
    arrays = token_data(tmp_path)
    blocks = TokenBlocks(tmp_path, length=31)
    assert blocks.tokens_left_out == sum(len(array) % 32 for array in arrays)
    stream = ShardStream(blocks, shuffle=shuffle, window=5, batch_size=8)
    batches = list(StreamLoader(stream, batch_size=None, num_workers=num_workers))
    assert len(batches) == len(stream) == len(StreamLoader(stream, batch_size=None, num_workers=num_workers))
    assert all(batch.dtype == torch.int64 and batch.shape[1] == 32 for batch in batches)
    expected = np.concatenate([array[: len(array) // 32 * 32].reshape(-1, 32) for array in arrays])
    got = torch.cat(batches).numpy()
    assert sorted(map(tuple, got.tolist())) == sorted(map(tuple, expected.tolist()))
    by_sample = list(ShardStream(blocks, shuffle=shuffle, window=5))
    if num_workers == 0:
        assert torch.equal(torch.stack(by_sample), torch.cat(batches))


def converted_tokens(folder, container: str) -> Any:
    documents = [{"tokens": list(range(at, at + 97))} for at in range(0, 60 * 97, 97)]
    return convert(documents, folder, "tokens", shards=6, container=container, processes=1)


@pytest.mark.parametrize("container", ["npy", "bin"])
def test_a_manifest_tells_how_many_ids_a_shard_holds_and_none_is_opened_before_its_turn(tmp_path, container):
    converted_tokens(tmp_path / "data", container)
    opened = []
    reader = open_dataset(tmp_path / "data")
    reader.open_shard = lambda shard: opened.append(shard) or ShardedReader.open_shard(reader, shard)
    blocks = TokenBlocks(reader, 31)
    stream = ShardStream(blocks, window=4)
    assert not opened and sum(blocks.counts) * 32 + blocks.tokens_left_out == 60 * 97
    state = stream.state_dict() | {"taken": len(stream) - 2}
    resumed = ShardStream(blocks, window=4)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 2 and len(set(opened)) <= 2
    assert len(list(resumed)) == len(stream) and set(opened) == set(range(6))


def test_a_shard_whose_size_is_not_what_its_header_says_is_named(tmp_path):
    converted_tokens(tmp_path / "data", "npy")
    reader = open_dataset(tmp_path / "data")
    blocks = TokenBlocks(reader, 31)
    np.save(reader.root / reader.shards[2].files[0].path, np.arange(5, dtype=np.uint16))
    with pytest.raises(LayoutError, match="holds 5 ids, and its size in the manifest means 970"):
        list(ShardStream(blocks))


def test_shards_that_lie_elsewhere_are_asked_for_one_ahead():
    class Remote(CountingShards):
        def will_need(self, shard: int) -> None:
            told.append((shard, list(self.opened)))

    told: list[tuple[int, list[int]]] = []
    shards = Remote([4, 0, 6, 5])
    assert len(list(ShardStream(shards, window=3))) == 15
    first, second, third = shards.opened
    assert told == [(second, []), (third, [first])]
    order = EpochOrder.of([4, 6, 5], 0, 0, shuffle=False, window=1)
    assert list(order.shards_along(((1, 3), (3, 4), (9, 12), (0, 1)))) == [0, 1, 2, 0]


def test_any_opened_data_set_streams(tmp_path):
    token_data(tmp_path)
    stream = ShardStream(open_dataset(tmp_path), transform=lambda sample: sample["tokens"].sum())
    assert len(list(stream)) == len(stream) == 4
    assert ShardStream(str(tmp_path)).identity == stream.identity


def test_a_renamed_shard_and_another_length_are_named(tmp_path):
    token_data(tmp_path)
    state = ShardStream(TokenBlocks(tmp_path, 31)).state_dict()
    with pytest.raises(ResumeError, match="sample length 31 then and 15 now"):
        ShardStream(TokenBlocks(tmp_path, 15)).load_state_dict(state)
    (tmp_path / "part-3.npy").rename(tmp_path / "part-9.npy")
    with pytest.raises(ResumeError, match="shard manifest") as caught:
        ShardStream(TokenBlocks(tmp_path, 31)).load_state_dict(state)
    assert "seed" not in str(caught.value)


def test_a_stream_can_be_made_in_a_fork_of_a_process_that_computed_with_threads():
    code = """
import os, torch
from workbench.streaming.stream import ShardStream
torch.set_num_threads(2)
torch.ones(4_000_000).add_(1).sum()
if os.fork() == 0:
    print(list(ShardStream([range(3)], shuffle=False)), flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[0, 1, 2]"
