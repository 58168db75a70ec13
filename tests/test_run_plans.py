"""How long each run of a sweep measures: pure functions, no loader runs."""

from __future__ import annotations

import math

import pytest

from tests.scripted import probe_of, run_of
from workbench.loaders.settings import LoaderSettings
from workbench.tuning.rounds import Progress, Round
from workbench.tuning.run_plans import (
    LEAST_BATCHES,
    LEAST_BATCHES_OF_A_LOOK,
    LONGEST_SHARE,
    LONGEST_STRETCH,
    trial_plan,
)
from workbench.tuning.trials import trials_of

W0, W2, W4 = (LoaderSettings(num_workers=count) for count in (0, 2, 4))
LOOK, CHECK = Round((W2,), 0.2, screen=True), Round((W2,), 0.5)


def planned(settings, round_, runs=(), batch_seconds=None, left=math.inf, runs_left=3, cores=2, longest=None):
    probe = probe_of(batch_seconds=batch_seconds, longest_batch_seconds=longest)
    progress = Progress((W0, W2, W4), trials_of(runs, cores), probe=probe, cores=cores)
    plan, _ = trial_plan(
        settings,
        round_,
        progress,
        list(runs),
        measure_seconds=1.0,
        memory_limit_bytes=None,
        seconds_left=left,
        runs_left=runs_left,
    )
    return plan


def run_at(settings, batch_seconds, **changes):
    """A warm run of batches of 16 samples that took so long each."""
    return run_of(settings, 16 / batch_seconds, **changes)


def test_a_quick_loader_is_measured_for_the_share_that_was_asked_for():
    known = [run_at(W0, 0.001)]
    assert planned(W2, LOOK, known, 0.001).measure_seconds == pytest.approx(0.2)
    assert planned(W2, CHECK, known, 0.001).measure_seconds == pytest.approx(0.5)


def test_a_run_lasts_until_enough_batches_came():
    known = [run_at(W0, 0.3)]
    look, check = planned(W0, LOOK, known, 0.3), planned(W0, CHECK, known, 0.3)
    assert (look.least_batches, check.least_batches) == (LEAST_BATCHES_OF_A_LOOK, LEAST_BATCHES)
    assert look.measure_seconds == look.max_measure_seconds == pytest.approx(LEAST_BATCHES_OF_A_LOOK * 0.3)
    assert check.measure_seconds == pytest.approx(0.5)
    assert check.max_measure_seconds == pytest.approx(LONGEST_SHARE * LEAST_BATCHES * 0.3)


def test_how_long_batches_may_take_is_told_from_the_probe_until_workers_ran_and_from_their_runs_then():
    assert planned(W4, LOOK, [run_at(W0, 0.3)], 0.3).max_measure_seconds == pytest.approx(8 * 0.3)  # as fast as any yet
    faster = [run_at(W0, 0.3), run_at(W2, 0.1)]
    assert planned(W4, LOOK, faster, 0.3).max_measure_seconds == pytest.approx(8 * 0.15)  # two cores
    assert planned(W2, LOOK, faster, 0.3).max_measure_seconds == pytest.approx(8 * 0.1)
    paced = [run_at(W0, 0.6), run_at(W2, 0.5)]
    assert planned(W4, LOOK, paced, 0.1).max_measure_seconds == pytest.approx(8 * 0.5)  # a step paces all of them


def test_many_workers_are_given_two_rounds():
    many = LoaderSettings(num_workers=16)
    plan = planned(many, LOOK, [run_at(W0, 0.2), run_at(many, 0.1)], 0.2)
    assert plan.least_batches == 32 and plan.max_measure_seconds == pytest.approx(32 * 0.1)


def test_where_some_batches_take_far_longer_three_times_as_many_are_timed():
    known = [run_at(W2, 0.05)]
    assert planned(W2, LOOK, known, 0.1, longest=0.2).least_batches == 8
    assert planned(W2, LOOK, known, 0.1, longest=0.9).least_batches == 3 * 8
    tail = run_at(W0, 0.1, batch_seconds_p50=0.05, batch_seconds_max=0.8)
    assert planned(W2, LOOK, [*known, tail], 0.1).least_batches == 3 * 8


def test_the_first_run_of_a_sweep_is_not_stretched_since_it_does_not_count():
    first = planned(W0, LOOK, [], 0.3)
    assert first.least_batches == 0 and first.max_measure_seconds == pytest.approx(0.2)


def test_no_run_is_stretched_beyond_its_part_of_the_budget_or_ten_times_the_measuring_time():
    known = [run_at(W0, 30.0)]
    assert planned(W0, LOOK, known, 30.0).max_measure_seconds == pytest.approx(LONGEST_STRETCH)
    assert planned(W0, LOOK, known, 30.0, left=60.0, runs_left=5).max_measure_seconds == pytest.approx(6.0)
    assert planned(W0, LOOK, known, 30.0, left=0.4, runs_left=0).max_measure_seconds == pytest.approx(0.2)


def test_data_memory_and_edge_are_looked_at_in_the_first_whole_run_only():
    look = planned(W2, LOOK, [run_at(W0, 0.01)], 0.01)
    assert (look.check_data, look.measure_edge, look.measure_growth, look.fill_queue) == (False, False, False, True)
    looked = [run_at(W0, 0.01), run_at(W2, 0.01, screened=True)]
    check = planned(W2, CHECK, looked, 0.01)
    assert (check.check_data, check.measure_edge, check.measure_growth, check.fill_queue) == (True, True, True, True)
    again = planned(W2, CHECK, [*looked, run_at(W2, 0.01)], 0.01)
    assert (again.check_data, again.measure_edge, again.measure_growth, again.fill_queue) == (False,) * 4
