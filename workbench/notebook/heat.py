"""The heat map of two knobs: a cell for each pair of values, with words where there is no rate."""

from __future__ import annotations

from typing import Any, NamedTuple

from workbench.notebook import formatting, palette
from workbench.notebook.marks import HOVER, Figure, finished, hover_text, status_ink, subtitle
from workbench.notebook.palette import Theme
from workbench.notebook.points import Point
from workbench.notebook.views import HeatmapInfo

BRIGHT_INK, DIM_INK = "#111111", "#ffffff"  # on the upper and lower half of the colour scale
RECOMMENDED_SIGN, CURRENT_SIGN = "★", "□"  # the shapes of the same marks in the other charts
KNOB_TITLES = {"num_workers": "workers", "prefetch_factor": "prefetch factor (batches per worker)"}


def heatmap_figure(info: HeatmapInfo, theme: Theme) -> Figure:
    """Best rate for each pair of values; what failed and what was not tried is said in the cell."""
    rows = [[_cell(cell) for cell in row] for row in info.cells]
    columns, depth = len(info.x_values), len(info.y_values)
    data = [_heat(info, rows)] if rows else []
    layout = palette.layout(
        theme,
        f"Rates by {_knob_word(info.x_knob)} and {_knob_word(info.y_knob)}",
        subtitle(info.summary + _legend(info)),
        xaxis=_cell_axis(theme, info.x_knob, [formatting.value_label(value) for value in info.x_values]),
        yaxis=_cell_axis(theme, info.y_knob, [_side_label(info.y_knob, value) for value in info.y_values]),
        annotations=_cell_labels(info, rows, theme),
        shapes=[
            _cell_frame(row, column, status_ink(rows[row][column].status, theme))
            for row in range(depth)
            for column in range(columns)
            if rows[row][column].told
        ],
    )
    return finished(data, layout, theme, False, bool(rows))


class _Cell(NamedTuple):
    rate: float | None
    told: str  # in place of a rate
    hover: str
    status: str = "ok"


def _cell(cell: Point | None) -> _Cell:
    if cell is None:
        return _Cell(None, "", "not tried")
    if not cell.measured:
        return _Cell(None, palette.STATUS_SHORT[cell.status], hover_text(cell), cell.status)
    return _Cell(cell.samples_per_second, "", hover_text(cell))


def _heat(info: HeatmapInfo, rows: list[list[_Cell]]) -> Figure:
    return {
        "type": "heatmap",
        "x": list(range(len(info.x_values))),
        "y": list(range(len(info.y_values))),
        "z": [[cell.rate for cell in row] for row in rows],
        "customdata": [[cell.key if cell else None for cell in row] for row in info.cells],
        "meta": [[list(keys) for keys in row] for row in info.keys],
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
            told = status_ink(cell.status, theme) if cell.told else theme.muted
            ink = told if cell.rate is None else BRIGHT_INK if bright else DIM_INK
            untried = "" if (y, x) in info.impossible else "not tried"
            words = cell.told or (formatting.number(cell.rate) if cell.rate is not None else untried)
            label = {"x": x, "y": y, "text": _signs(info, (y, x)) + words, "showarrow": False}
            labels.append(label | {"font": {"color": ink, "size": palette.FONT_SIZE - 1}})
    return labels


def _signs(info: HeatmapInfo, cell: tuple[int, int]) -> str:
    signs = ((RECOMMENDED_SIGN, info.recommended), (CURRENT_SIGN, info.current))
    return "".join(f"{sign} " for sign, place in signs if place == cell)


def _legend(info: HeatmapInfo) -> str:
    told = [f"{RECOMMENDED_SIGN}\N{NO-BREAK SPACE}recommended"] if info.recommended is not None else []
    told += [f"{CURRENT_SIGN}\N{NO-BREAK SPACE}your settings"] if info.current is not None else []
    return f"; {', '.join(told)}" if told else ""


def _cell_frame(row: int, column: int, ink: str) -> Figure:
    corners = {"x0": column - 0.47, "x1": column + 0.47, "y0": row - 0.46, "y1": row + 0.46}
    return {"type": "rect", **corners, "line": {"color": ink, "width": 1, "dash": "dot"}}


def _cell_axis(theme: Theme, knob: str, labels: list[str]) -> Figure:
    places = {"tickvals": list(range(len(labels))), "ticktext": labels, "range": [-0.5, len(labels) - 0.5], "ticks": ""}
    return palette.axis(theme, _knob_title(knob), showgrid=False, **places)


def _side_label(knob: str, value: Any) -> str:
    return "no queue" if knob == "prefetch_factor" and value is None else formatting.value_label(value)


def _knob_word(knob: str) -> str:
    return {"num_workers": "workers", "prefetch_factor": "prefetch"}.get(knob, knob.replace("_", " "))


def _knob_title(knob: str) -> str:
    return KNOB_TITLES.get(knob, knob.replace("_", " "))
