"""What one trial leaves behind: frozen records that cross process borders as JSON and stay in the store for ever.

A *run* is one start of the user's loader in a process of its own; a *trial* is everything known about one settings,
which is one run or several. Raw windows are kept; statistics are derived from them (`statistics.py`, `result.py`).
Unknown is None, never 0.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.stage_costs import StageCosts, costs_from_json

STATUSES = ("ok", "failed", "timed_out", "killed", "over_memory", "wrong_data", "skipped")


@dataclass(frozen=True)
class Window:
    """One stretch of steady-state measurement, from one batch's arrival to another's.

    Attributes:
        at_seconds: CLOCK_MONOTONIC when the window opened.
        seconds: Length of the window.
        batches: Batches that were handed over after the opening one, up to and including the closing one, also those
            that were still held back by one due before them; in whole rounds.
        samples: Samples in those batches; those held back are taken to be of the window's mean size.
        foreign_cores: Cores that other programs used meanwhile, on average; None when it could not be read.
    """

    at_seconds: float
    seconds: float
    batches: int
    samples: int
    foreign_cores: float | None = None

    @property
    def samples_per_second(self) -> float:
        """Rate in this window."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Memory:
    """Memory of the whole process tree of a run, in bytes.

    Attributes:
        peak_pss_bytes: Highest cost seen: the proportional set size that the tree would have if it ran alone, plus
            batches in flight in shared memory that no process maps. This is what ranks.
        peak_rss_bytes: Highest sum of resident set sizes; counts a shared page once per process.
        peak_shm_bytes: Most shared memory held for batches in flight.
        anonymous_bytes: Anonymous part at the last exact reading.
        file_bytes: File-backed part (page cache, reclaimable) at the last exact reading.
        shared_bytes: Shared-memory part at the last exact reading.
        growth_bytes_per_1000_samples: Growth between the two exact readings, per 1,000 samples.
        growth_samples: How many samples lie between those two readings.
        growth_in_workers: Whether most of it happened in worker processes; None when nothing grew.
        growth_kind: "copy-on-write" where forked workers un-share pages by touching Python objects, "anonymous" where
            something keeps what it has read, "" where nothing is established.
        growth_pace_bytes_per_1000_samples: Growth towards the end of the run, at which it goes on at most.
        growth_most_ahead_bytes: What it can still add at all: un-shared pages end with one copy in every worker. None
            where there is no bound.
        projected_peak_bytes: `peak_pss_bytes` plus what established growth adds until the end of an epoch; None when
            nothing is established or the epoch's length is not known.
        growth_established: Whether the growth exceeds what start-up noise explains over enough samples; None when
            there were not two readings.
        peak_descriptors: Most open descriptors of any one process of the tree.
        sampling_seconds: CPU time that the watching process took while windows were timed.
        sampled_seconds: How long that was.
    """

    peak_pss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    peak_shm_bytes: int | None = None
    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    shared_bytes: int | None = None
    growth_bytes_per_1000_samples: float | None = None
    growth_samples: int | None = None
    growth_in_workers: bool | None = None
    growth_kind: str = ""
    growth_pace_bytes_per_1000_samples: float | None = None
    growth_most_ahead_bytes: int | None = None
    projected_peak_bytes: int | None = None
    growth_established: bool | None = None
    peak_descriptors: int | None = None
    sampling_seconds: float | None = None
    sampled_seconds: float | None = None


@dataclass(frozen=True)
class MemoryReading:
    """Memory of the whole process tree of a run at one moment.

    Attributes:
        at_seconds: CLOCK_MONOTONIC of the reading.
        rss_bytes: Sum of resident set sizes, read several times a second.
        pss_bytes: What the tree cost, shared pages counted once; known at the few exact readings alone.
    """

    at_seconds: float
    rss_bytes: int
    pss_bytes: int | None = None


