"""Batches by token budget and by bucket: each sample once, resumed and split anew, and counted right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.resumed import PROPERTY, cut_and_resumed, split_anew
from workbench.errors import ResumeError, SettingsError
from workbench.loaders.counting import count_samples, make_counter
from workbench.measure.trial import measure
from workbench.streaming.batched import BatchedStream, padded
from workbench.streaming.buckets import (
    BucketStream,
    BudgetStream,
    batches_within,
    padding_report,
    quantile_boundaries,
)
from workbench.streaming.loader import StreamLoader
from workbench.streaming.shards import ListShards
from workbench.streaming.split import Seat
from workbench.streaming.stream import ShardStream

lengths_drawn = st.lists(st.integers(0, 40), max_size=40)


def source_of(lengths: list[int]) -> ShardStream:
    """Samples whose ids are all their number, from 1 on."""
    samples = [np.full(length, number + 1) for number, length in enumerate(lengths)]
    return ShardStream(ListShards([samples[at::3] for at in range(3)]), window=4)


def stream_of(lengths: list[int], **options) -> BudgetStream:
    return BudgetStream(source_of(lengths), **{"token_budget": 64, "window": 10, **options})


def buckets_of(lengths: list[int], **options) -> BucketStream:
    return BucketStream(source_of(lengths), **{"boundaries": [4, 16], "batch_size": 3, "window": 15, **options})


KINDS = {"budget": stream_of, "bucket": buckets_of}
kinds_drawn = st.sampled_from(sorted(KINDS))


def sizes_of(batches: list[dict]) -> list[int]:
    return sorted(itertools.chain(*(batch["lengths"].tolist() for batch in batches)))


@PROPERTY
@given(lengths_drawn, st.integers(1, 60), st.one_of(st.none(), st.integers(1, 5)))
def test_batches_hold_every_sample_once_and_keep_the_budget(lengths, budget, most):
    batches = batches_within(lengths, budget, most)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[sample] for sample in batch)
        assert len(batch) * longest <= budget or len(batch) == 1
        assert most is None or len(batch) <= most


def test_a_known_batching_and_its_padding():
    batches = batches_within([5, 1, 2, 9, 2, 5], 10)
    assert batches == [[1, 2, 4], [0, 5], [3]]
    report = padding_report([5, 1, 2, 9, 2, 5], batches)
    assert (report.batches, report.tokens, report.positions) == (3, 24, 25)
    assert report.padding == pytest.approx(1 / 25) and padding_report([], []).padding is None


boundaries_drawn = st.lists(st.integers(1, 45), min_size=1, max_size=5, unique=True).map(sorted)


@PROPERTY
@given(lengths_drawn, boundaries_drawn, st.integers(1, 5), st.booleans())
def test_a_batch_is_of_one_bucket_and_only_the_last_of_each_is_smaller(lengths, boundaries, batch_size, by_tokens):
    budget = batch_size * boundaries[-1]
    full = {"token_budget": budget} if by_tokens else {"batch_size": batch_size}
    groups = list(BucketStream([], boundaries, **full).groups(iter(lengths)))
    assert sorted(itertools.chain(*(members for members, _ in groups))) == list(range(len(lengths)))
    of_bucket: dict[int, list[list[int]]] = {}
    for members, _ in groups:
        held = [lengths[member] for member in members]
        buckets = {sum(length > end for end in boundaries) for length in held}
        assert len(buckets) == 1 and members == sorted(members)
        of_bucket.setdefault(buckets.pop(), []).append(held)
    for bucket, batches in of_bucket.items():
        bounded = bucket < len(boundaries)
        if by_tokens:
            assert all(len(held) * max(held) <= budget or len(held) == 1 for held in batches)
            wanted = budget // boundaries[bucket] if bounded else None
        else:
            wanted = batch_size
        if wanted is not None:
            assert all(len(held) == wanted for held in batches[:-1]) and len(batches[-1]) <= wanted
        else:
            for held, following in itertools.pairwise(batches):
                assert (len(held) + 1) * max(*held, following[0]) > budget, "there was room for one more"


def test_known_buckets_in_the_order_in_which_they_fill():
    lengths = [1, 9, 4, 5, 40, 2, 3, 30, 8]
    stream = BucketStream([np.zeros(length, dtype=int) for length in lengths], [4, 8], batch_size=2)
    assert [batch["lengths"].tolist() for batch in stream] == [[1, 4], [9, 40], [2, 3], [5, 8], [30]]
    to_end = BucketStream([[7] * length for length in lengths], [4, 8], batch_size=(2, 1, 9), pad_to_boundary=True)
    shapes = [tuple(batch["input_ids"].shape) for batch in to_end]
    assert shapes == [(2, 4), (1, 8), (2, 4), (1, 8), (3, 40)]
    every_four = BucketStream([[7] * length for length in lengths], [4, 8], batch_size=2, window=4)
    assert [batch["lengths"].tolist() for batch in every_four] == [[1, 4], [5], [9], [2, 3], [40, 30], [8]]


def test_boundaries_from_quantiles_of_a_sample():
    assert quantile_boundaries(range(1, 101), 4) == (25, 50, 75, 100)
    assert quantile_boundaries([7] * 50 + [90], 4) == (7, 90)
    assert quantile_boundaries([5], 8) == (5,) and quantile_boundaries([0, 0], 2) == (1,)
    source = source_of([3, 30, 9, 14, 1, 22, 8] * 6)
    assert quantile_boundaries(map(len, source.samples_at(0, ((0, 42),))), 7) == (1, 3, 8, 9, 14, 22, 30)
    assert source.epoch == 0 and len(list(source)) == 42
    with pytest.raises(SettingsError, match="No length was given"):
        quantile_boundaries([])


def test_memory_is_one_batch_a_bucket():
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield [1] * (1 + number % 3)

    batches = iter(BucketStream(endless(), [1, 2], batch_size=4))
    for number in range(1, 200):
        next(batches)
        assert len(read) - 4 * number <= 3 * 4


@PROPERTY
@given(kinds_drawn, lengths_drawn, st.integers(1, 80), st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_a_resume_goes_on_at_the_next_batch(kind, lengths, budget, cuts):
    def make() -> BatchedStream:
        return KINDS[kind](lengths, **({"token_budget": budget} if kind == "budget" else {"window": budget}))

    whole = [batch["input_ids"].tolist() for batch in make()]
    assert [batch["input_ids"].tolist() for batch in cut_and_resumed(make, cuts)] == whole


@PROPERTY
@given(
    kind=kinds_drawn,
    lengths=st.lists(st.integers(1, 30), max_size=40),
    window=st.integers(1, 30),
    legs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 5)), min_size=2, max_size=4),
)
def test_no_sample_is_lost_when_what_is_half_batched_is_split_anew(kind, lengths, window, legs):
    def make(seat: Seat) -> BatchedStream:
        stream = KINDS[kind](lengths, window=window)
        stream.source.seat = lambda: seat
        return stream

    seen = itertools.chain(*(batch["input_ids"][:, 0].tolist() for batch in split_anew(make, legs)))
    assert sorted(seen) == list(range(1, len(lengths) + 1))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_stream_loader_goes_on_with_other_numbers_of_workers(kind):
    lengths = [3, 30, 9, 14, 1, 22, 8] * 6
    loader = StreamLoader(KINDS[kind](lengths), batch_size=None, num_workers=2)
    batches = iter(loader)
    before = [next(batches) for _ in range(5)]
    state = loader.state_dict()
    del batches
    for num_workers in (0, 1, 3):
        resumed = StreamLoader(KINDS[kind](lengths), batch_size=None, num_workers=num_workers)
        resumed.load_state_dict(state)
        seen = [number for batch in [*before, *resumed] for number in batch["input_ids"][:, 0].tolist()]
        assert sorted(seen) == list(range(1, 43))
        following = [number for batch in resumed for number in batch["input_ids"][:, 0].tolist()]
        assert sorted(following) == list(range(1, 43)), "the next epoch is whole"


def test_samples_of_another_source_are_not_split_anew():
    stream = BudgetStream([[1, 2]] * 9, 8)
    with pytest.raises(ResumeError, match="Samples of a list cannot be split anew"):
        stream.merged_state([stream.state_dict()])


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_workers_with_batches_in_flight(kind, num_workers):
    lengths = [3, 30, 9, 14, 1, 22, 8] * 6

    def make() -> StatefulDataLoader:
        return StatefulDataLoader(KINDS[kind](lengths), batch_size=None, num_workers=num_workers)

    whole = list(make())
    assert sizes_of(whole) == sorted(lengths)
    count = make_counter(whole[0])
    assert [count(batch) for batch in whole] == [len(batch["lengths"]) for batch in whole]
    for batch in whole:
        assert batch["input_ids"].numel() <= (64 if kind == "budget" else 3 * 30)
        assert ((batch["input_ids"] > 0).sum(1) == batch["lengths"]).all()
        assert count_samples(batch).samples == len(batch["lengths"])
    loader = make()
    batches = iter(loader)
    before = [next(batches) for _ in range(5)]
    state = loader.state_dict()
    del batches
    loader = make()
    loader.load_state_dict(state)
    got = [*before, *loader]
    assert [b["input_ids"].tolist() for b in got] == [b["input_ids"].tolist() for b in whole]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_trial_counts_samples_of_batches_that_differ_in_size(kind):
    lengths = [3, 30, 9, 14, 1, 22, 8] * 60
    result = measure(StreamLoader(KINDS[kind](lengths), batch_size=None), starts=1, measure_seconds=0.1)
    assert result.status == "ok"
    batches = list(KINDS[kind](lengths))
    sizes = [len(batch["lengths"]) for batch in batches]
    assert len(set(sizes)) > 1
    mean = result.samples_per_second / result.batches_per_second
    assert mean == pytest.approx(sum(sizes) / len(sizes), rel=0.1)


def test_columns_of_a_batch():
    batch = padded([[1, 2, 3], [4], []], 4)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [0, 0, 0, 0]]
    assert batch["lengths"].tolist() == [3, 1, 0] and padded([[1, 2]])["input_ids"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"boundaries": []}, "upper ends of buckets that rise"),
        ({"boundaries": [8, 8]}, r"boundaries=\[8, 8\]"),
        ({"boundaries": [0, 8]}, r"boundaries\[0\]=0"),
        ({"batch_size": None}, "give one of them"),
        ({"token_budget": 9}, "give one of them"),
        ({"batch_size": (1, 2)}, "for 3 buckets"),
        ({"batch_size": (1, 2, 0)}, "batch_size=0"),
        ({"pad_to_boundary": True, "collate": list}, "pad there"),
        ({"window": 0}, "window=0"),
    ],
)
def test_impossible_buckets_are_refused(options, named):
    with pytest.raises(SettingsError, match=named):
        BucketStream([], **{"boundaries": [4, 16], "batch_size": 3, **options})


def test_settings_and_states_that_do_not_fit_are_refused():
    with pytest.raises(SettingsError, match="token_budget=0"):
        BudgetStream([], 0)
    of_buckets = buckets_of([3, 4]).state_dict()
    with pytest.raises(ResumeError, match="boundaries '4, 16' then and '4, 8' now"):
        buckets_of([3, 4], boundaries=[4, 8]).load_state_dict(of_buckets)
    state = stream_of([3, 4]).state_dict()
    with pytest.raises(ResumeError, match="token_budget 64 then and 32 now"):
        stream_of([3, 4], token_budget=32).load_state_dict(state)
    running = stream_of([3, 4])
    batches = iter(running)
    next(batches)
    with pytest.raises(ResumeError, match=r"before iter\(\)"):
        running.load_state_dict(state)
