"""Bars with intervals and parts, as HTML that fits any width and as one picture: no script, inks of either theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from workbench.notebook import palette

BAR_HEIGHT, EARLIER_HEIGHT = 14, 5  # px
PICTURE_WIDTH, PICTURE_ROW = 640, 44  # px: of the picture, and of one bar in it with its words
LEGEND_ITEM = 150  # px
EARLIER_INK = palette.EITHER.text


@dataclass(frozen=True)
class Part:
    """A stretch of a bar: how long, its ink, and what it is."""

    length: float
    ink: str
    meaning: str


@dataclass(frozen=True)
class Bar:
    """One bar; lengths are in the unit that all bars of a picture share.

    Attributes:
        name: What is measured.
        told: Its value in words, with unit and interval.
        parts: Stretches, from the left.
        low: Lower end of its interval; None when not known.
        high: Upper end of its interval.
        earlier: The same at an earlier time, drawn as a thin line below; None for none.
        earlier_told: That in words.
    """

    name: str
    told: str
    parts: tuple[Part, ...]
    low: float | None = None
    high: float | None = None
    earlier: float | None = None
    earlier_told: str = ""

    @property
    def reach(self) -> float:
        """How far to the right it goes."""
        return max(sum(part.length for part in self.parts), self.high or 0.0, self.earlier or 0.0)


def bars_html(bars: Sequence[Bar], *, most: float | None = None) -> str:
    """The bars under each other, each with its name and value above it.

    Args:
        bars: What to draw.
        most: Length of the whole width; None takes the longest bar's.
    """
    scale = _longest(bars, most)
    rows = "".join(
        f'<div class="wb-bar-row" role="listitem"><div class="wb-bar-words"><span>{escape(bar.name)}</span>'
        f"<b>{escape(bar.told)}</b></div>{_drawn(bar, scale)}"
        + (f'<div class="wb-bar-before">before: {escape(bar.earlier_told)}</div>' if bar.earlier is not None else "")
        + "</div>"
        for bar in bars
    )
    return f'<div class="wb-bars" role="list">{rows}</div>'


def legend_html(entries: Sequence[tuple[str, str]]) -> str:
    """What the inks mean: (ink, words) pairs in a line that wraps."""
    told = "".join(f'<span><i style="background:{ink}"></i>{escape(words)}</span>' for ink, words in entries)
    return f'<p class="wb-legend">{told}</p>'


def picture(bars: Sequence[Bar], title: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """The same as one `<svg>` with its words, for an image."""
    scale = _longest(bars, None)
    rows = "".join(_picture_row(bar, number, scale) for number, bar in enumerate(bars))
    foot = PICTURE_ROW * len(bars) + 34
    keys = "".join(
        f'<rect x="{4 + LEGEND_ITEM * place}" y="{foot - 9}" width="10" height="10" fill="{ink}"/>'
        f'<text x="{20 + LEGEND_ITEM * place}" y="{foot}">{escape(words)}</text>'
        for place, (ink, words) in enumerate(legend)
    )
    words = "; ".join(f"{bar.name} {bar.told}" for bar in bars)
    height = foot + (12 if legend else -12)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE_WIDTH} {height}" role="img" '
        f"style='width:100%;max-width:{PICTURE_WIDTH}px;height:auto;font-family:{escape(palette.FONT)};font-size:13px'>"
        f"<title>{escape(title)}: {escape(words)}</title>"
        f'<g fill="currentColor"><text x="4" y="16" font-weight="600" font-size="15">{escape(title)}</text>'
        f"{rows}{keys}</g></svg>"
    )


def _picture_row(bar: Bar, number: int, scale: float) -> str:
    top = 40 + PICTURE_ROW * number
    width = PICTURE_WIDTH - 8
    return (
        f'<text x="4" y="{top}">{escape(bar.name)}</text>'
        f'<text x="{PICTURE_WIDTH - 4}" y="{top}" text-anchor="end" font-weight="600">{escape(bar.told)}</text>'
        f'<svg x="4" y="{top + 5}" width="{width}" height="{BAR_HEIGHT + EARLIER_HEIGHT + 2}">'
        f"{_shapes(bar, scale)}</svg>"
    )


def _drawn(bar: Bar, scale: float) -> str:
    height = BAR_HEIGHT + (EARLIER_HEIGHT + 2 if bar.earlier is not None else 0)
    return f'<svg width="100%" height="{height}" aria-hidden="true">{_shapes(bar, scale)}</svg>'


def _shapes(bar: Bar, scale: float) -> str:
    """The bar in shares of its box's width, which words beside it are not stretched with."""
    shapes, at = [f'<rect width="100%" height="{BAR_HEIGHT}" fill="currentColor" opacity="0.07" rx="2"/>'], 0.0
    for part in bar.parts:
        if part.length > 0:
            shapes.append(
                f'<rect x="{_share(at, scale)}" width="{_share(part.length, scale)}" height="{BAR_HEIGHT}" '
                f'fill="{part.ink}"><title>{escape(part.meaning)}</title></rect>'
            )
        at += part.length
    if bar.low is not None and bar.high is not None:
        low, high, middle = _share(bar.low, scale), _share(bar.high, scale), BAR_HEIGHT / 2
        shapes.append(
            '<g stroke="currentColor" stroke-width="1.5">'
            f'<line x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>'
            + "".join(f'<line x1="{end}" x2="{end}" y1="{middle - 4}" y2="{middle + 4}"/>' for end in (low, high))
            + "</g>"
        )
    if bar.earlier is not None:
        shapes.append(
            f'<rect y="{BAR_HEIGHT + 2}" width="{_share(bar.earlier, scale)}" height="{EARLIER_HEIGHT}" '
            f'fill="{EARLIER_INK}"><title>before: {escape(bar.earlier_told)}</title></rect>'
        )
    return "".join(shapes)


def _share(length: float, scale: float) -> str:
    return f"{100 * length / scale:.2f}%"


def _longest(bars: Sequence[Bar], most: float | None) -> float:
    return most or 1.02 * max((bar.reach for bar in bars), default=0.0) or 1.0