@dataclass(frozen=True)
class Probe:
    """What one look at the user's loader with 0 workers says, before any trial.

    Attributes:
        samples_per_batch: Samples in the first batch.
        samples_evidence: Why that number: which leaf of the batch, or "given by the caller".
        samples_ambiguous: True when the leaves of the batch disagree and nothing decides between them.
        batch_bytes: Bytes of all tensors and arrays in the largest batch seen.
        tensors_per_batch: Leaf tensors in the first batch.
        batch_structure: One line that describes the batch's types, shapes and dtypes.
        epoch_batches: Batches in an epoch, None when not known (endless, or longer than the probe looked).
        epoch_samples: Samples in an epoch, None when not known.
        iterable: True for an iterable-style dataset, None when it cannot be told.
        start_method: Start method that workers get when the settings name none.
        pickle_problems: For "spawn" and "forkserver", why plain pickling fails, or None where it works.
        batches_seen: Batches the probe took.
        batch_seconds: Median seconds between batches in the probe, or None with fewer than two.
        longest_batch_seconds: The longest of them.
        current: The loader's own settings, as the trial process saw them.
        notes: Sentences worth showing once a sweep.
        manifest_digest: Digest of the manifest of the data set that was read, None where it has none.
        epoch_ends: Whether an epoch is known to end, since its end was seen or a length is stated. An endless stream
            cannot be told from one that is long and states no length.
        returned: What the user's factory returned instead of a DataLoader ("a list"); empty for a DataLoader.
        fixed_knobs: Knobs that cannot be set on what the factory returned.
        own_with_workers: Knobs that the factory turns by itself as soon as there are workers, and cannot be told.
    """

    samples_per_batch: int | None
    samples_evidence: str
    samples_ambiguous: bool
    batch_bytes: int
    tensors_per_batch: int
    batch_structure: str
    epoch_batches: int | None
    epoch_samples: int | None
    iterable: bool | None
    start_method: str
    pickle_problems: dict[str, str | None] = field(default_factory=dict)
    batches_seen: int = 0
    batch_seconds: float | None = None
    longest_batch_seconds: float | None = None
    current: LoaderSettings | None = None
    notes: tuple[str, ...] = ()
    manifest_digest: str | None = None
    epoch_ends: bool = True
    returned: str = ""
    fixed_knobs: tuple[str, ...] = ()
    own_with_workers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialRun:
    """One start of the loader under one settings, in a process of its own.

    Attributes:
        settings: What was run.
        status: One of `STATUSES`.
        reason: For anything but "ok", a sentence a person can act on; else empty.
        windows: Steady-state stretches, oldest first.
        mode: "steady" (windows inside an epoch) or "epochs" (whole epochs, restart included, when epochs are short).
        first_batch_seconds: From asking for an iterator to holding the first batch.
        epoch_edge_seconds: From the last batch of an epoch to the first of the next; None where no epoch is known to
            end.
        shutdown_seconds: From the end of measuring to the last worker gone.
        batch_seconds_p50: Median time between batches inside the windows.
        batch_seconds_p95: 95th percentile of the same.
        batch_seconds_max: Longest of the same.
        memory: Memory of the process tree.
        cpu_cores_used: Cores the tree used during the windows, on average.
        peak_threads: Most threads alive in the tree at once.
        start_method: Start method the workers really had ("" at 0 workers).
        cold: True for the first run of a sweep, whose files may not have been in the page cache.
        screened: True for a short first look, which checked neither data nor memory growth nor an epoch's edge.
        noisy: True when other programs used the cores through most windows.
        batches_total: All batches taken, warm-up included.
        worker_samples: Samples that each worker delivered while data were checked, or None.
        idle_workers: Workers that have nothing to deliver in an epoch; None when not known.
        error_type: Name of the user's exception class when status is "failed".
        traceback_text: The user's traceback as text.
        output_tail: Last part of what the trial printed, stdout and stderr together.
        output_bytes: How much it printed in all.
        overhead_seconds: Wall time of the run beyond start-up of the loader, measuring, and its shutdown.
        notes: Sentences worth showing.
        started_at: Seconds since the epoch (UTC) when the run began.
        manifest_digest: Digest of the manifest of the data set that was read, None where it has none.
        memory_over_time: Memory of the process tree from begin to end, thinned where there were many readings.
        stages: Where a batch's time went, where that was looked into afterwards (`SweepStore.save_stages`).
    """

    settings: LoaderSettings
    status: str
    reason: str = ""
    windows: tuple[Window, ...] = ()
    mode: str = "steady"
    first_batch_seconds: float | None = None
    epoch_edge_seconds: float | None = None
    shutdown_seconds: float | None = None
    batch_seconds_p50: float | None = None
    batch_seconds_p95: float | None = None
    batch_seconds_max: float | None = None
    memory: Memory = field(default_factory=Memory)
    cpu_cores_used: float | None = None
    peak_threads: int | None = None
    start_method: str = ""
    cold: bool = False
    screened: bool = False
    noisy: bool = False
    batches_total: int = 0
    worker_samples: tuple[int, ...] | None = None
    idle_workers: int | None = None
    error_type: str = ""
    traceback_text: str = ""
    output_tail: str = ""
    output_bytes: int = 0
    overhead_seconds: float | None = None
    notes: tuple[str, ...] = ()
    started_at: float = 0.0
    manifest_digest: str | None = None
    memory_over_time: tuple[MemoryReading, ...] = ()
    stages: StageCosts | None = None


def to_json(record: TrialRun | Probe) -> dict[str, Any]:
    """The record as a JSON-ready dict; `run_from_json` and `probe_from_json` read it back equal."""
    return dataclasses.asdict(record)


def run_from_json(data: dict[str, Any]) -> TrialRun:
    """The run that `to_json` wrote; unknown keys of later versions are ignored."""
    data = _known(TrialRun, data)
    data["settings"] = LoaderSettings(**_known(LoaderSettings, data["settings"]))
    data["windows"] = tuple(Window(**_known(Window, w)) for w in data.get("windows", ()))
    data["memory"] = Memory(**_known(Memory, data.get("memory") or {}))
    data["notes"] = tuple(data.get("notes", ()))
    if data.get("worker_samples") is not None:
        data["worker_samples"] = tuple(data["worker_samples"])
    data["memory_over_time"] = tuple(
        MemoryReading(**_known(MemoryReading, one)) for one in data.get("memory_over_time", ())
    )
    data["stages"] = costs_from_json(data.get("stages"))
    return TrialRun(**data)


def probe_from_json(data: dict[str, Any]) -> Probe:
    """The probe that `to_json` wrote."""
    data = _known(Probe, data)
    if data.get("current") is not None:
        data["current"] = LoaderSettings(**_known(LoaderSettings, data["current"]))
    data["notes"] = tuple(data.get("notes", ()))
    data["fixed_knobs"] = tuple(data.get("fixed_knobs", ()))
    return Probe(**data)


def _known(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(cls)}
    return {key: value for key, value in data.items() if key in names}
