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
NO_ANSWER = "no answer"
FRAME_SIZE, STAR_SIZE = 20, 15  # of the user's own and the recommended, px
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


def intervals(shown: list[Point | None], own: list[bool] | None = None) -> Figure:
    """Bars for the points' 95 % intervals; none at a gap, without an interval, or where not the trace's `own`."""
    own = own or [point is not None for point in shown]
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
    frame = {"symbol": palette.CURRENT_MARK, "size": FRAME_SIZE, "color": theme.text, "line": {"width": 2}}
    star = {"symbol": palette.RECOMMENDED_MARK, "size": STAR_SIZE, "color": theme.text}
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


def rail(unanswered: tuple[Point, ...], theme: Theme, place: Any) -> list[Figure]:
    """Points without an answer, on the rail under the plot, a trace for each reason."""
    traces = []
    for status in dict.fromkeys(point.status for point in unanswered):
        shown = tuple(point for point in unanswered if point.status == status)
        ink = status_ink(status, theme)
        mark = {"symbol": palette.STATUS_MARKERS.get(status, "x"), "size": 11, "color": ink}
        trace = cloud(shown, palette.STATUS_SHORT[status], ink, "", place, lambda _: 0)
        trace |= {"marker": mark | {"line": {"color": ink, "width": 1.5}}}
        traces.append(trace | {"yaxis": "y2", "cliponaxis": False})
    return traces


def status_ink(status: str, theme: Theme) -> str:
    """The colour of settings without a rate: that of warnings, or a quieter one where they were not run."""
    return theme.muted if status == "skipped" else theme.alert


def finished(data: list[Figure], layout: Figure, theme: Theme, rail: bool, shown: bool) -> Figure:
    """The figure, with its rail where there is one, and with a word where there is nothing to see."""
    on_rail = [trace["name"] for trace in data if trace.get("yaxis") == "y2"]
    only_rail = rail and len(on_rail) == len(data)
    if rail:
        not_run = palette.STATUS_SHORT["skipped"]
        words = not_run if set(on_rail) == {not_run} else NO_ANSWER
        layout["yaxis"]["domain"] = PLOT_ABOVE_RAIL
        layout["yaxis2"] = palette.axis(
            theme, "", domain=RAIL, range=[-1, 1], tickvals=[0], ticktext=[words], fixedrange=True, showgrid=False
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
