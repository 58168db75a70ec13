"""Which settings to start next, given what is known: grid and race, both in shuffled rounds.

A round starts every settings that is still open once, in an order drawn anew, so that a machine that slows down slows
all alike. The user's current settings are started more often, spread over each round: their starts show how far two
starts of the same settings lie apart on this machine, which every interval of the sweep needs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from workbench.errors import SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate
from workbench.tuning.trials import surely_slower

TARGET_HALF_WIDTH = 0.03  # stop at +- 3 %: what 2 to 14 starts reach on a quiet machine
BASELINE_EVERY = 6  # runs between two starts of the current settings
BASELINE_STARTS = 5  # starts of the current settings after which their spread is known well enough
STARTS_TO_WIN = 2  # a single start may have been lucky
SCREEN_SHARE = 0.5  # of the measuring time, for the first look of a race


@dataclass(frozen=True)
class Progress:
    """What a strategy decides from.

    Attributes:
        candidates: Every settings that may be started.
        trials: Results so far, keyed by settings; skipped settings have one too.
        current: The user's current settings, or None when unknown.
        seed: Fixes the shuffling.
    """

    candidates: tuple[LoaderSettings, ...]
    trials: Mapping[LoaderSettings, TrialResult] = field(default_factory=dict)
    current: LoaderSettings | None = None
    seed: int = 0

    def starts(self, settings: LoaderSettings) -> int:
        """How often these settings were started."""
        trial = self.trials.get(settings)
        return len(trial.runs) if trial else 0

    def estimate(self, settings: LoaderSettings) -> RateEstimate | None:
        """The rate of these settings so far; None when there is none that counts."""
        trial = self.trials.get(settings)
        return trial.estimate if trial and trial.status == "ok" else None


@dataclass(frozen=True)
class Round:
    """The next runs.

    Attributes:
        settings: What to start, in this order; empty when nothing is left to do.
        measure_share: Share of the sweep's measuring time that each of these runs gets.
    """

    settings: tuple[LoaderSettings, ...]
    measure_share: float = 1.0


class Strategy(Protocol):
    """Decides from results alone, so that a resumed sweep goes on as if it had never stopped."""

    def next_round(self, progress: Progress) -> Round:
        """What to run next; an empty round ends the sweep."""

    def runs_left(self, progress: Progress) -> int:
        """About how many runs are still to come, for a progress bar."""


@dataclass(frozen=True)
class Grid:
    """Every settings until its interval is narrow enough.

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
        return [one for one in progress.candidates if _worth_a_start(one, progress, self)]


@dataclass(frozen=True)
class Race:
    """As a grid, but settings that are clearly slower than the leader are not started again.

    It ends when the leader is alone, or when those left are as good as equal to it and known well enough.

    Attributes:
        target_half_width: Relative half-width of the 95 % interval at which a survivor is done.
        max_starts: Starts after which a survivor is done in any case.
    """

    target_half_width: float = TARGET_HALF_WIDTH
    max_starts: int = 5

    def next_round(self, progress: Progress) -> Round:
        """Every survivor once; the first look at all of them is short."""
        survivors = self._survivors(progress)
        first_look = any(progress.starts(one) == 0 for one in survivors)
        return _shuffled_round(survivors, progress, SCREEN_SHARE if first_look else 1.0)

    def runs_left(self, progress: Progress) -> int:
        """Runs until every survivor has `max_starts`, as if none dropped out any more."""
        return _runs_left(self._survivors(progress), progress, self.max_starts)

    def _survivors(self, progress: Progress) -> list[LoaderSettings]:
        unseen = [one for one in progress.candidates if progress.starts(one) == 0]
        if unseen:
            return unseen
        rated = {one: estimate for one in progress.candidates if (estimate := progress.estimate(one))}
        if not rated:
            return []
        leader = max(rated, key=lambda one: rated[one].samples_per_second)
        alive = [one for one in rated if not surely_slower(rated[one], rated[leader])]
        if len(alive) == 1 and progress.starts(leader) >= STARTS_TO_WIN:
            return []
        return [one for one in alive if _worth_a_start(one, progress, self)]


STRATEGIES: dict[str, type[Grid] | type[Race]] = {"grid": Grid, "race": Race}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name with its default numbers.

    Raises:
        SettingsError: If there is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise SettingsError(f"strategy={name!r} is not available; choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]()


def _worth_a_start(settings: LoaderSettings, progress: Progress, limits: Grid | Race) -> bool:
    starts = progress.starts(settings)
    if starts == 0:
        return True
    estimate = progress.estimate(settings)
    if estimate is None or starts >= limits.max_starts:
        return False
    return estimate.in_run_only or estimate.half_width > limits.target_half_width


def _shuffled_round(wanted: list[LoaderSettings], progress: Progress, measure_share: float = 1.0) -> Round:
    """Those of `wanted` that have fewest starts, shuffled, with the current settings first and again in between."""
    others = [one for one in wanted if one != progress.current]
    level = min((progress.starts(one) for one in others), default=0)
    due = [one for one in others if progress.starts(one) == level]
    random.Random(f"{progress.seed}/{level}").shuffle(due)
    due += [progress.current] if not due and progress.current in wanted else []
    return Round(_with_baseline(due, progress), measure_share)


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
