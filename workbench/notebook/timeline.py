"""Steps of a profiler trace as bars on lanes: where the loop waited for the loader, and where a device did nothing.

timeline("step.json", first=5, steps=4)      # a plotly figure; in a saved notebook also a still picture
"""

from __future__ import annotations

import json
import os
from html import escape
from typing import Any

import plotly.graph_objects as go

from workbench.measure.trace_timeline import Timeline
from workbench.measure.trace_timeline import timeline as bars_of
from workbench.notebook import formatting, palette

PLOTLY_MIME = "application/vnd.plotly.v1+json"
INKS = {  # lanes keep their colour however many are shown; what nothing happens in is the colour of a warning
    "loader": palette.colour(1),
    "operators": palette.colour(2),
    "synchronising": palette.colour(3),
    "copies": palette.colour(4),
    "kernels": palette.colour(0),
    "collectives": palette.colour(5),
}
WIDTH, LANE_HEIGHT, LABEL_WIDTH, MARGIN = 720, 34, 118, 14  # units of the still picture


class TimelineFigure(go.Figure):
    """A plotly figure that also leaves a picture for pages that run no scripts."""

    _still = ""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.bundle(), raw=True)

    def bundle(self) -> dict[str, Any]:
        """The figure by MIME type: plotly's JSON, an SVG, and its title as text."""
        figure = json.loads(self.to_json())
        figure["config"] = palette.CONFIG
        return {PLOTLY_MIME: figure, "image/svg+xml": self._still, "text/plain": self.layout.title.text}


def timeline(path: str | os.PathLike[str], first: int = 0, steps: int = 4, *, theme: str = "auto") -> TimelineFigure:
    """Bars of `steps` recorded steps from the `first` on: loader, operators, copies, kernels and device idle.

    Args:
        path: A trace of torch.profiler.
        first: The first step shown, counted from 0 among those recorded.
        steps: How many.
        theme: "light", "dark", or "auto" for inks that read on both.

    Raises:
        TraceError: If the file is no trace, or does not hold that step.
    """
    shown = bars_of(path, first, steps)
    drawn = TimelineFigure(timeline_figure(shown, palette.THEMES[theme]))
    drawn._still = svg(shown)
    return drawn


def timeline_figure(shown: Timeline, theme: palette.Theme) -> dict[str, Any]:
    """The figure as a plain dict: one horizontal bar trace a lane, one line a step."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": lane.name,
            "y": [lane.name] * len(lane.starts),
            "base": [1e3 * start for start in lane.starts],
            "x": [1e3 * length for length in lane.lengths],
            "marker": {"color": INKS.get(lane.name, theme.alert)},
            "hovertemplate": f"{lane.name}: %{{x:.2f}} ms from %{{base:.2f}} ms<extra></extra>",
            "showlegend": False,
        }
        for lane in shown.lanes
    ]
    layout = palette.layout(
        theme,
        title_of(shown),
        "",
        xaxis=palette.axis(theme, "ms", rangemode="tozero"),
        yaxis=palette.axis(theme, "", autorange="reversed", type="category"),
        shapes=[
            {"type": "line", "x0": 1e3 * at, "x1": 1e3 * at, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": theme.muted, "width": 1, "dash": "dot"}}
            for at in shown.step_starts
        ],
        barmode="overlay",
    )  # fmt: skip
    return {"data": data, "layout": layout}


def title_of(shown: Timeline) -> str:
    """The picture in a sentence."""
    count = len(shown.step_starts)
    loader = sum(sum(lane.lengths) for lane in shown.lanes if lane.name == "loader")
    told = f"{formatting.percent(loader / shown.seconds)} of it in the loader" if loader else "no loader spans in it"
    return (
        f"{formatting.count(count, 'step')} from step {shown.first_step}: {formatting.seconds(shown.seconds)}, {told}"
    )


def svg(shown: Timeline) -> str:
    """The same as one `<svg>` that needs no script and reads on light and dark pages."""
    scale = (WIDTH - LABEL_WIDTH - MARGIN) / shown.seconds
    height = LANE_HEIGHT * len(shown.lanes) + 62
    bottom = height - 34
    parts = [f'<text x="{MARGIN}" y="18" font-weight="600">{escape(title_of(shown))}</text>']
    for start in shown.step_starts:
        x = LABEL_WIDTH + start * scale
        parts.append(f'<path d="M{x:.1f} 28V{bottom}" stroke="currentColor" stroke-dasharray="2 4" opacity="0.6"/>')
    for row, lane in enumerate(shown.lanes):
        top = 30 + row * LANE_HEIGHT
        ink = INKS.get(lane.name, "#b42318")
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{top + 19}" text-anchor="end">{escape(lane.name)}</text>')
        parts += [
            f'<rect x="{LABEL_WIDTH + start * scale:.2f}" y="{top + 4}" width="{max(0.4, length * scale):.2f}" '
            f'height="{LANE_HEIGHT - 10}" fill="{ink}"/>'
            for start, length in zip(lane.starts, lane.lengths, strict=True)
        ]
    parts += [
        f'<text x="{LABEL_WIDTH + share * (WIDTH - LABEL_WIDTH - MARGIN):.0f}" y="{height - 14}" '
        f'text-anchor="middle">{formatting.seconds(share * shown.seconds)}</text>'
        for share in (0.25, 0.5, 0.75)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        f'font-family=\'{palette.FONT}\' font-size="13" fill="currentColor"><title>{escape(title_of(shown))}</title>'
        f"{''.join(parts)}</svg>"
    )
