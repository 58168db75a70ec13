"""What holds training back: the loader alone, the step alone and both together, judged, with evidence and a way on.

    found = diagnose(loader, step)
    found.bound                 # "input", "compute", "transfer", "sync", "balanced" or "unknown"
    found.headroom              # 1.6: perfect loading would give at most 1.6 times the speed
    print(found)

`diagnosing.py` measures in isolated processes, `starts.py` holds what it finds, `bounds.py` judges the rates,
`causes.py` and `other_causes.py` find the sub-cause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench import machine
from workbench.errors import ProbeError, SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure import bounds, causes, other_causes
from workbench.measure.bounds import Bound, Rates
from workbench.measure.causes import Cause, Scene
from workbench.measure.stage_costs import StageCosts, merged
from workbench.measure.starts import Start, mean_of, rates_of, start_from
from workbench.measure.statistics import RateEstimate
from workbench.measure.trial import TrialPlan, TrialServer
from workbench.measure.verdicts import judge as judge_ending

ENOUGH_STARTS = 2
LONGEST_SECONDS = 10.0
ENOUGH_PRECISION = 0.10
"""Half-width of the headroom's interval at which no further start is made: the accuracy that is promised for it."""
NO_DEVICE = (
    "no accelerator here: the step ran on the CPU, so copies to a device and synchronising calls could not be seen"
)


