"""What settings nobody ran would do, told from those that were: `forecast`, marked as predicted, with its own error."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workbench.errors import SettingsError
from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.machine import format_bytes
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.stage_costs import StageCosts
from workbench.tuning.fitting import Model, layout_of, models_of
from workbench.tuning.queueing import Costs, bounds, memory_bytes, name_of, said_of
from workbench.tuning.ranking import counts
from workbench.tuning.rounds import apart

if TYPE_CHECKING:
    import pandas

    from workbench.tuning.results import Results

LEAST_ERROR = 0.03  # two starts of the same settings differ by as much
FEWEST_TO_SEE_AN_ERROR = 3
MOST_NAMED = 3  # settings that a sentence lists before it only counts them


@dataclass(frozen=True)
class Prediction:
    """What the model says of one settings.

    Attributes:
        settings: The knobs.
        samples_per_second: Predicted steady rate; None when nothing that was run tells.
        low: Lower end of where 95 % of such predictions would lie; None while too few trials were run to see that.
        high: Upper end.
        bound: Name of what binds, a key of `queueing.BOUND_WORDS`; empty when unknown.
        limits: Batches per second that each station would let through.
        peak_pss_bytes: Predicted peak memory; None when unknown.
        measured_samples_per_second: What a trial of these settings gave on this machine; None when none was run.
        measured_pss_bytes: The same for memory.
    """

    settings: LoaderSettings
    samples_per_second: float | None
    low: float | None
    high: float | None
    bound: str
    limits: dict[str, float] = field(default_factory=dict)
    peak_pss_bytes: int | None = None
    measured_samples_per_second: float | None = None
    measured_pss_bytes: int | None = None


@dataclass(frozen=True)
class Forecast:
    """Predictions for many settings. Every number in it is predicted, but for those called measured.

    Attributes:
        predictions: One a settings, the highest predicted rate first.
        model: What they rest on.
        rate_errors: For each settings that was run, how far it lies from what the others predict for it (relative).
        memory_errors: The same for peak memory.
        supposed: What was supposed beyond what was measured, such as "16 cores"; empty for the machine as it is.
    """

    predictions: tuple[Prediction, ...]
    model: Model
    rate_errors: tuple[float, ...] = ()
    memory_errors: tuple[float, ...] = ()
    supposed: str = ""

    @property
    def rate_error(self) -> float | None:
        """Median relative error of predicted rates on settings that were run, each left out of its own prediction."""
        return statistics.median(self.rate_errors) if len(self.rate_errors) >= FEWEST_TO_SEE_AN_ERROR else None

    @property
    def memory_error(self) -> float | None:
        """Median relative error of predicted peak memory on settings that were run, each left out likewise."""
        return statistics.median(self.memory_errors) if len(self.memory_errors) >= FEWEST_TO_SEE_AN_ERROR else None

    @property
    def best(self) -> LoaderSettings | None:
        """The settings with the highest predicted rate; among those within 2 % of it the one with the fewest workers,
        then batches in flight, then knobs turned away from PyTorch's defaults."""
        known = [one for one in self.predictions if one.samples_per_second]
        if not known:
            return None
        top = max(one.samples_per_second or 0.0 for one in known)
        close = [one for one in known if (one.samples_per_second or 0.0) >= 0.98 * top]
        return min((one.settings for one in close), key=_cheapness)

    def prediction(self, settings: LoaderSettings) -> Prediction | None:
        """What is predicted for these settings, or None when they are not among them."""
        return next((one for one in self.predictions if one.settings == settings), None)

    @property
    def frame(self) -> pandas.DataFrame:
        """One row a settings: the knobs, then what is predicted, then what was measured; unknown is NA."""
        import pandas

        rows = [one.settings.as_dict() | _predicted_row(one) for one in self.predictions]
        names = [*KNOBS, *_PREDICTED_COLUMNS]
        data = {name: [row[name] for row in rows] for name in names}
        return pandas.DataFrame(data).convert_dtypes()[names]

    @cached_property
    def explanation(self) -> str:
        """In words: what binds, what would help next, and how far to trust it."""
        return "\n".join(_explained(self))

    def __repr__(self) -> str:
        lines = [f"Forecast (predicted{', ' + self.supposed if self.supposed else ''})"]
        for one in (one for one in self.predictions if one.samples_per_second):
            measured = one.measured_samples_per_second
            note = f", measured {_number(measured)}" if measured else ""
            lines.append(
                f"  {one.settings.describe()}: {_number(one.samples_per_second)} samples/s predicted{note}, "
                f"memory {format_bytes(one.peak_pss_bytes)}, bound by {name_of(one.bound)}"
            )
        return "\n".join([*lines, self.explanation])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    @property
    def _trust(self) -> str:
        if self.rate_error is None:
            return "Error not known: fewer than three of the settings that were run can be predicted from the others."
        memory = "" if self.memory_error is None else f", of peak memory {self.memory_error:.0%}"
        beyond = f"; what is supposed ({self.supposed}) was not run" if self.supposed else ""
        return (
            f"Error on the {len(self.rate_errors)} settings that were run, each predicted from the others: "
            f"median {self.rate_error:.0%} of the rate{memory}{beyond}."
        )


