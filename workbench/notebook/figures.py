"""From info records to plotly figures, as plain dicts: cheap enough to build while a sweep runs on the same cores."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.notebook import formatting, labels, palette
from workbench.notebook.marks import (
    FRAME_SIZE,
    HOVER,
    STAR_SIZE,
    Figure,
    by_workers,
    cloud,
    dodge,
    finished,
    hover_text,
    intervals,
    landmarks,
    rail,
    subtitle,
    ticks,
    unmarked,
)
from workbench.notebook.palette import Theme
from workbench.notebook.points import Point
from workbench.notebook.views import FirstBatchInfo, Line, MemoryInfo, ThroughputInfo

EARLIER = "earlier sweep"
LONG_LEGEND_WORDS_PX = 165  # "epoch edge, workers kept"


def throughput_figure(info: ThroughputInfo, theme: Theme) -> Figure:
    """Throughput against workers: a line a prefetch depth, 95 % intervals drawn, failures on a rail below."""
    answered = [*(point for line in info.lines for point in line.points), *info.others]
    answered += [info.without_workers] if info.without_workers else []
    workers = sorted({point.settings.num_workers for point in [*answered, *info.unanswered, *_earlier_points(info)]})
    span = max(workers, default=0) - min(workers, default=0) or 1
    data = _earlier_lines(info, theme) if info.earlier else []
    data += [_line(info, index, span) for index in range(len(info.lines))]
    data += _other_points(info, theme)
    if info.without_workers:
        alone = _single(info.without_workers, formatting.NO_WORKERS, theme, "circle", 9)
        data.append(alone | {"showlegend": not any(line.from_zero for line in info.lines)})
    data += landmarks(info.recommended, info.current, theme, by_workers)
    if info.running:
        data.append(_running(info.running, theme))
    data += rail(info.unanswered, theme, by_workers)
    layout = palette.layout(
        theme,
        "Throughput against workers",
        subtitle(info.summary),
        xaxis=palette.axis(theme, "workers", tickvals=ticks(workers, span), anchor="y2" if info.unanswered else "y"),
        yaxis=palette.axis(theme, "samples/s", rangemode="tozero", tickformat=",~r", nticks=7),
    )
    return finished(data, layout, theme, bool(info.unanswered), bool(answered or info.unanswered or info.running))


def memory_figure(info: MemoryInfo, theme: Theme) -> Figure:
    """Memory against throughput, with the settings that nothing beats in both joined as a staircase."""
    scale, unit = _byte_scale([*info.front, *info.dominated, *info.unanswered, *info.earlier_front])

    def place(point: Point) -> float:
        return point.peak_pss_bytes / scale

    data = [_earlier_front(info.earlier_front, info.earlier_name, place, theme)] if info.earlier_front else []
    if beaten := unmarked(info.dominated, info.recommended, info.current):
        data.append(cloud(beaten, "beaten", theme.muted, "circle-open", place))
    if info.front:
        data.append(_front(info, place))
    data += landmarks(info.recommended, info.current, theme, place)
    data += rail(info.unanswered, theme, place)
    layout = palette.layout(
        theme,
        "Memory against throughput",
        subtitle(info.summary),
        xaxis=palette.axis(theme, f"peak memory ({unit})", anchor="y2" if info.unanswered else "y"),
        yaxis=palette.axis(theme, "samples/s", rangemode="tozero", tickformat=",~r", nticks=7),
    )
    if info.limit_bytes is not None:
        layout |= _limit(info.limit_bytes / scale, theme)
    return finished(data, layout, theme, bool(info.unanswered), bool(data))


def first_batch_figure(info: FirstBatchInfo, theme: Theme) -> Figure:
    """Seconds until the first batch and between epochs against workers; bars reach from the shortest to the longest."""
    workers = sorted({wait.workers for series in info.series for wait in series.waits})
    span = max(workers, default=0) - min(workers, default=0) or 1
    data = []
    for index, series in enumerate(info.series):
        shift = dodge(index, len(info.series), span)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": series.label,
                "x": [wait.workers + shift for wait in series.waits],
                "y": [wait.median_seconds for wait in series.waits],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [wait.longest_seconds - wait.median_seconds for wait in series.waits],
                    "arrayminus": [wait.median_seconds - wait.shortest_seconds for wait in series.waits],
                    "thickness": 1.5,
                    "width": 4,
                },
                "hovertext": [_wait_text(series.label, wait) for wait in series.waits],
                "hovertemplate": HOVER,
                "line": {"color": palette.colour(index), "dash": palette.dash(index), "width": 2},
                "marker": {"symbol": palette.marker(index), "size": 9, "color": palette.colour(index)},
            }
        )
    shift = dodge(0, len(info.series), span)
    data += landmarks(
        info.recommended,
        info.current,
        theme,
        lambda point: point.settings.num_workers + shift,
        lambda point: point.first_batch_seconds,
    )
    layout = palette.layout(
        theme,
        "What starting costs",
        subtitle(info.summary),
        xaxis=palette.axis(theme, "workers", tickvals=ticks(workers, span)),
        yaxis=palette.axis(theme, "seconds", rangemode="tozero"),
    )
    layout["legend"]["entrywidth"] = LONG_LEGEND_WORDS_PX
    return finished(data, layout, theme, False, bool(data))


def _line(info: ThroughputInfo, index: int, span: float) -> Figure:
    line, start = info.lines[index], info.without_workers
    shift = dodge(index, len(info.lines), span)
    shown = _strung(line, start)
    own = [point is not None and point is not start for point in shown]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": line.label,
        "x": [p and p.settings.num_workers + (shift if mine else 0) for p, mine in zip(shown, own, strict=True)],
        "y": [point and point.samples_per_second for point in shown],
        "error_y": intervals(shown, own),
        "customdata": [point and point.key for point in shown],
        "hovertext": [hover_text(point) if point else "" for point in shown],
        "hovertemplate": HOVER,
        "line": {"color": palette.colour(index), "dash": palette.dash(index), "width": 2},
        "marker": {
            "symbol": palette.marker(index),
            "size": [9 if mine else 0 for mine in own],
            "color": palette.colour(index),
        },
    }


def _strung(line: Line, start: Point | None) -> list[Point | None]:
    """The points of a line from left to right, None where it breaks."""
    shown: list[Point | None] = [start] if start and line.from_zero else []
    for point in line.points:
        before = shown[-1].settings.num_workers if shown else point.settings.num_workers
        if any(before < gap < point.settings.num_workers for gap in line.gaps):
            shown.append(None)
        shown.append(point)
    return shown


def _earlier_lines(info: ThroughputInfo, theme: Theme) -> list[Figure]:
    depths, start = [line.prefetch_factor for line in info.lines], info.earlier.without_workers
    alone = start is not None and not any(line.from_zero for line in info.earlier.lines)
    lines = ((Line(0, ()),) if alone else ()) + info.earlier.lines
    traces = []
    for number, line in enumerate(lines):
        index = depths.index(line.prefetch_factor) if line.prefetch_factor in depths else len(depths) + number
        traces.append(
            _earlier(_strung(line, start), info.earlier.name, by_workers, theme, palette.marker(index), number == 0)
        )
    return traces


def _earlier_front(front: tuple[Point, ...], name: str, place: Any, theme: Theme) -> Figure:
    trace = _earlier(list(front), name, place, theme, "diamond", True)
    return trace | {"line": trace["line"] | {"shape": "hv"}}


def _earlier(shown: list[Point | None], name: str, place: Any, theme: Theme, symbol: str, named: bool) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": EARLIER,
        "legendgroup": EARLIER,
        "showlegend": named,
        "x": [point and place(point) for point in shown],
        "y": [point and point.samples_per_second for point in shown],
        "error_y": intervals(shown) | {"thickness": 1},
        "hovertext": [f"sweep {escape(name)}<br>{hover_text(point)}" if point else "" for point in shown],
        "hovertemplate": HOVER,
        "line": {"color": theme.muted, "dash": "dot", "width": 1.5},
        "marker": {"symbol": f"{symbol}-open", "size": 8, "color": theme.muted, "line": {"width": 1.5}},
    }


def _earlier_points(info: ThroughputInfo) -> list[Point]:
    if info.earlier is None:
        return []
    alone = [info.earlier.without_workers] if info.earlier.without_workers else []
    return alone + [point for line in info.earlier.lines for point in line.points]


def _other_points(info: ThroughputInfo, theme: Theme) -> list[Figure]:
    shown = unmarked(info.others, info.recommended, info.current)
    return [cloud(shown, "other knobs", theme.muted, "circle-open", by_workers)] if shown else []


def _single(point: Point, name: str, theme: Theme, symbol: str, size: int) -> Figure:
    shape = cloud((point,), name, theme.muted, symbol, by_workers)
    return shape | {"error_y": intervals([point]), "marker": {"symbol": symbol, "size": size, "color": theme.muted}}


def _running(running: Any, theme: Theme) -> Figure:
    told = f"<b>{running.settings.describe()}</b><br>{formatting.rate(running.samples_per_second)} so far"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measuring now",
        "x": [running.settings.num_workers],
        "y": [running.samples_per_second],
        "hovertext": [told],
        "hovertemplate": HOVER,
        "marker": {"symbol": "star-diamond-open", "size": 14, "color": theme.text, "line": {"width": 2}},
    }


def _front(info: MemoryInfo, place: Any) -> Figure:
    front, names = info.front, _front_names(info, place)
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": "Pareto front",
        "x": [place(point) for point in front],
        "y": [point.samples_per_second for point in front],
        "error_y": intervals(list(front)),
        "customdata": [point.key for point in front],
        "hovertext": [hover_text(point) for point in front],
        "text": [name for name, _ in names],
        "textposition": [side for _, side in names],
        "hovertemplate": HOVER,
        "cliponaxis": False,
        "line": {"shape": "hv", "color": palette.colour(0), "width": 2},
        "marker": {"symbol": "diamond", "size": 10, "color": palette.colour(0)},
    }


def _front_names(info: MemoryInfo, place: Any) -> list[tuple[str, str]]:
    """The names of the front's points and where they stand, away from all other marks."""
    landmarks = [(info.current, FRAME_SIZE / 2), (info.recommended, STAR_SIZE / 2)]
    reach = {point.key: px for point, px in landmarks[::-1] if point is not None}

    def spot(point: Point, name: str = "") -> labels.Spot:
        bar = (point.low, point.high) if name and point.low is not None and point.high is not None else (None, None)
        return labels.Spot(place(point), point.samples_per_second, *bar, name, reach.get(point.key, 5.0))

    others = [spot(point) for point in (*info.dominated, *info.earlier_front)]
    return labels.placed([spot(point, formatting.short_label(point.settings)) for point in info.front], others)


def _limit(at: float, theme: Theme) -> Figure:
    line = {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
    label = {"x": at, "yref": "paper", "y": 1, "text": "memory limit", "showarrow": False, "xanchor": "right"}
    return {
        "shapes": [line | {"line": {"color": theme.alert, "dash": "dash", "width": 1.5}}],
        "annotations": [label | {"yanchor": "top", "xshift": -4, "font": {"color": theme.alert}}],
    }


def _byte_scale(shown: list[Point]) -> tuple[float, str]:
    most = max((point.peak_pss_bytes for point in shown), default=0)
    return (1e9, "GB") if most >= 1e9 else (1e6, "MB")


def _wait_text(label: str, wait: Any) -> str:
    told = f"<b>{label}, {formatting.count(wait.workers, 'worker')}</b><br>{formatting.seconds(wait.median_seconds)}"
    if wait.settings == 1:
        return told
    ends = f"{formatting.seconds(wait.shortest_seconds)} to {formatting.seconds(wait.longest_seconds)}"
    return f"{told} (median of {wait.settings} settings, {ends})"
