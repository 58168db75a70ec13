"""TrialResult: all that is known about one settings, derived from its runs when asked."""

from __future__ import annotations

import math
import statistics as builtin_statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun
from workbench.measure.statistics import RateEstimate, Spread, estimate_rate

RESULT_COLUMNS = (
    "status",
    "reason",
    "samples_per_second",
    "samples_per_second_low",
    "samples_per_second_high",
    "batches_per_second",
    "batch_seconds_p50",
    "batch_seconds_p95",
    "first_batch_seconds",
    "epoch_edge_seconds",
    "shutdown_seconds",
    "peak_pss_bytes",
    "peak_rss_bytes",
    "peak_shm_bytes",
    "cpu_cores_used",
    "measured_seconds",
    "windows",
)


@dataclass(frozen=True)
class TrialResult:
    """One settings and its runs; everything else is derived.

    Attributes:
        settings: The knobs.
        runs: One record a start, oldest first; never empty.
        spread: Spread between starts pooled over the sweep, when there is one.
        cores: Cores that the measured process could use.
    """

    settings: LoaderSettings
    runs: tuple[TrialRun, ...]
    spread: Spread | None = None
    cores: int = 1

    @property
    def status(self) -> str:
        """ "ok" when every run was; else the status of the last run that was not."""
        bad = [run.status for run in self.runs if run.status != "ok"]
        return bad[-1] if bad else "ok"

    @property
    def reason(self) -> str:
        """Why `status` is not "ok"; empty when it is."""
        bad = [run.reason for run in self.runs if run.status != "ok"]
        return bad[-1] if bad else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Every note of the runs, each once."""
        return tuple(dict.fromkeys(note for run in self.runs for note in run.notes))

    @cached_property
    def estimate(self) -> RateEstimate | None:
        """The rate and its 95 % interval, or None when nothing was measured."""
        return estimate_rate(self.runs, self.spread, self.cores)

    @property
    def samples_per_second(self) -> float | None:
        """Steady-state rate."""
        return self.estimate.samples_per_second if self.estimate else None

    @property
    def samples_per_second_low(self) -> float | None:
        """Lower end of the rate's 95 % interval; None while nothing says how wide it is."""
        return self.estimate.low if self.estimate and math.isfinite(self.estimate.high) else None

    @property
    def samples_per_second_high(self) -> float | None:
        """Upper end of the rate's 95 % interval; None while nothing says how wide it is."""
        return self.estimate.high if self.estimate and math.isfinite(self.estimate.high) else None

    @property
    def batches_per_second(self) -> float | None:
        """Steady-state rate in batches: the rate in samples over the mean samples a batch."""
        samples = sum(w.samples for run in self.runs for w in run.windows)
        batches = sum(w.batches for run in self.runs for w in run.windows)
        return self.samples_per_second * batches / samples if samples and self.samples_per_second else None

    @property
    def batch_seconds_p50(self) -> float | None:
        """Median seconds between batches."""
        return self._median(lambda run: run.batch_seconds_p50)

    @property
    def batch_seconds_p95(self) -> float | None:
        """95th percentile of the seconds between batches."""
        return self._median(lambda run: run.batch_seconds_p95)

    @property
    def first_batch_seconds(self) -> float | None:
        """Seconds from asking for an iterator to the first batch; the median over warm starts."""
        return self._median(lambda run: run.first_batch_seconds, warm=True)

    @property
    def epoch_edge_seconds(self) -> float | None:
        """Seconds from the last batch of an epoch to the first of the next."""
        return self._median(lambda run: run.epoch_edge_seconds)

    @property
    def shutdown_seconds(self) -> float | None:
        """Seconds that stopping the workers takes."""
        return self._median(lambda run: run.shutdown_seconds)

    @property
    def peak_pss_bytes(self) -> int | None:
        """Highest cost of the process tree: PSS plus batches in flight that no process maps."""
        return self._most(lambda run: run.memory.peak_pss_bytes)

    @property
    def peak_rss_bytes(self) -> int | None:
        """Highest sum of RSS, which counts shared pages once a process."""
        return self._most(lambda run: run.memory.peak_rss_bytes)

    @property
    def peak_shm_bytes(self) -> int | None:
        """Most shared memory that batches in flight held."""
        return self._most(lambda run: run.memory.peak_shm_bytes)

    @property
    def cpu_cores_used(self) -> float | None:
        """Cores that the loader used on average."""
        return self._median(lambda run: run.cpu_cores_used)

    @property
    def measured_seconds(self) -> float | None:
        """Seconds inside windows, over all runs."""
        seconds = [w.seconds for run in self.runs for w in run.windows]
        return sum(seconds) if seconds else None

    @property
    def windows(self) -> int:
        """Number of windows over all runs."""
        return sum(len(run.windows) for run in self.runs)

    def epoch_seconds(self, samples: int) -> float | None:
        """Seconds that an epoch of this many samples takes: steady rate plus one epoch's edge.

        In "epochs" mode the rate already contains the edge. None when the rate, or an edge that is needed, is unknown.
        """
        rate = self.samples_per_second
        if rate is None:
            return None
        if any(run.mode == "epochs" for run in self.runs):
            return samples / rate
        return samples / rate + self.epoch_edge_seconds if self.epoch_edge_seconds is not None else None

    def row(self) -> dict[str, Any]:
        """Knobs, then `RESULT_COLUMNS`; unknown is None."""
        return self.settings.as_dict() | {name: getattr(self, name) for name in RESULT_COLUMNS}

    def _median(self, read: Callable[[TrialRun], float | None], *, warm: bool = False) -> float | None:
        runs = [run for run in self.runs if not run.cold] if warm else self.runs
        known = [value for run in (runs or self.runs) if (value := read(run)) is not None]
        return builtin_statistics.median(known) if known else None

    def _most(self, read: Callable[[TrialRun], int | None]) -> int | None:
        return max((value for run in self.runs if (value := read(run)) is not None), default=None)
