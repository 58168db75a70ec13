"""From the trials of a sweep to what a batch costs: pure functions of their records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.stage_costs import StageCosts
from workbench.tuning.queueing import Costs, has_tail, queued_bytes, rate

PLATEAU_BELOW = 0.85  # of what workers and cores would give: lower, and something shared binds
Z95 = 1.645  # of a normal distribution
SATURATED_SHARE = 0.9  # of the cores in use: as many are busy as can be


@dataclass(frozen=True)
class Model:
    """Costs fitted to trials, and by how much each trial's rate lies off the bare bounds.

    Attributes:
        costs: The fitted costs.
        residuals: Logarithm of measured over modelled rate for each settings that was run.
        steps: Whether trials were paced by a step.
    """

    costs: Costs
    residuals: dict[LoaderSettings, float] = field(default_factory=dict)
    steps: bool = False

    def batches_per_second(self, settings: LoaderSettings, costs: Costs | None = None) -> tuple[float, str] | None:
        """Rate and what binds it.

        On the machine and loader that were measured, the rate is moved by what the trials nearest in workers were
        off; under other costs it is the bare bound.
        """
        known = rate(settings, costs or self.costs)
        if known is None or costs is not None:
            return known
        return known[0] * math.exp(_near(settings, self.residuals)), known[1]

    def tells_of(self, settings: LoaderSettings) -> bool:
        """Whether batches are formed, on as many threads, as in settings that were run; else what they cost is unknown.

        The layout is not looked at: `models_of` fits each to its own trials.
        """
        formed = {(one.batch_on_worker, one.worker_threads) for one in self.residuals}
        return (settings.batch_on_worker, settings.worker_threads) in formed

    def samples_per_second(self, settings: LoaderSettings) -> float | None:
        """The bare bound in samples, also for another batch size; None when nothing is known."""
        costs = self.costs
        if settings.batch_size is not None and costs.samples:
            costs = costs.with_batch_size(settings.batch_size)
        known = rate(settings, costs)
        return known[0] * costs.samples if known and costs.samples else None


def fit(
    trials: Sequence[TrialResult],
    probe: Probe | None,
    cores: float,
    paced: bool = False,
    stages: StageCosts | None = None,
) -> Model:
    """Costs that trials of one sweep show; see `queueing` for what they mean.

    A worker's seconds come from the settings in which workers did best; core seconds from the processor time that the
    whole tree used for a batch; a shared station is only taken to be there where the best rate stays clearly below
    what workers and cores would give.

    Args:
        trials: Results that have a rate.
        probe: Gives samples and bytes of a batch.
        cores: Cores the trials could use.
        paced: Whether a step ran between batches; then what loading alone costs is known from the probe, since a trial
            without workers loads and steps in turn, and workers may have waited for the step.
        stages: What a batch was seen to cost inside the workers and in the main process; taken in place of what the
            trials only let one guess.
    """
    same = [trial for trial in trials if _batches_like_current(trial.settings, probe)] or list(trials)
    same = [trial for trial in same if layout_of(trial.settings, probe) == layout_of(None, probe)] or same
    rates = {trial.settings: trial.batches_per_second or 0.0 for trial in same if trial.batches_per_second}
    with_workers = {one: value for one, value in rates.items() if one.num_workers}
    alone = [1 / value for one, value in rates.items() if one.num_workers == 0]
    probed = [probe.batch_seconds] if probe and probe.batch_seconds else []
    busy = [one.num_workers / value for one, value in with_workers.items()]
    costs = Costs(
        alone_seconds=min((probed if paced else alone) or alone or probed, default=None),
        worker_seconds=min(busy + (probed if paced and busy else []), default=None),
        cpu_seconds=_cpu_seconds([trial for trial in same if trial.settings.num_workers]),
        cores=cores,
        samples=_samples(same, probe),
        batch_bytes=probe.batch_bytes if probe else None,
    )
    if costs.worker_seconds is None and costs.alone_seconds is not None:
        costs = replace(costs, worker_seconds=costs.alone_seconds)
    if costs.alone_seconds is None and not paced:
        costs = replace(costs, alone_seconds=costs.worker_seconds)
    if costs.cpu_seconds is None and not paced:
        costs = replace(costs, cpu_seconds=_cpu_alone(same) or None)
    costs = _with_stages(costs, stages)
    costs = _with_tail(costs, same)
    costs = costs if paced or has_tail(costs) else _with_spread(costs, same)
    costs = _with_shared(costs, with_workers, same, paced)
    costs = _with_memory(costs, same)
    residuals = {}
    for one, value in rates.items():
        if (modelled := rate(one, costs)) is not None:
            residuals[one] = math.log(value / modelled[0])
    return Model(costs, residuals, paced)


def models_of(
    trials: Sequence[TrialResult],
    probe: Probe | None,
    cores: float,
    paced: bool = False,
    stages: StageCosts | None = None,
) -> dict[str | None, Model]:
    """One model for each layout that was run, the loader's own first; as `fit`.

    What a batch costs in one layout says nothing of another: a layout that is not among the keys cannot be predicted.
    Probe and stages saw the loader's own.
    """
    own = layout_of(None, probe)
    groups: dict[str | None, list[TrialResult]] = {}
    for trial in sorted(trials, key=lambda trial: layout_of(trial.settings, probe) != own):
        groups.setdefault(layout_of(trial.settings, probe), []).append(trial)
    elsewhere = replace(probe, batch_seconds=None) if probe else None
    return {
        layout: fit(group, probe, cores, paced, stages) if layout == own else fit(group, elsewhere, cores, paced)
        for layout, group in groups.items()
    }


def layout_of(settings: LoaderSettings | None, probe: Probe | None) -> str | None:
    """The layout that is read under these settings: the one they name, else the loader's own, which may be None."""
    own = probe.current.layout if probe and probe.current else None
    return settings.layout or own if settings else own


