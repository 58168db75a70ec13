"""How long starts of a loader take: as they took, else from what the probe saw, else as is assumed; and which it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.measure.plan import BATCHES_OF_A_RUN
from workbench.measure.records import TrialRun

SECONDS_BESIDE_MEASURING = 1.5  # start-up, first batch, warm-up and end of a quick loader, until one has shown its own


@dataclass(frozen=True)
class StartSeconds:
    """What one start takes, all in all.

    Attributes:
        seconds: Wall seconds.
        basis: "measured", "probed" (from what a batch took with 0 workers) or "assumed".
    """

    seconds: float
    basis: str


def start_seconds(measured: Sequence[float], batch_seconds: float | None, measure_seconds: float) -> StartSeconds:
    """What a start of this loader takes.

    Args:
        measured: Wall seconds of starts that ended, start-up and warm-up included.
        batch_seconds: What a batch took in the probe, or None.
        measure_seconds: Measuring time of one start.
    """
    if measured:
        return StartSeconds(statistics.fmean(measured), "measured")
    assumed = measure_seconds + SECONDS_BESIDE_MEASURING
    if batch_seconds is not None:
        return StartSeconds(assumed + BATCHES_OF_A_RUN * batch_seconds, "probed")
    return StartSeconds(assumed, "assumed")


def measured_seconds(results: Any, measure_seconds: float) -> tuple[float, ...]:
    """Wall seconds of each start in a sweep's results; none where these starts measured for another time."""
    if results is None or results.options.get("measure_seconds", measure_seconds) != measure_seconds:
        return ()
    runs = (run for trial in results.trials for run in trial.runs if run.status != "skipped")
    return tuple(seconds for run in runs if (seconds := seconds_of(run)) is not None)


def seconds_of(run: TrialRun) -> float | None:
    """Wall seconds of one start, from its record: first reading of memory to the last, or its known parts."""
    parts = [run.first_batch_seconds, run.shutdown_seconds, *(window.seconds for window in run.windows)]
    known = sum(part for part in parts if part is not None)
    over = run.memory_over_time
    return max(known, over[-1].at_seconds - over[0].at_seconds if over else 0.0) or None
