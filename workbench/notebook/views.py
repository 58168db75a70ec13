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
from workbench.notebook.points import Point, Running, fastest, find, pareto, points
from workbench.tuning.results import Results

FIRST_BATCH = "first batch"


@dataclass(frozen=True)
class Line:
    """The best settings at each number of workers for one prefetch depth, fewest workers first.

    Attributes:
        prefetch_factor: The depth.
        points: The settings.
        gaps: Numbers of workers between theirs that gave no rate at this depth, or were not run: the line breaks there.
        from_zero: Whether it begins with the fewest workers of the sweep, and so beside the settings with 0 workers.
    """

    prefetch_factor: int
    points: tuple[Point, ...]
    gaps: tuple[int, ...] = ()
    from_zero: bool = True

    @property
    def label(self) -> str:
        """The line's name in the legend."""
        return f"prefetch {self.prefetch_factor}"


@dataclass(frozen=True)
class EarlierLines:
    """The lines of an earlier sweep, drawn behind those of this one."""

    name: str
    lines: tuple[Line, ...]
    without_workers: Point | None


@dataclass(frozen=True)
class ThroughputInfo:
    """Throughput against workers.

    Attributes:
        lines: One a prefetch depth, shallowest first.
        without_workers: The best settings with 0 workers, which have no queue: lines that begin beside it start there.
        others: Measured settings that another knob beats at the same workers and prefetch depth.
        unanswered: Settings without a rate, with their reasons.
        recommended: The settings the sweep recommends.
        current: The user's own settings.
        running: What is being measured now.
        earlier: The same lines of the sweep that this one is compared with.
        summary: One sentence that says what the chart says.
    """

    lines: tuple[Line, ...]
    without_workers: Point | None
    others: tuple[Point, ...]
    unanswered: tuple[Point, ...]
    recommended: Point | None
    current: Point | None
    running: Running | None
    earlier: EarlierLines | None
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
        earlier_front: The front of the sweep that this one is compared with.
        earlier_name: Its name.
        summary: One sentence that says what the chart says.
    """

    front: tuple[Point, ...]
    dominated: tuple[Point, ...]
    unanswered: tuple[Point, ...]
    unplaced: int
    recommended: Point | None
    current: Point | None
    limit_bytes: int | None
    earlier_front: tuple[Point, ...]
    earlier_name: str
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
        keys: `keys[row][column]`, the keys of every trial that falls into the cell.
        impossible: (row, column) of pairs that no settings can have, such as a prefetch depth with 0 workers.
        summary: One sentence that says what the chart says.
        recommended: (row, column) of the pair that the recommended settings have.
        current: (row, column) of the user's own.
    """

    x_knob: str
    y_knob: str
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    cells: tuple[tuple[Point | None, ...], ...]
    keys: tuple[tuple[tuple[int, ...], ...], ...]
    impossible: frozenset[tuple[int, int]]
    summary: str
    recommended: tuple[int, int] | None = None
    current: tuple[int, int] | None = None


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
    """What starting costs: the first batch, and the edge of an epoch with workers kept and with new ones.

    Attributes:
        series: A line each.
        summary: One sentence that says what the chart says.
        recommended: The settings the sweep recommends.
        current: The user's own settings.
    """

    series: tuple[WaitSeries, ...]
    summary: str
    recommended: Point | None = None
    current: Point | None = None


def throughput_info(results: Results, running: Running | None = None, earlier: Results | None = None) -> ThroughputInfo:
    """What the chart of throughput against workers shows; `earlier` is a sweep to compare with."""
    every = points(results)
    measured = [point for point in every if point.measured]
    lines, without = _lines(every)
    shown = {point.key for line in lines for point in line.points} | ({without.key} if without else set())
    return ThroughputInfo(
        lines,
        without,
        tuple(point for point in measured if point.key not in shown),
        tuple(point for point in every if not point.measured),
        find(every, results.best),
        find(every, results.current),
        running,
        EarlierLines(earlier.name, *_lines(points(earlier))) if earlier else None,
        _throughput_summary(every, measured, find(measured, results.best)),
    )


def memory_info(results: Results, limit_bytes: int | None = None, earlier: Results | None = None) -> MemoryInfo:
    """What the chart of memory against throughput shows.

    Args:
        results: The sweep.
        limit_bytes: Drawn as a line; None takes the sweep's own limit.
        earlier: A sweep to compare with.
    """
    every = points(results)
    placed = [point for point in every if point.peak_pss_bytes is not None]
    front = pareto([point for point in placed if point.measured])
    on_front = {point.key for point in front}
    return MemoryInfo(
        front,
        tuple(point for point in placed if point.measured and point.key not in on_front),
        tuple(point for point in placed if not point.measured),
        len(every) - len(placed),
        find(placed, results.best),
        find(placed, results.current),
        limit_bytes if limit_bytes is not None else results.options.get("memory_limit_bytes"),
        pareto(points(earlier)) if earlier else (),
        earlier.name if earlier else "",
        _memory_summary(front, sum(point.measured for point in placed)),
    )


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
    best = find(every, results.best)
    cells = tuple(tuple(_cell(groups.get((column, row), []), best) for column in x_values) for row in y_values)
    keys = tuple(tuple(tuple(p.key for p in groups.get((x, y), [])) for x in x_values) for y in y_values)
    impossible = frozenset(
        (row, column)
        for row, y_value in enumerate(y_values)
        for column, x_value in enumerate(x_values)
        if not _possible({x: x_value, y: y_value})
    )
    tried = sum(cell is not None and cell.status != "skipped" for row in cells for cell in row)
    total = len(x_values) * len(y_values) - len(impossible)
    shows = "each shows its best samples/s" + (", or that of the recommended" if best else "")
    summary = f"{tried} of {formatting.count(total, 'pair')} tried; {shows}" if every else ""
    marked = [
        (y_values.index(getattr(point.settings, y)), x_values.index(getattr(point.settings, x))) if point else None
        for point in (best, find(every, results.current))
    ]
    return HeatmapInfo(x, y, x_values, y_values, cells, keys, impossible, summary, *marked)


