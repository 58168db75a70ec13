"""From info records to plotly figures, as plain dicts: cheap enough to build while a sweep runs on the same cores."""

from __future__ import annotations

from typing import Any, NamedTuple

from workbench.notebook import formatting, palette
from workbench.notebook.palette import Theme
from workbench.notebook.views import FirstBatchInfo, HeatmapInfo, MemoryInfo, Point, ThroughputInfo

HOVER = "%{hovertext}<extra></extra>"
DODGE_FRACTION = 0.008  # of the axis: lines that share a number of workers stand side by side, not on each other
LABEL_GAP_FRACTION = 0.045  # of the axis: ticks closer than this would print over each other
SUBTITLE_WIDTH = 56  # characters: what a chart of 360 px shows without cutting
SELECTION_INK = "#CC79A7"  # in no other chart mark with a ring
NO_RATES = "No settings gave a rate"
NOTHING_YET = "Nothing measured yet"
RAIL = [0.0, 0.07]  # part of the height where settings without an answer stand
PLOT_ABOVE_RAIL = [0.14, 1.0]
CELL_WORDS = {"over_memory": "over memory"}
BRIGHT_INK, DIM_INK = "#111111", "#ffffff"  # on the upper and lower half of the colour scale
FRONT_LABEL_FRACTION = 0.15  # of the memory axis: points of the front closer than this share one name
KNOB_TITLES = {"num_workers": "workers", "prefetch_factor": "prefetch factor (batches per worker)"}

Figure = dict[str, Any]


def throughput_figure(info: ThroughputInfo, theme: Theme) -> Figure:
    """Throughput against workers: a line a prefetch depth, 95 % intervals drawn, failures on a rail below."""
    answered = [*(point for line in info.lines for point in line.points), *info.others]
    answered += [info.without_workers] if info.without_workers else []
    workers = sorted({point.settings.num_workers for point in [*answered, *info.unanswered]})
    span = max(workers, default=0) - min(workers, default=0) or 1
    data = [_line(info, index, span, theme) for index in range(len(info.lines))]
    data += _other_points(info, theme)
    if info.without_workers:
        data.append(_single(info.without_workers, formatting.NO_WORKERS, theme, "circle", 9))
    data += _rings(info.recommended, info.current, theme, _by_workers)
    if info.running:
        data.append(_running(info.running, theme))
    data += [_rail(info.unanswered, theme, _by_workers)] if info.unanswered else []
    layout = palette.layout(
        theme,
        "Throughput against workers",
        _subtitle(info.summary),
        xaxis=palette.axis(theme, "workers", tickvals=_ticks(workers, span), anchor="y2" if info.unanswered else "y"),
        yaxis=palette.axis(theme, "samples/s", rangemode="tozero", tickformat=",~r", nticks=7),
    )
    return _finished(data, layout, theme, bool(info.unanswered), bool(answered or info.unanswered or info.running))


def memory_figure(info: MemoryInfo, theme: Theme) -> Figure:
    """Memory against throughput, with the settings that nothing beats in both joined as a staircase."""
    scale, unit = _byte_scale([*info.front, *info.dominated, *info.unanswered])

    def place(point: Point) -> float:
        return point.peak_pss_bytes / scale

    data = []
    if info.dominated:
        data.append(_cloud(info.dominated, "beaten by another", theme.muted, "circle-open", place))
    if info.front:
        data.append(_front(info.front, place))
    data += _rings(info.recommended, info.current, theme, place)
    data += [_rail(info.unanswered, theme, place)] if info.unanswered else []
    layout = palette.layout(
        theme,
        "Memory against throughput",
        _subtitle(info.summary),
        xaxis=palette.axis(theme, f"peak memory ({unit})", anchor="y2" if info.unanswered else "y"),
        yaxis=palette.axis(theme, "samples/s", rangemode="tozero", tickformat=",~r", nticks=7),
    )
    if info.limit_bytes is not None:
        layout |= _limit(info.limit_bytes / scale, theme)
    return _finished(data, layout, theme, bool(info.unanswered), bool(data))


