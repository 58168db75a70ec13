"""What each chart shows, as frozen records: pure functions over a sweep's trials, with nothing drawn yet.

Every function takes `Results`: of a sweep that still runs, of one from the store, or made up in a test.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workbench.errors import SettingsError
from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.machine import format_bytes
from workbench.notebook import formatting
from workbench.notebook.palette import STATUS_WORDS
from workbench.tuning.results import Results


@dataclass(frozen=True)
class Point:
    """One settings as the charts know it; None where the trial did not say.

    Attributes:
        key: Its position in the sweep's trials, which a click on the chart sends back.
        settings: What was measured.
        status: One of `workbench.measure.records.STATUSES`.
        reason: Why there is no answer; empty when there is one.
        samples_per_second: Steady rate.
        low: Lower end of its 95 % interval.
        high: Upper end of it.
        peak_pss_bytes: Peak memory of the process tree, shared pages counted once.
        first_batch_seconds: From asking for an iterator to the first batch.
        epoch_edge_seconds: From an epoch's last batch to the next one's first.
        hover: Lines of text that explain the point, already escaped for HTML.
    """

    key: int
    settings: LoaderSettings
    status: str
    reason: str
    samples_per_second: float | None
    low: float | None
    high: float | None
    peak_pss_bytes: int | None
    first_batch_seconds: float | None
    epoch_edge_seconds: float | None
    hover: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the point has a rate that may be compared."""
        return self.status == "ok" and self.samples_per_second is not None


@dataclass(frozen=True)
class Running:
    """The trial that is being measured at this moment: its settings and the rate of its last windows."""

    settings: LoaderSettings
    samples_per_second: float


@dataclass(frozen=True)
class Line:
    """The best settings at each number of workers for one prefetch depth, fewest workers first."""

    prefetch_factor: int
    points: tuple[Point, ...]

    @property
    def label(self) -> str:
        """The line's name in the legend."""
        return f"prefetch {self.prefetch_factor}"


@dataclass(frozen=True)
class ThroughputInfo:
    """Throughput against workers.

    Attributes:
        lines: One a prefetch depth, shallowest first.
        without_workers: The best settings with 0 workers, where every line starts.
        others: Measured settings that another knob beats at the same workers and prefetch depth.
        unanswered: Settings without a rate, with their reasons.
        recommended: The settings the sweep recommends.
        current: The user's own settings.
        running: What is being measured now.
        summary: One sentence that says what the chart says.
    """

    lines: tuple[Line, ...]
    without_workers: Point | None
    others: tuple[Point, ...]
    unanswered: tuple[Point, ...]
    recommended: Point | None
    current: Point | None
    running: Running | None
    summary: str


@dataclass(frozen=True)
class MemoryInfo:
    """Memory against throughput.

    Attributes:
        front: Settings that no other beats in both rate and memory, least memory first.
        dominated: Measured settings that are beaten.
        unanswered: Settings without a rate whose memory is known, such as those over the limit.
        unplaced: How many settings lack a memory reading.
        recommended: The settings the sweep recommends.
        current: The user's own settings.
        limit_bytes: The memory limit of the sweep, if it had one.
        summary: One sentence that says what the chart says.
    """

    front: tuple[Point, ...]
    dominated: tuple[Point, ...]
    unanswered: tuple[Point, ...]
    unplaced: int
    recommended: Point | None
    current: Point | None
    limit_bytes: int | None
    summary: str


@dataclass(frozen=True)
class HeatmapInfo:
    """The best rate for each pair of values of two knobs.

    Attributes:
        x_knob: Knob along the bottom.
        y_knob: Knob along the side.
        x_values: Its values that were tried, in order.
        y_values: Likewise.
        cells: `cells[row][column]`, the best settings there whatever the other knobs; None where nothing was tried.
        impossible: (row, column) of pairs that no settings can have, such as a prefetch depth with 0 workers.
        summary: One sentence that says what the chart says.
    """

    x_knob: str
    y_knob: str
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    cells: tuple[tuple[Point | None, ...], ...]
    impossible: frozenset[tuple[int, int]]
    summary: str


@dataclass(frozen=True)
class Wait:
    """The waits of all settings with one number of workers: their median, shortest and longest, in seconds."""

    workers: int
    median_seconds: float
    shortest_seconds: float
    longest_seconds: float
    settings: int


@dataclass(frozen=True)
class WaitSeries:
    """One kind of wait over the number of workers, fewest first."""

    label: str
    waits: tuple[Wait, ...]


@dataclass(frozen=True)
class FirstBatchInfo:
    """What starting costs: the first batch, and the edge of an epoch with workers kept and with new ones."""

    series: tuple[WaitSeries, ...]
    summary: str


