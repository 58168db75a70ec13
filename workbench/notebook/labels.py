"""Where the names of points go: beside each, where they print over least. Pure functions over places in the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PLOT_PX = (430.0, 230.0)  # the plot of a chart in half a page; wider ones leave more room than is counted on here
CHARACTER_PX, LINE_PX = 7.0, 15.0  # of the charts' type
GAP_PX = 7.0  # plotly's own, between the middle of a mark and its name
PLACES = ("top left", "bottom right", "top right", "bottom left", "middle left", "middle right")
OVER_A_MARK, OVER_A_BAR, OVER_A_LINE = 10, 3, 1
SPILL_PX = 4.0  # into the gap between axis and tick labels
PAD_FRACTION = 0.06  # of the axis, on both sides of the outermost marks
PAD, PAD_PX = 2 * "\N{NO-BREAK SPACE}", 7.0  # keeps a name off a mark that is wider than the gap

Box = tuple[float, float, float, float]  # left, top, right, bottom in px


@dataclass(frozen=True)
class Spot:
    """A mark in the plot.

    Attributes:
        x: Its place along the bottom, in the axis's unit.
        y: Its place along the side.
        low: Lower end of its bar; None for no bar.
        high: Upper end of it.
        name: What to write beside it; empty for nothing.
        reach_px: Half the width of the mark.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    name: str = ""
    reach_px: float = 5.0


def placed(stairs: Sequence[Spot], others: Sequence[Spot] = ()) -> list[tuple[str, str]]:
    """For each of `stairs` its name and where it goes, one of `PLACES`; the name is empty where there is no room.

    Args:
        stairs: Marks joined as a staircase, from left to right; a later one chooses its place first.
        others: Marks that have no names here.
    """
    if not stairs:
        return []
    to_px = _scale([*stairs, *others])
    taken = [(_around(*to_px(spot.x, spot.y), spot.reach_px), OVER_A_MARK) for spot in (*stairs, *others)]
    taken += [(_bar(spot, to_px), OVER_A_BAR) for spot in (*stairs, *others) if spot.high is not None]
    taken += [(line, OVER_A_LINE) for line in _steps([to_px(spot.x, spot.y) for spot in stairs])]
    found: dict[int, tuple[str, str]] = {}
    for index in reversed(range(len(stairs))):
        spot, own = stairs[index], taken[index]
        boxes = {place: _beside(*to_px(spot.x, spot.y), spot, place) for place in PLACES}
        costs = {place: _cost(box, [one for one in taken if one is not own]) for place, box in boxes.items()}
        best = min(PLACES, key=costs.__getitem__)
        fits = bool(spot.name) and costs[best] < OVER_A_MARK
        found[index] = (_kept_off(spot, best) if fits else "", best)
        taken += [(boxes[best], OVER_A_MARK)] if fits else []
    return [found[index] for index in range(len(stairs))]


def _scale(spots: Sequence[Spot]):
    low, high = min(spot.x for spot in spots), max(spot.x for spot in spots)
    pad = PAD_FRACTION * (high - low) or 0.5
    top = max(spot.y if spot.high is None else spot.high for spot in spots) * (1 + PAD_FRACTION) or 1.0

    def to_px(x: float, y: float) -> tuple[float, float]:
        return (x - low + pad) / (high - low + 2 * pad) * PLOT_PX[0], (1 - y / top) * PLOT_PX[1]

    return to_px


def _around(x: float, y: float, reach: float) -> Box:
    return x - reach, y - reach, x + reach, y + reach


def _bar(spot: Spot, to_px) -> Box:
    x, top = to_px(spot.x, spot.high)
    return x - 3, top, x + 3, to_px(spot.x, spot.low)[1]


def _steps(corners: Sequence[tuple[float, float]]) -> Iterable[Box]:
    for (x, y), (next_x, next_y) in itertools.pairwise(corners):
        yield x, y - 1, next_x, y + 1
        yield next_x - 1, min(y, next_y), next_x + 1, max(y, next_y)


def _beside(x: float, y: float, spot: Spot, place: str) -> Box:
    width, gap = CHARACTER_PX * len(spot.name), GAP_PX + (PAD_PX if _wide(spot) else 0.0)
    left = x - gap - width if place.endswith("left") else x + gap
    middle = y - LINE_PX / 2
    top = {"top": y - GAP_PX - LINE_PX, "bottom": y + GAP_PX}.get(place.split()[0], middle)
    return left, top, left + width, top + LINE_PX


def _kept_off(spot: Spot, place: str) -> str:
    pad = PAD if _wide(spot) else ""
    return spot.name + pad if place.endswith("left") else pad + spot.name


def _wide(spot: Spot) -> bool:
    return spot.reach_px > GAP_PX + 1


def _cost(box: Box, taken: Iterable[tuple[Box, int]]) -> int:
    outside = box[0] < -SPILL_PX or box[1] < -LINE_PX or box[2] > PLOT_PX[0] or box[3] > PLOT_PX[1]
    return OVER_A_MARK * outside + sum(weight for other, weight in taken if _overlap(box, other))


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
