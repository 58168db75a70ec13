"""Which settings cannot run here, known before they are started: their shared memory or their memory would not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench import machine
from workbench.loaders.settings import LoaderSettings, workers
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.tuning.fitting import fit, layout_of
from workbench.tuning.queueing import BATCHES_BESIDE_THE_QUEUE, memory_bytes

# Predictions of peak memory from other settings were off by less than this on what was run.
SURELY_TOO_LARGE = 1.15


def batch_bytes_under(settings: LoaderSettings, probe: Probe) -> int:
    """Bytes of one batch under these settings, scaled from the probed batch when the batch size is changed."""
    if settings.batch_size is None or not probe.samples_per_batch:
        return probe.batch_bytes
    current = probe.current.batch_size if probe.current else None
    if settings.batch_size == current:
        return probe.batch_bytes
    return round(probe.batch_bytes * settings.batch_size / (current or probe.samples_per_batch))


def queue_bytes(settings: LoaderSettings, probe: Probe) -> int:
    """Bytes of all batches that these settings keep between workers and training loop; 0 at 0 workers."""
    if settings.num_workers == 0:
        return 0
    return (settings.batches_in_flight + BATCHES_BESIDE_THE_QUEUE) * batch_bytes_under(settings, probe)


def why_infeasible(
    settings: LoaderSettings,
    probe: Probe,
    *,
    free_shared_memory_bytes: int | None = None,
    memory_limit_bytes: int | None = None,
    over_memory: Iterable[LoaderSettings] = (),
) -> str | None:
    """Why these settings should not be started, with need and limit, or None where nothing speaks against them.

    Args:
        settings: What would be run.
        probe: Gives the bytes of a batch.
        free_shared_memory_bytes: Free space of /dev/shm, where batches in flight live; None when unknown.
        memory_limit_bytes: The most the trial's processes may use together; None for no limit.
        over_memory: Settings already seen to exceed the limit; whatever needs at least as much is ruled out too.
    """
    need = queue_bytes(settings, probe)
    flight = (
        f"{workers(settings.num_workers)} x prefetch {settings.prefetch_factor} and {BATCHES_BESIDE_THE_QUEUE} more "
        f"batches of {machine.format_bytes(batch_bytes_under(settings, probe))}"
    )
    if free_shared_memory_bytes is not None and need > free_shared_memory_bytes:
        return (
            f"shared memory: {flight} need {machine.format_bytes(need)}, and /dev/shm has "
            f"{machine.format_bytes(free_shared_memory_bytes)} free; lower prefetch_factor or num_workers, or enlarge "
            "/dev/shm (docker run --shm-size)."
        )
    if memory_limit_bytes is not None and need > memory_limit_bytes:
        return (
            f"memory: {flight} need {machine.format_bytes(need)} alone, more than the limit of "
            f"{machine.format_bytes(memory_limit_bytes)}; lower prefetch_factor or num_workers, or raise the limit."
        )
    for exceeded in over_memory:
        if needs_at_least(settings, exceeded):
            return (
                f"memory: {exceeded.describe()} exceeded the limit"
                f"{'' if memory_limit_bytes is None else ' of ' + machine.format_bytes(memory_limit_bytes)}, "
                "and these settings need at least as much; raise the memory limit to try them."
            )
    return None


def why_too_large(
    settings: LoaderSettings, trials: Sequence[TrialResult], probe: Probe, memory_limit_bytes: int | None
) -> str | None:
    """Why these settings would exceed the memory limit by what the trials so far show, or None.

    Only said for sure: two worker counts of the same layout must have been measured, and the prediction exceed the
    limit by more than it can be off.
    """
    layout = layout_of(settings, probe)
    alike = [trial for trial in trials if layout_of(trial.settings, probe) == layout]
    measured = [trial for trial in alike if trial.status == "ok" and trial.peak_pss_bytes]
    if memory_limit_bytes is None or len({trial.settings.num_workers for trial in measured}) < 2:
        return None
    predicted = memory_bytes(settings, fit(measured, probe, cores=1.0).costs)
    if predicted is None or predicted <= SURELY_TOO_LARGE * memory_limit_bytes:
        return None
    return (
        f"memory: about {machine.format_bytes(predicted)} predicted from {len(measured)} settings that were run, more "
        f"than the limit of {machine.format_bytes(memory_limit_bytes)}; lower prefetch_factor or num_workers, or raise "
        "the limit."
    )


def needs_at_least(settings: LoaderSettings, other: LoaderSettings) -> bool:
    """Whether `settings` differ from `other` only by as many or more workers and as many or more batches in flight."""
    same = settings.replaced(num_workers=other.num_workers, prefetch_factor=other.prefetch_factor) == other
    more_workers = settings.num_workers >= other.num_workers
    return same and more_workers and settings.batches_in_flight >= other.batches_in_flight and settings != other
