"""Which format for me: the best rate of each layout in a sweep, with what its conversion cost beside what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from workbench.errors import WorkbenchError
from workbench.layouts.comparison import PreparedLayout
from workbench.layouts.cost import Payback, payback
from workbench.machine import format_bytes
from workbench.notebook import formatting, palette
from workbench.notebook.charts import Chart
from workbench.notebook.marks import HOVER, Figure, finished, hover_text, intervals, subtitle
from workbench.notebook.palette import Theme
from workbench.notebook.points import Point, fastest, points
from workbench.tuning.results import Results

PAYS = "pays after "


@dataclass(frozen=True)
class LayoutRow:
    """One layout in the comparison.

    Attributes:
        layout: Its name.
        point: The fastest settings that read it, or None where none gave a rate.
        why_not: Why there is none; empty where there is one.
        bytes: Size on disk; None where it was not prepared here.
        payback: Its conversion against the layout in use.
        told_apart: Whether its 95 % interval and that of the layout in use do not overlap.
        in_use: Whether it is the layout in use.
    """

    layout: str
    point: Point | None
    why_not: str
    bytes: int | None
    payback: Payback
    told_apart: bool
    in_use: bool = False


@dataclass(frozen=True)
class LayoutsInfo:
    """What the chart shows.

    Attributes:
        rows: Every layout, the one in use first.
        in_use: Name of the layout in use.
        answer: Name of the layout to use.
        summary: The answer in one sentence.
    """

    rows: tuple[LayoutRow, ...]
    in_use: str
    answer: str
    summary: str


def layouts(
    results: Results, prepared: Sequence[PreparedLayout] = (), *, in_use: str | None = None, theme: str = "auto"
) -> Chart:
    """The best rate of each layout with its 95 % interval, and after how many epochs its conversion has paid.

    Args:
        results: Of a sweep over ``layout``.
        prepared: What ``prepare_layouts`` returned, for sizes and costs.
        in_use: The layout that is used today, for which nothing is converted; None takes the current settings'.
        theme: "light", "dark", or "auto" for inks that read on both.

    Raises:
        WorkbenchError: The sweep did not vary the layout, the layout in use is not in it, or the theme is unknown.
    """
    if theme not in palette.THEMES:
        raise WorkbenchError(f"theme={theme!r} is not known; choose from {', '.join(palette.THEMES)}")
    return Chart(layouts_figure(layouts_info(results, prepared, in_use), palette.THEMES[theme]))


def layouts_info(results: Results, prepared: Sequence[PreparedLayout] = (), in_use: str | None = None) -> LayoutsInfo:
    """What the chart says.

    The answer is the fastest layout where its interval lies above that of the layout in use; else it stays.

    Raises:
        WorkbenchError: The sweep did not vary the layout, or the layout in use is not in it.
    """
    found: dict[str, list[Point]] = {}
    for point in points(results):
        if point.settings.layout is not None:
            found.setdefault(point.settings.layout, []).append(point)
    if not found:
        raise WorkbenchError(
            "this sweep did not vary the layout: give its space layout=['files', 'tar'], for instance."
        )
    known = {one.layout: one for one in prepared}
    used = in_use or (results.current.layout if results.current else None) or next(iter(found))
    if used not in found:
        raise WorkbenchError(f"in_use={used!r} is not in this sweep; it has {', '.join(found)}.")
    base = fastest(point for point in found[used] if point.measured)
    ordered = [used, *(name for name in found if name != used)]
    samples = next(
        (known[name].samples for name in ordered if name in known), results.probe and results.probe.epoch_samples
    )
    rows = tuple(_row(name, found[name], base, name == used, known.get(name), samples) for name in ordered)
    answer = _answer(rows)
    return LayoutsInfo(rows, used, answer.layout, _summary(rows, answer))


def layouts_figure(info: LayoutsInfo, theme: Theme) -> Figure:
    """A mark a layout, with its interval; its name in the legend says when its conversion has paid for itself."""
    data = [_mark(index, row) for index, row in enumerate(info.rows) if row.point]
    answer = next((index for index, row in enumerate(info.rows) if row.layout == info.answer and row.point), None)
    if answer is not None:
        data.append(_ring(answer, info.rows[answer], theme))
    names = [row.layout if row.point else f"{row.layout} (no answer)" for row in info.rows]
    layout = palette.layout(
        theme,
        "Which format for you",
        subtitle(info.summary),
        xaxis=palette.axis(
            theme,
            "layout, and epochs until converting to it has paid",
            tickvals=list(range(len(names))),
            ticktext=names,
            range=[-0.5, len(names) - 0.5],
        ),
        yaxis=palette.axis(theme, "samples/s", rangemode="tozero", tickformat=",~r", nticks=7),
    )
    return finished(data, layout, theme, False, bool(data))


def row_words(row: LayoutRow) -> str:
    """What converting to this layout is worth, in a few words; only told where its rate can be told apart."""
    if row.in_use:
        return "in use"
    if row.point is None:
        return "no answer"
    return payback_words(row.payback) if row.told_apart else "not told apart"


def payback_words(cost: Payback) -> str:
    """When a conversion has paid for itself: "pays after 0.4 epochs", "never pays"; a dash where it is not known."""
    if cost.never:
        return "never pays"
    if cost.epochs is None:
        return formatting.UNKNOWN
    return f"{PAYS}{formatting.number(cost.epochs)} epochs"


def _row(
    name: str, tried: list[Point], base: Point | None, in_use: bool, kept: PreparedLayout | None, samples: int | None
) -> LayoutRow:
    point = fastest(one for one in tried if one.measured)
    why_not = "" if point else next((one.reason for one in tried if one.reason), "it was not run")
    seconds = 0.0 if in_use else kept.convert_seconds if kept else None
    rates = (base.samples_per_second if base else None, point.samples_per_second if point else None)
    cost = payback(seconds, samples, *rates) if samples is not None else Payback(None, seconds, None)
    return LayoutRow(name, point, why_not, kept.bytes if kept else None, cost, _apart(point, base), in_use)


def _apart(one: Point | None, other: Point | None) -> bool:
    if one is None or other is None or None in (one.low, one.high, other.low, other.high):
        return False
    return one.low > other.high or one.high < other.low


def _answer(rows: tuple[LayoutRow, ...]) -> LayoutRow:
    used = rows[0]
    faster = [
        row
        for row in rows[1:]
        if row.point
        and (used.point is None or (row.told_apart and row.point.samples_per_second > used.point.samples_per_second))
    ]
    return max(faster, key=lambda row: row.point.samples_per_second, default=used)


def _summary(rows: tuple[LayoutRow, ...], answer: LayoutRow) -> str:
    used = rows[0]
    if answer.point is None:
        return "no layout gave a rate; the table has the reasons"
    if used.point is None:
        return f"use {answer.layout}: {used.layout} gave no rate"
    if answer is used:
        rivals = [row for row in rows[1:] if row.point and not row.told_apart]
        open_ = f"; {' and '.join(row.layout for row in rivals)} cannot be told apart from it yet" if rivals else ""
        return f"stay with {used.layout}: nothing tried is faster for certain{open_}"
    times = formatting.times(answer.point.samples_per_second / used.point.samples_per_second)
    told = f"use {answer.layout}: {times} the rate of {used.layout}"
    if answer.payback.epochs is None:
        return told
    cost = formatting.seconds(answer.payback.convert_seconds)
    return f"{told}; converting took {cost} and {payback_words(answer.payback)} of loading"


def _mark(index: int, row: LayoutRow) -> Figure:
    point = row.point
    size = [f"{format_bytes(row.bytes)} on disk"] if row.bytes is not None else []
    words = row_words(row)
    ink = palette.colour(index)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(f"{row.layout}: {words.removeprefix(PAYS)}"),  # the axis says what the epochs are
        "x": [index],
        "y": [point.samples_per_second],
        "error_y": intervals([point]),
        "customdata": [point.key],
        "hovertext": ["<br>".join([f"<b>{escape(row.layout)}</b>: {words}", hover_text(point), *size])],
        "hovertemplate": HOVER,
        "marker": {"symbol": palette.marker(index), "size": 11, "color": ink},
    }


def _ring(index: int, row: LayoutRow, theme: Theme) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "the answer",
        "x": [index],
        "y": [row.point.samples_per_second],
        "hoverinfo": "skip",
        "marker": {"symbol": "circle-open", "size": 21, "color": theme.text, "line": {"width": 2}},
    }
