"""Documents that are half handed out: what of each is left when what remains is split among other workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.streaming.packing import Piece
from workbench.streaming.spans import Spans, outside, united
from workbench.streaming.split import Seat

Leftover = tuple[int, int, int]
"""Position of a document in the epoch's order, and the run of its tokens (begin, end) that is left."""


@dataclass(frozen=True, eq=False)
class Document:
    """A run of a document's tokens that is to be packed.

    Attributes:
        ids: All tokens of the document, shape ``[tokens]``: labels may look beyond the run.
        begin: First token to pack.
        end: Token after the last to pack.
        position: Its place in the epoch's order; None where that is not known.
        left_over: It is what a resume with other numbers of workers left of it.
    """

    ids: np.ndarray
    begin: int
    end: int
    position: int | None = None
    left_over: bool = False

    def __len__(self) -> int:
        return self.end - self.begin


def positions_of(path: Spans) -> Iterator[int]:
    """Every position of a path, in order."""
    for begin, end in path:
        yield from range(begin, end)


def what_is_left(
    read: Sequence[Document], window: Sequence[Document], used: Iterable[Piece]
) -> tuple[list[tuple[int, int]], list[Leftover]]:
    """What is done with the documents of a window when some of their pieces were handed out.

    Args:
        read: All documents read for the window, the empty ones included.
        window: Those that are packed.
        used: The pieces handed out, by number in ``window``.

    Returns:
        The positions that no split should hand out again, and what is left of those that were begun.
    """
    handed_out: dict[int, list[tuple[int, int]]] = {}
    for piece in used:
        handed_out.setdefault(id(window[piece.document]), []).append((piece.begin, piece.end))
    done: list[tuple[int, int]] = []
    left: list[Leftover] = []
    for document in read:
        taken = united(handed_out.get(id(document), []))
        if len(document) and not taken and not document.left_over:
            continue
        if not document.left_over:
            done.append((document.position, document.position + 1))
        rest = outside(taken, len(document))
        left += [(document.position, document.begin + begin, document.begin + end) for begin, end in rest]
    return done, left


def own_leftovers(leftovers: Sequence[Sequence[int]], seat: Seat) -> list[Leftover]:
    """The leftovers that one worker of one rank takes over: every so-many-th."""
    shares = seat.world_size * seat.shares
    return [tuple(left) for left in leftovers[seat.rank * seat.shares + seat.worker :: shares]]
