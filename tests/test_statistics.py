"""Rates and intervals against known answers: constructed windows, and coverage on simulated starts."""

from __future__ import annotations

import math
import random

import pytest

from workbench.loaders.settings import LoaderSettings
from workbench.measure import statistics as st
from workbench.measure.records import TrialRun, Window
from workbench.measure.result import TrialResult

SETTINGS = LoaderSettings(num_workers=1)


def windows(rates: list[float], foreign: float | None = 0.0, seconds: float = 0.5) -> tuple[Window, ...]:
    return tuple(Window(i * seconds, seconds, 10, round(rate * seconds), foreign) for i, rate in enumerate(rates))


def start(rates: list[float], foreign: float | None = 0.0, status: str = "ok") -> TrialRun:
    return TrialRun(SETTINGS, status, windows=windows(rates, foreign))


def with_method_error(half_width: float) -> float:
    return math.hypot(half_width, 1.95996 * st.METHOD_ERROR)


@pytest.mark.parametrize(("df", "value"), [(1, 12.706), (4, 2.776), (30, 2.042), (60, 2.000), (1e9, 1.960)])
def test_student_quantiles(df, value):
    assert st.t975(df) == pytest.approx(value, abs=0.002)


def test_student_quantiles_fall_between_whole_degrees():
    values = [st.t975(d / 4) for d in range(4, 200)]
    assert values == sorted(values, reverse=True)


def test_the_rate_is_samples_over_seconds_and_starts_weigh_alike():
    estimate = st.estimate_rate([start([100, 100]), start([110, 110, 110, 110])])
    assert estimate.samples_per_second == pytest.approx(105)
    spread = math.sqrt(50) / math.sqrt(2)
    assert estimate.high - estimate.samples_per_second == pytest.approx(12.706 * spread, rel=1e-3)
    assert estimate.low == pytest.approx(105 - 12.706 * spread, rel=1e-3)


def test_the_lower_end_is_never_negative():
    assert st.estimate_rate([start([10, 10]), start([100, 100])]).low == 0.0


def test_one_start_states_in_run_precision_and_says_so():
    estimate = st.estimate_rate([start([100, 104, 96, 100])])
    assert estimate.in_run_only and estimate.low < 100 < estimate.high


def test_one_start_with_a_spread_known_from_others_is_wider_than_in_run():
    alone = st.estimate_rate([start([100, 101, 99, 100])])
    informed = st.estimate_rate([start([100, 101, 99, 100])], st.Spread(0.05, 10))
    assert not informed.in_run_only
    assert informed.half_width == pytest.approx(with_method_error(st.t975(3) * 0.05))
    assert informed.half_width > alone.half_width


def test_starts_that_agree_by_chance_are_moderated_by_the_spread_of_the_sweep():
    twins = [start([100, 100, 100]), start([100, 100, 100])]
    assert st.estimate_rate(twins).half_width == pytest.approx(with_method_error(0))
    moderated = st.estimate_rate(twins, st.Spread(0.04, 12))
    between = math.sqrt(3 * 0.04**2 / 4 / 2)
    assert moderated.half_width == pytest.approx(with_method_error(st.t975(4) * between))
    assert moderated.relative_error == pytest.approx(between)


def test_noise_inside_the_starts_is_a_floor():
    wild = [start([50, 150, 50, 150, 50, 150]), start([50, 150, 50, 150, 50, 150])]
    assert st.estimate_rate(wild).half_width > 0.2


def test_failed_runs_and_runs_without_windows_do_not_count():
    assert st.estimate_rate([start([100], status="failed"), TrialRun(SETTINGS, "ok")]) is None
    assert st.estimate_rate([start([100, 100]), start([1, 1], status="timed_out")]).samples_per_second == 100


def test_loud_windows_are_left_out_when_half_are_quiet():
    mixed = TrialRun(SETTINGS, "ok", windows=windows([100, 100]) + windows([40, 40], foreign=0.8))
    assert st.estimate_rate([mixed]).samples_per_second == pytest.approx(100)


def test_all_loud_windows_are_used_and_called_busy():
    used, busy = st.used_windows(windows([40, 50, 60], foreign=0.8), cores=2)
    assert busy and len(used) == 3


def test_a_loud_start_is_left_out_when_two_are_quiet():
    runs = [start([100, 100]), start([102, 102]), start([30, 30], foreign=1.5)]
    assert st.estimate_rate(runs).samples_per_second == pytest.approx(101)


def test_an_unknown_foreign_load_counts_as_quiet():
    assert st.is_clean(Window(0, 1, 1, 1, None), cores=2)


def test_correlated_windows_are_merged():
    slow_wave = windows([100 + 10 * math.sin(i / 5) for i in range(64)])
    shuffled = list(slow_wave)
    random.Random(0).shuffle(shuffled)
    assert st.in_run_precision(slow_wave) > 2 * st.in_run_precision(shuffled)


def test_too_few_windows_have_no_precision():
    assert st.in_run_precision(windows([100, 100])) is None


def test_pooled_spread_needs_a_settings_started_twice():
    assert st.pooled_spread([[start([100, 100])]]) is None
    spread = st.pooled_spread([[start([900, 900]), start([1100, 1100])], [start([950, 950]), start([1050, 1050])]])
    assert spread.degrees_of_freedom == 2
    assert spread.relative == pytest.approx(math.sqrt((0.02 + 0.005) / 2))


def test_a_ratio_that_is_sure_and_one_that_is_not():
    slow = st.estimate_rate([start([100, 100]), start([101, 101]), start([99, 99])])
    fast = st.estimate_rate([start([150, 150]), start([151, 151]), start([149, 149])])
    wide = st.estimate_rate([start([60, 60]), start([150, 150]), start([100, 100])])
    assert st.clearly_below(slow, fast) and not st.clearly_below(fast, slow)
    assert not st.clearly_below(slow, wide) and not st.clearly_below(wide, slow)
    assert st.ratio(fast, slow).low < 1.5 < st.ratio(fast, slow).high


def test_nominal_intervals_contain_the_truth_nearly_as_often_as_they_say():
    """Starts differ by 4 %, windows inside a start by 5 %: 3 starts each, 400 times, truth 1000."""
    rng = random.Random(7)
    held = 0
    for _ in range(400):
        runs = []
        for _ in range(3):
            centre = 1000 * rng.gauss(1, 0.04)
            runs.append(start([centre * rng.gauss(1, 0.05) for _ in range(10)]))
        estimate = st.estimate_rate(runs)
        held += estimate.low <= 1000 <= estimate.high
    assert 0.92 <= held / 400 <= 0.99


def test_one_start_with_too_few_windows_says_that_nothing_is_known_of_its_error():
    unknown, known = st.estimate_rate([start([100, 101])]), st.estimate_rate([start([50, 50, 51, 50])])
    assert (unknown.low, unknown.high, unknown.in_run_only) == (0.0, math.inf, True)
    assert not st.clearly_below(known, unknown) and not st.clearly_below(unknown, known)
    result = TrialResult(SETTINGS, (start([100, 101]),))
    assert result.samples_per_second == pytest.approx(100, rel=0.02)
    assert result.samples_per_second_low is None and result.samples_per_second_high is None
