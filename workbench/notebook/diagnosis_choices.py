"""What a diagnosis is told by hand: the step or how long it takes, the loader's settings, and how long to measure."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from workbench import machine
from workbench.errors import SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.diagnosis import ENOUGH_STARTS
from workbench.measure.training import step_of as training_step
from workbench.notebook.controls import FIELD, labelled
from workbench.tuning.steps import TimedStep, step_name, step_of

NO_STEP = (
    "no step is given, and a diagnosis compares the loader with one; pass step=, or write file.py:function, or how "
    "long a step takes, such as 40 ms"
)
MOST_WORKERS, MOST_PREFETCH, MOST_STARTS = 256, 1024, 20
KNOBS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
KNOB_WORDS = {
    "num_workers": "Workers",
    "prefetch_factor": "Prefetch",
    "pin_memory": "pin memory",
    "persistent_workers": "keep workers",
}


def step_from(given: Any) -> Any:
    """The step that was given: a function, a (model, loss, optimiser) triple, "file.py:function", or seconds.

    Raises:
        SettingsError: If it is none of these.
        SourceError: If the text names nothing that exists.
    """
    if given is None or given == "":
        raise SettingsError(NO_STEP)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return TimedStep(machine.parse_seconds(given))
    if isinstance(given, str):
        return step_of(given)
    return training_step(given)


class DiagnosisChoices:
    """The fields.

    Args:
        source: The LoaderSource; knobs that it cannot vary are not offered, nor pinning where nothing pins.
        step: As for `step_from`, or None.
        settings: Under which the loader runs at first.
        starts: Most starts.
        seconds: Length of a stretch that is timed.
        changed: Called after any change.
    """

    def __init__(self, source: Any, step: Any, settings: LoaderSettings, starts: int, seconds: float, changed: Any):
        self._step, self._settings = step, settings
        typed = step if isinstance(step, str) else f"{step:g} s" if isinstance(step, (int, float)) else ""
        self._typed = W.Text(value=typed, placeholder="train.py:step, or 40 ms", continuous_update=False)
        self._seconds = W.Text(value=f"{seconds:g} s", continuous_update=False)
        self._starts = W.BoundedIntText(value=starts, min=ENOUGH_STARTS, max=MOST_STARTS)
        pins = settings.pin_memory or machine.accelerator().pins
        offered = [name for name in KNOBS if source.accepts(name) and (pins or name != "pin_memory")]
        self.knobs = {name: self._knob(name) for name in offered}
        first = [] if self._has_own_step else [labelled("Step", self._typed)]
        first += [labelled("Time each", self._seconds), labelled("Starts at most", self._starts)]
        for field in (self._typed, self._seconds, self._starts, *self.knobs.values()):
            field.observe(lambda _: changed(), "value")
        for field in (self._typed, self._seconds, self._starts):
            field.layout = W.Layout(**FIELD, margin="0")
        self.widget = W.VBox([_row(first), _row(list(self.knobs.values()))])

    @property
    def step(self) -> Any:
        """The step.

        Raises:
            SettingsError: If there is none, or what was typed is none.
            SourceError: If the text names nothing that exists.
        """
        return step_from(self._step if self._has_own_step else self._typed.value.strip())

    @property
    def step_words(self) -> str:
        """What to call the step; empty while there is none."""
        if self._has_own_step:
            return "(model, loss, optimiser)" if isinstance(self._step, (tuple, list)) else step_name(self._step)
        return self._typed.value.strip()

    @property
    def typed_step(self) -> str | None:
        """What stands in the field; None where the step came from code."""
        return None if self._has_own_step else self._typed.value.strip()

    @property
    def seconds(self) -> float:
        """Length of a stretch that is timed.

        Raises:
            SettingsError: If what was typed is no time.
        """
        return _seconds(self._seconds.value)

    @property
    def starts(self) -> int:
        """Most starts."""
        return self._starts.value

    @property
    def settings(self) -> LoaderSettings:
        """Under which the loader is to run.

        Raises:
            SettingsError: If the knobs do not go together.
        """
        return self._settings.replaced(**{name: field.value for name, field in self.knobs.items()})

    @property
    def _has_own_step(self) -> bool:
        return self._step is not None and not isinstance(self._step, (str, int, float))

    def _knob(self, name: str) -> Any:
        value = getattr(self._settings, name)
        if name in ("num_workers", "prefetch_factor"):
            least, most = (0, MOST_WORKERS) if name == "num_workers" else (1, MOST_PREFETCH)
            field = W.BoundedIntText(value=2 if value is None else value, min=least, max=most)
            field.layout = W.Layout(width="150px", margin="0")
            return labelled(KNOB_WORDS[name], field)
        box = W.Checkbox(value=bool(value), description=KNOB_WORDS[name], indent=False)
        box.layout = W.Layout(width="auto", margin="0")
        box.add_class("wb-chip")
        return box


def _row(fields: list[Any]) -> W.Box:
    row = W.Box(fields, layout=W.Layout(flex_flow="row wrap", overflow="visible"))
    row.add_class("wb-fields")
    return row


def _seconds(text: str) -> float:
    return machine.parse_seconds(text.replace(" ", ""))
