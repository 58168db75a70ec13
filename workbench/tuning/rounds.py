"""What a strategy sees, what it answers, and what strategies share: the first looks, and when a check is due."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate
from workbench.tuning.ranking import EQUAL_WITHIN, LOOKS_FASTER, is_checked, rank, worths

STARTS_TO_WIN = 2  # a single start may have been lucky
STARTS_FOR_MORE_WORKERS = 3  # more processes than before must gain more than what starts differ by
FIRST_LOOK_SHARE = 0.2  # of the measuring time: enough to see a factor, not a few percent
FINAL_SHARE = 0.4  # for what may win
MOST_STARTS_TO_SETTLE = 3  # of what looks faster, and of the current settings ...
MOST_STARTS_WHERE_MUCH_IS_AT_STAKE = 5  # ... where it looks clearly faster
COUNTS = ("num_workers", "prefetch_factor")


@dataclass(frozen=True)
class Progress:
    """What a strategy decides from.

    Attributes:
        candidates: Every settings that may be started.
        trials: Results so far, keyed by settings; skipped settings have one too.
        current: The user's current settings, or None when unknown.
        seed: Fixes the shuffling.
        probe: What one look at the loader said, or None.
        cores: Cores that the loader may use.
        paced: Whether a step runs between batches.
    """

    candidates: tuple[LoaderSettings, ...]
    trials: Mapping[LoaderSettings, TrialResult] = field(default_factory=dict)
    current: LoaderSettings | None = None
    seed: int = 0
    probe: Probe | None = None
    cores: float = 1.0
    paced: bool = False

    def starts(self, settings: LoaderSettings) -> int:
        """How often these settings were started."""
        trial = self.trials.get(settings)
        return len(trial.runs) if trial else 0

    def estimate(self, settings: LoaderSettings) -> RateEstimate | None:
        """The rate of these settings so far; None when there is none that counts."""
        trial = self.trials.get(settings)
        return trial.estimate if trial and trial.status == "ok" else None

    def is_seen(self, settings: LoaderSettings) -> bool:
        """Whether these settings failed, or were started over warm files."""
        trial = self.trials.get(settings)
        return trial is not None and any(run.status != "ok" or not run.cold for run in trial.runs)

    def is_checked(self, settings: LoaderSettings) -> bool:
        """Whether these settings were more than looked at."""
        trial = self.trials.get(settings)
        return trial is not None and is_checked(trial)

    def favourite(self) -> LoaderSettings | None:
        """What would be recommended now, were a first look enough; None when nothing has a rate."""
        order = rank(list(self.trials.values()), self.current, self.probe, checked_only=False).order
        return order[0].settings if order else None


@dataclass(frozen=True)
class Round:
    """The next runs.

    Attributes:
        settings: What to start, in this order; empty when nothing is left to do.
        measure_share: Share of the sweep's measuring time that each of these runs gets.
        screen: Whether these are short first looks: no check of data, memory growth or epoch edge.
    """

    settings: tuple[LoaderSettings, ...]
    measure_share: float = 1.0
    screen: bool = False


class Strategy(Protocol):
    """Decides from results alone, so that a resumed sweep goes on as if it had never stopped."""

    def next_round(self, progress: Progress) -> Round:
        """What to run next; an empty round ends the sweep."""

    def runs_left(self, progress: Progress) -> int:
        """About how many runs are still to come, for a progress bar."""


def first_looks(wanted: Sequence[LoaderSettings], progress: Progress, closing: bool = True) -> Round:
    """Short looks in shuffled order; in the first round the current settings come first and, where known, last."""
    current, order = progress.current, list(wanted)
    random.Random(f"{progress.seed}/{sum(map(len, _runs(progress)))}").shuffle(order)
    if order and not progress.trials and current in progress.candidates:
        order = [current, *(one for one in order if one != current), *([current] if closing or len(order) < 2 else [])]
    return Round(tuple(order), FIRST_LOOK_SHARE, screen=True)


def _runs(progress: Progress) -> list[tuple[object, ...]]:
    return [trial.runs for trial in progress.trials.values()]


def kinds_of(progress: Progress) -> list[LoaderSettings]:
    """Of each kind, the settings that differs least from the current ones, and among those the smallest prefetch."""
    base = progress.current or LoaderSettings()
    kinds: dict[tuple[object, ...], LoaderSettings] = {}
    for one in sorted(progress.candidates, key=lambda one: (apart(one, base), one.prefetch_factor or 0)):
        kinds.setdefault(kind_of(one), one)
    if base in progress.candidates:
        kinds[kind_of(base)] = base
    return list(kinds.values())


def kind_of(settings: LoaderSettings) -> tuple[object, ...]:
    return settings.num_workers, settings.batch_on_worker, settings.batch_size, settings.layout


def apart(one: LoaderSettings, other: LoaderSettings) -> int:
    """Knobs, but for workers and prefetch, in which two settings differ."""
    return sum(getattr(one, knob) != getattr(other, knob) for knob in KNOBS if knob not in COUNTS)


def wants_a_check(favourite: LoaderSettings, progress: Progress) -> bool:
    """Whether what would be recommended was only looked at, or started too rarely to be sure of it."""
    known = progress.current.num_workers if progress.current else 0
    starts = STARTS_FOR_MORE_WORKERS if favourite.num_workers > known else STARTS_TO_WIN
    return not progress.is_checked(favourite) or progress.starts(favourite) < starts


def to_settle(progress: Progress) -> tuple[LoaderSettings, ...]:
    """What to start again while it is not certain that changing the current settings gains anything.

    That is the fastest that was tested, or the current settings where those were started less often: one at a time,
    since one more start of either may settle it.
    """
    found = rank(list(progress.trials.values()), progress.current, progress.probe)
    if not found.kept_current or found.fastest is None:
        return ()
    best, mine = found.fastest, found.order[0]
    worth, known = worths((best, mine), progress.probe)
    times = worth.samples_per_second / known.samples_per_second
    most = MOST_STARTS_WHERE_MUCH_IS_AT_STAKE if times >= LOOKS_FASTER else MOST_STARTS_TO_SETTLE
    rarer = min((best, mine), key=lambda one: len(one.runs))
    return (rarer.settings,) if times > 1 + EQUAL_WITHIN and len(rarer.runs) < most else ()