def first_batch_info(results: Results) -> FirstBatchInfo:
    """What the chart of waits shows: first batch and epoch edge, by workers and (where several ran) start method."""
    every = points(results)
    measured = [point for point in every if point.status == "ok"]
    methods = {p.settings.multiprocessing_context for p in measured if p.settings.num_workers}
    several = len(methods) > 1
    series: dict[str, dict[int, list[float]]] = {}
    for point in measured:
        method = f", {point.settings.multiprocessing_context or 'default start'}" if several else ""
        edge = "epoch edge, workers kept" if point.settings.persistent_workers else "epoch edge, new workers"
        if not point.settings.num_workers:
            method, edge = "", "epoch edge, new workers"
        for label, wait in ((FIRST_BATCH, point.first_batch_seconds), (edge, point.epoch_edge_seconds)):
            if wait is not None:
                series.setdefault(label + method, {}).setdefault(point.settings.num_workers, []).append(wait)
    ordered = tuple(
        WaitSeries(label, _waits(by_workers)) for label, by_workers in sorted(series.items(), key=_wait_order)
    )
    return FirstBatchInfo(ordered, _wait_summary(ordered), find(every, results.best), find(every, results.current))


def _lines(every: Iterable[Point]) -> tuple[tuple[Line, ...], Point | None]:
    with_workers = [point for point in every if point.settings.num_workers]
    without = fastest(point for point in every if point.measured and not point.settings.num_workers)
    depths = sorted({point.settings.prefetch_factor for point in with_workers if point.measured})
    return tuple(_depth_line(with_workers, depth) for depth in depths), without


def _depth_line(with_workers: list[Point], depth: int) -> Line:
    shown = _best_by_workers([point for point in with_workers if point.measured], depth)
    known = [point.settings.num_workers for point in shown]
    asked = {point.settings.num_workers for point in with_workers if point.settings.prefetch_factor == depth}
    gaps = tuple(count for count in sorted(asked - set(known)) if known[0] < count < known[-1])
    return Line(depth, shown, gaps, known[0] == min(point.settings.num_workers for point in with_workers))


def _best_by_workers(measured: list[Point], depth: int) -> tuple[Point, ...]:
    groups: dict[int, list[Point]] = {}
    for point in measured:
        if point.settings.num_workers and point.settings.prefetch_factor == depth:
            groups.setdefault(point.settings.num_workers, []).append(point)
    return tuple(fastest(groups[workers]) for workers in sorted(groups))


def _cell(group: list[Point], best: Point | None) -> Point | None:
    """What a cell shows of the settings in it: the recommended, else the fastest, else one without an answer."""
    if best in group:
        return best
    return fastest(point for point in group if point.measured) or next(iter(group), None)


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
    return (not item[0].startswith(FIRST_BATCH), item[0])


def _throughput_summary(every: tuple[Point, ...], measured: list[Point], recommended: Point | None) -> str:
    if not every:
        return ""
    best = fastest(measured)
    if best is None and all(point.status == "skipped" for point in every):
        return f"none of {formatting.count(len(every), 'settings', 'settings')} was run"
    if best is None:
        return (
            f"none of {formatting.count(len(every), 'settings', 'settings')} gave an answer; the table has the reasons"
        )
    shown, highest = recommended or best, formatting.rate(best.samples_per_second, best.low, best.high)
    rate = formatting.rate(shown.samples_per_second, shown.low, shown.high)
    told = f"{'fastest' if shown is best else 'recommended'}: {rate} with {shown.settings.describe()}"
    told += "" if shown is best else f"; highest point: {highest}"
    waiting = sum(point.status == "skipped" for point in every)
    missing = len(every) - len(measured) - waiting
    told += f"; {missing} of {len(every)} settings gave no answer" if missing else ""
    return told + (f"; {waiting} of {len(every)} were not run" if waiting else "")


def _memory_summary(front: tuple[Point, ...], measured: int) -> str:
    if measured < 2:
        return ""
    least, most = front[0], front[-1]
    if least is most:
        return f"{least.settings.describe()} is both fastest and smallest"
    more = format_bytes(most.peak_pss_bytes - least.peak_pss_bytes)
    times = formatting.times(most.samples_per_second / least.samples_per_second)
    told = f"along the front, {more} more memory buys {times} the rate"
    apart = least.high is not None and most.low is not None and most.low > least.high
    return told if apart else f"{told}, which their intervals leave open"


def _wait_summary(series: tuple[WaitSeries, ...]) -> str:
    if not series:
        return ""
    waits = [wait for one in series if one.label.startswith(FIRST_BATCH) for wait in one.waits]
    if not waits:
        return ""
    shortest, longest = (
        formatting.seconds(end)
        for end in (min(wait.shortest_seconds for wait in waits), max(wait.longest_seconds for wait in waits))
    )
    return f"{FIRST_BATCH} after {shortest}" + ("" if shortest == longest else f" to {longest}")