def heatmap_figure(info: HeatmapInfo, theme: Theme) -> Figure:
    """Best rate for each pair of values; what failed and what was not tried is said in the cell."""
    rows = [[_cell(cell) for cell in row] for row in info.cells]
    columns, depth = len(info.x_values), len(info.y_values)
    data = [_heat(info, rows)] if rows else []
    layout = palette.layout(
        theme,
        f"Best samples/s by {_knob_word(info.x_knob)} and {_knob_word(info.y_knob)}",
        _subtitle(info.summary),
        xaxis=_cell_axis(theme, info.x_knob, [formatting.value_label(value) for value in info.x_values]),
        yaxis=_cell_axis(theme, info.y_knob, [_side_label(info.y_knob, value) for value in info.y_values]),
        annotations=_cell_labels(info, rows, theme),
        shapes=[
            _cell_frame(row, column, theme)
            for row in range(depth)
            for column in range(columns)
            if rows[row][column].told
        ],
    )
    return _finished(data, layout, theme, False, bool(rows))


def first_batch_figure(info: FirstBatchInfo, theme: Theme) -> Figure:
    """Seconds until the first batch and between epochs against workers; bars reach from the shortest to the longest."""
    workers = sorted({wait.workers for series in info.series for wait in series.waits})
    span = max(workers, default=0) - min(workers, default=0) or 1
    data = []
    for index, series in enumerate(info.series):
        shift = _dodge(index, len(info.series), span)
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
    layout = palette.layout(
        theme,
        "What starting costs",
        _subtitle(info.summary),
        xaxis=palette.axis(theme, "workers", tickvals=_ticks(workers, span)),
        yaxis=palette.axis(theme, "seconds", rangemode="tozero"),
    )
    return _finished(data, layout, theme, False, bool(data))


def _line(info: ThroughputInfo, index: int, span: float, theme: Theme) -> Figure:
    line, start = info.lines[index], info.without_workers
    shift = _dodge(index, len(info.lines), span)
    shown = ([start] if start else []) + list(line.points)
    own = [point is not start for point in shown]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": line.label,
        "x": [point.settings.num_workers + (shift if mine else 0) for point, mine in zip(shown, own, strict=True)],
        "y": [point.samples_per_second for point in shown],
        "error_y": _intervals(shown, own),
        "customdata": [point.key for point in shown],
        "hovertext": [_text(point) for point in shown],
        "hovertemplate": HOVER,
        "line": {"color": palette.colour(index), "dash": palette.dash(index), "width": 2},
        "marker": {
            "symbol": palette.marker(index),
            "size": [9 if mine else 0 for mine in own],
            "color": palette.colour(index),
        },
    }


def _intervals(shown: list[Point], own: list[bool] | None = None) -> Figure:
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


def _other_points(info: ThroughputInfo, theme: Theme) -> list[Figure]:
    if not info.others:
        return []
    return [_cloud(info.others, "other knobs changed", theme.muted, "circle-open", _by_workers)]


def _cloud(shown: tuple[Point, ...], name: str, colour: str, symbol: str, place: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [place(point) for point in shown],
        "y": [point.samples_per_second for point in shown],
        "customdata": [point.key for point in shown],
        "hovertext": [_text(point) for point in shown],
        "hovertemplate": HOVER,
        "marker": {"symbol": symbol, "size": 7, "color": colour, "line": {"width": 1.5}},
    }


def _front(front: tuple[Point, ...], place: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": "Pareto front",
        "x": [place(point) for point in front],
        "y": [point.samples_per_second for point in front],
        "error_y": _intervals(list(front)),
        "customdata": [point.key for point in front],
        "hovertext": [_text(point) for point in front],
        "text": _front_labels(front),
        "textposition": _label_sides(front),
        "hovertemplate": HOVER,
        "line": {"shape": "hv", "color": palette.colour(0), "width": 2},
        "marker": {"symbol": "diamond", "size": 10, "color": palette.colour(0)},
    }


def _front_labels(front: tuple[Point, ...]) -> list[str]:
    span = front[-1].peak_pss_bytes - front[0].peak_pss_bytes
    labels, last = [], None
    for point in reversed(front):
        apart = last is None or last - point.peak_pss_bytes >= FRONT_LABEL_FRACTION * span
        labels.append(formatting.short_label(point.settings) if apart else "")
        last = point.peak_pss_bytes if apart else last
    return labels[::-1]


