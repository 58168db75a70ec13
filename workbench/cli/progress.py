"""A progress bar on stderr for commands that count things, and how wide the terminal is; sweeps draw their own bar."""

from __future__ import annotations

import shutil
import sys
from typing import Any

SECONDS_BETWEEN_DRAWINGS = 0.5
NARROWEST = 40  # columns; what claims to be narrower does not know


def columns_of_terminal() -> int | None:
    """Width of the terminal on stdout; None where output goes elsewhere and has no width."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


class Bar:
    """A context manager; the bar is made when the first progress arrives, so that a refusal stands alone.

    Args:
        unit: What is counted, for instance "file".
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: Any = None

    def show(self, done: int, total: int | None) -> None:
        """Draws the bar at `done` of `total`; None where the total is not known."""
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=self._unit, file=sys.stderr, mininterval=SECONDS_BETWEEN_DRAWINGS)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
