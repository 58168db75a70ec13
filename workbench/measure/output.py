"""What a trial prints: as much of it as a record can hold, and what it gives away about a hang.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os

OUTPUT_KEPT_BYTES = 32 << 10
"""Of what a trial prints, this much of the beginning and as much of the end is kept."""
CLUES = (b"Too many open files", b"PicklingError", b"cannot pickle", b"Can't pickle", b"can't pickle", b", in _feed\n")
"""Of what torch prints where a batch could not be handed over, for which it then waits for ever."""


class Output:
    """The beginning and the end of any amount of output."""

    def __init__(self) -> None:
        self._head, self._tail, self.total = bytearray(), bytearray(), 0

    def drain(self, fd: int) -> None:
        """Takes everything that can be read from a non-blocking descriptor now."""
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(fd, 1 << 16):
                self.total += len(data)
                room = OUTPUT_KEPT_BYTES - len(self._head)
                self._head += data[:room] if room > 0 else b""
                self._tail = (self._tail + data[max(0, room) :])[-OUTPUT_KEPT_BYTES:]
                if len(data) < 1 << 16:
                    break

    def text(self) -> str:
        """What is kept, with a line that says how much is missing."""
        missing = self.total - len(self._head) - len(self._tail)
        gap = f"\n... {missing:,} bytes not kept ...\n".encode() if missing > 0 else b""
        return bytes(self._head + gap + self._tail).decode("utf-8", "replace")

    def has_clue(self) -> bool:
        """Whether it names a fault after which torch waits for ever."""
        return any(clue in self._tail or clue in self._head for clue in CLUES)