_PREDICTED_COLUMNS = (
    "predicted_samples_per_second",
    "predicted_low",
    "predicted_high",
    "predicted_pss_bytes",
    "bound",
    "measured_samples_per_second",
    "measured_pss_bytes",
)


def forecast(
    results: Results,
    *,
    settings: Iterable[LoaderSettings] | None = None,
    cores: float | None = None,
    batch_size: int | None = None,
    step_seconds: float | None = None,
    stages: StageCosts | None = None,
) -> Forecast:
    """Predicts rate and memory of settings that were not run, or of all of them under other conditions.

    Args:
        results: A sweep; two settings that were run, one of them with workers, are enough.
        settings: What to predict; None takes all settings of the sweep and more worker counts around them.
        cores: What if the loader could use this many cores.
        batch_size: What if a batch held this many samples.
        step_seconds: What if the training step took this long for a batch.
        stages: What `measure.stages.measure_stages` saw inside the workers; sharper than what trials alone tell.

    Raises:
        SettingsError: If no trial of the sweep has a rate, or a supposed number makes no sense.
    """
    _check_supposed(cores=cores, batch_size=batch_size, step_seconds=step_seconds)
    here = float(results.machine.get("usable_cores") or 1)
    known = [trial for trial in results.trials if counts(trial)]
    if not known:
        raise SettingsError(
            "nothing can be predicted: no trial of this sweep has a rate; run it again, and see results.reason."
        )
    wanted = list(settings) if settings is not None else _worth_predicting(results, cores or here)
    paced = bool(results.options.get("step"))
    return forecast_from(known, wanted, results.probe, here, paced, cores, batch_size, step_seconds, stages)


def forecast_from(
    trials: Sequence[TrialResult],
    wanted: Sequence[LoaderSettings],
    probe: Probe | None,
    here: float,
    paced: bool = False,
    cores: float | None = None,
    batch_size: int | None = None,
    step_seconds: float | None = None,
    stages: StageCosts | None = None,
) -> Forecast:
    """As `forecast`, from trials with rates and the cores they ran on."""
    models = models_of(trials, probe, here, paced, stages)
    supposed = _supposed(cores, batch_size, step_seconds)
    measured = {trial.settings: trial for trial in trials} if not supposed else {}
    rate_errors, memory_errors = _left_out(trials, probe, here, paced, stages)
    error = _claimed_error(rate_errors)
    if batch_size is not None:
        wanted = [one.replaced(batch_size=None) for one in wanted]
    found = []
    for one in dict.fromkeys(wanted):
        model = models.get(layout_of(one, probe))
        costs = _under(model.costs, cores, batch_size, step_seconds) if supposed and model else None
        found.append(predict(model, one, costs, error, measured.get(one)))
    found.sort(key=lambda one: -(one.samples_per_second or 0.0))
    first = next(iter(models.values()))
    return Forecast(tuple(found), first, tuple(rate_errors), tuple(memory_errors), supposed)


# -- predicting --


def predict(
    model: Model | None,
    settings: LoaderSettings,
    costs: Costs | None = None,
    error: float | None = None,
    trial: TrialResult | None = None,
) -> Prediction:
    """What a model says of one settings.

    Args:
        model: Fitted to trials of the same layout; None where there are none, and then nothing is predicted.
        settings: The knobs.
        costs: Costs to suppose in place of the fitted ones.
        error: Relative error to state; None where it is not known.
        trial: What was measured of these settings, to stand beside the prediction.
    """
    counted = trial is not None and counts(trial)
    measured = (trial.samples_per_second, trial.peak_pss_bytes) if trial is not None and counted else (None, None)
    if model is None or not model.tells_of(settings):
        return Prediction(settings, None, None, None, "", {}, None, *measured)
    used = costs or model.costs
    if settings.batch_size is not None and used.samples and settings.batch_size != used.samples:
        used = costs = used.with_batch_size(settings.batch_size)
    known = model.batches_per_second(settings, costs)
    samples = known[0] * used.samples if known and used.samples else None
    return Prediction(
        settings=settings,
        samples_per_second=samples,
        low=samples * math.exp(-2 * error) if samples and error is not None else None,
        high=samples * math.exp(2 * error) if samples and error is not None else None,
        bound=known[1] if known else "",
        limits=bounds(settings, used) if known else {},
        peak_pss_bytes=memory_bytes(settings, used) if known else None,
        measured_samples_per_second=measured[0],
        measured_pss_bytes=measured[1],
    )


