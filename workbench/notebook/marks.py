"""Marks that all charts share, as plotly traces in plain dicts: clouds, intervals, landmarks, a rail of failures."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.notebook import formatting, palette
from workbench.notebook.palette import Theme
from workbench.notebook.points import Point

HOVER = "%{hovertext}<extra></extra>"
DODGE_FRACTION = 0.008  # of the axis: lines that share a number of workers stand side by side, not on each other
LABEL_GAP_FRACTION = 0.045  # of the axis: ticks closer than this would print over each other
SUBTITLE_WIDTH = 56  # characters: what a chart of 360 px shows without cutting
NO_RATES = "No settings gave a rate"
NOTHING_YET = "Nothing measured yet"
RAIL = [0.0, 0.07]  # part of the height where settings without an answer stand
PLOT_ABOVE_RAIL = [0.14, 1.0]

Figure = dict[str, Any]


def rate_of(point: Point) -> Any:
    """A point's samples per second."""
    return point.samples_per_second


def cloud(shown: tuple[Point, ...], name: str, colour: str, symbol: str, place: Any, height: Any = rate_of) -> Figure:
    """Points as loose marks; `place` gives a point's position along the bottom, `height` that along the side."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [place(point) for point in shown],
        "y": [height(point) for point in shown],
        "customdata": [point.key for point in shown],
        "hovertext": [hover_text(point) for point in shown],
        "hovertemplate": HOVER,
        "marker": {"symbol": symbol, "size": 7, "color": colour, "line": {"width": 1.5}},
    }


def intervals(shown: list[Point], own: list[bool] | None = None) -> Figure:
    """Bars for the points' 95 % intervals; none where a point has no interval, or is not the trace's `own`."""
    own = own or [True] * len(shown)
    drawn = [mine and p.low is not None and p.high is not None for p, mine in zip(shown, own, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [p.high - p.samples_per_second if yes else 0 for p, yes in zip(shown, drawn, strict=True)],
        "arrayminus": [p.samples_per_second - p.low if yes else 0 for p, yes in zip(shown, drawn, strict=True)],
        "thickness": 1.5,
        "width": 4,
    }


def landmarks(
    recommended: Point | None, current: Point | None, theme: Theme, place: Any, height: Any = rate_of
) -> list[Figure]:
    """A frame around the user's own point and a star on the recommended one, whatever else they are in this chart."""
    frame = {"symbol": palette.CURRENT_MARK, "size": 20, "color": theme.text, "line": {"width": 2}}
    star = {"symbol": palette.RECOMMENDED_MARK, "size": 15, "color": theme.text}
    star |= {"line": {"width": 1, "color": theme.paper}}
    found = ((current, "your settings", frame), (recommended, "recommended", star))
    return [
        cloud((point,), name, theme.text, "", place, height) | {"marker": mark}
        for point, name, mark in found
        if point and point.measured and height(point) is not None
    ]


def unmarked(shown: tuple[Point, ...], *marked: Point | None) -> tuple[Point, ...]:
    """Those of the points that have no mark of their own."""
    keys = {point.key for point in marked if point}
    return tuple(point for point in shown if point.key not in keys)


def rail(unanswered: tuple[Point, ...], theme: Theme, place: Any) -> Figure:
    """Points without an answer, on the rail under the plot; those that were not run in a quieter colour."""
    inks = [theme.muted if point.status == "skipped" else theme.alert for point in unanswered]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "no answer",
        "yaxis": "y2",
        "x": [place(point) for point in unanswered],
        "y": [0] * len(unanswered),
        "customdata": [point.key for point in unanswered],
        "hovertext": [hover_text(point) for point in unanswered],
        "hovertemplate": HOVER,
        "cliponaxis": False,
        "showlegend": False,  # its axis has the same words
        "marker": {
            "symbol": [palette.STATUS_MARKERS.get(point.status, "x") for point in unanswered],
            "size": 11,
            "color": inks,
            "line": {"color": inks, "width": 1.5},
        },
    }


def finished(data: list[Figure], layout: Figure, theme: Theme, rail: bool, shown: bool) -> Figure:
    """The figure, with its rail where there is one, and with a word where there is nothing to see."""
    only_rail = rail and all(trace.get("yaxis") == "y2" for trace in data)
    if rail:
        layout["yaxis"]["domain"] = PLOT_ABOVE_RAIL
        layout["yaxis2"] = palette.axis(
            theme, "", domain=RAIL, range=[-1, 1], tickvals=[0], ticktext=["no answer"], fixedrange=True, showgrid=False
        ) | {"linecolor": "rgba(0,0,0,0)"}
    if not shown or only_rail:
        layout["yaxis"]["visible"] = False
        layout["xaxis"]["visible"] = only_rail
        layout["annotations"] = [
            {
                "text": NO_RATES if only_rail else NOTHING_YET,
                "xref": "paper",
                "yref": "paper",
                "x": 0.5,
                "y": 0.5,
                "showarrow": False,
            }
            | {"font": {"color": theme.muted, "size": palette.FONT_SIZE + 2}}
        ]
    return {"data": data, "layout": layout}


def by_workers(point: Point) -> float:
    """A point's number of workers."""
    return point.settings.num_workers


def hover_text(point: Point) -> str:
    """The lines that explain a point."""
    return "<br>".join(point.hover)


def dodge(index: int, lines: int, span: float) -> float:
    """How far line `index` of `lines` stands beside its number of workers."""
    return (index - (lines - 1) / 2) * DODGE_FRACTION * span


def ticks(values: list[int], span: float) -> list[int]:
    """Those of the values that have room for a label."""
    kept: list[int] = []
    for value in reversed(values):
        if not kept or kept[-1] - value >= LABEL_GAP_FRACTION * span:
            kept.append(value)
    return kept[::-1]


def subtitle(summary: str) -> str:
    """A summary as the lines under a title, escaped."""
    return "<br>".join(escape(line) for line in formatting.wrapped(summary[:1].upper() + summary[1:], SUBTITLE_WIDTH))
