"""Sets of positions as sorted half-open spans: what of an epoch is consumed, left over, or one worker's share."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

from workbench.errors import ResumeError

Spans = tuple[tuple[int, int], ...]
"""Half-open ``(begin, end)`` pairs; a *set* where they are sorted and apart, a *path* where their order matters."""


def united(spans: Iterable[tuple[int, int]]) -> Spans:
    """The set that holds every position of ``spans``: sorted, disjoint, with touching spans joined."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def outside(spans: Spans, total: int) -> Spans:
    """The positions of ``0 .. total - 1`` that the set ``spans`` does not hold."""
    borders = [0, *(border for span in spans for border in span), total]
    return tuple((a, b) for a, b in zip(borders[::2], borders[1::2], strict=True) if a < b)


def size(spans: Spans) -> int:
    """How many positions there are, repeats counted."""
    return sum(end - begin for begin, end in spans)


def cut(spans: Spans, start: int, stop: int) -> Spans:
    """The piece of the path ``spans`` from its ``start``-th to before its ``stop``-th position."""
    pieces, passed = [], 0
    for begin, end in spans:
        low, high = max(begin, begin + start - passed), min(end, begin + stop - passed)
        if low < high:
            pieces.append((low, high))
        passed += end - begin
        if passed >= stop:
            break
    return tuple(pieces)


def packed(spans: Spans) -> str:
    """A set as short text: gaps and lengths as variable-length integers, deflated, in base 85."""
    raw, last = bytearray(), 0
    for border in (border for span in spans for border in span):
        step, last = border - last, border
        while step >= 0x80:
            raw.append(0x80 | step & 0x7F)
            step >>= 7
        raw.append(step)
    return base64.b85encode(zlib.compress(bytes(raw), 9)).decode("ascii") if raw else ""


def unpacked(text: str) -> Spans:
    """The set that ``packed`` wrote.

    Raises:
        ResumeError: The text was not written by it.
    """
    if not text:
        return ()
    try:
        raw = zlib.decompress(base64.b85decode(text))
    except (ValueError, zlib.error) as error:
        raise ResumeError(f"The saved position {text[:40]!r} is damaged ({error}): load an older state.") from error
    borders, step, shift, last = [], 0, 0, 0
    for byte in raw:
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            last += step
            borders.append(last)
            step = shift = 0
    return tuple(zip(borders[::2], borders[1::2], strict=True))
