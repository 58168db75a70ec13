"""The panel's charts: two side by side over the same trials, live where widgets work, pictures where not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as W

from workbench.loaders.settings import KNOBS
from workbench.notebook import marks, palette, selection, still
from workbench.notebook.charts import VIEWS
from workbench.notebook.points import Running
from workbench.tuning.results import Results

LEFT, RIGHT = ("throughput", "first_batch"), ("memory", "heatmap")
HEIGHT = 430
SECONDS_TO_APPEAR = 6.0  # a live chart that is not there by then is taken to need a picture in its place
CELL = {"flex": "1 1 380px", "min_width": "min(280px, 100%)", "width": "auto", "overflow": "hidden"}
NO_RESULTS = Results((), None, {}, "")
NOT_LIVE = (
    "Pictures in place of live charts: the kernel has been busy, or JupyterLab's own environment lacks anywidget "
    "(<code>pip install anywidget</code> where <code>jupyter lab</code> runs, then reload the page)."
)
NO_ANYWIDGET = "Pictures in place of live charts: install anywidget beside the workbench to have them live."


class ChartBox:
    """One chart with buttons that say which view it shows.

    Args:
        names: Views to choose from, the first one shown at first.
        selected: Called with a trial's key when its point is clicked.
    """

    def __init__(self, names: tuple[str, ...], selected: Callable[[int], None]) -> None:
        self._switch = W.ToggleButtons(
            options=[(VIEWS[name].title, name) for name in names],
            style=W.ToggleButtonsStyle(button_width="auto"),
            layout=W.Layout(margin="0"),
        )
        self._switch.add_class("wb-switch")
        self._switch.observe(lambda _: self.draw(), "value")
        self.live = live_chart(selected)
        self._picture = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._results: Any = None
        self._running: Running | None = None
        self._selected: int | None = None
        self._earlier: Any = None
        self.knobs = KnobPair(self.draw)
        self._pictures = self.live is None
        chart = [self.live] if self.live is not None else []
        top = W.Box([self._switch, self.knobs.widget], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        top.add_class("wb-card-top")
        self.widget = W.VBox([top, *chart, self._picture], layout=W.Layout(**CELL))
        self.widget.add_class("wb-card")

    def show(self, results: Any, running: Running | None, selected: int | None, earlier: Any = None) -> None:
        """Shows these results, None for none yet, over those of an earlier sweep if there is one to compare with."""
        self._results, self._running, self._selected, self._earlier = results, running, selected, earlier
        self.knobs.offer(results)
        self.draw()

    def show_pictures(self, instead: bool) -> None:
        """Draws pictures in place of the live chart, or no longer."""
        if instead != self._pictures and self.live is not None:
            self._pictures = instead
            self._picture.value = ""
            self.live.layout.display = "none" if instead else None
            self.draw()

    def draw(self) -> None:
        """Draws the chosen view anew, as far as anybody can see it."""
        name = self._switch.value
        view = VIEWS[name]
        self.knobs.widget.layout.display = None if name == "heatmap" else "none"
        results = self._results if self._results is not None else NO_RESULTS
        more = {
            "throughput": {"running": self._running, "earlier": self._earlier},
            "memory": {"earlier": self._earlier},
            "heatmap": {"x": self.knobs.x, "y": self.knobs.y},
        }.get(name, {})
        info = view.info(results, **more)
        if self.live is not None:
            self.live.label = (
                f"{view.title} chart. {info.summary or marks.NOTHING_YET}. The table below has every number."
            )
            self.live.show(selection.with_selection(view.figure(info, page_inks()), self._selected))
        if self._pictures:
            self._picture.value = still.svg(view.figure(info, palette.EITHER), height=HEIGHT)


class KnobPair:
    """The two knobs of the heat map, chosen among those that the sweep varies.

    Args:
        changed: Called when another one is chosen.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed, self._quiet = changed, False
        self._across, self._up = (_knob_field(label) for label in ("across", "up"))
        for field, other in ((self._across, self._up), (self._up, self._across)):
            field.observe(lambda change, other=other: self._chosen(change, other), "value")
        self.widget = W.Box([self._across, self._up], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        self.widget.add_class("wb-knob-pair")

    @property
    def x(self) -> str:
        """The knob along the bottom."""
        return self._across.value

    @property
    def y(self) -> str:
        """The knob along the side."""
        return self._up.value

    def offer(self, results: Any) -> None:
        """Offers the knobs that have several values in these results, and the two that are always of interest."""
        found = results.trials if results is not None else ()
        varied = [knob for knob in KNOBS if len({getattr(trial.settings, knob) for trial in found}) > 1]
        options = [knob for knob in KNOBS if knob in (*varied, "num_workers", "prefetch_factor", self.x, self.y)]
        if options == list(self._across.options):
            return
        self._quiet = True
        for field in (self._across, self._up):
            kept = field.value
            field.options = options
            field.value = kept
        self._quiet = False

    def _chosen(self, change: dict[str, Any], other: W.Dropdown) -> None:
        if self._quiet:
            return
        if other.value == change["new"]:  # the two trade places
            self._quiet = True
            other.value = change["old"]
            self._quiet = False
        self._changed()


def _knob_field(label: str) -> W.Dropdown:
    start = {"across": "num_workers", "up": "prefetch_factor"}
    field = W.Dropdown(options=list(start.values()), value=start[label], description=label)
    field.style.description_width = "auto"
    field.layout = W.Layout(width="auto", margin="0")
    return field


class Gallery:
    """Two chart boxes and the note that says when they are pictures."""

    def __init__(self, selected: Callable[[int], None]) -> None:
        self.boxes = (ChartBox(LEFT, selected), ChartBox(RIGHT, selected))
        self.note = W.HTML(f'<p class="wb-note">{NO_ANYWIDGET}</p>' if self.boxes[0].live is None else "")
        row = W.Box([box.widget for box in self.boxes], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        row.add_class("wb-gallery")
        self.widget = W.VBox([self.note, row])
        if self.boxes[0].live is not None:
            self.boxes[0].live.observe(lambda change: self.settle(change["new"]), "drawn")
        self.widget.layout.display = "none"

    def show(self, results: Any, running: Running | None, selected: int | None, earlier: Any = None) -> None:
        """Shows these results in both boxes, over those of an earlier sweep if there is one to compare with."""
        self.widget.layout.display = None
        for box in self.boxes:
            box.show(results, running, selected, earlier)

    def show_running(self, running: Running | None) -> None:
        """Moves the mark of what is being measured."""
        box = self.boxes[0]
        if running != box._running:
            box._running = running
            box.draw()

    def settle(self, drawn: bool) -> None:
        """Live charts if a view said that it draws; else pictures, with the reason."""
        if self.boxes[0].live is None:
            return
        for box in self.boxes:
            box.show_pictures(not drawn)
        self.note.value = "" if drawn else f'<p class="wb-note">{NOT_LIVE}</p>'

    @property
    def drawn(self) -> bool:
        """Whether a view draws the live charts."""
        return self.boxes[0].live is not None and self.boxes[0].live.drawn

    def close(self) -> None:
        """Ends the live charts' connections."""
        for box in self.boxes:
            if box.live is not None:
                box.live.close()


def look_soon(look: Callable[[], None]) -> None:
    """Calls `look` in a thread of its own when live charts have had the time to appear."""
    timer = threading.Timer(SECONDS_TO_APPEAR, look)
    timer.daemon = True
    timer.start()


def live_chart(selected: Callable[[int], None] | None, height: int = HEIGHT) -> Any:
    """A live chart that tells `selected` which point is clicked, or None where anywidget is missing."""
    try:
        from workbench.notebook.live import LiveChart
    except ImportError:
        return None
    chart = LiveChart(height=height)
    if selected is not None:
        chart.on_select(selected)
    return chart


def pulse() -> Any:
    """What tells the page that the kernel lives, or None where anywidget is missing."""
    try:
        from workbench.notebook.live import Pulse
    except ImportError:
        return None
    return Pulse()


def page_inks() -> Any:
    """Names of inks that the page with the chart turns into its own colours."""
    from workbench.notebook.live import PAGE_INKS

    return PAGE_INKS
