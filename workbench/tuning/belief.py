"""What the runs so far say of every settings, run or not: a Gaussian process over the logarithm of the rate.

Settings that differ in one knob are alike as far as that knob usually matters: worker counts much, prefetch depth
little, persistence (inside an epoch) hardly at all. A run of one settings therefore tells of its neighbours, and how
much it tells is weighed against how far two starts of the same settings differ on this machine. Nothing is ruled out
by one lucky or unlucky start: what counts is what would be gained on average by changing one's mind (the knowledge
gradient's cousin, expected improvement: Jones, Schonlau and Welch 1998, "Efficient global optimization", section 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun
from workbench.measure.result import TrialResult
from workbench.measure.statistics import mean_rate, used_windows
from workbench.tuning.fitting import Model

# Standard deviations of the logarithm of the rate that are expected before anything is measured.
LEVEL = 3.0  # nobody knows whether a loader gives ten samples a second or a million
WORKERS = 0.8  # up to as many times faster as there are workers, where no model says anything
WORKERS_REACH = 0.7  # in doublings of the worker count: how far one count tells of the next
MODEL_ERROR = 0.05  # of the queueing model from one worker count to another, where it fits what was run
MODEL_REACH = 1.5
DEPTH = 0.015  # prefetch evens out bursts; where batches cost the same there are none
DEPTH_REACH = 1.0  # in doublings of the depth
TAILED = 0.15  # where some batches take far longer than others, depth and order matter this much
PERSISTENT = 0.005  # nothing inside an epoch ...
PERSISTENT_SHORT = 0.5  # ... and much where whole epochs, restarts included, were measured
OTHERS = {
    "pin_memory": 0.05,
    "multiprocessing_context": 0.05,
    "in_order": 0.04,  # root mean square over eight loaders: in any order, 2 workers gave 7 % less to 7 % more
    "batch_on_worker": 0.3,
    "batch_size": 0.3,
    "layout": 0.8,
    "worker_threads": 0.3,
    "sharing_strategy": 0.05,
    "non_blocking": 0.05,
}
NO_WORKERS_AT = -1.5  # where 0 workers stand on the scale of log2(workers): near one worker, and not next to it

# Two starts of one settings differ by 2 to 5 % on a quiet machine and by 15 to 20 % on a busy one.
START_SPREAD = 0.03
START_SPREAD_BUSY = 0.12
SPREAD_WEIGHT = 4.0  # degrees of freedom that this knowledge is worth against what the sweep shows
WINDOW_SPREAD = 0.06  # of windows of 0.25 s inside a start
WINDOW_WEIGHT = 6.0
WINDOW_CORRELATION = 2.0  # neighbouring windows are alike: their mean's variance is about twice that of strangers
TAIL_TIMES = 3.0  # a longest batch this many times the median, in every start, is the loader's own ...
TAIL_COSTS = 1.05  # ... and matters where it lifts the mean this far above the median


@dataclass(frozen=True, eq=False)
class Belief:
    """A joint normal distribution over the logarithms of the rates of all candidates.

    Attributes:
        candidates: Settings that were not run, or ran well.
        mean: Shape (n,), logarithm of samples per second.
        covariance: Shape (n, n).
    """

    candidates: tuple[LoaderSettings, ...]
    mean: np.ndarray
    covariance: np.ndarray

    @cached_property
    def _places(self) -> dict[LoaderSettings, int]:
        return {settings: place for place, settings in enumerate(self.candidates)}

    def __contains__(self, settings: object) -> bool:
        return settings in self._places

    def rate(self, settings: LoaderSettings) -> float:
        """Expected samples per second."""
        return float(np.exp(self.mean[self._places[settings]]))

    def gain(self, chosen: LoaderSettings, other: LoaderSettings, beyond: float = 0.0) -> float:
        """What `other` gives beyond `chosen` on average, as a share of the rate; where it gives less, it counts as 0.

        Args:
            chosen: What would be recommended now.
            other: A rival.
            beyond: Only what exceeds this share counts.
        """
        a, b = self._places[chosen], self._places[other]
        difference = float(self.mean[b] - self.mean[a]) - beyond
        variance = float(self.covariance[a, a] + self.covariance[b, b] - 2 * self.covariance[a, b])
        spread = math.sqrt(max(variance, 0.0))
        if spread < 1e-12:
            return max(0.0, difference)
        z = difference / spread
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return difference * 0.5 * math.erfc(-z / math.sqrt(2)) + spread * density

    @property
    def leader(self) -> LoaderSettings:
        """The settings with the highest expected rate."""
        return self.candidates[int(np.argmax(self.mean))]


def believe(
    candidates: Sequence[LoaderSettings], trials: Mapping[LoaderSettings, TrialResult], model: Model | None = None
) -> Belief | None:
    """The belief after these trials; None when none of them has a rate.

    Args:
        candidates: All settings.
        trials: Results so far; what failed, or was skipped, is no candidate any more.
        model: What the rate is expected to be before it is measured; the belief is about what it misses. The worse it
            fits what was run, the less is expected of it.
    """
    alive = tuple(one for one in candidates if one not in trials or trials[one].status == "ok")
    seen = {one: _rated(trials[one].runs) for one in alive if one in trials}
    seen = {one: runs for one, runs in seen.items() if runs}
    if not seen:
        return None
    every = [run for runs in seen.values() for run in runs]
    places = [alive.index(one) for one in seen]
    values = np.array([_log_mean(runs) for runs in seen.values()])
    noise = np.array(_noise(seen, every))
    expected, error, reach = _expected(alive, places, values, noise, model)
    prior = _similarity(alive, has_tail(every), any(run.mode == "epochs" for run in every), error, reach)
    observed = prior[np.ix_(places, places)] + np.diag(noise)
    weights = np.linalg.solve(observed, prior[places])
    mean = expected + weights.T @ (values - expected[places])
    return Belief(alive, mean, prior - prior[:, places] @ weights)


def has_tail(runs: Sequence[TrialRun]) -> bool:
    """Whether some batches take far longer than others: seen without workers, where batches do not come in bursts."""
    alone = [run for run in runs if run.settings.num_workers == 0 and run.batch_seconds_p50 and run.batch_seconds_max]
    return bool(alone) and all(_is_tailed(run) for run in alone)


def _is_tailed(run: TrialRun) -> bool:
    usual = run.batch_seconds_p50 or math.inf
    mean = sum(window.seconds for window in run.windows) / max(1, sum(window.batches for window in run.windows))
    return (run.batch_seconds_max or 0.0) >= TAIL_TIMES * usual and mean >= TAIL_COSTS * usual


def _rated(runs: Sequence[TrialRun]) -> list[TrialRun]:
    return [run for run in runs if run.status == "ok" and run.windows]


def _log_mean(runs: Sequence[TrialRun]) -> float:
    return float(np.mean([math.log(_rate(run)) for run in runs]))


def _rate(run: TrialRun) -> float:
    return max(mean_rate(used_windows(run.windows, 1)[0]), 1e-12)


def _expected(
    settings: Sequence[LoaderSettings],
    places: Sequence[int],
    values: np.ndarray,
    noise: np.ndarray,
    model: Model | None,
) -> tuple[np.ndarray, float, float]:
    """Expected log rates before measuring, shape (n,), how far they may be off between worker counts, and how alike
    neighbouring counts are in that."""
    flat = np.full(len(settings), float(values.mean()))
    rates = [model.samples_per_second(one) for one in settings] if model else []
    if not rates or not all(rates):
        return flat, WORKERS, WORKERS_REACH
    expected = np.log(np.array(rates, dtype=float))
    missed = values - expected[places]
    missed = missed - missed.mean()
    excess = math.sqrt(max(0.0, float(np.mean(missed**2 - noise))))
    return expected, min(WORKERS, max(MODEL_ERROR, 2 * excess)), MODEL_REACH


def _noise(seen: Mapping[LoaderSettings, list[TrialRun]], every: Sequence[TrialRun]) -> list[float]:
    """Variance of each settings' mean log rate: between its starts and inside them."""
    busy = sum(run.noisy for run in every) * 2 > len(every)
    prior = (START_SPREAD_BUSY if busy else START_SPREAD) ** 2
    freedom = sum(len(runs) - 1 for runs in seen.values())
    between = sum(float(np.var([math.log(_rate(run)) for run in runs])) * len(runs) for runs in seen.values())
    start = (SPREAD_WEIGHT * prior + between) / (SPREAD_WEIGHT + freedom)
    inside = {id(run): _window_variance(run) for run in every}
    count = sum(len(run.windows) - 1 for run in every)
    pooled = sum(inside[id(run)] * (len(run.windows) - 1) for run in every)
    window = (WINDOW_WEIGHT * WINDOW_SPREAD**2 + pooled) / (WINDOW_WEIGHT + count)
    noise = []
    for runs in seen.values():
        within = 0.0
        for run in runs:
            own = len(run.windows) - 1
            variance = (WINDOW_WEIGHT * window + own * inside[id(run)]) / (WINDOW_WEIGHT + own)
            within += WINDOW_CORRELATION * variance / len(run.windows)
        noise.append(start / len(runs) + within / len(runs) ** 2)
    return noise


