"""The report on a profiler trace: its record, and the sentences that its verdict rests on."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.measure.intervals import Spans
from workbench.measure.trace_device import MICRO

WORTH_REMOVING = 0.2  # a share of the step whose removal makes training 1.25 times as fast: worth a verdict
NEGLIGIBLE = 0.1  # below it (1.11 times) nothing is gained by removing it
BUSY = 0.8  # a device that computes this share of the time is what bounds the run
MIN_STEPS = 3  # fewer are no steady state
NO_LOADER_SPANS = "No loader spans in this trace"
SHARES = {
    "input_wait_fraction": "the stepping thread waited for the loader",
    "device_idle_fraction": "the device ran nothing",
    "compute_fraction": "it computed",
    "exposed_copy_fraction": "it waited for copies that nothing overlapped",
    "sync_wait_fraction": "the stepping thread sat in synchronising calls",
    "collective_fraction": "collectives ran, waits for other ranks included",
}
"""What each of these shares of the window is, after "of the time"."""


@dataclass(frozen=True)
class TraceReport:
    """Where the steps of one trace, or of one rank each, spent their time. Unknown is None, never 0.

    Attributes:
        path: File or folder that was read.
        bound: "input", "compute", "transfer", "sync", "balanced" or "unknown".
        evidence: Sentences with the numbers behind the verdict, and what the trace cannot tell.
        steps: Steps in the window.
        step_seconds: Median length of a step.
        input_wait_fraction: Share of the window in which the stepping thread was inside the DataLoader's `__next__`.
        device_idle_fraction: Share in which the busiest device ran nothing, on any stream.
        compute_fraction: Share in which it ran kernels other than collectives.
        idle_in_loader_fraction: Share in which it was idle while the stepping thread was in the loader.
        idle_after_sync_fraction: Share in which it was idle, outside the loader, after a synchronising call.
        copy_fraction: Share in which it copied between host and device.
        exposed_copy_fraction: The part of `copy_fraction` that no kernel overlapped.
        pageable_fraction: Share of the bytes copied to the device that came from pageable memory; None where not told.
        collective_fraction: Share in which it ran collectives, waits for other ranks included.
        sync_wait_fraction: Share that the stepping thread spent in synchronising calls, loader excluded.
        syncs_per_step: Such calls a step.
        gaps_per_step: Device gaps longer than `BURST_GAP_SECONDS` a step.
        longest_gap_seconds: Longest of them.
        first_wait_seconds: First wait for the loader, where it was start-up and is left out of the window.
        rank: Rank of a distributed run.
        ranks: One report a rank, for a folder.
        events: Events decoded.
        skipped_events: Events that could not be decoded.
        truncated: Whether the file ended early.
    """

    path: str
    bound: str
    evidence: tuple[str, ...]
    steps: int | None = None
    step_seconds: float | None = None
    input_wait_fraction: float | None = None
    device_idle_fraction: float | None = None
    compute_fraction: float | None = None
    idle_in_loader_fraction: float | None = None
    idle_after_sync_fraction: float | None = None
    copy_fraction: float | None = None
    exposed_copy_fraction: float | None = None
    pageable_fraction: float | None = None
    collective_fraction: float | None = None
    sync_wait_fraction: float | None = None
    syncs_per_step: float | None = None
    gaps_per_step: float | None = None
    longest_gap_seconds: float | None = None
    first_wait_seconds: float | None = None
    rank: int | None = None
    ranks: tuple[TraceReport, ...] = ()
    events: int = 0
    skipped_events: int = 0
    truncated: bool = False

    def __str__(self) -> str:
        """The verdict, what is known of where the time went, and the evidence, a line each."""
        known = {name: getattr(self, name) for name in SHARES}
        lines = [f"{share:6.0%} of the time {SHARES[name]}" for name, share in known.items() if share is not None]
        return "\n".join([f"{self.path}: bound by {self.bound}", *lines, *self.evidence])


def sentences(report: TraceReport, bound: str) -> tuple[str, ...]:
    found = [f"{report.steps} steps of {_ms(report.step_seconds)}"]
    if report.steps is not None and report.steps < MIN_STEPS:
        found.append(f"fewer than {MIN_STEPS} steps are no steady state: no verdict")
    wait = report.input_wait_fraction
    if wait is not None:
        gain = f"; perfect loading would give at most {1 / (1 - wait):.2f}x" if wait < 0.99 else ""
        found.append(f"{wait:.1%} of a step is spent waiting in the DataLoader's __next__{gain}")
    if report.first_wait_seconds is not None:
        found.append(f"the first batch took {_ms(report.first_wait_seconds)} (workers start up) and is left out")
    found += device_sentences(report)
    if (
        bound == "compute"
        and (report.compute_fraction or 1.0) < BUSY
        and (report.device_idle_fraction or 0) > NEGLIGIBLE
    ):
        found.append("the device idles for the host's own work in the step (launches, Python), not for the loader")
    return tuple(found)


def device_sentences(report: TraceReport) -> list[str]:
    if report.device_idle_fraction is None:
        return ["no device events: a CPU-only run, or a trace without device activities, so idle time is not known"]
    found = [
        f"the device is idle {report.device_idle_fraction:.1%} and computes {report.compute_fraction:.1%} of the time"
    ]
    if report.idle_in_loader_fraction is not None:
        found.append(f"it is idle {report.idle_in_loader_fraction:.1%} of the time while the loop waits for the loader")
    if report.copy_fraction:
        text = f"copies between host and device take {report.copy_fraction:.1%}, of which kernels do not overlap "
        text += f"{report.exposed_copy_fraction:.1%}"
        if report.pageable_fraction is not None:
            text += f"; {report.pageable_fraction:.0%} of what is copied to the device comes from pageable memory"
        found.append(text)
    if report.syncs_per_step:
        text = f"{report.syncs_per_step:.1f} synchronising calls a step"
        found.append(f"{text}; the device idles {report.idle_after_sync_fraction or 0.0:.1%} of the time after them")
    if report.longest_gap_seconds is not None and report.gaps_per_step is not None:
        longest = _ms(report.longest_gap_seconds)
        found.append(f"{report.gaps_per_step:.1f} gaps between bursts of kernels a step, the longest {longest}")
    if report.collective_fraction and report.collective_fraction >= NEGLIGIBLE:
        found.append(f"collectives take {report.collective_fraction:.1%}: they hide waits for other ranks")
    return found


def no_steps(whole: Spans) -> tuple[str, ...]:
    seen = f"; shares are of the {whole.length * MICRO:.3f} s of device activity" if whole.length else ""
    return (f"no ProfilerStep ranges and no two calls of a loader: a step cannot be told{seen}",)


def damage(report: TraceReport) -> tuple[str, ...]:
    found = []
    if report.truncated:
        found.append(f"the file ends early: what follows rests on the first {report.events} events")
    if report.skipped_events:
        found.append(f"{report.skipped_events} damaged events were skipped")
    return tuple(found)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
