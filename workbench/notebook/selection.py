"""Marking the chosen trial in any figure, so that all charts point at the same one."""

from __future__ import annotations

from typing import Any

from workbench.notebook.marks import Figure

SELECTION_INK = "#CC79A7"  # in no other chart mark with a ring


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
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
        "marker": {"symbol": "circle-open", "size": 27, "color": SELECTION_INK, "line": {"width": 3}},
    }
    return {"data": [*figure["data"], ring], "layout": figure["layout"]}


def _place_of(figure: Figure, key: int) -> tuple[Figure, Any, Any] | None:
    for trace in figure["data"]:
        if trace["type"] == "heatmap":
            for y, row in enumerate(trace["meta"]):
                for x, keys in enumerate(row):
                    if key in keys:
                        return trace, x, y
        elif key in trace.get("customdata", ()):
            index = trace["customdata"].index(key)
            return trace, trace["x"][index], trace["y"][index]
    return None
