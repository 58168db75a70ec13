"""Guided: one knob at a time, in the order in which a careful engineer turns them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.tuning.ranking import EQUAL_WITHIN
from workbench.tuning.rounds import (
    COUNTS,
    FINAL_SHARE,
    FIRST_LOOK_SHARE,
    STARTS_TO_WIN,
    Progress,
    Round,
    apart,
    to_settle,
    wants_a_check,
)

# The tutorial's order: what moves most first, and what depends on it after it.
GUIDED_ORDER = (
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "batch_on_worker",
    "multiprocessing_context",
    "in_order",
    "batch_size",
    "layout",
    "worker_threads",
    "sharing_strategy",
    "non_blocking",
)


@dataclass(frozen=True)
class Guided:
    """One knob at a time in the order of the tutorial, each from the best so far: what a careful engineer does by hand.

    Workers are raised while the rate rises by more than `worth_it`; a single worker, which only moves the same work
    to another process, is passed over. Of every other knob all values are tried. A knob keeps its value unless
    another one is faster by more than that. Looks are short; where the walk ends is measured longer and checked.

    Attributes:
        worth_it: Gain, as a share of the rate, for which a value is changed.
        patience: Worker counts in a row without a gain after which no more are tried.
    """

    worth_it: float = EQUAL_WITHIN
    patience: int = 2

    def next_round(self, progress: Progress) -> Round:
        """The next value that an engineer would try."""
        best = _start_of_the_walk(progress)
        if best is None:
            return Round(())
        if not progress.is_seen(best):
            return Round((best,), FIRST_LOOK_SHARE, screen=True)
        for knob in GUIDED_ORDER:
            in_vain = 0
            for one in _variants(best, knob, progress.candidates):
                if not progress.is_seen(one):
                    return Round((one,), FIRST_LOOK_SHARE, screen=True)
                if self._is_faster(one, best, progress):
                    best, in_vain = one, 0
                elif knob == "num_workers" and one.num_workers > max(1, best.num_workers):
                    in_vain += 1
                if in_vain == self.patience:
                    break
        if not progress.estimate(best):
            return Round(())
        if wants_a_check(best, progress):
            return Round((best,), FINAL_SHARE)
        return Round(to_settle(progress), FINAL_SHARE)

    def runs_left(self, progress: Progress) -> int:
        """Runs until every knob had its turn, were no value better than the one before."""
        if not self.next_round(progress).settings:
            return 0
        values = sum(len({getattr(one, knob) for one in progress.candidates}) for knob in GUIDED_ORDER)
        return max(1, values - len(GUIDED_ORDER) + 2 * STARTS_TO_WIN - len(progress.trials))

    def _is_faster(self, one: LoaderSettings, best: LoaderSettings, progress: Progress) -> bool:
        """Whether `one` is worth changing to."""
        rates = [progress.estimate(settings) for settings in (one, best)]
        if rates[0] is None:
            return False
        return rates[1] is None or rates[0].samples_per_second > (1 + self.worth_it) * rates[1].samples_per_second


def _start_of_the_walk(progress: Progress) -> LoaderSettings | None:
    if progress.current in progress.candidates:
        return progress.current
    return min(progress.candidates, key=lambda one: (one.num_workers, apart(one, LoaderSettings())), default=None)


def _variants(base: LoaderSettings, knob: str, candidates: Sequence[LoaderSettings]) -> list[LoaderSettings]:
    """For each other value of the knob, the settings closest to `base`; ascending for numbers.

    Settings that differ in more than this knob (and what it drags along at 0 workers) are no variants.
    """
    found: dict[object, LoaderSettings] = {}
    for one in sorted(candidates, key=lambda one: (apart(one, base), one.prefetch_factor or 0)):
        value = getattr(one, knob)
        if value == getattr(base, knob):
            continue
        loose = COUNTS if knob == "num_workers" else (knob,)
        if all(getattr(one, other) == getattr(base, other) for other in KNOBS if other not in loose):
            found.setdefault(value, one)
    return sorted(found.values(), key=lambda one: _place(getattr(one, knob)))


def _place(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, (int, float)) else (0.0, str(value))