def points(results: Results) -> tuple[Point, ...]:
    """Every trial of `results` as a point, in the sweep's order."""
    return tuple(_point(key, trial) for key, trial in enumerate(results.trials))


def throughput_info(results: Results, running: Running | None = None) -> ThroughputInfo:
    """What the chart of throughput against workers shows."""
    every = points(results)
    measured = [point for point in every if point.measured]
    without = _fastest(point for point in measured if point.settings.num_workers == 0)
    lines = tuple(
        Line(depth, _best_by_workers(measured, depth))
        for depth in sorted({p.settings.prefetch_factor for p in measured if p.settings.num_workers})
    )
    shown = {point.key for line in lines for point in line.points} | ({without.key} if without else set())
    return ThroughputInfo(
        lines,
        without,
        tuple(point for point in measured if point.key not in shown),
        tuple(point for point in every if not point.measured),
        _find(every, results.best),
        _find(every, results.current),
        running,
        _throughput_summary(every, measured),
    )


def memory_info(results: Results, limit_bytes: int | None = None) -> MemoryInfo:
    """What the chart of memory against throughput shows; `limit_bytes` is drawn as a line."""
    every = points(results)
    placed = [point for point in every if point.peak_pss_bytes is not None]
    front = pareto([point for point in placed if point.measured])
    on_front = {point.key for point in front}
    return MemoryInfo(
        front,
        tuple(point for point in placed if point.measured and point.key not in on_front),
        tuple(point for point in placed if not point.measured),
        len(every) - len(placed),
        _find(placed, results.best),
        _find(placed, results.current),
        limit_bytes,
        _memory_summary(front),
    )


