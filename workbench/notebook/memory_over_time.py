"""A trial's memory from the begin of each start to its end: what is shown as a record first, then as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.machine import format_bytes
from workbench.notebook import formatting, palette
from workbench.notebook.marks import Figure
from workbench.notebook.palette import Theme

MOST_STARTS = 4  # the first ones: more lines would hide each other
MEGA = 1e6


@dataclass(frozen=True)
class MemoryLine:
    """One start.

    Attributes:
        start: Its number, from 1.
        seconds: Since its begin, of each reading.
        rss_bytes: Sum of resident sizes at these moments.
        exact: (seconds, bytes) of the exact readings, shared pages counted once.
    """

    start: int
    seconds: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    exact: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class MemoryOverTime:
    """What the picture shows.

    Attributes:
        lines: One a start that was read at least twice.
        starts: Starts of the trial, shown or not.
        summary: One sentence that says what the picture says.
    """

    lines: tuple[MemoryLine, ...]
    starts: int
    summary: str


def memory_over_time_info(trial: Any) -> MemoryOverTime:
    """The readings of a trial's first starts; no line where the record holds none, as in stores of older versions."""
    lines = tuple(_line(number, run) for number, run in enumerate(trial.runs, 1) if len(run.memory_over_time) > 1)
    shown = lines[:MOST_STARTS]
    most = max((max(line.rss_bytes) for line in shown), default=None)
    summary = f"at most {format_bytes(most)} resident, shared pages in every process" if shown else ""
    if len(shown) < len(trial.runs) and shown:
        summary += f"; {formatting.count(len(shown), 'start')} of {len(trial.runs)}"
    return MemoryOverTime(shown, len(trial.runs), summary)


def memory_over_time_figure(info: MemoryOverTime, theme: Theme) -> Figure:
    """The figure as a plain dict: a line a start, and the exact readings as marks."""
    data = [_trace(line) for line in info.lines]
    exact = [(at, size) for line in info.lines for at, size in line.exact]
    if exact:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "exact, shared once",
                "x": [at for at, _ in exact],
                "y": [size / MEGA for _, size in exact],
                "marker": {"symbol": "diamond", "size": 9, "color": theme.text},
            }
        )
    layout = palette.layout(
        theme,
        "Memory over time",
        info.summary,
        xaxis=palette.axis(theme, "seconds since the start began"),
        yaxis=palette.axis(theme, "MB"),
    )
    return {"data": data, "layout": layout}


def _line(number: int, run: Any) -> MemoryLine:
    begun = run.memory_over_time[0].at_seconds
    readings = run.memory_over_time
    return MemoryLine(
        number,
        tuple(reading.at_seconds - begun for reading in readings),
        tuple(reading.rss_bytes for reading in readings),
        tuple((r.at_seconds - begun, r.pss_bytes) for r in readings if r.pss_bytes is not None),
    )


def _trace(line: MemoryLine) -> Figure:
    ink, index = palette.colour(line.start - 1), line.start - 1
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"start {line.start}, resident",
        "x": list(line.seconds),
        "y": [size / MEGA for size in line.rss_bytes],
        "line": {"color": ink, "width": 2, "dash": palette.dash(index)},
        "marker": {"symbol": palette.marker(index), "size": 0, "color": ink},
    }
