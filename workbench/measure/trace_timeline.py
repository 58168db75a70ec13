"""A few steps of a trace as bars on lanes, ready to be drawn: loader, operators, copies, kernels and idle gaps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.errors import TraceError
from workbench.measure.intervals import NOTHING, Spans
from workbench.measure.trace_device import BURST_GAP_SECONDS, MICRO, busy
from workbench.measure.trace_events import SpanColumns, read_events

MAX_BARS = 2_000  # of a lane; neighbours closer than the picture can show are drawn as one


@dataclass(frozen=True)
class Lane:
    """Bars of one kind of work, in seconds from the start of the first step shown.

    Attributes:
        name: "loader", "operators", "synchronising", "copies", "kernels", "collectives" or "device idle".
        starts: Start of each bar.
        lengths: Length of each bar.
    """

    name: str
    starts: tuple[float, ...]
    lengths: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """Some consecutive steps of a trace.

    Attributes:
        first_step: Number of the first step shown, as the profiler counts.
        step_starts: Start of each step shown, in seconds from the first.
        seconds: Length of what is shown.
        lanes: Those that have something to show, from the host's down to the device's.
    """

    first_step: int
    step_starts: tuple[float, ...]
    seconds: float
    lanes: tuple[Lane, ...]


def timeline(path: str | os.PathLike[str], first: int = 0, steps: int = 4) -> Timeline:
    """Bars of `steps` steps of the trace at `path`, from the `first` recorded one on.

    Raises:
        TraceError: If the file is no trace, or does not hold that step.
    """
    events = read_events(Path(path))
    ordered = sorted({(start, end, number, owner) for number, start, end, owner in events.steps})
    shown = ordered[first : first + steps]
    if first < 0 or not shown:
        raise TraceError(f"{path} holds {len(ordered)} recorded steps, counted from 0: there is no step {first}")
    window = Spans(np.array([shown[0][0]]), np.array([max(end for _, end, _, _ in shown)]))
    thread = shown[0][3]
    device = max(events.devices.values(), key=lambda d: busy(d).within(window).length, default=None)
    lanes = [
        ("loader", _of((events.loader or events.loader_frames).get(thread))),
        ("operators", _of(events.operators.get(thread))),
        ("synchronising", _of(events.syncs.get(thread))),
    ]
    if device is not None:
        gaps = busy(device).gaps(window)
        long = gaps.ends - gaps.starts > BURST_GAP_SECONDS / MICRO
        lanes += [
            ("copies", Spans.join(c.union() for c in (device.uploads, device.downloads, device.other_copies))),
            ("kernels", device.kernels.union()),
            ("collectives", device.collectives.union()),
            ("device idle", Spans(gaps.starts[long], gaps.ends[long])),
        ]
    origin = shown[0][0]
    drawn = (_lane(name, spans.within(window), origin, window.length) for name, spans in lanes)
    starts = tuple((start - origin) * MICRO for start, *_ in shown)
    return Timeline(shown[0][2], starts, window.length * MICRO, tuple(lane for lane in drawn if lane.starts))


def _of(columns: SpanColumns | None) -> Spans:
    return NOTHING if columns is None else columns.union()


def _lane(name: str, spans: Spans, origin: float, length: float) -> Lane:
    """A lane of at most about `MAX_BARS` bars: gaps narrower than one pixel of so many are closed."""
    if len(spans) > MAX_BARS:
        nearest = length / MAX_BARS
        wide = np.flatnonzero(spans.starts[1:] - spans.ends[:-1] > nearest)
        spans = Spans(
            spans.starts[np.concatenate(([0], wide + 1))], spans.ends[np.concatenate((wide, [len(spans) - 1]))]
        )
    starts, lengths = (spans.starts - origin) * MICRO, (spans.ends - spans.starts) * MICRO
    return Lane(name, tuple(starts.tolist()), tuple(lengths.tolist()))
