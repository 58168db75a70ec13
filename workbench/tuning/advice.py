"""What a forecast adds to a sweep's own words: rates that were not measured, and why some settings were not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.tuning.fitting import layout_of, models_of
from workbench.tuning.forecast import predict
from workbench.tuning.ranking import counts

if TYPE_CHECKING:
    from workbench.tuning.results import Results

_LEFT_OUT = "not run: {}; the strategy grid measures every settings."


def predicted_rate(results: Results, settings: LoaderSettings) -> float | None:
    """Samples per second that the trials of a sweep predict for these settings; None where they tell nothing."""
    known = [trial for trial in results.trials if counts(trial)]
    here, paced = float(results.machine.get("usable_cores") or 1), bool(results.options.get("step"))
    if not known or (paced and not settings.num_workers):
        return None  # loading without workers waits for the step, whose own time a paced sweep does not show
    models = models_of(known, results.probe, here, paced)
    return predict(models.get(layout_of(settings, results.probe)), settings).samples_per_second


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