def _label_sides(front: tuple[Point, ...]) -> list[str]:
    middle = (front[-1].peak_pss_bytes + front[0].peak_pss_bytes) / 2
    return ["top left" if point.peak_pss_bytes > middle else "bottom right" for point in front]


def _single(point: Point, name: str, theme: Theme, symbol: str, size: int) -> Figure:
    shape = _cloud((point,), name, theme.muted, symbol, _by_workers)
    return shape | {"error_y": _intervals([point]), "marker": {"symbol": symbol, "size": size, "color": theme.muted}}


def _rings(recommended: Point | None, current: Point | None, theme: Theme, place: Any) -> list[Figure]:
    rings = []
    for point, name, symbol, size in (
        (current, "your settings now", "square-open", 17),
        (recommended, "recommended", "circle-open", 21),
    ):
        if point and point.measured:
            ring = _cloud((point,), name, theme.text, symbol, place)
            rings.append(ring | {"marker": {"symbol": symbol, "size": size, "color": theme.text, "line": {"width": 2}}})
    return rings


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


def _rail(unanswered: tuple[Point, ...], theme: Theme, place: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "no answer",
        "yaxis": "y2",
        "x": [place(point) for point in unanswered],
        "y": [0] * len(unanswered),
        "customdata": [point.key for point in unanswered],
        "hovertext": [_text(point) for point in unanswered],
        "hovertemplate": HOVER,
        "cliponaxis": False,
        "marker": {
            "symbol": [palette.STATUS_MARKERS.get(point.status, "x") for point in unanswered],
            "size": 11,
            "color": theme.alert,
            "line": {"color": theme.alert, "width": 1.5},
        },
    }


def _finished(data: list[Figure], layout: Figure, theme: Theme, rail: bool, shown: bool) -> Figure:
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


