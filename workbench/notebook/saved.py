"""What stays in a saved notebook when a sweep ends: charts, recommendation and table that need no kernel."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.notebook import palette, still, tables
from workbench.notebook.charts import VIEWS
from workbench.notebook.evidence import recommendation_box, recommendation_text
from workbench.notebook.report import static_text
from workbench.tuning.results import Results

MOST_ROWS = 25  # a bundle stays under 50 kB in every notebook
PICTURES = ("throughput", "memory")
BEFORE = "The results of this panel will be kept here when a sweep has run."


def bundle(results: Results) -> dict[str, str]:
    """A MIME bundle of `text/html` and `text/plain` with the results of a sweep, or with a word when there are none.

    The HTML is hidden on a page where the live panel stands, and shown where it cannot: without a kernel, on a code
    host, in exported pages.
    """
    if results is None or not results.trials:
        return {"text/html": f'<div class="wb wb-saved"><p>{escape(BEFORE)}</p></div>', "text/plain": BEFORE}
    pictures = "".join(f"<div>{_picture(name, results)}</div>" for name in PICTURES)
    caption = f"Sweep {results.name}: {len(results.trials)} settings, the recommended one first. ± is a 95 % interval."
    table = tables.html_table(results, caption=caption, limit=MOST_ROWS)
    html = (
        f'<div class="wb wb-saved"><style>{static_text("style.css")}</style>{recommendation_box(results)}'
        f'<div style="display:flex;flex-wrap:wrap;gap:16px">{pictures}</div><div class="wb-scroll">{table}</div></div>'
    )
    text = f"{recommendation_text(results)}\n\n{tables.text_table(results, limit=MOST_ROWS)}"
    return {
        "text/html": html.replace("<div><svg", '<div style="flex:1 1 380px;min-width:280px"><svg'),
        "text/plain": text,
    }


def _picture(name: str, results: Any) -> str:
    view = VIEWS[name]
    return still.svg(view.figure(view.info(results), palette.EITHER))
