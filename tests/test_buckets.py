"""Batches by token budget: nothing lost, nothing above the budget, resumed at the next batch, sizes counted right."""

from __future__ import annotations

import itertools
import os
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import ResumeError, SettingsError
from workbench.loaders.counting import count_samples
from workbench.streaming.buckets import BudgetStream, batches_within, padding_report
from workbench.streaming.shards import ListShards
from workbench.streaming.stream import ShardStream

EXAMPLES = int(os.environ.get("WORKBENCH_STREAM_EXAMPLES", "60"))
PROPERTY = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES <= 60
)
lengths_drawn = st.lists(st.integers(0, 40), max_size=40)


def stream_of(lengths: list[int], **options) -> BudgetStream:
    samples = [np.full(length, number + 1) for number, length in enumerate(lengths)]
    shards = ShardStream(ListShards([samples[at::3] for at in range(3)]), window=4)
    return BudgetStream(shards, **{"token_budget": 64, "window": 10, **options})


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


@PROPERTY
@given(lengths_drawn, st.integers(1, 80), st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_a_resume_goes_on_at_the_next_batch(lengths, budget, cuts):
    whole = [batch["input_ids"].tolist() for batch in stream_of(lengths, token_budget=budget)]
    resumed, state = [], None
    for batches in [*cuts, None]:
        stream = stream_of(lengths, token_budget=budget)
        if state is not None:
            stream.load_state_dict(state)
        resumed += [batch["input_ids"].tolist() for batch in itertools.islice(stream, batches)]
        state = pickle.loads(pickle.dumps(stream.state_dict()))
    assert resumed == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_workers_with_batches_in_flight(num_workers):
    lengths = [3, 30, 9, 14, 1, 22, 8] * 6

    def make() -> StatefulDataLoader:
        return StatefulDataLoader(stream_of(lengths), batch_size=None, num_workers=num_workers)

    whole = list(make())
    assert sizes_of(whole) == sorted(lengths)
    for batch in whole:
        assert batch["input_ids"].numel() <= 64
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


def test_settings_and_states_that_do_not_fit_are_refused():
    with pytest.raises(SettingsError, match="token_budget=0"):
        BudgetStream([], 0)
    state = stream_of([3, 4]).state_dict()
    with pytest.raises(ResumeError, match="token_budget 64 then and 32 now"):
        stream_of([3, 4], token_budget=32).load_state_dict(state)
    running = stream_of([3, 4])
    batches = iter(running)
    next(batches)
    with pytest.raises(ResumeError, match=r"before iter\(\)"):
        running.load_state_dict(state)
