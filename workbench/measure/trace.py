"""What a torch.profiler trace says about a training loop: where each step's time went, and what the device waited for.

Times are taken on the thread that runs the steps. The window is the union of the recorded `ProfilerStep#n` ranges
(gaps of a profiler schedule between them do not count), or, where there are none, from the first call of the loader to
the last. What the loader's workers do is in other processes, which no such trace shows.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import TraceError
from workbench.measure.intervals import NOTHING, Spans
from workbench.measure.trace_device import MICRO, device_shares, extent
from workbench.measure.trace_events import Thread, TraceEvents, read_events
from workbench.measure.trace_report import (
    BUSY,
    MIN_STEPS,
    NEGLIGIBLE,
    NO_LOADER_SPANS,
    WORTH_REMOVING,
    TraceReport,
    damage,
    device_sentences,
    no_steps,
    sentences,
)

SLOW_FIRST = 10  # a first wait this many times the median is start-up of the workers, and is set apart
TRACE_SUFFIXES = (".json", ".json.gz")


def read_trace(path: str | os.PathLike[str]) -> TraceReport:
    """Report on a trace file (`.json`, `.json.gz`; damaged and truncated ones too) or a folder with one file a rank.

    Memory stays within a few hundred MB however large the file is: events are decoded one by one.

    Raises:
        TraceError: If there is no trace at `path`.
    """
    place = Path(path)
    if not place.is_dir():
        return analyse(read_events(place), str(place))
    reports, refused = [], []
    for file in sorted(f for f in place.iterdir() if f.name.endswith(TRACE_SUFFIXES)):
        try:
            reports.append(analyse(read_events(file), str(file)))
        except TraceError as error:
            refused.append(str(error))
    if not reports:
        reason = refused[0] if refused else f"no file in it ends in {' or '.join(TRACE_SUFFIXES)}"
        raise TraceError(f"{place} holds no profiler trace: {reason}")
    return reports[0] if len(reports) == 1 else _over_ranks(str(place), reports)


def analyse(events: TraceEvents, path: str = "") -> TraceReport:
    """The report on events that were read already."""
    thread, waits, wait_note = _waits(events)
    window, lengths = _window(events, thread, waits)
    report = TraceReport(
        path,
        "unknown",
        (),
        rank=events.rank,
        events=events.events,
        skipped_events=events.skipped,
        truncated=events.truncated,
    )
    window, lengths, first_wait = _without_start_up(window, lengths, waits)
    if not window.length:
        whole = extent(events)
        report = replace(report, **_shares(events, whole, NOTHING, None, None))
        return replace(report, evidence=(*damage(report), *wait_note, *no_steps(whole), *device_sentences(report)))
    known_wait = None if wait_note else waits.within(window).length / window.length
    report = replace(
        report,
        steps=len(lengths),
        step_seconds=float(np.median(lengths)) * MICRO,
        input_wait_fraction=known_wait,
        first_wait_seconds=first_wait,
        **_shares(events, window, waits, thread, len(lengths)),
    )
    bound = _bound(report)
    return replace(report, bound=bound, evidence=(*damage(report), *wait_note, *sentences(report, bound)))


def _waits(events: TraceEvents) -> tuple[Thread | None, Spans, tuple[str, ...]]:
    """The stepping thread, its waits for the loader, and why the wait is unknown where it is."""
    by_thread = events.loader or events.loader_frames
    thread: Thread | None = Counter(s[3] for s in events.steps).most_common(1)[0][0] if events.steps else None
    if not by_thread:
        text = "record a loop over a DataLoader; other iterables leave no span, and what workers do is in no trace"
        return thread, NOTHING, (NO_LOADER_SPANS, text)
    if thread is None:
        thread = max(by_thread, key=lambda t: by_thread[t].union().length)
    if thread not in by_thread:
        text = "the DataLoader runs on another thread than the steps: how long a step waits for it is not in this trace"
        return thread, NOTHING, (text,)
    return thread, by_thread[thread].union(), ()


def _window(events: TraceEvents, thread: Thread | None, waits: Spans) -> tuple[Spans, list[float]]:
    """What is looked at, and the length of each step in it.

    Loaders that are called between two step ranges belong to the step: such a gap counts when the loader fills most of
    it. Without step ranges, a step lasts from one call of the loader to the next.
    """
    steps = sorted({(start, end, number) for number, start, end, owner in events.steps if owner == thread})
    if not steps:
        edges = waits.starts
        if len(edges) < 2:
            return NOTHING, []
        return Spans(edges[:1], edges[-1:]), list(np.diff(edges))
    if events.truncated or events.skipped:
        steps = _whole_steps(steps, events, waits)
    if not steps:
        return NOTHING, []
    starts, ends, numbers = np.array(steps, dtype=np.float64).T
    if len(steps) > 1:
        gap_starts, gap_ends = ends[:-1], starts[1:]
        filled = waits.lengths_in(gap_starts, gap_ends) > 0.5 * (gap_ends - gap_starts)
        filled &= np.diff(numbers) == 1
        ends = np.concatenate((np.where(filled & (gap_ends > gap_starts), gap_ends, gap_starts), ends[-1:]))
    return Spans.union(starts, ends), list(ends - starts)


def _whole_steps(steps: list[Any], events: TraceEvents, waits: Spans) -> list[Any]:
    """Steps that a damaged file shows in full: their call of the loader was not lost, nor device work at a cut end."""
    starts, ends, _ = np.array(steps, dtype=np.float64).T
    waited = waits.lengths_in(starts, ends) > 0
    kept = waited if waited.mean() > 0.5 else np.ones(len(steps), dtype=bool)
    device = extent(events)
    if events.truncated and len(device):
        kept = kept & (ends <= device.ends[-1])
    return [step for step, whole in zip(steps, kept, strict=True) if whole]


def _without_start_up(window: Spans, lengths: list[float], waits: Spans) -> tuple[Spans, list[float], float | None]:
    """Leaves out a first step that waited for workers to start, and says how long it waited."""
    inside = waits.within(window)
    if len(lengths) <= MIN_STEPS or len(inside) <= MIN_STEPS:
        return window, lengths, None
    sizes = inside.ends - inside.starts
    first_end = window.starts[0] + lengths[0]
    if inside.starts[0] >= first_end or sizes[0] < SLOW_FIRST * np.median(sizes[1:]) or sizes[0] < 0.5 * lengths[0]:
        return window, lengths, None
    rest = window.within(Spans(np.array([first_end]), window.ends[-1:]))
    return rest, lengths[1:], float(sizes[0]) * MICRO


def _shares(*arguments: Any) -> dict[str, float | None]:
    return asdict(device_shares(*arguments))


def _bound(report: TraceReport) -> str:
    if not report.steps or report.steps < MIN_STEPS:
        return "unknown"
    if report.device_idle_fraction is None:
        return _bound_without_device(report.input_wait_fraction)
    costs = {
        "input": report.idle_in_loader_fraction or 0.0,
        "transfer": report.exposed_copy_fraction or 0.0,
        "sync": report.idle_after_sync_fraction or 0.0,
    }
    largest = max(costs, key=costs.__getitem__)
    host = report.device_idle_fraction - costs["input"] - costs["sync"]
    if costs[largest] >= WORTH_REMOVING and costs[largest] >= host:
        return largest
    if report.input_wait_fraction is None and (report.compute_fraction or 0.0) < BUSY:
        return "unknown"
    return "compute" if costs[largest] < NEGLIGIBLE or host >= WORTH_REMOVING else "balanced"


def _bound_without_device(wait: float | None) -> str:
    if wait is None:
        return "unknown"
    return "input" if wait >= WORTH_REMOVING else "compute" if wait <= NEGLIGIBLE else "balanced"


def _over_ranks(path: str, reports: list[TraceReport]) -> TraceReport:
    """One report over several ranks: means of what is known, and the verdict of the rank that waits most for input.

    Ranks meet at every collective, so one that waits for its loader holds up all, and the others show it as time in
    collectives.
    """
    reports = sorted(reports, key=lambda r: (r.rank is None, r.rank or 0, r.path))
    waiting = [r for r in reports if r.input_wait_fraction is not None]
    worst = max(waiting, key=lambda r: r.input_wait_fraction or 0.0) if waiting else reports[0]
    shares = {name: _mean([getattr(r, name) for r in reports]) for name in _MEANS}
    fastest, slowest = (pick((r.input_wait_fraction for r in waiting), default=None) for pick in (min, max))
    evidence = [f"{len(reports)} ranks"]
    if slowest is not None and fastest is not None:
        evidence.append(f"the loader takes {fastest:.1%} to {slowest:.1%} of a step, most on {_name(worst)}")
    evidence += [f"{_name(worst)}: {sentence}" for sentence in worst.evidence]
    if len(waiting) < len(reports):
        evidence.append(f"{len(reports) - len(waiting)} of {len(reports)} ranks: {NO_LOADER_SPANS}")
    return TraceReport(
        path=path,
        bound=worst.bound,
        evidence=tuple(evidence),
        steps=min((r.steps for r in reports if r.steps is not None), default=None),
        longest_gap_seconds=max((r.longest_gap_seconds for r in reports if r.longest_gap_seconds), default=None),
        ranks=tuple(reports),
        events=sum(r.events for r in reports),
        skipped_events=sum(r.skipped_events for r in reports),
        truncated=any(r.truncated for r in reports),
        **shares,
    )


_MEANS = (
    "step_seconds",
    "input_wait_fraction",
    "device_idle_fraction",
    "compute_fraction",
    "idle_in_loader_fraction",
    "idle_after_sync_fraction",
    "copy_fraction",
    "exposed_copy_fraction",
    "pageable_fraction",
    "collective_fraction",
    "sync_wait_fraction",
    "syncs_per_step",
    "gaps_per_step",
)


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _name(report: TraceReport) -> str:
    return f"rank {report.rank}" if report.rank is not None else Path(report.path).name