def _limit(at: float, theme: Theme) -> Figure:
    line = {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
    label = {"x": at, "yref": "paper", "y": 1, "text": "memory limit", "showarrow": False, "xanchor": "right"}
    return {
        "shapes": [line | {"line": {"color": theme.alert, "dash": "dash", "width": 1.5}}],
        "annotations": [label | {"yanchor": "top", "xshift": -4, "font": {"color": theme.alert}}],
    }


class _Cell(NamedTuple):
    rate: float | None
    told: str  # in place of a rate
    hover: str


def _cell(cell: Point | None) -> _Cell:
    if cell is None:
        return _Cell(None, "", "not tried")
    if not cell.measured:
        return _Cell(None, CELL_WORDS.get(cell.status, palette.STATUS_WORDS[cell.status]), _text(cell))
    return _Cell(cell.samples_per_second, "", _text(cell))


def _heat(info: HeatmapInfo, rows: list[list[_Cell]]) -> Figure:
    return {
        "type": "heatmap",
        "x": list(range(len(info.x_values))),
        "y": list(range(len(info.y_values))),
        "z": [[cell.rate for cell in row] for row in rows],
        "customdata": [[cell.key if cell else None for cell in row] for row in info.cells],
        "hovertext": [[cell.hover for cell in row] for row in rows],
        "hovertemplate": HOVER,
        "hoverongaps": True,
        "colorscale": palette.SEQUENTIAL,
        "xgap": 3,
        "ygap": 3,
        "showscale": False,
    }


def _cell_labels(info: HeatmapInfo, rows: list[list[_Cell]], theme: Theme) -> list[Figure]:
    rates = [cell.rate for row in rows for cell in row if cell.rate is not None]
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    labels = []
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            bright = cell.rate is not None and high > low and (cell.rate - low) / (high - low) > 0.5
            ink = (
                (theme.alert if cell.told else theme.muted) if cell.rate is None else BRIGHT_INK if bright else DIM_INK
            )
            untried = "" if (y, x) in info.impossible else "not tried"
            text = cell.told or (formatting.number(cell.rate) if cell.rate is not None else untried)
            label = {"x": x, "y": y, "text": text, "showarrow": False}
            labels.append(label | {"font": {"color": ink, "size": palette.FONT_SIZE - 1}})
    return labels


def _cell_frame(row: int, column: int, theme: Theme) -> Figure:
    corners = {"x0": column - 0.47, "x1": column + 0.47, "y0": row - 0.46, "y1": row + 0.46}
    return {"type": "rect", **corners, "line": {"color": theme.alert, "width": 1, "dash": "dot"}}


def _cell_axis(theme: Theme, knob: str, labels: list[str]) -> Figure:
    places = {"tickvals": list(range(len(labels))), "ticktext": labels, "range": [-0.5, len(labels) - 0.5], "ticks": ""}
    return palette.axis(theme, _knob_title(knob), showgrid=False, **places)


def _side_label(knob: str, value: Any) -> str:
    return "no queue" if knob == "prefetch_factor" and value is None else formatting.value_label(value)


def _knob_word(knob: str) -> str:
    return {"num_workers": "workers", "prefetch_factor": "prefetch"}.get(knob, knob.replace("_", " "))


def _knob_title(knob: str) -> str:
    return KNOB_TITLES.get(knob, knob.replace("_", " "))


def _wait_text(label: str, wait: Any) -> str:
    told = f"<b>{label}, {formatting.count(wait.workers, 'worker')}</b><br>{formatting.seconds(wait.median_seconds)}"
    if wait.settings == 1:
        return told
    ends = f"{formatting.seconds(wait.shortest_seconds)} to {formatting.seconds(wait.longest_seconds)}"
    return f"{told} (median of {wait.settings} settings, {ends})"


def _byte_scale(shown: list[Point]) -> tuple[float, str]:
    most = max((point.peak_pss_bytes for point in shown), default=0)
    return (1e9, "GB") if most >= 1e9 else (1e6, "MB")


def _by_workers(point: Point) -> float:
    return point.settings.num_workers


def _text(point: Point) -> str:
    return "<br>".join(point.hover)


def _dodge(index: int, lines: int, span: float) -> float:
    return (index - (lines - 1) / 2) * DODGE_FRACTION * span


def _ticks(values: list[int], span: float) -> list[int]:
    kept: list[int] = []
    for value in reversed(values):
        if not kept or kept[-1] - value >= LABEL_GAP_FRACTION * span:
            kept.append(value)
    return kept[::-1]


def _subtitle(summary: str) -> str:
    from html import escape

    return "<br>".join(escape(line) for line in formatting.wrapped(summary[:1].upper() + summary[1:], SUBTITLE_WIDTH))


def with_selection(figure: Figure, key: int | None) -> Figure:
    """`figure` with a ring around the point of that key, where it has one; the figure itself is left alone."""
    at = _place_of(figure, key) if key is not None else None
    if at is None:
        return figure
    trace, x, y = at
    if trace["type"] == "heatmap":
        frame = {"type": "rect", "x0": x - 0.48, "x1": x + 0.48, "y0": y - 0.47, "y1": y + 0.47}
        shapes = [*figure["layout"].get("shapes", []), frame | {"line": {"color": SELECTION_INK, "width": 3}}]
        return {"data": figure["data"], "layout": figure["layout"] | {"shapes": shapes}}
    ring = {
        "type": "scatter",
        "mode": "markers",
        "name": "selected",
        "x": [x],
        "y": [y],
        "yaxis": trace.get("yaxis", "y"),
        "hoverinfo": "skip",
        "cliponaxis": False,
        "marker": {"symbol": "circle-open", "size": 27, "color": SELECTION_INK, "line": {"width": 3}},
    }
    return {"data": [*figure["data"], ring], "layout": figure["layout"]}


def _place_of(figure: Figure, key: int) -> tuple[Figure, Any, Any] | None:
    for trace in figure["data"]:
        keys = trace.get("customdata", [])
        if trace["type"] == "heatmap":
            for y, row in enumerate(keys):
                if key in row:
                    return trace, row.index(key), y
        elif key in keys:
            index = keys.index(key)
            return trace, trace["x"][index], trace["y"][index]
    return None
