"""LiveChart: one chart in the notebook that the kernel feeds with changes; plotly.js travels once a page.

Pulse, for panels that may have no chart, says on the page when the kernel no longer answers.
"""

from __future__ import annotations

import copy
import functools
import gzip
import threading
import time
import weakref
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.notebook import changes, palette
from workbench.notebook.marks import Figure
from workbench.notebook.palette import Theme

# Names of inks in place of colours: the page that draws the figure knows its theme, the kernel does not.
PAGE_INKS = Theme("@text", "@muted", "@grid", "@paper", "@panel", "@alert")
HEARTBEAT_SECONDS = 2.0

_living: weakref.WeakSet[LiveChart | Pulse] = weakref.WeakSet()
_heart_lock = threading.Lock()
_heart: threading.Thread | None = None


class LiveChart(anywidget.AnyWidget):
    """A chart whose figure lives in Python only; what the notebook would save of it is a few bytes.

    Every view asks for the figure when it appears, and again when it missed a change, so that a reload, a second
    tab and a lost message need no care. `show` may be called from any one thread.

    Attributes:
        label: What the chart is, for readers that do not see it.
        height: Height in CSS pixels.
        config: Options of plotly.js.
        drawn: Whether a view has asked for the figure, so that somebody can see it.
    """

    _esm = Path(str(resources.files("workbench.notebook") / "static" / "live_chart.js"))
    label = traitlets.Unicode("chart").tag(sync=True)
    height = traitlets.Int(420).tag(sync=True)
    config = traitlets.Dict(palette.CONFIG).tag(sync=True)
    drawn = traitlets.Bool(False)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.layout.width = "100%"
        self.layout.min_width = "0"
        self.wb_figure: Figure = {"data": [], "layout": {}}
        self.wb_version = 0
        self.wb_lock = threading.RLock()
        self.wb_selected: list[Callable[[int], None]] = []
        self.on_msg(self._wb_receive)
        _living.add(self)
        _start_heart()

    def on_select(self, callback: Callable[[int], None]) -> None:
        """Calls `callback` with the key of a point that is clicked."""
        self.wb_selected.append(callback)

    def show(self, figure: Figure) -> int:
        """Shows `figure`; sends what changed, and returns how many changes that were (-1: sent as a whole)."""
        figure = copy.deepcopy(figure)
        with self.wb_lock:
            found = changes.changes(self.wb_figure, figure)
            if found == []:
                return 0
            self.wb_figure, since = figure, self.wb_version
            self.wb_version += 1
            if found is None:
                self._wb_send_whole()
                return -1
            self.send({"kind": "changes", "since": since, "version": self.wb_version, "changes": found})
            return len(found)

    def _wb_send_whole(self) -> None:
        self.send({"kind": "figure", "version": self.wb_version, "figure": self.wb_figure})

    def _wb_receive(self, _: Any, message: dict[str, Any], __: Any) -> None:
        kind = message.get("kind")
        if kind == "need_plotly":
            self.send({"kind": "plotly"}, buffers=[plotly_gzipped()])
        elif kind == "ready":
            self.drawn = True
            with self.wb_lock:
                self._wb_send_whole()
        elif kind == "cannot_draw":
            self.drawn = False
        elif kind == "select":
            for callback in self.wb_selected:
                callback(message["key"])


class Pulse(anywidget.AnyWidget):
    """An alert that appears where the panel stands once its kernel is silent, and goes when it speaks again.

    Attributes:
        drawn: Whether a view is there.
    """

    _esm = Path(str(resources.files("workbench.notebook") / "static" / "pulse.js"))
    drawn = traitlets.Bool(False)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.on_msg(self._wb_receive)
        _living.add(self)
        _start_heart()

    def _wb_receive(self, _: Any, message: dict[str, Any], __: Any) -> None:
        if message.get("kind") == "ready":
            self.drawn = True


@functools.cache
def plotly_gzipped() -> bytes:
    """plotly.js as the plotly package brings it, gzipped: 1.4 MB in place of 4.8."""
    import plotly.offline

    return gzip.compress(plotly.offline.get_plotlyjs().encode(), 6)


def _start_heart() -> None:
    global _heart
    with _heart_lock:
        if _heart is None or not _heart.is_alive():
            _heart = threading.Thread(target=_beat, name="workbench-heartbeat", daemon=True)
            _heart.start()


def _beat() -> None:
    """Tells every view that the kernel lives, for ever: it costs nothing while there is none."""
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        charts = list(_living)
        for chart in charts:
            if chart.drawn and chart.comm is not None:
                chart.send({"kind": "alive"})
        del charts
