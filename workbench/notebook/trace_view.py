"""The panel's view of single steps: a trace that was recorded, its timeline with gaps, and what it says in words."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from workbench.errors import SettingsError
from workbench.measure.trace import read_trace
from workbench.measure.trace_timeline import Timeline
from workbench.measure.trace_timeline import timeline as bars_of
from workbench.notebook import timeline
from workbench.notebook.controls import FIELD, button, labelled
from workbench.notebook.gallery import live_chart, look_soon, page_inks
from workbench.notebook.marks import Figure

SHOWN_STEPS = 4
HEIGHT = 330
NO_FILE = "name the file of a trace, such as step.json, or record one"
INVITATION = "A trace shows single steps: where the loop waits for the loader, and where a device does nothing."


class TraceView:
    """File, steps shown, timeline and words.

    Args:
        record: Called when a trace is to be recorded.
        guard: Wraps callbacks so that their errors are shown.
    """

    def __init__(self, record: Callable[[Any], None], guard: Callable[..., Any]) -> None:
        self._file = W.Text(placeholder="step.json", continuous_update=False, layout=W.Layout(**FIELD))
        self._first = W.BoundedIntText(value=0, min=0, max=1_000_000, layout=W.Layout(width="150px", margin="0"))
        self._first.observe(guard(lambda _: self._again()), "value")
        self._shown: Timeline | None = None
        self._quiet = False
        self.live: Any = None
        self._picture = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._words = W.HTML(f'<p class="wb-note">{INVITATION}</p>')
        self._pictures = False
        row = W.Box(
            [
                button("Record", "record some steps in a process of their own", record),
                labelled("Trace file", self._file),
                button("Show", "read the file and show its steps", guard(lambda _: self.show(self._file.value))),
                labelled("First step", self._first),
            ],
            layout=W.Layout(flex_flow="row wrap", overflow="visible"),
        )
        row.add_class("wb-fields")
        self.widget = W.VBox([row, self._picture, self._words])

    @property
    def path(self) -> str:
        """The file in the field."""
        return self._file.value.strip()

    def show(self, path: str | Path, first: int = 0) -> None:
        """Reads a trace and shows its steps.

        Raises:
            SettingsError: If no file is named.
            TraceError: If the file is no trace, or has no such step.
        """
        if not str(path).strip():
            raise SettingsError(NO_FILE)
        shown, report = bars_of(path, first, SHOWN_STEPS), read_trace(path)
        self._quiet = True
        self._file.value, self._first.value = str(path), first
        self._quiet = False
        self._shown = shown
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in report.evidence)
        self._words.value = f'<ul class="wb-evidence">{items}</ul><p class="wb-note">{escape(str(path))}</p>'
        self._draw()

    def settle(self, drawn: bool) -> None:
        """A live chart if a view draws, else a picture."""
        self._pictures = self.live is None or not drawn
        self._draw()

    def _again(self) -> None:
        if not self._quiet and self._shown is not None:
            self.show(self.path, self._first.value)

    def _draw(self) -> None:
        if self._shown is None:
            return
        if self.live is None and not self._pictures:
            self._begin()
        if self.live is not None:
            self.live.layout.display = "none" if self._pictures else None
            self.live.label = f"Timeline. {timeline.title_of(self._shown)}. The sentences below say what it shows."
            self.live.show(self._figure())
        self._picture.value = timeline.svg(self._shown) if self._pictures else ""

    def _begin(self) -> None:
        """Makes the live chart, which brings plotly to the page, and soon looks whether it has appeared there."""
        live = live_chart(None, HEIGHT)
        self.live, self._pictures = live, live is None
        if live is None:
            return
        live.observe(lambda change: self.settle(change["new"]), "drawn")
        self.widget.children = (*self.widget.children[:1], live, *self.widget.children[1:])
        look_soon(lambda: self.settle(live.drawn))

    def _figure(self) -> Figure:
        return timeline.timeline_figure(self._shown, page_inks())
