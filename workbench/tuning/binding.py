"""What binds the recommended settings of a sweep, said only where its trials show it; silence everywhere else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.loaders.settings import LoaderSettings, workers
from workbench.measure.records import TrialRun
from workbench.measure.result import TrialResult
from workbench.tuning.fitting import PLATEAU_BELOW, Model, layout_of, models_of
from workbench.tuning.forecast import predict
from workbench.tuning.queueing import rate, said_of
from workbench.tuning.ranking import TIED_AT_MOST_BELOW, counts
from workbench.tuning.trials import surely_slower

if TYPE_CHECKING:
    from workbench.tuning.results import Results

GAIN_WORTH_SAYING = 0.2  # a prediction of less is not held out as a hope
NEARLY_ALL_CORES = 0.85  # of the usable cores: what is left is no room for another worker
WAITING_BELOW = 0.6  # of the cores that as many processes could use: they wait more than they compute
FEWEST_STARTS = 2  # that the machine left alone: one start says nothing of the next
FEWEST_BATCHES = 8  # timed in them
ALIKE = ("batch_size", "layout", "batch_on_worker", "worker_threads")  # knobs that change what a batch costs


def binding_words(results: Results) -> list[str]:
    """What binds the recommended settings and what would help next, or nothing where the trials do not show it.

    The cores, where nearly all of them were in use. The workers, where no settings with more of them was tried, and
    more have been faster so far. What all workers share, where the processes were seen to wait and the intervals leave
    no room for a rate that grows with the workers.
    """
    best = results.best
    if best is not None and not any(trial.settings.num_workers for trial in results.trials):
        return [said_of("alone", {"alone": 1.0})]
    chosen = results.trial(best) if best is not None and best.num_workers else None
    if chosen is None or not _can_be_trusted(chosen) or _more_look_faster(results, chosen):
        return []
    here, paced = float(results.machine.get("usable_cores") or 0), bool(results.options.get("step"))
    used = cores_used(chosen)
    if not here or used is None:
        return []
    known = [trial for trial in results.trials if counts(trial)]
    model = models_of(known, results.probe, here, paced)[layout_of(chosen.settings, results.probe)]
    most_tried = max(t.settings.num_workers for t in results.trials if t.status != "skipped")
    if not paced and used >= NEARLY_ALL_CORES * here:
        measured = f" (Measured: {used:.2g} of {here:g} cores in use.)"
        return [said_of("cores", {"cores": 1.0}) + measured + _with_more(model, "cores", chosen.settings, here)]
    bound = predict(model, chosen.settings).bound
    alike = [trial for trial in known if _is_alike(trial, chosen) and _can_be_trusted(trial)]
    if not _is_shown(bound, chosen, alike, here, most_tried):
        return []
    more = _with_more(model, bound, chosen.settings, here)
    return [f"{said_of(bound, {bound: 1.0})} (By a model fitted to these trials.){more}"]


def cores_used(trial: TrialResult) -> float | None:
    """Cores in use in the starts that other programs left alone; None where that was not seen."""
    known = [run.cpu_cores_used for run in _quiet(trial) if run.cpu_cores_used is not None]
    return statistics.median(known) if known else None


def _quiet(trial: TrialResult) -> list[TrialRun]:
    return [run for run in trial.runs if run.status == "ok" and run.windows and not run.noisy]


def _can_be_trusted(trial: TrialResult) -> bool:
    quiet = _quiet(trial)
    batches = sum(window.batches for run in quiet for window in run.windows)
    return len(quiet) >= FEWEST_STARTS and batches >= FEWEST_BATCHES


def _more_look_faster(results: Results, chosen: TrialResult) -> bool:
    """Whether settings with more workers, of which it is open whether they are faster, gave a higher rate."""
    rate_here = chosen.samples_per_second or 0.0
    return any(
        trial.settings.num_workers > chosen.settings.num_workers
        and (trial.samples_per_second or 0.0) > (1 + TIED_AT_MOST_BELOW) * rate_here
        for trial in results.ranking.order
    )


def _is_alike(trial: TrialResult, chosen: TrialResult) -> bool:
    return bool(trial.settings.num_workers) and all(
        getattr(trial.settings, knob) == getattr(chosen.settings, knob) for knob in ALIKE
    )


def _is_shown(bound: str, chosen: TrialResult, alike: Sequence[TrialResult], here: float, most_tried: int) -> bool:
    """Whether the trials bear out what a model takes to bind."""
    if bound == "workers":
        fewer = [trial for trial in alike if trial.settings.num_workers < chosen.settings.num_workers]
        grows = any(_slower(trial, chosen) for trial in fewer)
        return grows and chosen.settings.num_workers == most_tried
    if bound in ("storage", "hand-over", "step"):
        return _has_levelled_off(alike, here, waiting=bound == "storage")
    return False


def _slower(trial: TrialResult, other: TrialResult) -> bool:
    return bool(trial.estimate and other.estimate) and surely_slower(trial.estimate, other.estimate)


def _has_levelled_off(alike: Sequence[TrialResult], here: float, waiting: bool) -> bool:
    """Whether the rate of the most workers lies, with its interval, below what the fewest and the cores would give."""
    if not alike:
        return False
    fewest, most = (pick(alike, key=lambda trial: trial.settings.num_workers) for pick in (min, max))
    few, many, used = fewest.settings.num_workers, most.settings.num_workers, cores_used(most)
    if few == many or used is None or used >= NEARLY_ALL_CORES * here:
        return False
    if waiting and used > WAITING_BELOW * min(many, here):
        return False
    assert fewest.estimate is not None and most.estimate is not None
    by_workers = fewest.estimate.low * many / few
    by_cores = most.estimate.samples_per_second * here / used if used else by_workers
    return most.estimate.high < PLATEAU_BELOW * min(by_workers, by_cores)


def _with_more(model: Model, bound: str, best: LoaderSettings, cores: float) -> str:
    """What twice the cores, or twice the workers, are predicted to give, where those are what binds."""
    bare = rate(best, model.costs)
    if bare is None or bare[1] != bound:
        return ""
    if bound == "cores":
        wide = best.replaced(num_workers=max(best.num_workers, round(2 * cores)))
        there = rate(wide, replace(model.costs, cores=2 * cores))
        what = f"twice the cores ({2 * cores:g}) and {workers(wide.num_workers)}"
    elif bound == "workers":
        wide = best.replaced(num_workers=2 * best.num_workers)
        there, what = rate(wide, model.costs), f"{workers(wide.num_workers)}, more than were tried,"
    else:
        return ""
    if there is None or there[0] < (1 + GAIN_WORTH_SAYING) * bare[0]:
        return ""
    return f" Predicted: {what} would give {there[0] / bare[0]:.2g} times this rate."
