"""Rates and their intervals: pure functions of recorded windows, standard library only.

Two kinds of uncertainty are kept apart. Inside one start, windows follow each other and are correlated; what they
tell is *in-run precision*. Between one start and the next a loader's rate differs by more than that (where memory
landed, which core ran what, how the machine drifts), so only the spread between starts says how far the long-run
rate may lie from the stated one. A stated interval always rests on the second kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.measure.records import TrialRun, Window

CLEAN_FOREIGN_CORES = 0.10
"""Cores used by other programs below which a window counts as quiet: there a JPEG loader's windows spread 2 to 3 %,
above it 4 % and then, from 0.3 cores, 6 % and more with a rate that is itself lower."""
CLEAN_FOREIGN_SHARE = 0.03
"""On a large machine, the share of all cores that other programs may use in a quiet window."""
MERGE_CORRELATION = 0.2
"""Neighbouring windows are merged until their lag-1 correlation lies below this (method of batch means)."""
FEWEST_BATCH_MEANS = 8
"""Merging stops before fewer batch means than this are left, where a variance of them would say little."""
METHOD_ERROR = 0.01
"""Standard error that no number of starts removes, as a share of the rate: a trial is not the user's own process, is
watched, and sees the machine at one time only. What is left between stated rates and plain loops in the long run
(`tests/benchmarks/fidelity.py`) is of this size for loaders that wait or decode; with it, 93 % of the intervals of
eleven loaders held. Rates of one sweep share it, so it is no part of their ratios."""
PRIOR_DEGREES_OF_FREEDOM = 3.0
"""Weight of the spread pooled over a sweep against a settings' own, in degrees of freedom (moderated t; Smyth 2004,
"Linear models and empirical Bayes methods", section 3). Small, since settings differ in how much they spread."""
# 97.5 % points of Student's t for 1 to 30 degrees of freedom.
# fmt: off
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
# fmt: on
_Z975 = 1.95996


@dataclass(frozen=True)
class RateEstimate:
    """A rate with its 95 % interval.

    Attributes:
        samples_per_second: Mean over starts of each start's rate.
        low: Lower end of the interval, never below 0; 0 where no spread is known at all.
        high: Upper end of the interval; infinite where no spread is known at all.
        starts: How many starts it rests on.
        degrees_of_freedom: Of the spread that the interval uses.
        relative_error: Standard error of the mean of the starts divided by the rate, without `METHOD_ERROR`; infinite
            where no spread is known at all.
        in_run_only: True when a single start was all there was, so that the interval is in-run precision and does
            not say how far another start may lie.
    """

    samples_per_second: float
    low: float
    high: float
    starts: int
    degrees_of_freedom: float
    relative_error: float
    in_run_only: bool = False

    @property
    def half_width(self) -> float:
        """Half the interval, as a share of the rate; infinite where no spread is known."""
        return (self.high - self.low) / 2 / self.samples_per_second


@dataclass(frozen=True)
class Spread:
    """How much the rate differs from one start to the next, pooled over the settings of a sweep.

    Attributes:
        relative: Standard deviation between starts, as a share of the rate.
        degrees_of_freedom: How many independent differences it rests on.
    """

    relative: float
    degrees_of_freedom: float


@dataclass(frozen=True)
class Ratio:
    """One rate over another with its 95 % interval (Welch's t on logarithms)."""

    value: float
    low: float
    high: float


def t975(degrees_of_freedom: float) -> float:
    """97.5 % point of Student's t; between whole degrees, and above 30, interpolated in their reciprocal."""
    df = max(1.0, degrees_of_freedom)
    if df >= len(_T975):
        return _Z975 + (_T975[-1] - _Z975) * len(_T975) / df
    below = int(df)
    share = (1 / below - 1 / df) / (1 / below - 1 / (below + 1))
    return _T975[below - 1] + share * (_T975[below] - _T975[below - 1])


def is_clean(window: Window, cores: int) -> bool:
    """Whether other programs left this window alone; an unknown foreign load counts as clean."""
    limit = max(CLEAN_FOREIGN_CORES, CLEAN_FOREIGN_SHARE * cores)
    return window.foreign_cores is None or window.foreign_cores <= limit


def used_windows(windows: Sequence[Window], cores: int) -> tuple[Sequence[Window], bool]:
    """The windows that a rate rests on, and whether the machine was too busy to choose.

    Quiet windows alone when they are at least half of all; else all of them, marked busy. Quiet and loud ones are
    chosen by what others did, never by the rate, so the choice does not bias it.
    """
    clean = [w for w in windows if is_clean(w, cores)]
    if 2 * len(clean) >= len(windows) and clean:
        return clean, False
    return windows, bool(windows)


def mean_rate(windows: Sequence[Window]) -> float:
    """Samples over seconds of all these windows together."""
    return sum(w.samples for w in windows) / sum(w.seconds for w in windows)


def in_run_precision(windows: Sequence[Window]) -> float | None:
    """Relative half-width of a 95 % interval from one start's windows, or None with fewer than three.

    Batch means: neighbours are merged pairwise until their lag-1 correlation is below `MERGE_CORRELATION` or merging
    would leave fewer than `FEWEST_BATCH_MEANS`.
    """
    rates = [w.samples_per_second for w in windows]
    if len(rates) < 3:
        return None
    while len(rates) >= 2 * FEWEST_BATCH_MEANS and lag1_correlation(rates) >= MERGE_CORRELATION:
        rates = [(a + b) / 2 for a, b in zip(rates[0::2], rates[1::2])]  # noqa: B905  an odd last one is dropped
    mean, variance = _mean_variance(rates)
    if mean <= 0:
        return None
    return t975(len(rates) - 1) * math.sqrt(variance / len(rates)) / mean


def lag1_correlation(values: Sequence[float]) -> float:
    """Correlation of each value with the next; 0 for constant values."""
    mean = sum(values) / len(values)
    deviations = [v - mean for v in values]
    power = sum(d * d for d in deviations)
    return sum(a * b for a, b in itertools.pairwise(deviations)) / power if power else 0.0


def estimate_rate(runs: Sequence[TrialRun], spread: Spread | None = None, cores: int = 1) -> RateEstimate | None:
    """The rate of one settings from all its starts, or None when none of them measured anything.

    The standard error is that of the mean of the starts' rates. Its variance is the settings' own between starts,
    moderated by `spread` where given, and never below what the windows inside the starts already show. The interval
    adds `METHOD_ERROR` to it, as independent errors add.
    """
    measured = _quiet_runs([r for r in runs if r.status == "ok" and r.windows], cores)
    if not measured:
        return None
    rates, inside = zip(*(_one_start(run, cores) for run in measured), strict=True)
    starts = len(rates)
    mean, variance = _mean_variance(rates)
    own_df = float(starts - 1)
    relative_variance = variance / mean**2 if starts > 1 and mean else 0.0
    df = own_df
    if spread is not None:
        prior = min(PRIOR_DEGREES_OF_FREEDOM, spread.degrees_of_freedom)
        df = own_df + prior
        relative_variance = (own_df * relative_variance + prior * spread.relative**2) / df
    in_run_variance = sum(error**2 for error in inside if error is not None) / starts**2
    error = math.sqrt(max(relative_variance / starts, in_run_variance))
    if df == 0 and inside[0] is None:
        return RateEstimate(mean, 0.0, math.inf, starts, 1.0, math.inf, True)
    if df == 0:
        df = float(max(1, len(measured[0].windows) - 1))
    reach = math.hypot(t975(df) * error, _Z975 * METHOD_ERROR) * mean
    return RateEstimate(mean, max(0.0, mean - reach), mean + reach, starts, df, error, starts == 1 and spread is None)


def pooled_spread(runs_by_settings: Sequence[Sequence[TrialRun]], cores: int = 1) -> Spread | None:
    """Spread between starts over all settings that were started at least twice; None when none was."""
    total = freedom = 0.0
    for runs in runs_by_settings:
        measured = _quiet_runs([r for r in runs if r.status == "ok" and r.windows], cores)
        if len(measured) < 2:
            continue
        mean, variance = _mean_variance([_one_start(run, cores)[0] for run in measured])
        total += (len(measured) - 1) * variance / mean**2
        freedom += len(measured) - 1
    return Spread(math.sqrt(total / freedom), freedom) if freedom else None


def ratio(numerator: RateEstimate, denominator: RateEstimate) -> Ratio:
    """How much faster one rate is than another, with a 95 % interval that allows for both errors."""
    value = numerator.samples_per_second / denominator.samples_per_second
    a, b = numerator.relative_error**2, denominator.relative_error**2
    if a + b == 0:
        return Ratio(value, value, value)
    if math.isinf(a + b):
        return Ratio(value, 0.0, math.inf)
    df = (a + b) ** 2 / (a**2 / numerator.degrees_of_freedom + b**2 / denominator.degrees_of_freedom)
    reach = t975(df) * math.sqrt(a + b)
    return Ratio(value, value * math.exp(-reach), value * math.exp(reach))


def clearly_below(slower: RateEstimate, faster: RateEstimate) -> bool:
    """Whether `slower` is slower for sure: the 95 % interval of their ratio lies below 1."""
    return ratio(slower, faster).high < 1.0


def _quiet_runs(runs: list[TrialRun], cores: int) -> list[TrialRun]:
    """Runs of which the machine left most windows alone when there are two or more such, else all."""
    quiet = [run for run in runs if not used_windows(run.windows, cores)[1]]
    return quiet if len(quiet) >= 2 else runs


def _one_start(run: TrialRun, cores: int) -> tuple[float, float | None]:
    """Rate of one start and its relative standard error as seen from inside it; None with too few windows."""
    windows = used_windows(run.windows, cores)[0]
    half_width = in_run_precision(windows)
    count = len(windows)
    return mean_rate(windows), half_width / t975(count - 1) if half_width is not None else None


def _mean_variance(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, sum((v - mean) ** 2 for v in values) / (len(values) - 1)
