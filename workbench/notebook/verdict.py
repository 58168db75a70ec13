"""A diagnosis as one box of HTML: what binds, how much there is to gain, the three rates as bars, what to do next."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.notebook import formatting, palette
from workbench.notebook.report import static_text

NAMES = {
    "loader_samples_per_second": "loader alone",
    "moved_samples_per_second": "loader and copy",
    "step_samples_per_second": "step alone",
    "combined_samples_per_second": "both, as in training",
}
HEADLINES = {
    "input": "The loader holds the training back",
    "compute": "The step sets the pace",
    "transfer": "Copies to the device hold the training back",
    "sync": "The step waits for the device more than it must",
    "balanced": "Loader and step are about equally fast",
    "unknown": "The evidence is too thin for a verdict",
}
BAR_WIDTH, ROW_HEIGHT, LABEL_WIDTH, NUMBER_WIDTH = 300, 26, 150, 190  # units of the drawing


def bundle(found: Any) -> dict[str, str]:
    """A MIME bundle of a `Diagnosis`: HTML that needs no script, and its own text."""
    css = f"<style>{static_text('style.css')}</style>"
    return {"text/html": f'<div class="wb">{css}{verdict_html(found)}</div>', "text/plain": str(found)}


def verdict_html(found: Any) -> str:
    """The verdict of a `Diagnosis` with its evidence, what to do, and what would prove it wrong."""
    cause = f": {found.cause}" if found.cause else ""
    low, high = found.headroom_interval
    gain = f"Perfect loading would give at most {formatting.times(found.headroom)} the speed"
    evidence = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.evidence)
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    return (
        f'<div class="wb-verdict"><strong>{escape(HEADLINES.get(found.bound, found.bound) + cause)}</strong>'
        f"<p>{escape(gain)} (95 %: {low:.2f} to {high:.2f}); confidence {escape(found.confidence)}.</p>"
        f"<p><b>Next:</b> {escape(found.next_step)}</p></div>"
        f"{rate_bars(found)}<ul>{evidence}</ul>"
        f"<p>It would be wrong if: {escape(found.refuted_by)}</p>" + (f"<ul>{notes}</ul>" if notes else "")
    )


def rate_bars(found: Any) -> str:
    """The rates of a `Diagnosis` as bars with their 95 % intervals, as SVG in the page's own ink."""
    rates = [(name, getattr(found, name)) for name in NAMES if getattr(found, name) is not None]
    ends = {name: found.intervals.get(name.partition("_")[0], (value, value)) for name, value in rates}
    most = max((high for _, high in ends.values()), default=1.0) or 1.0
    rows = "".join(_bar(place, name, value, ends[name], most) for place, (name, value) in enumerate(rates))
    width, height = LABEL_WIDTH + BAR_WIDTH + NUMBER_WIDTH, ROW_HEIGHT * len(rates) + 4
    words = "; ".join(f"{NAMES[name]} {formatting.rate(value, *ends[name])}" for name, value in rates)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'style="width:100%;max-width:{width}px;height:auto;font-size:13px"><title>{escape(words)}</title>'
        f'<g fill="currentColor">{rows}</g></svg>'
    )


def _bar(place: int, name: str, value: float, ends: tuple[float, float], most: float) -> str:
    top, scale = place * ROW_HEIGHT + 4, BAR_WIDTH / most
    low, high = (LABEL_WIDTH + end * scale for end in ends)
    middle = top + ROW_HEIGHT / 2 - 3
    ink = palette.colour(list(NAMES).index(name))
    return (
        f'<text x="{LABEL_WIDTH - 8}" y="{middle + 4}" text-anchor="end">{NAMES[name]}</text>'
        f'<rect x="{LABEL_WIDTH}" y="{top}" width="{value * scale:.1f}" height="{ROW_HEIGHT - 6}" fill="{ink}"/>'
        f'<path d="M{low:.1f} {middle - 4}v8m0 -4H{high:.1f}m0 -4v8" stroke="currentColor" fill="none"/>'
        f'<text x="{max(high, LABEL_WIDTH + value * scale) + 8:.1f}" y="{middle + 4}">'
        f"{escape(formatting.rate(value, *ends))}</text>"
    )
