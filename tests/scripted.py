"""A trial server with known answers: rates, memory and faults are given, no loader runs and nothing waits."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from workbench.errors import ProbeError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Memory, Probe, TrialRun, Window
from workbench.measure.stage_costs import Stage, StageCosts


def probe_of(**changes: Any) -> Probe:
    """A probe of batches of 16 samples and 1 MB."""
    known = {
        "samples_per_batch": 16,
        "samples_evidence": "first dimension",
        "samples_ambiguous": False,
        "batch_bytes": 1_000_000,
        "tensors_per_batch": 2,
        "batch_structure": "tuple of 2 tensors",
        "epoch_batches": None,
        "epoch_samples": None,
        "iterable": False,
        "start_method": "fork",
        "batches_seen": 3,
    }
    return Probe(**{**known, **changes})


def run_of(settings: LoaderSettings, rate: float, *, memory_bytes: int | None = None, **changes: Any) -> TrialRun:
    """A run of four windows at exactly this rate (samples/s)."""
    windows = tuple(Window(float(at), 1600 / rate, batches=100, samples=1600) for at in range(4))
    known = {
        "status": "ok",
        "windows": windows,
        "first_batch_seconds": 0.1,
        "memory": Memory(peak_pss_bytes=memory_bytes, peak_rss_bytes=memory_bytes),
    }
    return TrialRun(settings, **{**known, **changes})


def costs_of(
    fetch: tuple[float, ...] = (0.01, 0.002),
    collate: tuple[float, ...] = (0.001, 0.001),
    transforms: tuple[Stage, ...] = (),
    hand: tuple[float, ...] = (0.0002, 0.0002),
    **changes: Any,
) -> StageCosts:
    """Costs of batches of 16 samples that two workers form all the time; stages are wall, CPU and starved seconds."""
    stages = [Stage("fetch", *fetch), *transforms, Stage("collate", *collate)]
    made = sum(stage.wall_seconds for stage in stages)
    known = {
        "worker_seconds_per_batch": made,
        "worker_cpu_seconds_per_batch": sum(stage.cpu_seconds for stage in stages),
        "other_threads_cpu_seconds": 0.0,
        "worker_busy_fraction": 1.0,
        "main_seconds_per_batch": 0.0002,
        "queue_wait_seconds": made / 2,
        "next_seconds": made / 2,
        "pin_seconds": None,
        "bytes_per_batch": 16_384,
        "pickled_bytes_per_batch": 400.0,
        "tensors_per_batch": 1,
        "samples_per_batch": 16.0,
        "batches": 100,
        "batches_detailed": 100,
        "seconds": made * 50,
        "samples_per_second": 2 * 16 / made,
        "worker_batches": (50, 50),
        "threads_per_worker": 3,
        "batch_walls": (made,) * 100,
        "first_batch_seconds": made,
    }
    return StageCosts(stages[0], tuple(transforms), stages[-1], Stage("hand-over", *hand), **{**known, **changes})


class ScriptedServer:
    """Stands in for `TrialServer`; every start of it is kept in `starts`.

    Args:
        rate: Samples/s of settings, or a TrialRun to answer with.
        spread: Relative spread between starts, drawn from a seeded normal distribution.
        probe: What the probe answers; an exception is raised.
        hang: Settings whose trial lasts until it is cancelled.
        before_run: Called with the settings before each run.
    """

    def __init__(
        self,
        rate: Callable[[LoaderSettings], float | TrialRun],
        *,
        spread: float = 0.0,
        probe: Probe | Exception | None = None,
        hang: Callable[[LoaderSettings], bool] = lambda settings: False,
        before_run: Callable[[LoaderSettings], None] = lambda settings: None,
    ) -> None:
        self.rate, self.spread, self.hang, self.before_run = rate, spread, hang, before_run
        self.probe_answer = probe or probe_of()
        self.starts: list[LoaderSettings] = []
        self.plans: list[Any] = []
        self.closed = 0
        self.hanging = threading.Event()
        self._cancelled = threading.Event()
        self._random = random.Random(0)

    def __call__(self, source: Any, **options: Any) -> ScriptedServer:
        self.options = options
        return self

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed += 1

    def probe(self) -> Probe:
        if isinstance(self.probe_answer, Exception):
            raise self.probe_answer
        return self.probe_answer

    @property
    def current(self) -> LoaderSettings:
        return self.probe().current or self.source.current or LoaderSettings()

    def run(self, settings: LoaderSettings, plan: Any) -> TrialRun:
        self._cancelled.clear()
        self.starts.append(settings)
        self.plans.append(plan)
        self.before_run(settings)
        if self.hang(settings):
            self.hanging.set()
            if self._cancelled.wait(20):
                return TrialRun(settings, "killed", "stopped")
        answer = self.rate(settings)
        if isinstance(answer, TrialRun):
            return answer
        return run_of(settings, answer * (1 + self._random.gauss(0, self.spread)), memory_bytes=100_000_000)

    def cancel(self) -> None:
        self._cancelled.set()


def broken_probe() -> ProbeError:
    """What the probe raises for a loader that fails with 0 workers."""
    return ProbeError("the loader does not work with 0 workers: ValueError: no file", error_type="ValueError")


def factory(
    num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False
) -> Iterator[int]:
    """A loader that no test iterates."""
    return iter(())