@dataclass(frozen=True)
class Diagnosis:
    """What holds a training loop back. Unknown is None.

    Attributes:
        bound: "input", "compute", "transfer", "sync", "balanced" or "unknown".
        cause: The sub-cause, such as "storage wait"; None when nothing is claimed.
        confidence: "high", "medium" or "low".
        loader_samples_per_second: The loader alone.
        step_samples_per_second: The step alone, on batches at hand.
        combined_samples_per_second: Both, as in training.
        moved_samples_per_second: The loader and the copy to the device; None without a device.
        intervals: 95 % interval of each of these rates: name -> (low, high).
        input_wait_fraction: Share of the combined loop spent in `next()`, 0 to 1.
        headroom: Step alone over combined: what perfect loading would give at most; 1 where the loop is as fast.
        headroom_interval: Its 95 % interval.
        evidence: The numbers behind the verdict, a sentence each.
        next_step: One thing to do.
        refuted_by: What would show that the verdict is wrong.
        notes: What could not be seen, and what else was found.
        settings: Under which the loader ran.
        stages: Where a batch's time goes while the loader runs alone; None when it cannot be looked into.
        stages_combined: The same beside the step.
        starts: How often everything was started afresh.
    """

    bound: str
    cause: str | None
    confidence: str
    loader_samples_per_second: float
    step_samples_per_second: float
    combined_samples_per_second: float
    moved_samples_per_second: float | None
    intervals: dict[str, tuple[float, float]]
    input_wait_fraction: float
    headroom: float
    headroom_interval: tuple[float, float]
    evidence: tuple[str, ...]
    next_step: str
    refuted_by: str
    notes: tuple[str, ...]
    settings: LoaderSettings
    stages: StageCosts | None
    stages_combined: StageCosts | None
    starts: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the single batch times."""
        return json.loads(json.dumps(asdict(self), default=str)) | {
            name: _slim(getattr(self, name)) for name in ("stages", "stages_combined")
        }

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        low, high = self.headroom_interval
        lines = [
            f"Bound: {self.bound}{cause}, confidence {self.confidence}",
            f"Headroom: perfect loading would give at most {self.headroom:.2f}x (95 %: {low:.2f} to {high:.2f})",
            *(f"  {sentence}" for sentence in self.evidence),
            f"Next: {self.next_step}",
            f"It would be wrong if: {self.refuted_by}",
            *(f"Note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def diagnose(
    loader: Any,
    step: Any,
    settings: LoaderSettings | None = None,
    *,
    starts: int = 4,
    seconds: float = 0.3,
    samples_per_batch: int | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> Diagnosis:
    """Says what bounds a training loop of this loader and this step, and how sure that is.

    Loader alone, step alone on a few batches at hand, and both are measured in turn, in processes of their own; the
    caller's loader is not touched. Further starts are made until the verdict is settled, at most `starts`. What is
    stated is how loader and step go in the first seconds of a process, `seconds` of each: a loop that slows down as it
    runs (a heap that scatters, a cache that is used up) has more to gain later.

    Args:
        loader: A DataLoader, a factory, or the name of one (see `LoaderSource.of`).
        step: Called with each batch, or a (model, loss, optimiser) triple. One that drives a device which torch does
            not know may have a method `synchronize` that waits for it, and a `to_device` that copies a batch there.
        settings: How to run the loader; None runs it as it is.
        starts: Most starts, at least 2.
        seconds: Least length of each stretch that is timed; there are two of each kind in a start.
        samples_per_batch: Samples in every batch, where counting them would be wrong.
        on_event: As for `TrialServer`.

    Raises:
        ProbeError: If loader or step fail, or the loader yields too little to time.
        SourceError: If the loader cannot be found or shipped.
        SettingsError: If `step` is no step, `starts` is below 2, `seconds` not above 0 and at most 10, or
            `samples_per_batch` below 1.
    """
    from workbench.measure.training import step_of

    _check_effort(starts, seconds)
    if samples_per_batch is not None and samples_per_batch < 1:
        raise SettingsError(f"samples_per_batch={samples_per_batch!r} is no number of samples: give 1 or more, or None")
    accelerated = machine.accelerator().kind is not None
    with TrialServer(
        loader, step=step_of(step), samples_per_batch=samples_per_batch, on_event=on_event, fresh=accelerated
    ) as server:
        return diagnose_with(server, settings or server.current, starts, seconds)


def diagnose_with(server: TrialServer, settings: LoaderSettings, starts: int = 4, seconds: float = 0.3) -> Diagnosis:
    """The same on a server that runs already and has a step."""
    *_, found = by_start(server, settings, starts, seconds)
    assert found is not None
    return found


def by_start(
    server: TrialServer, settings: LoaderSettings, starts: int = 4, seconds: float = 0.3
) -> Iterator[Diagnosis | None]:
    """The same as it grows: what is known after each start, until that is settled. None after the first.

    Cancelling the server ends it with a `ProbeError`; what was given until then stays good.
    """
    _check_effort(starts, seconds)
    seen: list[Start] = []
    for start in range(starts):
        plan = TrialPlan(seed=start, max_measure_seconds=2.0, measure_seconds=1e9, precision=0.0)
        verdict = server.ask("diagnose", settings, plan, seconds=seconds)
        if not verdict.get("done"):
            raise _failure(verdict, settings)
        seen.append(start_from(verdict, settings))
        found = conclude(seen, settings, server.cores) if len(seen) >= ENOUGH_STARTS else None
        yield found
        if found is not None and found.confidence == "high" and _precise(found):
            return


def _check_effort(starts: int, seconds: float) -> None:
    if isinstance(starts, bool) or not isinstance(starts, int) or starts < ENOUGH_STARTS:
        raise SettingsError(
            f"starts={starts!r} is too few: one start says nothing about the next, give at least {ENOUGH_STARTS}"
        )
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_SECONDS:
        raise SettingsError(f"seconds={seconds!r} is no length of a stretch: give 0.1 to {LONGEST_SECONDS:g}, say 0.3")


def conclude(seen: Sequence[Start], settings: LoaderSettings, cores: int) -> Diagnosis:
    """The diagnosis from all starts; a pure function."""
    rates = rates_of(seen, settings, cores)
    bound = bounds.judge(rates)
    alone, beside = (
        merged([c for start in seen for c in start.costs.get(kind, ())]) for kind in ("loader", "combined")
    )
    scene = None
    if alone is not None:
        scene = Scene(
            alone,
            settings.num_workers,
            settings.prefetch_factor,
            cores,
            rates.loader.samples_per_second,
            rates.step.samples_per_second,
            rates.foreign_share,
            mean_of([start.memory_pressure for start in seen]),
        )
    cause = _cause(bound, rates, scene, seen, cores)
    return _diagnosis(bound, cause, rates, scene, (alone, beside), seen, settings)


def _cause(bound: Bound, rates: Rates, scene: Scene | None, seen: Sequence[Start], cores: int) -> Cause | None:
    headroom = rates.headroom.value
    if bound.disturbed and bound.bound in ("input", "compute"):
        slower = min(rates.loader.samples_per_second, rates.step.samples_per_second)
        return other_causes.starvation_cause(
            slower, rates.combined.samples_per_second, rates.step_slowdown, cores, rates.num_workers
        )
    if bound.bound == "input":
        return causes.input_cause(scene) if scene is not None else None
    if bound.bound == "compute":
        return other_causes.compute_cause(scene, rates.num_workers, headroom)
    if bound.bound == "sync" and rates.sync is not None:
        waited = max(0.0, rates.sync.host_seconds - rates.sync.host_cpu_seconds)
        return other_causes.sync_cause(rates.sync.host_seconds, waited, rates.sync.gain)
    if bound.bound == "transfer" and rates.copy is not None:
        unpinned = rates.copy.keeps_host if seen[0].pinned is None else not seen[0].pinned
        return other_causes.transfer_cause(rates.copy.seconds, rates.copy.host_seconds, rates.lost_seconds, unpinned)
    return other_causes.balanced_cause() if bound.bound == "balanced" else None


def _diagnosis(
    bound: Bound,
    cause: Cause | None,
    rates: Rates,
    scene: Scene | None,
    stages: tuple[StageCosts | None, StageCosts | None],
    seen: Sequence[Start],
    settings: LoaderSettings,
) -> Diagnosis:
    headroom = rates.headroom
    named = {"loader": rates.loader, "step": rates.step, "combined": rates.combined, "moved": rates.moved}
    notes = [] if any(start.device_seen for start in seen) else [NO_DEVICE]
    notes += (
        causes.asides(scene)
        if scene is not None
        else ["the loader is no DataLoader: its workers cannot be looked into"]
    )
    notes += _sampled(stages[0])
    return Diagnosis(
        bound=bound.bound,
        cause=cause.name if cause else None,
        confidence=bound.confidence,
        loader_samples_per_second=rates.loader.samples_per_second,
        step_samples_per_second=rates.step.samples_per_second,
        combined_samples_per_second=rates.combined.samples_per_second,
        moved_samples_per_second=rates.moved.samples_per_second if rates.moved else None,
        intervals={name: (rate.low, rate.high) for name, rate in named.items() if rate is not None},
        input_wait_fraction=rates.input_wait_fraction,
        headroom=max(1.0, headroom.value),
        headroom_interval=(max(1.0, headroom.low), max(1.0, headroom.high)),
        evidence=(*_evidence(rates, bound), *((cause.evidence,) if cause else ())),
        next_step=cause.next_step if cause else _MEASURE_AGAIN,
        refuted_by=cause.refuted_by if cause else "a longer measurement on a quiet machine settles it",
        notes=tuple(notes),
        settings=settings,
        stages=stages[0],
        stages_combined=stages[1],
        starts=len(seen),
    )


_MEASURE_AGAIN = "measure again on a quiet machine, or longer: starts=8, seconds=1.0 (--starts 8 --seconds 1)"


def _evidence(rates: Rates, bound: Bound) -> list[str]:
    return [
        f"loader alone {_rate(rates.loader)}, step alone {_rate(rates.step)}, together {_rate(rates.combined)}",
        f"{bound.why}; the loop spends {rates.input_wait_fraction:.0%} of its time getting batches",
    ]


def _rate(rate: RateEstimate) -> str:
    return f"{rate.samples_per_second:.0f} samples/s ({rate.low:.0f} to {rate.high:.0f})"


def _failure(verdict: dict[str, Any], settings: LoaderSettings) -> ProbeError:
    limits = {"deadline_seconds": 60.0, "silence_seconds": 15.0, "memory_bytes": None, "floor_bytes": 0}
    _, reason = judge_ending(settings, verdict, limits)
    error = verdict.get("error") or {}
    return ProbeError(
        f"loader and step could not be run with {settings.describe()}: {reason}",
        error_type=error.get("type", ""),
        traceback_text=error.get("traceback", ""),
    )


def _precise(found: Diagnosis) -> bool:
    low, high = found.headroom_interval
    return high - low <= 2 * ENOUGH_PRECISION * found.headroom


def _sampled(costs: StageCosts | None) -> list[str]:
    formed = sum(costs.worker_batches) if costs is not None else 0
    if costs is None or costs.batches_detailed >= formed:
        return []
    return [
        f"stages were timed on {costs.batches_detailed} of {formed} batches, drawn at random: on all of them, clocks "
        "would be a part of what they measure"
    ]


def _slim(costs: StageCosts | None) -> dict[str, Any] | None:
    return {name: value for name, value in asdict(costs).items() if name != "batch_walls"} if costs else None
