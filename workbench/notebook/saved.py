"""What stays in a saved notebook when a sweep ends: charts, recommendation and table that need no kernel."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

from workbench.notebook import palette, still, tables
from workbench.notebook.charts import VIEWS
from workbench.notebook.evidence import recommendation_box, recommendation_text
from workbench.notebook.marks import Figure
from workbench.notebook.report import static_text
from workbench.tuning.results import Results

MOST_BYTES = 45_000  # what one sweep leaves in a notebook, with room for what is around it
ROWS = (25, 12, 5)  # of the table, the most that fit
MOST_MARKS = 25
PICTURES = ("throughput", "memory")
BEFORE = "The results of this panel will be kept here when a sweep has run."


def bundle(results: Results) -> dict[str, str]:
    """A MIME bundle of `text/html` and `text/plain` with the results of a sweep, or with a word when there are none.

    The HTML is hidden on a page where the live panel stands, and shown where it cannot: without a kernel, on a code
    host, in exported pages.
    """
    if results is None or not results.trials:
        return {"text/html": f'<div class="wb wb-saved"><p>{escape(BEFORE)}</p></div>', "text/plain": BEFORE}
    pictures = "".join(f'<div style="flex:1 1 380px">{_picture(name, results)}</div>' for name in PICTURES)
    for rows in ROWS:
        found = _bundle(results, pictures if len(pictures) <= MOST_BYTES / 2 else "", rows)
        if sum(len(part.encode()) for part in found.values()) <= MOST_BYTES:
            break
    return found


def _bundle(results: Results, pictures: str, rows: int) -> dict[str, str]:
    caption = f"Sweep {results.name}: {len(results.trials)} settings, the recommended one first. ± is a 95 % interval."
    table = tables.html_table(results, caption=caption, limit=rows)
    html = (
        f'<div class="wb wb-saved"><style>{static_text("style.css")}</style>{recommendation_box(results)}'
        f'<div style="display:flex;flex-wrap:wrap;gap:16px">{pictures}</div><div class="wb-scroll">{table}</div></div>'
    )
    text = f"{recommendation_text(results)}\n\n{tables.text_table(results, limit=rows)}"
    return {"text/html": html, "text/plain": text}


def _picture(name: str, results: Any) -> str:
    """An image that holds its picture: where scripts and inline SVG are taken out of a page, images stay."""
    view = VIEWS[name]
    info = view.info(results)
    drawn = still.svg(_thinned(view.figure(info, palette.EITHER))).replace("currentColor", palette.EITHER.text)
    words = escape(f"{view.title}. {info.summary}", quote=True)
    coded = base64.b64encode(drawn.encode()).decode()
    return f'<img alt="{words}" style="width:100%;max-width:640px" src="data:image/svg+xml;base64,{coded}">'


def _thinned(figure: Figure) -> Figure:
    """The figure with clouds of at most `MOST_MARKS` marks, and lines of more points without mark and interval."""
    return {"data": [_thin(trace) for trace in figure["data"]], "layout": figure["layout"]}


def _thin(trace: Figure) -> Figure:
    if len(trace["x"]) <= MOST_MARKS:
        return trace
    if trace["mode"] != "markers":
        return {name: value for name, value in trace.items() if name != "error_y"} | {"mode": "lines"}
    kept = slice(None, None, -(-len(trace["x"]) // MOST_MARKS))
    marker = {name: value[kept] if isinstance(value, list) else value for name, value in trace["marker"].items()}
    return trace | {"x": trace["x"][kept], "y": trace["y"][kept], "marker": marker}
