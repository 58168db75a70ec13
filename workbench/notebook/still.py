"""Still pictures: our own figures as SVG text, for saved notebooks, pages without scripts, kernels without widgets."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

from workbench.notebook.marks import Figure
from workbench.notebook.palette import FONT

MARGINS = {"left": 84, "right": 18, "top": 14, "bottom": 52}
LINE_HEIGHT = 17
TEXT_SHIFTS = {"top": -8, "middle": 4, "bottom": 16}  # of a name's base line, from the middle of its mark
LEGEND_ITEM = 185  # px; the longest name, "epoch edge, workers kept", needs 180
DASH_ARRAYS = {"dash": "7 4", "dot": "2 4", "dashdot": "7 3 2 3", "longdash": "12 5", "longdashdot": "12 4 2 4"}
# Colours along the sequential scale (cividis), dark to bright, as rounded anchors to draw between.
SEQUENTIAL_ANCHORS = ((0, 34, 78), (64, 77, 107), (124, 123, 120), (187, 175, 113), (254, 232, 56))


@dataclass(frozen=True)
class _Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def svg(figure: Figure, width: int = 640, height: int = 400, *, title_id: str = "") -> str:
    """The figure as one `<svg>` that scales with its box; colours follow `currentColor` for ink.

    Args:
        figure: A dict from `workbench.notebook.figures`; only what those functions use is drawn.
        width: Width of the drawing's own units.
        height: Height of the same.
        title_id: Id for the `<title>`, to be unique in the page.
    """
    layout, data = figure["layout"], figure["data"]
    title, *subtitle = _plain_lines(layout["title"]["text"])
    named = [trace for trace in data if trace.get("name") and trace.get("showlegend", True)]
    per_row = max(1, (width - MARGINS["left"]) // LEGEND_ITEM)
    legend_rows = math.ceil(len(named) / per_row)
    top = MARGINS["top"] + LINE_HEIGHT * (1 + len(subtitle)) + 6
    bottom = height - MARGINS["bottom"] - LINE_HEIGHT * legend_rows
    parts = [_heading(title, subtitle)]
    parts += _plot(figure, width, top, bottom)
    for index, trace in enumerate(named):
        x = MARGINS["left"] + (index % per_row) * LEGEND_ITEM
        parts.append(_legend_entry(trace, x, bottom + MARGINS["bottom"] + 4 + LINE_HEIGHT * (index // per_row)))
    label = f' aria-labelledby="{title_id}"' if title_id else ""
    name = f"<title{f' id={title_id!r}' if title_id else ''}>{escape(' '.join([title, *subtitle]))}</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"{label} '
        f"style='width:100%;max-width:{width}px;height:auto;font-family:{escape(FONT)};font-size:12px'>"
        f'{name}<g fill="currentColor">{"".join(parts)}</g></svg>'
    )


def _plot(figure: Figure, width: int, top: float, bottom: float) -> list[str]:
    layout, data = figure["layout"], figure["data"]
    if not data:
        note = layout["annotations"][0]["text"]
        return [_text(width / 2, (top + bottom) / 2, note, anchor="middle", opacity=0.7)]
    heat = data[0]["type"] == "heatmap"
    plot_end = bottom - 26 if "yaxis2" in layout else bottom
    x = _x_scale(figure, width)
    y = _y_scale(figure, plot_end, top)
    rail = (plot_end + bottom) / 2 + 8
    parts = _axes(layout, x, y, bottom, heat)
    if heat:
        return parts + _cells(data[0], layout, x, y)
    for shape in layout.get("shapes", ()):
        at = x(shape["x0"])
        stroke = shape["line"]["color"]
        parts.append(f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}" stroke="{stroke}" stroke-dasharray="6 4"/>')
        parts.append(_text(at - 4, top + 10, "memory limit", anchor="end"))
    if "yaxis2" in layout:
        words = layout["yaxis2"]["ticktext"][0]
        parts.append(_text(MARGINS["left"] - 8, rail + 4, words, anchor="end", opacity=0.75))
    for trace in data:
        parts += _trace(trace, x, (lambda _: rail) if trace.get("yaxis") == "y2" else y)
    return parts


def _trace(trace: Figure, x: Any, y: Any) -> list[str]:
    places = [
        None if b is None else (x(a), y(b)) for a, b in zip(trace["x"], trace["y"], strict=True)
    ]  # None: a gap in the line
    ink = trace.get("line", {}).get("color") or trace["marker"]["color"]
    parts = []
    if "lines" in trace["mode"] and len(places) > 1:
        dashes = DASH_ARRAYS.get(trace["line"].get("dash", ""))
        parts.append(
            f'<path d="{_path(places, trace["line"].get("shape") == "hv")}" fill="none" stroke="{ink}" stroke-width="2"'
            + (f' stroke-dasharray="{dashes}"' if dashes else "")
            + "/>"
        )
    parts += _error_bars(trace, x, y, ink)
    for index, place in enumerate(places):
        if place is None:
            continue
        a, b = place
        size = _of(trace["marker"]["size"], index)
        if size and "markers" in trace["mode"]:
            paint = _of(trace["marker"]["color"], index)
            parts.append(_mark(_of(trace["marker"]["symbol"], index), a, b, size / 2, paint))
        if "text" in trace["mode"] and trace["text"][index]:
            height, _, side = _of(trace["textposition"], index).partition(" ")
            anchor, shift_x = ("end", -8) if side == "left" else ("start", 7)
            parts.append(_text(a + shift_x, b + TEXT_SHIFTS[height], trace["text"][index], anchor=anchor))
    return parts


def _path(places: list[tuple[float, float] | None], step: bool) -> str:
    """A line through the places, broken where there is none."""
    parts, drawing = [], False
    for place in places:
        if place is not None:
            a, b = place
            parts.append(f"M{a:.1f} {b:.1f}" if not drawing else f"H{a:.1f}V{b:.1f}" if step else f"L{a:.1f} {b:.1f}")
        drawing = place is not None
    return "".join(parts)


def _error_bars(trace: Figure, x: Any, y: Any, ink: str) -> list[str]:
    bars = trace.get("error_y")
    if not bars:
        return []
    ends = zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True)
    return [
        f'<path d="M{x(a) - 3:.1f} {y(v + up):.1f}h6m-3 0V{y(v - down):.1f}m-3 0h6"'
        f' stroke="{ink}" stroke-width="1.5" fill="none"/>'
        for a, v, up, down in ends
        if up or down
    ]


def _mark(symbol: str, x: float, y: float, r: float, ink: str) -> str:
    hollow = symbol.endswith("-open")
    paint = f'fill="{"none" if hollow else ink}" stroke="{ink}" stroke-width="{1.6 if hollow else 0.8}"'
    shape = symbol.removesuffix("-open")
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" {paint}/>'
    if shape == "square":
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:.1f}" height="{2 * r:.1f}" {paint}/>'
    if shape.startswith("x") or shape == "cross":
        tilt = "" if shape == "cross" else f' transform="rotate(45 {x:.1f} {y:.1f})"'
        path = f"M{x - r:.1f} {y:.1f}h{2 * r:.1f}M{x:.1f} {y - r:.1f}v{2 * r:.1f}"
        return f'<path d="{path}" stroke="{ink}" stroke-width="{max(r * 0.6, 1.5):.1f}"{tilt}/>'
    corners = {
        "triangle-up": ((0, -1), (0.95, 0.8), (-0.95, 0.8)),
        "pentagon": tuple((math.sin(turn * math.tau / 5), -math.cos(turn * math.tau / 5)) for turn in range(5)),
        "hourglass": ((-1, -1), (1, -1), (-1, 1), (1, 1)),
        "star": tuple(
            (math.sin(turn * math.pi / 5) * reach, -math.cos(turn * math.pi / 5) * reach)
            for turn, reach in enumerate((1.2, 0.5) * 5)
        ),
    }.get(shape, ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)))
    return f'<polygon points="{" ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)}" {paint}/>'


def _cells(trace: Figure, layout: Figure, x: Any, y: Any) -> list[str]:
    rates = [value for row in trace["z"] for value in row if value is not None]
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    parts = []
    for row, values in enumerate(trace["z"]):
        for column, value in enumerate(values):
            if value is not None:
                fill = _sequential((value - low) / (high - low) if high > low else 0.5)
                parts.append(_box(x, y, column, row, f'fill="{fill}"'))
    for shape in layout["shapes"]:
        column, row = (shape["x0"] + shape["x1"]) / 2, (shape["y0"] + shape["y1"]) / 2
        parts.append(_box(x, y, column, row, f'fill="none" stroke="{shape["line"]["color"]}" stroke-dasharray="2 3"'))
    for note in layout["annotations"]:
        parts.append(_text(x(note["x"]), y(note["y"]) + 4, note["text"], anchor="middle", fill=note["font"]["color"]))
    return parts


def _box(x: Any, y: Any, column: float, row: float, paint: str) -> str:
    left, right, low, high = x(column - 0.47), x(column + 0.47), y(row - 0.46), y(row + 0.46)
    return f'<rect x="{left:.1f}" y="{high:.1f}" width="{right - left:.1f}" height="{low - high:.1f}" {paint}/>'


def _sequential(fraction: float) -> str:
    place = min(max(fraction, 0.0), 1.0) * (len(SEQUENTIAL_ANCHORS) - 1)
    index = min(int(place), len(SEQUENTIAL_ANCHORS) - 2)
    low, high = SEQUENTIAL_ANCHORS[index], SEQUENTIAL_ANCHORS[index + 1]
    mixed = (round(a + (b - a) * (place - index)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _axes(layout: Figure, x: _Scale, y: _Scale, bottom: float, heat: bool) -> list[str]:
    parts = []
    for at, label in _axis_ticks(layout["xaxis"], x):
        grid = "" if heat else f'<path d="M{x(at):.1f} {y.end:.1f}V{bottom:.1f}" stroke="currentColor" opacity=".12"/>'
        parts.append(grid + _text(x(at), bottom + 16, label, anchor="middle", opacity=0.75))
    shown = layout["yaxis"].get("visible", True)
    for at, label in _axis_ticks(layout["yaxis"], y) if shown else ():
        grid = "" if heat else f'<path d="M{x.start:.1f} {y(at):.1f}H{x.end:.1f}" stroke="currentColor" opacity=".12"/>'
        parts.append(grid + _text(x.start - 8, y(at) + 4, label, anchor="end", opacity=0.75))
    middle = (y.start + y.end) / 2
    parts.append(_text((x.start + x.end) / 2, bottom + 34, layout["xaxis"]["title"]["text"], anchor="middle"))
    turned = f'transform="rotate(-90 14 {middle:.1f})"'
    if not shown:
        return [
            *parts,
            _text((x.start + x.end) / 2, middle, layout["annotations"][0]["text"], anchor="middle", opacity=0.7),
        ]
    return [*parts, _text(14, middle, layout["yaxis"]["title"]["text"], anchor="middle", more=turned)]


def _axis_ticks(axis: Figure, scale: _Scale) -> list[tuple[float, str]]:
    if "ticktext" in axis:
        return list(zip(axis["tickvals"], axis["ticktext"], strict=True))
    if "tickvals" in axis:
        return [(value, str(value)) for value in axis["tickvals"]]
    step = _round_step((scale.high - scale.low) / 5)
    first = math.ceil(scale.low / step)
    return [(n * step, f"{n * step:,.6g}") for n in range(first, math.floor(scale.high / step) + 1)]


def _round_step(rough: float) -> float:
    power = 10 ** math.floor(math.log10(rough))
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)


def _x_scale(figure: Figure, width: int) -> _Scale:
    start, end = MARGINS["left"], width - MARGINS["right"]
    return _Scale(*_x_range(figure), start, end)


def _x_range(figure: Figure) -> tuple[float, float]:
    fixed = figure["layout"]["xaxis"].get("range")
    if fixed:
        return tuple(fixed)
    values = [value for trace in figure["data"] for value in trace["x"] if value is not None]
    values += [shape["x0"] for shape in figure["layout"].get("shapes", ())]
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.5
    return low - pad, high + pad


def _y_scale(figure: Figure, start: float, end: float) -> _Scale:
    fixed = figure["layout"]["yaxis"].get("range")
    if fixed:
        return _Scale(fixed[0], fixed[1], start, end)
    tops = [0.0]
    for trace in figure["data"]:
        if trace.get("yaxis") != "y2":
            ups = trace.get("error_y", {}).get("array") or [0.0] * len(trace["y"])
            tops += [value + up for value, up in zip(trace["y"], ups, strict=True) if value is not None]
    return _Scale(0.0, max(tops) * 1.08 or 1.0, start, end)


def _legend_entry(trace: Figure, x: float, y: float) -> str:
    ink = trace.get("line", {}).get("color") or trace["marker"]["color"]
    line = ""
    if "lines" in trace["mode"]:
        dashes = DASH_ARRAYS.get(trace["line"].get("dash", ""), "none")
        line = f'<path d="M{x} {y - 4}h22" stroke="{ink}" stroke-width="2" stroke-dasharray="{dashes}"/>'
    return line + _mark(_of(trace["marker"]["symbol"], 0), x + 11, y - 4, 4.5, ink) + _text(x + 28, y, trace["name"])


def _heading(title: str, subtitle: list[str]) -> str:
    y = MARGINS["top"]
    lines = [_text(MARGINS["left"], y + 2, title, more='font-weight="600" style="font-size:15px"')]
    lines += [_text(MARGINS["left"], y + 4 + LINE_HEIGHT * (i + 1), text) for i, text in enumerate(subtitle)]
    return "".join(lines)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", opacity: float = 1, fill: str = "", more: str = ""
) -> str:
    looks = f' text-anchor="{anchor}"' if anchor != "start" else ""
    looks += f' opacity="{opacity}"' if opacity != 1 else ""
    looks += f' fill="{fill}"' if fill else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{looks}{" " + more if more else ""}>{escape(unescape(text))}</text>'


def _plain_lines(text: str) -> list[str]:
    return [unescape(re.sub(r"<[^>]+>", "", line)) for line in text.split("<br>")]


def _of(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, (list, tuple)) else value
