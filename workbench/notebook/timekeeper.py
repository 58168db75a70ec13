"""Timekeeper: since when a panel's sweep runs, what its starts take, and so about how long it still will."""

from __future__ import annotations

import time
from typing import Any

from workbench.notebook.durations import StartSeconds, measured_seconds, start_seconds
from workbench.notebook.watch import Watched, time_text


class Timekeeper:
    """The clock of one panel.

    Args:
        measure_seconds: Measuring time of one start.
    """

    def __init__(self, measure_seconds: float) -> None:
        self._measure_seconds = measure_seconds
        self._begun = time.monotonic()
        self._budget_seconds: float | None = None
        self._earlier: tuple[float, ...] = ()

    def begin(self, watched: Watched, results: Any, budget_seconds: float | None) -> None:
        """A sweep begins; what starts took before stands in until it has some of its own."""
        self._earlier = self._measured(watched, results)
        self._begun, self._budget_seconds = time.monotonic(), budget_seconds

    def adopt(self, results: Any) -> None:
        """Takes over a sweep that runs already, and whose results tell since when."""
        self._begun = time.monotonic() - (max(0.0, time.time() - results.created) if results is not None else 0.0)

    def start(self, watched: Watched, results: Any) -> StartSeconds:
        """What a start takes: by this sweep's own, else by earlier ones of this loader, else by what the probe saw."""
        return start_seconds(self._measured(watched, results), watched.batch_seconds, self._measure_seconds)

    def text(self, watched: Watched, results: Any) -> str:
        """How long the sweep has run, and about how long it still will."""
        elapsed = time.monotonic() - self._begun
        return time_text(watched, elapsed, self.start(watched, results).seconds, self._budget_seconds)

    def _measured(self, watched: Watched, results: Any) -> tuple[float, ...]:
        return watched.run_seconds or measured_seconds(results, self._measure_seconds) or self._earlier
