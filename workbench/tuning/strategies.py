"""Which settings to start next, given what is known: grid, race, guided and forecast, in shuffled rounds.

A round starts its settings in an order drawn anew, so that a machine that slows down slows all alike. The user's
current settings are started more often, spread over each round: their starts show how far two starts of the same
settings lie apart on this machine, which every interval of the sweep needs. Nothing that only had a short first look
is recommended: what may win is measured longer, and checked for right data, memory and the edge of an epoch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workbench.errors import SettingsError
from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate
from workbench.tuning.ranking import EQUAL_WITHIN, counts, is_checked, rank

TARGET_HALF_WIDTH = 0.03  # stop at +- 3 %: what 2 to 14 starts reach on a quiet machine
BASELINE_EVERY = 6  # runs between two starts of the current settings
BASELINE_STARTS = 5  # starts of the current settings after which their spread is known well enough
STARTS_TO_WIN = 2  # a single start may have been lucky
FIRST_LOOK_SHARE = 0.2  # of the measuring time: enough to see a factor, not a few percent
SECOND_LOOK_SHARE = 0.4  # starting a loader takes longer than either
FINAL_SHARE = 0.5  # for what may win
TEST_SHARE = 0.3  # for a prediction that is put to the test
GAIN_WORTH_A_START = 0.01  # expected gain, as a share of the rate, for which the first further start is spent ...
GAIN_PRICE_RISE = 0.002  # ... and so much more for each one after it: the last percent is not chased for ever
FEWER_WORKERS_WORTH = 0.01  # of the rate, that a favourite with fewer workers than its rival may be slower
UNRATED_A_LOOK = 3  # settings started at once while none has a rate
EDGE_WORTH_A_START = 0.01  # share of an epoch that its edge must take for the other way of restarting to be measured
MOST_VERIFIED = 4  # predictions of a forecast that are put to the test, one after the other
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
)
RUNS_AFTER_THE_FIRST_LOOK = 10  # about what a race still starts once every kind was looked at, for a progress bar


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
    """A short look at one settings of every kind, then starts only where changing the choice may still gain something.

    Settings are of one kind when they have the same workers, batch size, layout and way to form batches; within a
    kind, prefetch depth and the like are tried where the kind leads. What a start would gain on average is computed
    from all runs together (`belief`), so that no settings is dropped for one unlucky start, and none is started again
    that could only win by a hair. The favourite is then measured longer and checked; one that fails makes room for the
    next.

    Attributes:
        gain: Expected gain, as a share of the rate, for which a further start is spent; the price rises from start
            to start.
        max_starts: Starts after which a settings is done in any case.
    """

    gain: float = GAIN_WORTH_A_START
    max_starts: int = 5

    def next_round(self, progress: Progress) -> Round:
        """First looks at every kind, then at rivals of the favourite, then its check."""
        unseen = [one for one in _kinds(progress) if not progress.is_seen(one)]
        if unseen:
            return _screen(unseen, progress)
        favourite = progress.favourite()
        if favourite is None:
            left = [one for one in progress.candidates if not progress.is_seen(one)]
            return _screen(left[:UNRATED_A_LOOK], progress)
        doubtful = self._doubtful(favourite, progress)
        if doubtful:
            return Round(tuple(doubtful), SECOND_LOOK_SHARE, screen=True)
        return Round(_unchecked(favourite, progress), FINAL_SHARE)

    def runs_left(self, progress: Progress) -> int:
        """About how many runs are still to come; 0 once the race is over."""
        unseen = sum(not progress.is_seen(one) for one in _kinds(progress))
        if unseen:
            return unseen + RUNS_AFTER_THE_FIRST_LOOK
        return len(self.next_round(progress).settings)

    def _doubtful(self, favourite: LoaderSettings, progress: Progress) -> list[LoaderSettings]:
        """The rival most worth a start, if any is, and the favourite where it is known no better than that one.

        One rival at a time: what its start tells of settings like it is counted before the next is chosen.
        """
        from workbench.tuning.belief import believe
        from workbench.tuning.fitting import fit

        rated = [trial for trial in progress.trials.values() if counts(trial)]
        model = fit(rated, progress.probe, progress.cores, progress.paced) if rated else None
        belief = believe(progress.candidates, progress.trials, model)
        if belief is None or favourite not in belief:
            return []
        gains = {one: belief.gain(favourite, one, _worth_of_thrift(favourite, one)) for one in belief.candidates}
        open_ = [one for one in gains if one != favourite and progress.starts(one) < self.max_starts]
        rival = max(open_, key=gains.__getitem__, default=None)
        spent = sum(map(progress.starts, progress.candidates)) - len(_kinds(progress))
        if rival is None or gains[rival] <= self.gain + GAIN_PRICE_RISE * spent:
            return []
        again = progress.starts(favourite) <= progress.starts(rival) and progress.starts(favourite) < self.max_starts
        return [rival, favourite] if again else [rival]


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
        return Round((best,), FINAL_SHARE) if _wants_a_check(best, progress) else Round(())

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


@dataclass(frozen=True)
class Predicting:
    """Few settings measured, the rest predicted (`forecast`), and the best prediction put to the test.

    A prediction that does not hold corrects the model, and the next best one is tested.

    Attributes:
        most_verified: Predictions that are tested at most.
    """

    most_verified: int = MOST_VERIFIED

    def next_round(self, progress: Progress) -> Round:
        """The settings that the model is fitted to, then its best prediction, until that is what was tested last."""
        unseen = [one for one in _anchors(progress) if not progress.is_seen(one)]
        if unseen:
            return _screen(unseen, progress, closing=False)
        best = self._best(progress)
        tested = sum(progress.is_checked(one) for one in progress.candidates)
        if best is None or progress.is_checked(best) or tested >= self.most_verified:
            return Round(())
        return Round((best,), TEST_SHARE)

    def runs_left(self, progress: Progress) -> int:
        """About how many runs are still to come; 0 once the best prediction was tested."""
        unseen = sum(not progress.is_seen(one) for one in _anchors(progress))
        return unseen + STARTS_TO_WIN if unseen else len(self.next_round(progress).settings)

    def _best(self, progress: Progress) -> LoaderSettings | None:
        from workbench.tuning.forecast import forecast_from

        rated = [trial for trial in progress.trials.values() if counts(trial)]
        alive = [
            one for one in progress.candidates if one not in progress.trials or progress.trials[one].status == "ok"
        ]
        if not rated:
            return next((one for one in alive if not progress.is_seen(one)), None)
        return forecast_from(rated, alive, progress.probe, progress.cores, progress.paced).best


STRATEGIES: dict[str, type[Grid] | type[Race] | type[Guided] | type[Predicting]] = {
    "race": Race,
    "guided": Guided,
    "forecast": Predicting,
    "grid": Grid,
}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name with its default numbers.

    Raises:
        SettingsError: If there is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise SettingsError(f"strategy={name!r} is not available; choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]()


def _worth_a_start(settings: LoaderSettings, progress: Progress, limits: Grid) -> bool:
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


# -- first looks --


def _screen(wanted: Sequence[LoaderSettings], progress: Progress, closing: bool = True) -> Round:
    """Short looks in shuffled order; in the first round the current settings come first and, where known, last."""
    current, order = progress.current, list(wanted)
    random.Random(f"{progress.seed}/{sum(map(len, _runs(progress)))}").shuffle(order)
    if order and not progress.trials and current in progress.candidates:
        order = [current, *(one for one in order if one != current), *([current] if closing or len(order) < 2 else [])]
    return Round(tuple(order), FIRST_LOOK_SHARE, screen=True)


def _runs(progress: Progress) -> list[tuple[object, ...]]:
    return [trial.runs for trial in progress.trials.values()]


def _kinds(progress: Progress) -> list[LoaderSettings]:
    """Of each kind, the settings that differs least from the current ones, and among those the smallest prefetch."""
    base = progress.current or LoaderSettings()
    kinds: dict[tuple[object, ...], LoaderSettings] = {}
    for one in sorted(progress.candidates, key=lambda one: (_apart(one, base), one.prefetch_factor or 0)):
        kinds.setdefault(_kind(one), one)
    if base in progress.candidates:
        kinds[_kind(base)] = base
    return list(kinds.values())


def _kind(settings: LoaderSettings) -> tuple[object, ...]:
    return settings.num_workers, settings.batch_on_worker, settings.batch_size, settings.layout


def _anchors(progress: Progress) -> list[LoaderSettings]:
    """What a model is fitted to: the current settings, none and the fewest workers, each in its plainest form."""
    kinds = sorted(_kinds(progress), key=lambda one: (one.num_workers, one.batch_on_worker))
    first = {one.num_workers: one for one in reversed(kinds)}
    counts_above = sorted(count for count in first if count)
    chosen = [progress.current] if progress.current in progress.candidates else []
    chosen += [first[0]] if 0 in first else []
    chosen += [first[counts_above[0]]] if counts_above else []
    return list(dict.fromkeys(chosen))


def _apart(one: LoaderSettings, other: LoaderSettings) -> int:
    """Knobs, but for workers and prefetch, in which two settings differ."""
    return sum(getattr(one, knob) != getattr(other, knob) for knob in KNOBS if knob not in _COUNTS)


_COUNTS = ("num_workers", "prefetch_factor")


def _wants_a_check(favourite: LoaderSettings, progress: Progress) -> bool:
    """Whether what would be recommended was only looked at, or started but once."""
    return not progress.is_checked(favourite) or progress.starts(favourite) < STARTS_TO_WIN


def _worth_of_thrift(favourite: LoaderSettings, rival: LoaderSettings) -> float:
    return FEWER_WORKERS_WORTH if favourite.num_workers < rival.num_workers else 0.0


def _unchecked(favourite: LoaderSettings, progress: Progress) -> tuple[LoaderSettings, ...]:
    """What must be checked before the race is over: the favourite, and its twin where the epoch's edge matters."""
    if _wants_a_check(favourite, progress):
        return (favourite,)
    trial, samples = progress.trials[favourite], progress.probe.epoch_samples if progress.probe else None
    twin = favourite.replaced(persistent_workers=not favourite.persistent_workers)
    if twin == favourite or twin not in progress.candidates or progress.is_checked(twin) or not samples:
        return ()
    twin_trial = progress.trials.get(twin)
    if twin_trial is not None and twin_trial.status != "ok":
        return ()
    edge, rate = trial.epoch_edge_seconds, trial.samples_per_second
    if edge is None or rate is None or edge < EDGE_WORTH_A_START * samples / rate:
        return ()
    return (twin,)


# -- a walk from knob to knob --


def _start_of_the_walk(progress: Progress) -> LoaderSettings | None:
    if progress.current in progress.candidates:
        return progress.current
    return min(progress.candidates, key=lambda one: (one.num_workers, _apart(one, LoaderSettings())), default=None)


def _variants(base: LoaderSettings, knob: str, candidates: Sequence[LoaderSettings]) -> list[LoaderSettings]:
    """For each other value of the knob, the settings closest to `base`; ascending for numbers.

    Settings that differ in more than this knob (and what it drags along at 0 workers) are no variants.
    """
    found: dict[object, LoaderSettings] = {}
    for one in sorted(candidates, key=lambda one: (_apart(one, base), one.prefetch_factor or 0)):
        value = getattr(one, knob)
        if value == getattr(base, knob):
            continue
        loose = _COUNTS if knob == "num_workers" else (knob,)
        if all(getattr(one, other) == getattr(base, other) for other in KNOBS if other not in loose):
            found.setdefault(value, one)
    return sorted(found.values(), key=lambda one: _place(getattr(one, knob)))


def _place(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, (int, float)) else (0.0, str(value))
