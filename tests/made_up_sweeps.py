"""Sweeps whose every number is chosen here: real run records, nothing measured."""

from __future__ import annotations

from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Memory, Probe, TrialRun, Window
from workbench.measure.result import TrialResult
from workbench.tuning.results import Results

STARTS = (0.98, 1.0, 1.02)  # each settings starts three times, and the starts differ by this much


def results(*trials: TrialResult, **more: Any) -> Results:
    """Results of a sweep that ended with these trials."""
    known = {"probe": None, "machine": {}, "name": "made-up", "ending": "finished"} | more
    return Results(tuple(trials), **known)


def settings(workers: int, prefetch: int | None = None, **knobs: Any) -> LoaderSettings:
    return LoaderSettings(num_workers=workers, prefetch_factor=prefetch, **knobs)


def run(
    chosen: LoaderSettings, samples_per_second: float, *, megabytes: int = 400, first: float = 0.5, edge: float = 0.25
) -> TrialRun:
    windows = tuple(Window(10.0 + 0.25 * i, 0.25, 4, round(samples_per_second * 0.25)) for i in range(4))
    return TrialRun(
        chosen,
        "ok",
        windows=windows,
        first_batch_seconds=first,
        epoch_edge_seconds=edge,
        shutdown_seconds=0.05,
        batch_seconds_p50=0.06,
        batch_seconds_p95=0.08,
        memory=Memory(peak_pss_bytes=megabytes * 10**6, peak_rss_bytes=2 * megabytes * 10**6, peak_shm_bytes=8 * 10**6),
        cpu_cores_used=1.5,
        output_tail="opened 12 files\n",
        started_at=1_790_000_000.0,
    )


def trial(
    chosen: LoaderSettings, samples_per_second: float, *, megabytes: int = 400, first: float = 0.5, edge: float = 0.25
) -> TrialResult:
    runs = (run(chosen, samples_per_second * s, megabytes=megabytes, first=first, edge=edge) for s in STARTS)
    return TrialResult(chosen, tuple(runs))


def broken(
    chosen: LoaderSettings, status: str, reason: str, *, megabytes: int | None = None, **more: Any
) -> TrialResult:
    memory = Memory(peak_pss_bytes=megabytes * 10**6 if megabytes else None)
    return TrialResult(chosen, (TrialRun(chosen, status, reason, memory=memory, **more),))


def photos_like() -> Results:
    """Twelve settings on two cores: four workers with prefetch 2 win, two fail, one takes too much memory."""
    trials = (
        trial(settings(0), 400, megabytes=300, first=0.1, edge=0.01),
        trial(settings(1, 2), 380, megabytes=420, first=0.4),
        trial(settings(2, 2), 800, megabytes=540, first=0.5),
        trial(settings(4, 2), 1200, megabytes=780, first=0.8, edge=0.2),
        trial(settings(1, 4), 384, megabytes=440),
        trial(settings(2, 4), 820, megabytes=580),
        trial(settings(4, 4), 1180, megabytes=860, first=0.9),
        trial(settings(2, 2, batch_on_worker=True), 780, megabytes=550),
        trial(settings(4, 2, persistent_workers=True), 1160, megabytes=785, first=0.8, edge=0.02),
        broken(
            settings(2, 2, multiprocessing_context="spawn"),
            "failed",
            "Can't pickle <lambda> at cell 3 line 12; define collate_fn with def in a module, or use fork",
            error_type="PicklingError",
            traceback_text='Traceback (most recent call last):\n  File "cell 3", line 12\nPicklingError: <lambda>',
        ),
        broken(settings(8, 2), "over_memory", "1.6 GB at 3 s passes the limit of 1.5 GB; allow more", megabytes=1600),
        broken(settings(8, 4), "timed_out", "no first batch after 60 s; raise the deadline or use fewer workers"),
    )
    probe = Probe(
        32,
        "first tensor",
        False,
        19_267_584,
        2,
        "tuple of Tensor[32, 3, 224, 224] float32, Tensor[32] int64",
        94,
        3000,
        False,
        "fork",
    )
    return results(
        *trials,
        probe=probe,
        machine={"cpu": "made-up CPU", "usable_cores": 2, "memory_bytes": 8 * 10**9, "torch": "2.13.0"},
        name="photos",
        source="DataLoader over Photos",
        current=settings(0),
    )


def empty() -> Results:
    return results()


def all_failed() -> Results:
    trials = tuple(broken(settings(n, 2), "failed", f"worker {n} <died>") for n in (1, 2))
    return results(*trials)
