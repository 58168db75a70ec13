"""The values of each knob to try, as rows of boxes to tick: what is ticked is a SearchSpace."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import ipywidgets as W

from workbench import machine
from workbench.errors import SettingsError
from workbench.loaders.settings import KNOBS, SHARING_STRATEGIES, START_METHODS, STEP_KNOBS
from workbench.measure.step_copies import takes_non_blocking
from workbench.notebook import formatting
from workbench.notebook.folds import Fold
from workbench.tuning.space import SearchSpace, default_worker_counts


class Knob(NamedTuple):
    """How one knob is offered.

    Attributes:
        title: Its name in words.
        meaning: One line on what it does.
        values: Values that are offered from the start.
        typed: Whether further whole numbers can be typed.
    """

    title: str
    meaning: str
    values: tuple[Any, ...]
    typed: bool = False


OFFERED = {
    "num_workers": Knob("Workers", "processes that load while the model trains", (0, 1, 2, 4), True),
    "prefetch_factor": Knob("Prefetch", "batches that each worker keeps ready", (1, 2, 4, 8), True),
    "persistent_workers": Knob("Keep workers", "between epochs, in place of starting new ones", (False, True)),
    "pin_memory": Knob("Pin memory", "page-locked batches, for faster copies to an accelerator", (False, True)),
    "batch_on_worker": Knob("Whole batches", "the worker's dataset yields batches, batch_size=None", (False, True)),
    "multiprocessing_context": Knob("Start method", "how worker processes begin", (None, *START_METHODS)),
    "in_order": Knob("Keep order", "off lets a batch that is ready pass one that is not", (True, False)),
    "batch_size": Knob("Batch size", "changes training too, not only loading", (), True),
    "layout": Knob("Layout", "which copy of the data the factory reads", ("files", "tar", "parquet")),
    "worker_threads": Knob("Worker threads", "threads that each worker computes with", (None, 1, 2), True),
    "sharing_strategy": Knob("Sharing", "how tensors reach the main process", (None, *SHARING_STRATEGIES)),
    "non_blocking": Knob("Non-blocking", "the step goes on while its batch is copied", (False, True)),
}
MAIN_KNOBS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_on_worker")
NEED_PINNING = ("pin_memory", "non_blocking")  # mean nothing where no accelerator copies from pinned memory
RARE = ("layout", *STEP_KNOBS)  # hardly any loader has layouts, nor any a step
LEFT_ALONE = '<span class="wb-note">left as the loader has it</span>'
CHIP_LAYOUT = {"width": "auto", "margin": "0"}


class KnobRow:
    """One knob: a box for each value, and a field for further numbers where numbers make sense.

    Args:
        name: The knob.
        ticked: Values ticked at first.
        offered: Further values that are offered.
        changed: Called after any change.
    """

    def __init__(
        self, name: str, ticked: tuple[Any, ...], offered: tuple[Any, ...], changed: Callable[[], None]
    ) -> None:
        self.name = name
        self._changed = changed
        self._boxes: dict[Any, W.Checkbox] = {}
        self._chips = W.Box(layout=W.Layout(flex_flow="row wrap", align_items="center", overflow="visible"))
        self._chips.add_class("wb-chips")
        self.error = W.HTML()
        self._kept = W.HTML(LEFT_ALONE)
        self._field = self._typing_field() if OFFERED[name].typed else None
        for value in _sorted({*offered, *ticked}):
            self._add(value, value in ticked)
        knob = OFFERED[name]
        heading = W.HTML(
            f'<div class="wb-knob"><b>{escape(knob.title)}</b> <code>{name}</code>'
            f"<br><small>{escape(knob.meaning)}</small></div>"
        )
        heading.add_class("wb-knob-name")
        self.widget = W.Box(
            [heading, self._chips, self.error], layout=W.Layout(flex_flow="row wrap", overflow="visible")
        )
        self.widget.add_class("wb-row")
        self._lay_out()

    @property
    def values(self) -> tuple[Any, ...]:
        """The ticked values, in order; empty means that the knob is left as the loader has it."""
        return tuple(value for value in _sorted(self._boxes) if self._boxes[value].value)

    def tick(self, *values: Any) -> None:
        """Ticks exactly these values, offering those that were not offered yet."""
        for value in values:
            if value not in self._boxes:
                self._add(value, True)
        for value, box in self._boxes.items():
            box.value = value in values
        self._lay_out()

    def _add(self, value: Any, ticked: bool) -> None:
        box = W.Checkbox(
            value=ticked,
            description=formatting.value_label(value),
            tooltip=f"{self.name}={value!r}",
            indent=False,
            layout=W.Layout(**CHIP_LAYOUT),
        )
        box.add_class("wb-chip")
        box.observe(lambda _: self._ticked(), "value")
        self._boxes[value] = box

    def _typing_field(self) -> W.Text:
        field = W.Text(
            description="add",
            continuous_update=False,
            style={"description_width": "auto"},
            layout=W.Layout(width="104px", margin="0"),
            tooltip=f"another value of {self.name}",
        )
        field.add_class("wb-add")
        field.observe(self._typed, "value")
        return field

    def _typed(self, change: dict[str, Any]) -> None:
        text = change["new"].strip()
        if not text:
            return
        self.error.value = ""
        try:
            values = _numbers(self.name, text)
        except SettingsError as error:
            self.error.value = f'<span role="alert" class="wb-failed">{escape(str(error))}</span>'
            return
        self._field.value = ""
        self.tick(*self.values, *values)
        self._changed()

    def _lay_out(self) -> None:
        boxes = [self._boxes[value] for value in _sorted(self._boxes)]
        self._chips.children = (*boxes, *([self._field] if self._field else []), self._kept)
        self._say_whether_kept()

    def _ticked(self) -> None:
        self._say_whether_kept()
        self._changed()

    def _say_whether_kept(self) -> None:
        self._kept.layout.display = "none" if self.values else None


class Choices:
    """All knobs that a source can vary.

    Args:
        source: The LoaderSource; knobs that it cannot vary are not offered, and named in a note.
        space: Values ticked at first; None takes `SearchSpace.for_machine`.
        changed: Called after any change.
        step: The training step, where there is one.
    """

    def __init__(
        self,
        source: Any,
        space: SearchSpace | None,
        changed: Callable[[], None],
        step: Callable[..., Any] | None = None,
    ) -> None:
        told = STEP_KNOBS if takes_non_blocking(step) else ()
        accepted = [name for name in KNOBS if name in told or source.accepts(name)]
        pins = machine.accelerator().pins
        start = space or SearchSpace.for_machine().varied_only_by(source.accepts)
        self._quiet = True
        self._told = changed
        offered = [name for name in accepted if name not in NEED_PINNING or pins or name in start.knobs]
        self.rows = {
            name: KnobRow(name, start.knobs.get(name, ()), _offered(name), self._changed)
            for name in sorted(offered, key=list(OFFERED).index)
        }
        main = [row.widget for name, row in self.rows.items() if name in MAIN_KNOBS]
        more = [row.widget for name, row in self.rows.items() if name not in MAIN_KNOBS]
        parts = [*main]
        if more:
            parts.append(Fold("More knobs", W.VBox(more)).widget)
        parts.append(W.HTML(_left_out(source, accepted, offered)))
        self.widget = W.VBox(parts)
        self._quiet = False

    @property
    def space(self) -> SearchSpace:
        """What is ticked.

        Raises:
            SettingsError: If nothing at all is ticked.
        """
        ticked = {name: list(row.values) for name, row in self.rows.items() if row.values}
        if not ticked:
            raise SettingsError("no value is ticked; tick at least one value of one knob")
        return SearchSpace(**ticked)

    def tick(self, **knobs: Any) -> None:
        """Ticks exactly these values of the named knobs, for use from code and tests."""
        for name, values in knobs.items():
            if name not in self.rows:
                raise SettingsError(f"{name!r} is not offered for this loader; offered are {', '.join(self.rows)}")
            self.rows[name].tick(*values)

    def _changed(self) -> None:
        if not self._quiet:
            self._told()


def _offered(name: str) -> tuple[Any, ...]:
    if name == "num_workers":
        return tuple(sorted({0, 1, *default_worker_counts(machine.usable_cores())}))
    return OFFERED[name].values


def _numbers(name: str, text: str) -> list[int]:
    """Whole numbers in "3", "3, 5" or "3 5", each one that the knob may have."""
    values = []
    for part in text.replace(",", " ").split():
        try:
            value = int(part)
        except ValueError:
            raise SettingsError(f"{part!r} is no whole number; write {name} like 3, or several like 3, 6") from None
        SearchSpace(**{name: [value]})
        values.append(value)
    return values


def _sorted(values: Any) -> list[Any]:
    return sorted(values, key=lambda value: (value is not None, isinstance(value, str), value if value else 0))


def _left_out(source: Any, accepted: list[str], offered: list[str]) -> str:
    notes = []
    fixed = [name for name in KNOBS if name not in accepted and name not in RARE]
    if fixed:
        notes.append(f"{escape(source.name)} does not take {', '.join(fixed)}.")
    if "pin_memory" in accepted and "pin_memory" not in offered:
        notes.append("pin_memory is left out: no accelerator here copies from pinned memory.")
    return f'<p class="wb-note">{" ".join(notes)}</p>' if notes else ""