def _window_variance(run: TrialRun) -> float:
    rates = [window.samples_per_second for window in run.windows]
    mean = float(np.mean(rates))
    return float(np.var(rates, ddof=1)) / mean**2 if len(rates) > 1 and mean > 0 else 0.0


def _similarity(
    settings: Sequence[LoaderSettings], tail: bool, short_epochs: bool, error: float, reach: float
) -> np.ndarray:
    """Prior covariance of the log rates, shape (n, n): a sum over knobs, each alone and together with the workers."""
    workers = np.array([math.log2(one.num_workers) if one.num_workers else NO_WORKERS_AT for one in settings])
    depth = np.array([math.log2(one.prefetch_factor or 1) for one in settings])
    same_workers = (workers[:, None] == workers[None, :]).astype(float)
    total = LEVEL**2 + error**2 * _near(workers, reach)
    total = total + (TAILED if tail else DEPTH) ** 2 * _near(depth, DEPTH_REACH) * (1 + same_workers)
    amounts = OTHERS | {"persistent_workers": PERSISTENT_SHORT if short_epochs else PERSISTENT}
    if tail:
        amounts = amounts | {"in_order": TAILED}
    for knob, amount in amounts.items():
        numbers = {value: number for number, value in enumerate({getattr(one, knob) for one in settings})}
        values = np.array([numbers[getattr(one, knob)] for one in settings])
        same = (values[:, None] == values[None, :]).astype(float)
        total = total + amount**2 * same * (1 + same_workers)
    return total


def _near(values: np.ndarray, reach: float) -> np.ndarray:
    return np.exp(-((values[:, None] - values[None, :]) ** 2) / (2 * reach**2))