def _with_stages(costs: Costs, stages: StageCosts | None) -> Costs:
    """Seconds as they were seen: a worker's without the time in which it had no core."""
    if stages is None:
        return costs
    busy = stages.worker_seconds_per_batch - stages.starved_seconds_per_batch
    return replace(
        costs,
        worker_seconds=max(busy, 1e-9),
        cpu_seconds=stages.worker_cpu_seconds_per_batch + stages.main_seconds_per_batch,
        main_seconds=stages.main_seconds_per_batch,
        batch_bytes=costs.batch_bytes or stages.bytes_per_batch,
        samples=costs.samples or stages.samples_per_batch,
    )


def _batches_like_current(settings: LoaderSettings, probe: Probe | None) -> bool:
    """Whether a batch has the size that the user's own settings give it."""
    return settings.batch_size in (None, probe.current.batch_size if probe and probe.current else None)


def _samples(trials: Sequence[TrialResult], probe: Probe | None) -> float | None:
    for trial in trials:
        if trial.batches_per_second and trial.samples_per_second:
            return trial.samples_per_second / trial.batches_per_second
    return float(probe.samples_per_batch) if probe and probe.samples_per_batch else None


def _cpu_seconds(trials: Sequence[TrialResult]) -> float | None:
    """Core seconds of the whole tree for a batch: the least over settings, which crowding has stretched least."""
    known = [
        trial.cpu_cores_used / trial.batches_per_second
        for trial in trials
        if trial.cpu_cores_used and trial.batches_per_second
    ]
    return min(known) if known else None


def _cpu_alone(trials: Sequence[TrialResult]) -> float | None:
    return _cpu_seconds([trial for trial in trials if not trial.settings.num_workers])


def _with_tail(costs: Costs, trials: Sequence[TrialResult]) -> Costs:
    """The share of slow batches, from the settings without workers, where arrivals are not bursts.

    Batches are taken to be usual or slow; the share of slow ones is the one that gives the mean. The longest batch
    must have been long in every start, or it is the machine's doing.
    """
    alone = next((trial for trial in trials if trial.settings.num_workers == 0), None)
    if alone is None or not alone.batches_per_second or not alone.batch_seconds_p50:
        return costs
    usual, mean = alone.batch_seconds_p50, 1 / alone.batches_per_second
    longest = min((run.batch_seconds_max for run in alone.runs if run.batch_seconds_max), default=0.0)
    if longest <= usual or mean <= usual:
        return costs
    share = min(0.5, (mean - usual) / (longest - usual))
    return replace(costs, tail_share=share, tail_times=longest / usual)


