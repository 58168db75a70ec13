"""What a forecast adds to a sweep's own words: what binds, what would help next, and why some settings were not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.tuning.fitting import Model, layout_of, models_of
from workbench.tuning.forecast import predict
from workbench.tuning.queueing import rate, said_of
from workbench.tuning.ranking import counts

if TYPE_CHECKING:
    from workbench.tuning.results import Results

GAIN_WORTH_SAYING = 0.2  # a prediction of less is not held out as a hope
_LEFT_OUT = "not run: {}; strategy='grid' measures every settings."


def binding_words(results: Results) -> list[str]:
    """What binds the recommended settings of a sweep and what would help next, by a model of its trials.

    Empty where the trials cannot tell, or where no workers are best after some were tried, which has reasons of its
    own.
    """
    best = results.best
    known = [trial for trial in results.trials if counts(trial)]
    if best is not None and not any(trial.settings.num_workers for trial in results.trials):
        return [said_of("alone", {"alone": 1.0})]
    if best is None or not best.num_workers or len(known) < 2:
        return []
    here, paced = float(results.machine.get("usable_cores") or 1), bool(results.options.get("step"))
    model = models_of(known, results.probe, here, paced)[layout_of(best, results.probe)]
    there = predict(model, best)
    said = said_of(there.bound, there.limits)
    if not said:
        return []
    more = _with_more(model, best, here, max(trial.settings.num_workers for trial in known))
    return [f"{said} (By a model fitted to these trials.){more}"]


def predicted_rate(results: Results, settings: LoaderSettings) -> float | None:
    """Samples per second that the trials of a sweep predict for these settings; None where they tell nothing."""
    known = [trial for trial in results.trials if counts(trial)]
    here, paced = float(results.machine.get("usable_cores") or 1), bool(results.options.get("step"))
    if not known or (paced and not settings.num_workers):
        return None  # loading without workers waits for the step, whose own time a paced sweep does not show
    models = models_of(known, results.probe, here, paced)
    return predict(models.get(layout_of(settings, results.probe)), settings).samples_per_second


def _with_more(model: Model, best: LoaderSettings, cores: float, most_tried: int) -> str:
    """What twice the cores, or twice the workers, are predicted to give, where those are what binds."""
    here = model.batches_per_second(best)
    bare = rate(best, model.costs)
    if here is None or bare is None:
        return ""
    if bare[1] == "cores":
        wide = best.replaced(num_workers=max(best.num_workers, round(2 * cores)))
        there = rate(wide, replace(model.costs, cores=2 * cores))
        what = f"twice the cores ({2 * cores:g}) and {wide.num_workers} workers"
    elif bare[1] == "workers" and best.num_workers == most_tried:
        wide = best.replaced(num_workers=2 * most_tried)
        there, what = rate(wide, model.costs), f"{wide.num_workers} workers, more than were tried,"
    else:
        return ""
    if there is None or there[0] < (1 + GAIN_WORTH_SAYING) * bare[0]:
        return ""
    return f" Predicted: {what} would give {there[0] / bare[0]:.2g} times this rate."


def why_not_run(
    trials: Sequence[TrialResult], settings: Sequence[LoaderSettings], probe: Probe | None, cores: float, paced: bool
) -> dict[LoaderSettings, str]:
    """For settings that a finished search left out, what they were expected to give, as a reason to show."""
    known = [trial for trial in trials if counts(trial)]
    if not known or not settings:
        return dict.fromkeys(settings, _LEFT_OUT.format("nothing else could be rated"))
    models = models_of(known, probe, cores, paced)
    top = max(trial.samples_per_second or 0.0 for trial in known)
    found = {}
    for one in settings:
        expected = predict(models.get(layout_of(one, probe)), one).samples_per_second
        if expected is None:
            found[one] = _LEFT_OUT.format("the settings that were run tell nothing of it")
        else:
            found[one] = _LEFT_OUT.format(
                f"about {_rounded(expected)} samples/s expected (predicted), where the fastest gave {_rounded(top)}"
            )
    return found


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
