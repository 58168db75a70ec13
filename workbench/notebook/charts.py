"""Charts of a sweep: `throughput(results)` and its sisters are figures, `throughput_info(results)` what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from workbench.errors import WorkbenchError
from workbench.notebook import figures, heat, marks, palette, still
from workbench.notebook.points import pareto, points
from workbench.notebook.views import first_batch_info, heatmap_info, memory_info, throughput_info
from workbench.tuning.results import Results

__all__ = [
    "VIEWS",
    "Chart",
    "View",
    "first_batch",
    "first_batch_info",
    "heatmap",
    "heatmap_info",
    "memory",
    "memory_info",
    "pareto",
    "points",
    "throughput",
    "throughput_info",
]


PLOTLY_MIME = "application/vnd.plotly.v1+json"


class Chart(go.Figure):
    """A plotly figure that asks nothing of the network: its toolbar has no button that uploads the data.

    As the value of a notebook cell it is shown live, and leaves a picture for pages that run no scripts: a code host,
    nbconvert's HTML, a viewer without plotly.
    """

    def show(self, *args: Any, **kwargs: Any) -> Any:
        """Show the figure as plotly does, without logo and upload button."""
        return super().show(*args, **{"config": palette.CONFIG, **kwargs})

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.bundle(), raw=True)

    def bundle(self) -> dict[str, Any]:
        """The figure by MIME type: plotly's JSON for viewers that draw it, SVG and its title for those that do not."""
        figure = json.loads(self.to_json())
        figure["config"] = palette.CONFIG
        picture = still.svg(figure)
        text = figure["layout"]["title"]["text"].partition("<br>")[0]
        return {PLOTLY_MIME: figure, "image/svg+xml": picture, "text/plain": re.sub("<[^>]*>", "", text)}


@dataclass(frozen=True)
class View:
    """One chart by name: its title, what it shows for some results, and how that is drawn."""

    title: str
    info: Callable[..., Any]
    figure: Callable[..., marks.Figure]


VIEWS = {
    "throughput": View("Throughput", throughput_info, figures.throughput_figure),
    "memory": View("Memory", memory_info, figures.memory_figure),
    "heatmap": View("Heat map", heatmap_info, heat.heatmap_figure),
    "first_batch": View("Starting", first_batch_info, figures.first_batch_figure),
}


def throughput(results: Results, *, theme: str = "auto") -> Chart:
    """Throughput against workers, one line a prefetch depth, with 95 % intervals.

    Args:
        results: What `Sweep.run` or `load_results` gave.
        theme: "light", "dark", or "auto" for inks that read on both.
    """
    return Chart(figures.throughput_figure(throughput_info(results), _theme(theme)))


def memory(results: Results, *, limit_bytes: int | None = None, theme: str = "auto") -> Chart:
    """Memory against throughput, with the Pareto front; `limit_bytes` is drawn as a line."""
    return Chart(figures.memory_figure(memory_info(results, limit_bytes), _theme(theme)))


def heatmap(results: Results, x: str = "num_workers", y: str = "prefetch_factor", *, theme: str = "auto") -> Chart:
    """The best rate for each pair of values of the knobs `x` and `y`.

    Raises:
        SettingsError: If `x` or `y` is no knob, or both are the same.
    """
    return Chart(heat.heatmap_figure(heatmap_info(results, x, y), _theme(theme)))


def first_batch(results: Results, *, theme: str = "auto") -> Chart:
    """Seconds until the first batch and at the edge of an epoch, against workers."""
    return Chart(figures.first_batch_figure(first_batch_info(results), _theme(theme)))


def _theme(name: str) -> palette.Theme:
    if name not in palette.THEMES:
        raise WorkbenchError(f"theme={name!r} is not known; choose from {', '.join(palette.THEMES)}")
    return palette.THEMES[name]