def _with_spread(costs: Costs, trials: Sequence[TrialResult]) -> Costs:
    """By how much batches differ, from settings with one worker, or none, whose batches do not arrive in bursts; from
    the start in which they did so least, since the rest is the machine's doing. The 95th percentile of a lognormal lies
    `Z95` standard deviations above its median."""
    least: dict[int, float] = {}
    for trial in (trial for trial in trials if trial.settings.num_workers <= 1):
        for run in trial.runs:
            if run.batch_seconds_p50 and run.batch_seconds_p95:
                spread = math.log(run.batch_seconds_p95 / run.batch_seconds_p50) / Z95
                least[trial.settings.num_workers] = min(spread, least.get(trial.settings.num_workers, math.inf))
    return replace(costs, spread=max(0.0, least.get(1, least.get(0, 0.0))))


def _with_shared(costs: Costs, rates: dict[LoaderSettings, float], trials: Sequence[TrialResult], paced: bool) -> Costs:
    """Adds the station that all workers wait for, where the best rate shows that there is one."""
    if len({one.num_workers for one in rates}) < 2:
        return costs
    best = max(rates, key=rates.__getitem__)
    most = max(rates, key=lambda one: (one.num_workers, rates[one]))
    ideal = rate(most, costs)
    used = next((_cores_in_use(trial) for trial in trials if trial.settings == most), None)
    saturated = used is not None and used >= SATURATED_SHARE * costs.cores
    if ideal is None or saturated or ideal[1] == "order" or rates[most] >= PLATEAU_BELOW * ideal[0]:
        return costs
    seconds = 1 / rates[best]
    if paced:
        return replace(costs, step_seconds=seconds)
    handing = costs.alone_seconds is not None and costs.alone_seconds < seconds
    return replace(costs, shared_seconds=seconds, shared="hand-over" if handing else "storage")


def _cores_in_use(trial: TrialResult) -> float | None:
    """Cores that the trial and other programs used together: a core that others took is none that it left idle."""
    if trial.cpu_cores_used is None:
        return None
    others = [w.foreign_cores for run in trial.runs for w in run.windows if w.foreign_cores is not None]
    return trial.cpu_cores_used + (statistics.fmean(others) if others else 0.0)


def _with_memory(costs: Costs, trials: Sequence[TrialResult]) -> Costs:
    """Base and a worker's own memory, by least squares over the peaks with the queue's own bytes taken off."""
    points = [
        (float(trial.settings.num_workers), trial.peak_pss_bytes - queued_bytes(trial.settings, costs))
        for trial in trials
        if trial.peak_pss_bytes
    ]
    if not points:
        return costs
    counts = {workers for workers, _ in points}
    if len(counts) == 1:
        only = statistics.fmean(rest for _, rest in points)
        return replace(costs, base_bytes=only) if counts == {0.0} else costs
    middle = statistics.fmean(workers for workers, _ in points)
    height = statistics.fmean(rest for _, rest in points)
    slope = sum((w - middle) * (rest - height) for w, rest in points) / sum((w - middle) ** 2 for w, _ in points)
    return replace(costs, base_bytes=height - max(0.0, slope) * middle, worker_bytes=max(0.0, slope))


def _near(settings: LoaderSettings, residuals: dict[LoaderSettings, float]) -> float:
    """Residual of the settings nearest to these: between two worker counts it is interpolated in their logarithm."""
    if settings in residuals:
        return residuals[settings]
    if not settings.num_workers:
        return 0.0
    by_workers: dict[int, list[tuple[int, float]]] = {}
    for one, value in residuals.items():
        if one.num_workers:
            apart = sum(getattr(one, knob) != getattr(settings, knob) for knob in KNOBS if knob != "num_workers")
            by_workers.setdefault(one.num_workers, []).append((apart, value))
    nearest = {
        workers: statistics.fmean(value for apart, value in many if apart == min(many)[0])
        for workers, many in by_workers.items()
    }
    below = max((workers for workers in nearest if workers <= settings.num_workers), default=None)
    above = min((workers for workers in nearest if workers >= settings.num_workers), default=None)
    if below is None or above is None or below == above:
        return nearest.get(below or above or 0, 0.0)
    share = math.log(settings.num_workers / below) / math.log(above / below)
    return nearest[below] + share * (nearest[above] - nearest[below])