def _left_out(
    trials: Sequence[TrialResult], probe: Probe | None, cores: float, paced: bool, stages: StageCosts | None
) -> tuple[list[float], list[float]]:
    """Relative errors of rate and memory for each trial, predicted from all others."""
    rate_errors, memory_errors = [], []
    for trial in trials:
        layout = layout_of(trial.settings, probe)
        rest = [other for other in trials if other is not trial and layout_of(other.settings, probe) == layout]
        workers = trial.settings.num_workers
        if not rest or (workers and not any(other.settings.num_workers for other in rest)):
            continue
        if not workers and all(other.settings.num_workers for other in rest):
            continue
        found = predict(models_of(rest, probe, cores, paced, stages)[layout], trial.settings)
        if found.samples_per_second and trial.samples_per_second:
            rate_errors.append(abs(found.samples_per_second / trial.samples_per_second - 1))
        if found.peak_pss_bytes and trial.peak_pss_bytes:
            memory_errors.append(abs(found.peak_pss_bytes / trial.peak_pss_bytes - 1))
    return rate_errors, memory_errors


def _claimed_error(errors: Sequence[float]) -> float | None:
    if len(errors) < FEWEST_TO_SEE_AN_ERROR:
        return None
    return max(LEAST_ERROR, math.sqrt(statistics.fmean(error**2 for error in errors)))


def _under(costs: Costs, cores: float | None, batch_size: int | None, step_seconds: float | None) -> Costs:
    if batch_size is not None:
        costs = costs.with_batch_size(batch_size)
    if cores is not None:
        costs = replace(costs, cores=cores)
    return costs if step_seconds is None else replace(costs, step_seconds=step_seconds)


def _supposed(cores: float | None, batch_size: int | None, step_seconds: float | None) -> str:
    parts = []
    if cores is not None:
        parts.append(f"with {cores:g} core{'' if cores == 1 else 's'}")
    if batch_size is not None:
        parts.append(f"with {batch_size} samples a batch")
    if step_seconds is not None:
        parts.append(f"with a step of {step_seconds * 1000:.3g} ms")
    return ", ".join(parts)


def _check_supposed(**numbers: float | None) -> None:
    for name, value in numbers.items():
        least_ok = name == "step_seconds"
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (number and (value > 0 or (least_ok and value == 0))):
            raise SettingsError(f"{name}={value!r} cannot be supposed: give a number above 0, or leave it out.")


def _worth_predicting(results: Results, cores: float) -> list[LoaderSettings]:
    """The sweep's settings, and the plainest of them under more worker counts."""
    tried = [trial.settings for trial in results.trials]
    plain = results.best or tried[0]
    counts = {0, 1, max(1, round(cores)), max(1, round(cores) // 2), 2 * max(1, round(cores))}
    return [*tried, *(plain.replaced(num_workers=count) for count in sorted(counts))]


def _cheapness(settings: LoaderSettings) -> tuple[int, int, int]:
    return settings.num_workers, settings.batches_in_flight, apart(settings, LoaderSettings())


# -- words --


def _explained(found: Forecast) -> list[str]:
    top = found.prediction(found.best) if found.best else None
    if top is None:
        return ["Nothing that was run tells what binds this loader.", *_untold(found), found._trust]
    ends = "" if top.low is None else f" ({_number(top.low)} to {_number(top.high)})"
    lines = [
        f"Predicted best: {top.settings.describe()}, {_number(top.samples_per_second)} samples/s{ends}.",
        said_of(top.bound, top.limits),
        *_untold(found),
        found._trust,
    ]
    return [line for line in lines if line]


def _untold(found: Forecast) -> list[str]:
    """Which settings nothing is predicted for, by what sets them apart from those that were run."""
    untold = [one for one in found.predictions if one.samples_per_second is None]
    if not untold:
        return []
    known = {one.settings.layout for one in found.predictions if one.samples_per_second}
    layouts = sorted({one.settings.layout for one in untold if one.settings.layout} - known)
    if all(one.settings.layout in layouts for one in untold):
        what = f"layout{'' if len(layouts) == 1 else 's'} {', '.join(layouts)}"
    else:
        what = "; ".join(one.settings.describe() for one in untold[:MOST_NAMED])
        what += f"; and {len(untold) - MOST_NAMED} more" if len(untold) > MOST_NAMED else ""
    return [f"Not predicted: {what}. No settings that reads or forms batches in that way was run; run one to know."]


def _predicted_row(one: Prediction) -> dict[str, Any]:
    values = (
        one.samples_per_second,
        one.low,
        one.high,
        one.peak_pss_bytes,
        one.bound or None,
        one.measured_samples_per_second,
        one.measured_pss_bytes,
    )
    return dict(zip(_PREDICTED_COLUMNS, values, strict=True))


def _number(rate: float | None) -> str:
    if rate is None:
        return "–"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
