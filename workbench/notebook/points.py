"""A trial as the charts know it, and what all charts ask of such points: pure functions of a sweep's results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.notebook import formatting
from workbench.notebook.palette import STATUS_WORDS, why
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


def points(results: Results) -> tuple[Point, ...]:
    """Every trial of `results` as a point, in the sweep's order."""
    return tuple(_point(key, trial) for key, trial in enumerate(results.trials))


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


def hover_lines(trial: Any) -> tuple[str, ...]:
    """The lines that explain one trial, with units and intervals, escaped for HTML."""
    lines = [f"<b>{escape(trial.settings.describe())}</b>"]
    if trial.status != "ok":
        lines += [
            escape(line)
            for line in formatting.wrapped(f"{STATUS_WORDS[trial.status]}: {why(trial.status, trial.reason)}")
        ]
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


def find(every: Iterable[Point], settings: LoaderSettings | None) -> Point | None:
    return next((point for point in every if settings is not None and point.settings == settings), None)


def fastest(candidates: Iterable[Point]) -> Point | None:
    return max(candidates, key=lambda point: point.samples_per_second, default=None)


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
