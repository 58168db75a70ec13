"""Which tokens share a row: first-fit, best-fit decreasing, concatenate-then-split; pure functions of lengths."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.errors import SettingsError

OVERLONG = ("split", "truncate")


@dataclass(frozen=True)
class Piece:
    """A run of tokens of one document that stays together.

    Attributes:
        document: Which document of the window.
        begin: Its first token.
        end: The token after its last.
    """

    document: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


Row = tuple[Piece, ...]
Strategy = Callable[[Sequence[Piece], int], list[Row]]


def pieces_of(lengths: Sequence[int], capacity: int, overlong: str = "split") -> list[Piece]:
    """Pieces of at most ``capacity`` tokens; empty documents have none.

    Args:
        lengths: Tokens in each document.
        capacity: Tokens in a row.
        overlong: ``split`` keeps every token of a document longer than a row; ``truncate`` keeps its first
            ``capacity`` and drops the rest.
    """
    kept = [min(length, capacity) for length in lengths] if overlong == "truncate" else lengths
    return [
        Piece(document, begin, min(begin + capacity, length))
        for document, length in enumerate(kept)
        for begin in range(0, length, capacity)
    ]


def best_fit(pieces: Sequence[Piece], capacity: int) -> list[Row]:
    """Best-fit decreasing: longest piece first, each into the row where the least room remains.

    At most 11/9 of the fewest rows possible, and a small constant (D. S. Johnson, "Near-optimal bin packing
    algorithms", 1973); with many short documents, close to none lost.
    """
    rows: list[list[Piece]] = []
    rooms: list[tuple[int, int]] = []  # (room left, number of the row), sorted; full rows leave the list
    for piece in sorted(pieces, key=len, reverse=True):
        at = bisect_left(rooms, (len(piece), -1))
        if at == len(rooms):
            rows.append([])
            room, row = capacity, len(rows) - 1
        else:
            room, row = rooms.pop(at)
        rows[row].append(piece)
        if room > len(piece):
            insort(rooms, (room - len(piece), row))
    return [tuple(row) for row in rows]


def first_fit(pieces: Sequence[Piece], capacity: int) -> list[Row]:
    """First-fit: each piece, in the order of the documents, into the first row that has room."""
    rows: list[list[Piece]] = []
    rooms = np.zeros(len(pieces), dtype=np.int64)
    for piece in pieces:
        fitting = rooms[: len(rows)] >= len(piece)
        row = int(fitting.argmax()) if len(rows) else 0
        if not len(rows) or not fitting[row]:
            row = len(rows)
            rows.append([])
            rooms[row] = capacity
        rows[row].append(piece)
        rooms[row] -= len(piece)
    return [tuple(row) for row in rows]


def concatenate(pieces: Sequence[Piece], capacity: int) -> list[Row]:
    """Concatenate-then-split: documents one after the other, cut wherever a row is full."""
    rows: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        begin = piece.begin
        while begin < piece.end:
            if room == 0:
                rows.append([])
                room = capacity
            end = min(piece.end, begin + room)
            last = rows[-1][-1] if rows[-1] else None
            if last is not None and last.document == piece.document and last.end == begin:
                rows[-1][-1] = Piece(piece.document, last.begin, end)
            else:
                rows[-1].append(Piece(piece.document, begin, end))
            room -= end - begin
            begin = end
    return [tuple(row) for row in rows]


STRATEGIES: dict[str, Strategy] = {"best_fit": best_fit, "first_fit": first_fit, "concatenate": concatenate}


def rows_of(lengths: Sequence[int], capacity: int, strategy: str = "best_fit", overlong: str = "split") -> list[Row]:
    """The rows of one window of documents; every kept token is in exactly one of them.

    Raises:
        SettingsError: There is no such strategy or way to treat long documents, or a row holds no token.
    """
    if strategy not in STRATEGIES:
        raise SettingsError(f"strategy={strategy!r} does not pack: use one of {', '.join(STRATEGIES)}.")
    if overlong not in OVERLONG:
        raise SettingsError(f"overlong={overlong!r} is no choice: use one of {', '.join(OVERLONG)}.")
    if capacity < 1:
        raise SettingsError(f"length={capacity} holds no token: use 1 or more.")
    return STRATEGIES[strategy](pieces_of(lengths, capacity, overlong), capacity)


@dataclass(frozen=True)
class PackingReport:
    """What packing does to documents of given lengths.

    Attributes:
        documents: Documents, the empty ones included.
        tokens: Tokens in them.
        tokens_dropped: Tokens that ``truncate`` leaves out; 0 under ``split``.
        rows: Rows after packing.
        length: Tokens a row has room for.
        rows_unpacked: Rows if every piece had one to itself.
        seconds: What it took to decide which tokens share a row, in this process; None where that was not timed.
    """

    documents: int
    tokens: int
    tokens_dropped: int
    rows: int
    length: int
    rows_unpacked: int
    seconds: float | None = field(default=None, compare=False)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens whose row was decided in a second; None where that was not timed."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def fill(self) -> float | None:
        """Share of all positions that hold a token; None without rows."""
        return (self.tokens - self.tokens_dropped) / (self.rows * self.length) if self.rows else None

    @property
    def padding_saved(self) -> float | None:
        """Share of all positions that are no longer computed, against one piece a row, padded; None without rows."""
        return 1 - self.rows / self.rows_unpacked if self.rows_unpacked else None

    def describe(self) -> str:
        """One sentence for people."""
        if self.fill is None:
            return f"{self.documents} documents without a token: no rows."
        rate = self.tokens_per_second
        speed = "" if rate is None else f" Decided at {rate / 1e6:,.0f} million tokens/s."
        dropped = f", {self.tokens_dropped:,} tokens dropped" if self.tokens_dropped else ", no token dropped"
        return (
            f"{self.documents:,} documents, {self.tokens:,} tokens in {self.rows:,} rows of {self.length:,}: "
            f"{self.fill:.2%} filled{dropped}; {self.padding_saved:.1%} fewer positions than one document a row.{speed}"
        )


def packing_report(
    lengths: Iterable[int],
    length: int,
    strategy: str = "best_fit",
    *,
    window_rows: int = 256,
    overlong: str = "split",
) -> PackingReport:
    """What ``PackedStream`` would do to documents of these lengths, in this order, at 0 workers, and how fast."""
    seconds = 0.0
    documents = tokens = dropped = rows = unpacked = 0
    for window in windows_of(lengths, window_rows * length):
        begun = time.perf_counter()
        packed = rows_of(window, length, strategy, overlong)
        seconds += time.perf_counter() - begun
        documents += len(window)
        tokens += sum(window)
        dropped += sum(window) - sum(len(piece) for row in packed for piece in row)
        rows += len(packed)
        unpacked += len(pieces_of(window, length, overlong))
    return PackingReport(documents, tokens, dropped, rows, length, unpacked, seconds)


def windows_of(lengths: Iterable[int], window_tokens: int) -> Iterator[list[int]]:
    """Documents that are packed together: as many as it takes to reach ``window_tokens``."""
    window: list[int] = []
    tokens = 0
    for length in lengths:
        window.append(length)
        tokens += length
        if tokens >= window_tokens:
            yield window
            window, tokens = [], 0
    if window:
        yield window