def pareto(candidates: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other beats in rate without taking more memory, least memory first.

    Of points that agree in both, the first stays. Points without a rate or without memory are never on the front.
    """
    known = [point for point in candidates if point.measured and point.peak_pss_bytes is not None]
    front: list[Point] = []
    for point in sorted(known, key=lambda p: (p.peak_pss_bytes, -p.samples_per_second)):
        if not front or point.samples_per_second > front[-1].samples_per_second:
            front.append(point)
    return tuple(front)


def heatmap_info(results: Results, x: str = "num_workers", y: str = "prefetch_factor") -> HeatmapInfo:
    """What the heat map of the knobs `x` and `y` shows.

    Raises:
        SettingsError: If `x` or `y` is no knob, or both are the same.
    """
    _check_knobs(x, y)
    every = points(results)
    x_values, y_values = (_values(every, knob) for knob in (x, y))
    groups: dict[tuple[Any, Any], list[Point]] = {}
    for point in every:
        groups.setdefault((getattr(point.settings, x), getattr(point.settings, y)), []).append(point)
    cells = tuple(tuple(_representative(groups.get((column, row), [])) for column in x_values) for row in y_values)
    impossible = frozenset(
        (row, column)
        for row, y_value in enumerate(y_values)
        for column, x_value in enumerate(x_values)
        if not _possible({x: x_value, y: y_value})
    )
    tried = sum(cell is not None for row in cells for cell in row)
    total = len(x_values) * len(y_values) - len(impossible)
    summary = (
        f"{tried} of {formatting.count(total, 'pair')} tried; each shows the best of its settings" if every else ""
    )
    return HeatmapInfo(x, y, x_values, y_values, cells, impossible, summary)


def first_batch_info(results: Results) -> FirstBatchInfo:
    """What the chart of waits shows: first batch and epoch edge, by workers and (where several ran) start method."""
    measured = [point for point in points(results) if point.status == "ok"]
    methods = {p.settings.multiprocessing_context for p in measured if p.settings.num_workers}
    several = len(methods) > 1
    series: dict[str, dict[int, list[float]]] = {}
    for point in measured:
        method = f", {point.settings.multiprocessing_context or 'default start'}" if several else ""
        edge = "epoch edge, workers kept" if point.settings.persistent_workers else "epoch edge, new workers"
        if not point.settings.num_workers:
            method, edge = "", "epoch edge, new workers"
        for label, wait in (("first batch", point.first_batch_seconds), (edge, point.epoch_edge_seconds)):
            if wait is not None:
                series.setdefault(label + method, {}).setdefault(point.settings.num_workers, []).append(wait)
    ordered = tuple(
        WaitSeries(label, _waits(by_workers)) for label, by_workers in sorted(series.items(), key=_wait_order)
    )
    return FirstBatchInfo(ordered, _wait_summary(ordered))


def hover_lines(trial: Any) -> tuple[str, ...]:
    """The lines that explain one trial, with units and intervals, escaped for HTML."""
    from html import escape

    lines = [f"<b>{escape(trial.settings.describe())}</b>"]
    if trial.status != "ok":
        lines += [escape(line) for line in formatting.wrapped(f"{STATUS_WORDS[trial.status]}: {trial.reason}")]
    estimate = trial.estimate
    if estimate is not None:
        low, high = estimate.low, estimate.high
        ends = f" (95 %: {formatting.interval(low, high)})" if trial.samples_per_second_high is not None else ""
        lines.append(formatting.rate(estimate.samples_per_second, low, high) + ends)
    if trial.peak_pss_bytes is not None:
        lines.append(f"{format_bytes(trial.peak_pss_bytes)} peak memory, shared pages once")
    waits = (("first batch", trial.first_batch_seconds), ("epoch edge", trial.epoch_edge_seconds))
    told = [f"{name} {formatting.seconds(value)}" for name, value in waits if value is not None]
    return tuple(lines + ([" · ".join(told)] if told else []))


def _point(key: int, trial: Any) -> Point:
    estimate = trial.estimate
    return Point(
        key,
        trial.settings,
        trial.status,
        trial.reason,
        estimate.samples_per_second if estimate else None,
        trial.samples_per_second_low,
        trial.samples_per_second_high,
        trial.peak_pss_bytes,
        trial.first_batch_seconds,
        trial.epoch_edge_seconds,
        hover_lines(trial),
    )


def _find(every: Iterable[Point], settings: LoaderSettings | None) -> Point | None:
    return next((point for point in every if settings is not None and point.settings == settings), None)


def _fastest(candidates: Iterable[Point]) -> Point | None:
    return max(candidates, key=lambda point: point.samples_per_second, default=None)


def _best_by_workers(measured: list[Point], depth: int) -> tuple[Point, ...]:
    groups: dict[int, list[Point]] = {}
    for point in measured:
        if point.settings.num_workers and point.settings.prefetch_factor == depth:
            groups.setdefault(point.settings.num_workers, []).append(point)
    return tuple(_fastest(groups[workers]) for workers in sorted(groups))


def _representative(group: list[Point]) -> Point | None:
    return _fastest(point for point in group if point.measured) or next(iter(group), None)


def _values(every: Iterable[Point], knob: str) -> tuple[Any, ...]:
    found = {getattr(point.settings, knob) for point in every}
    return tuple(sorted(found, key=lambda value: (value is not None, isinstance(value, str), value if value else 0)))


def _possible(pair: dict[str, Any]) -> bool:
    workers = {} if "num_workers" in pair else {"num_workers": 1}
    settings = LoaderSettings(**workers, **pair)
    return all(getattr(settings, knob) == value for knob, value in pair.items())


def _check_knobs(x: str, y: str) -> None:
    for knob in (x, y):
        if knob not in KNOBS:
            raise SettingsError(f"{knob!r} is no knob; choose from {', '.join(KNOBS)}")
    if x == y:
        raise SettingsError(f"a heat map needs two different knobs, not {x!r} twice; choose another for y")


def _waits(by_workers: dict[int, list[float]]) -> tuple[Wait, ...]:
    return tuple(
        Wait(workers, statistics.median(values), min(values), max(values), len(values))
        for workers, values in sorted(by_workers.items())
    )


def _wait_order(item: tuple[str, Any]) -> tuple[bool, str]:
    return (not item[0].startswith("first batch"), item[0])


def _throughput_summary(every: tuple[Point, ...], measured: list[Point]) -> str:
    if not every:
        return ""
    best = _fastest(measured)
    if best is None:
        return (
            f"none of {formatting.count(len(every), 'settings', 'settings')} gave an answer; the table has the reasons"
        )
    told = f"fastest: {formatting.rate(best.samples_per_second, best.low, best.high)} with {best.settings.describe()}"
    missing = len(every) - len(measured)
    return told + (f"; {missing} of {len(every)} settings gave no answer" if missing else "")


def _memory_summary(front: tuple[Point, ...]) -> str:
    if not front:
        return ""
    least, most = front[0], front[-1]
    if least is most:
        return f"{least.settings.describe()} is both fastest and smallest"
    more = format_bytes(most.peak_pss_bytes - least.peak_pss_bytes)
    times = formatting.times(most.samples_per_second / least.samples_per_second)
    return f"along the front, {more} more memory buys {times} the rate"


def _wait_summary(series: tuple[WaitSeries, ...]) -> str:
    if not series:
        return ""
    shortest = min(series[0].waits, key=lambda wait: wait.median_seconds)
    longest = max(series[0].waits, key=lambda wait: wait.median_seconds)
    told = f"{series[0].label} after {formatting.seconds(shortest.median_seconds)}"
    return told + ("" if shortest is longest else f" to {formatting.seconds(longest.median_seconds)}")
