"""What a device did during a window of a trace, and what it waited for: interval unions over all its streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.measure.intervals import NOTHING, Spans
from workbench.measure.trace_events import DeviceActivity, Thread, TraceEvents

MICRO = 1e-6
BURST_GAP_SECONDS = 100e-6  # ten launches of a kernel (about 10 us each): a shorter gap is launch latency, no wait
CLOCK_SLACK = 10.0  # microseconds by which host and device clocks of one trace may disagree


@dataclass(frozen=True)
class DeviceShares:
    """Shares of a window, for the device that was busiest in it; `TraceReport` explains each field."""

    device_idle_fraction: float | None = None
    compute_fraction: float | None = None
    collective_fraction: float | None = None
    copy_fraction: float | None = None
    exposed_copy_fraction: float | None = None
    pageable_fraction: float | None = None
    idle_in_loader_fraction: float | None = None
    idle_after_sync_fraction: float | None = None
    sync_wait_fraction: float | None = None
    syncs_per_step: float | None = None
    gaps_per_step: float | None = None
    longest_gap_seconds: float | None = None


def extent(events: TraceEvents) -> Spans:
    """From the first to the last device activity."""
    parts = [busy(device) for device in events.devices.values()]
    everything = Spans.join(parts)
    return Spans(everything.starts[:1], everything.ends[-1:])


def busy(device: DeviceActivity) -> Spans:
    """When anything ran on the device, on any stream."""
    columns = (device.kernels, device.collectives, device.uploads, device.downloads, device.other_copies, device.fills)
    return Spans.join(c.union() for c in columns)


def device_shares(
    events: TraceEvents, window: Spans, waits: Spans, thread: Thread | None = None, steps: int | None = None
) -> DeviceShares:
    """What the busiest device did in `window`; all None when no device did anything.

    Args:
        events: The trace.
        window: What counts as the whole.
        waits: When the stepping thread was in the loader.
        thread: The stepping thread; None leaves everything about its calls unknown.
        steps: Steps in the window; None leaves everything per step unknown.
    """
    busy_by_device = {name: busy(device).within(window) for name, device in events.devices.items()}
    busy_by_device = {name: spans for name, spans in busy_by_device.items() if len(spans)}
    if not busy_by_device or not window.length:
        return DeviceShares()
    name = max(busy_by_device, key=lambda n: busy_by_device[n].length)
    device, whole = events.devices[name], window.length
    kernels, collectives = (c.union().within(window) for c in (device.kernels, device.collectives))
    copies = Spans.join((device.uploads.union(), device.downloads.union())).within(window)
    gaps = busy_by_device[name].gaps(window)
    lengths = gaps.ends - gaps.starts
    working = Spans.join((kernels, collectives))
    syncs = _blocking_syncs(events, thread, waits, window, copies, working)
    after_sync = _after_sync(gaps, syncs)
    long_gaps = lengths[lengths > BURST_GAP_SECONDS / MICRO]
    known = steps is not None
    return DeviceShares(
        device_idle_fraction=gaps.length / whole,
        compute_fraction=kernels.length / whole,
        collective_fraction=collectives.length / whole,
        copy_fraction=copies.length / whole,
        exposed_copy_fraction=(copies.length - copies.within(working).length) / whole,
        pageable_fraction=_pageable(device),
        idle_in_loader_fraction=gaps.within(waits).length / whole if len(waits) else None,
        idle_after_sync_fraction=(after_sync.length - after_sync.within(waits).length) / whole if known else None,
        sync_wait_fraction=syncs.length / whole if known else None,
        syncs_per_step=_calls(events, thread, waits, window) / steps if steps else None,
        gaps_per_step=len(long_gaps) / steps if steps else None,
        longest_gap_seconds=float(long_gaps.max()) * MICRO if len(long_gaps) else None,
    )


def _blocking_syncs(
    events: TraceEvents, thread: Thread | None, waits: Spans, window: Spans, copies: Spans, working: Spans
) -> Spans:
    """Synchronising calls of the stepping thread, outside the loader, that did not just wait for a copy.

    A copy from or to pageable memory synchronises by itself; it is told by the device copying for most of the call, and
    longer than it computes. The few bytes that `.item()` copies do not make it one.
    """
    if thread not in events.syncs:
        return NOTHING
    calls = events.syncs[thread].union().within(window)
    copying, computing = (s.lengths_in(calls.starts, calls.ends) for s in (copies, working))
    for_copy = (copying > computing) & (copying > 0.5 * (calls.ends - calls.starts))
    kept = ~for_copy & (waits.lengths_in(calls.starts, calls.ends) == 0)
    return Spans(calls.starts[kept], calls.ends[kept])


def _calls(events: TraceEvents, thread: Thread | None, waits: Spans, window: Spans) -> int:
    """Synchronising calls of the stepping thread that began in the window and outside the loader."""
    if thread not in events.syncs:
        return 0
    starts = np.frombuffer(events.syncs[thread].starts)
    inside = _contains(window, starts) & ~_contains(waits, starts)
    return int(inside.sum())


def _contains(spans: Spans, points: np.ndarray) -> np.ndarray:
    if not len(spans):
        return np.zeros(len(points), dtype=bool)
    places = np.searchsorted(spans.starts, points, side="right") - 1
    return (places >= 0) & (points < spans.ends[np.maximum(places, 0)])


def _after_sync(gaps: Spans, syncs: Spans) -> Spans:
    """Gaps in which a synchronising call returned: the device had run dry, and the host had queued nothing behind."""
    if not len(gaps) or not len(syncs):
        return NOTHING
    returned = np.searchsorted(syncs.ends, gaps.ends, side="right")
    returned -= np.searchsorted(syncs.ends, gaps.starts - CLOCK_SLACK)
    return Spans(gaps.starts[returned > 0], gaps.ends[returned > 0])


def _pageable(device: DeviceActivity) -> float | None:
    """Share of bytes copied from pageable memory, of time where no byte counts are given, or None."""
    amounts = device.upload_bytes if sum(device.upload_bytes.values()) else device.upload_microseconds
    told = amounts["pageable"] + amounts["pinned"]
    return amounts["pageable"] / told if told else None
