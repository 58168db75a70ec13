"""Grid: every settings, measured until its interval is narrow enough, and what may win started often enough."""

from __future__ import annotations

import random
from dataclasses import dataclass

from workbench.loaders.settings import LoaderSettings
from workbench.tuning.rounds import Progress, Round, wants_a_check

TARGET_HALF_WIDTH = 0.03  # stop at +- 3 %: what 2 to 14 starts reach on a quiet machine
BASELINE_EVERY = 6  # runs between two starts of the current settings
BASELINE_STARTS = 5  # starts of the current settings after which their spread is known well enough


@dataclass(frozen=True)
class Grid:
    """Every settings until its interval is narrow enough; then the one that would be recommended until it is sure.

    Attributes:
        target_half_width: Relative half-width of the 95 % interval at which a settings is done.
        max_starts: Starts after which a settings is done in any case.
    """

    target_half_width: float = TARGET_HALF_WIDTH
    max_starts: int = 3

    def next_round(self, progress: Progress) -> Round:
        """Every open settings once."""
        return _shuffled_round(self._open(progress), progress)

    def runs_left(self, progress: Progress) -> int:
        """Runs until every open settings has `max_starts`, as if none became narrow enough before."""
        return _runs_left(self._open(progress), progress, self.max_starts)

    def _open(self, progress: Progress) -> list[LoaderSettings]:
        wide = [one for one in progress.candidates if _worth_a_start(one, progress, self)]
        favourite = None if wide else progress.favourite()
        unsure = favourite is not None and wants_a_check(favourite, progress)
        return [favourite] if favourite is not None and unsure else wide


def _worth_a_start(settings: LoaderSettings, progress: Progress, limits: Grid) -> bool:
    starts = progress.starts(settings)
    if starts == 0:
        return True
    estimate = progress.estimate(settings)
    if estimate is None or starts >= limits.max_starts:
        return False
    return estimate.in_run_only or estimate.half_width > limits.target_half_width


def _shuffled_round(wanted: list[LoaderSettings], progress: Progress) -> Round:
    """Those of `wanted` that have fewest starts, shuffled, with the current settings first and again in between."""
    others = [one for one in wanted if one != progress.current]
    level = min((progress.starts(one) for one in others), default=0)
    due = [one for one in others if progress.starts(one) == level]
    random.Random(f"{progress.seed}/{level}").shuffle(due)
    due += [progress.current] if not due and progress.current in wanted else []
    return Round(_with_baseline(due, progress))


def _with_baseline(due: list[LoaderSettings], progress: Progress) -> tuple[LoaderSettings, ...]:
    current = progress.current
    if current is None or not due or current in due or current not in progress.candidates:
        return tuple(due)
    done = progress.starts(current)
    if done and progress.estimate(current) is None:
        return tuple(due)
    order: list[LoaderSettings] = []
    for position, settings in enumerate(due):
        if position % BASELINE_EVERY == 0 and done < BASELINE_STARTS:
            order.append(current)
            done += 1
        order.append(settings)
    if done < min(3, BASELINE_STARTS):
        order.append(current)
    return tuple(order)


def _runs_left(wanted: list[LoaderSettings], progress: Progress, max_starts: int) -> int:
    others = sum(max(0, max_starts - progress.starts(one)) for one in wanted if one != progress.current)
    baseline = 0
    if progress.current in progress.candidates and (others or progress.current in wanted):
        baseline = max(0, BASELINE_STARTS - progress.starts(progress.current))
    return others + baseline
