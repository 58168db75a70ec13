"""How one run measures, and the limits that follow from it and from what the probe saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench import machine
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe

PROBE_SECONDS = 120.0
LEAST_DEADLINE_SECONDS = 60.0
LEAST_SILENCE_SECONDS = 15.0
BATCHES_OF_A_RUN = 12
"""Batches, or with workers rounds of them, that a run takes beside its queue however slow they are: the first, a round
before and after each reading of memory, the windows, the epoch's edge."""
SILENCE_BATCHES = 30.0
"""A trial is given up when nothing came for this many times what a batch took in the probe."""
FLOOR_BYTES = 1 << 30
FLOOR_SHARE = 0.05
FLOOR_SHARE_OF_A_SMALL_ONE = 0.125
"""A trial is stopped when the machine, or the container, has less than 5 % of its memory left, or less than 1 GiB where
it has 8 GiB and more; of a smaller one, an eighth."""


LONGEST_WINDOW_SECONDS = 0.25
WINDOWS_IN_A_RUN = 4
"""Windows that a run of its least length has: three are the fewest that say anything about their spread."""


@dataclass(frozen=True)
class TrialPlan:
    """How one run measures.

    Attributes:
        measure_seconds: Seconds of quiet windows that suffice once they are precise enough.
        max_measure_seconds: Seconds of windows after which the run stops all the same.
        precision: Relative half-width of the in-run interval that is precise enough.
        least_batches: Batches that must have been timed too before the run stops. Twice as many, in twice the least
            seconds, suffice however imprecise they are; 0 waits for precision until `max_measure_seconds`.
        window_seconds: Least length of a window; None: a quarter of `measure_seconds`, at most 0.25. Each window wakes
            the warden and the caller, which a loader that fills all cores pays for.
        warmup_seconds: Least length of the warm-up; the queue is used up once in any case.
        deadline_seconds: Wall seconds after which the run is ended; None: from what the probe saw, at least 60.
        silence_seconds: Seconds without a batch after which it counts as hung; None: from the probe, at least 15.
        memory_limit_bytes: Ceiling for the tree's memory; None for none but the machine's own.
        check_data: Compare what comes out with the loader at 0 workers.
        check_seconds: Longest time for that.
        measure_edge: Measure the cost of an epoch's edge.
        measure_growth: Read memory exactly before the windows as well as after them.
        fill_queue: Wait for the queue to be full before memory is read at the end: its peak, which a step slower than
            the loader sees. One run of a settings shows it; a slow loader needs a second or two for it.
        seed: Seeds torch, random and numpy in the trial; the same seed gives a shuffling loader the same order.
    """

    measure_seconds: float = 1.0
    max_measure_seconds: float = 4.0
    precision: float = 0.05
    least_batches: int = 0
    window_seconds: float | None = None
    warmup_seconds: float = 0.2
    deadline_seconds: float | None = None
    silence_seconds: float | None = None
    memory_limit_bytes: int | None = None
    check_data: bool = True
    check_seconds: float = 1.5
    measure_edge: bool = True
    measure_growth: bool = True
    fill_queue: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window_seconds is None:
            seconds = min(LONGEST_WINDOW_SECONDS, self.measure_seconds / WINDOWS_IN_A_RUN)
            object.__setattr__(self, "window_seconds", seconds)


def limits_of(plan: TrialPlan, settings: LoaderSettings, probe: Probe | None, cores: int) -> dict[str, Any]:
    """What the warden holds a run to, in seconds and bytes.

    Args:
        plan: How the run measures.
        settings: What it runs; more batches in flight take longer to use up.
        probe: What the probe saw, or None for the probe itself.
        cores: Cores that the trial may use.
    """
    batch = (probe.batch_seconds or 0.0) if probe else 0.0
    per_batch = batch * max(1.0, settings.num_workers / cores)
    silence = plan.silence_seconds or max(LEAST_SILENCE_SECONDS, SILENCE_BATCHES * per_batch)
    batches = BATCHES_OF_A_RUN + 2 * (settings.batches_in_flight + settings.num_workers)
    needed = plan.max_measure_seconds * 4 + batches * per_batch
    deadline = plan.deadline_seconds or max(LEAST_DEADLINE_SECONDS, needed)
    total = machine.memory_limit_bytes() or 0
    return {
        "deadline_seconds": deadline if probe else PROBE_SECONDS,
        "silence_seconds": silence if probe else PROBE_SECONDS,
        "partial_silence_seconds": LEAST_SILENCE_SECONDS / 2,
        "memory_bytes": plan.memory_limit_bytes,
        "floor_bytes": floor_bytes(total),
        "batch_bytes": probe.batch_bytes if probe else 0,
        "measure_seconds": plan.measure_seconds,
        "max_measure_seconds": plan.max_measure_seconds,
        "precision": plan.precision,
        "least_batches": plan.least_batches,
    }


def floor_bytes(total: int) -> int:
    """Memory that must stay available, of so much in all; 1 GiB where the total is not known (0)."""
    least = min(FLOOR_BYTES, FLOOR_SHARE_OF_A_SMALL_ONE * total) if total else FLOOR_BYTES
    return int(max(least, FLOOR_SHARE * total))
