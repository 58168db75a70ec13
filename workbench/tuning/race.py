"""Race: short looks at every kind of settings, then starts only where they may still change the choice."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.loaders.settings import LoaderSettings
from workbench.tuning.belief import believe
from workbench.tuning.fitting import fit
from workbench.tuning.ranking import counts
from workbench.tuning.rounds import FINAL_SHARE, Progress, Round, first_looks, kinds_of, wants_a_check

SECOND_LOOK_SHARE = 0.4  # of the measuring time: starting a loader takes longer than this
GAIN_WORTH_A_START = 0.015  # expected gain, as a share of the rate, for which the first further start is spent ...
GAIN_PRICE_RISE = 0.002  # ... and so much more for each one after it: the last percent is not chased for ever
FEWER_WORKERS_WORTH = 0.01  # of the rate, that a favourite with fewer workers than its rival may be slower
SMALLEST_SHOWN = 0.001  # gain that is told as a number
UNRATED_A_LOOK = 3  # settings started at once while none has a rate
EDGE_WORTH_A_START = 0.01  # share of an epoch that its edge must take for the other way of restarting to be measured
RUNS_AFTER_THE_FIRST_LOOK = 10  # about what is still started once every kind was looked at, for estimates


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
        max_later_starts: Starts after the first looks after which what is not settled is said to be so.
    """

    gain: float = GAIN_WORTH_A_START
    max_starts: int = 5
    max_later_starts: int = 14

    def next_round(self, progress: Progress) -> Round:
        """First looks at every kind, then at rivals of the favourite, then its check."""
        unseen = [one for one in kinds_of(progress) if not progress.is_seen(one)]
        if unseen:
            return first_looks(unseen, progress)
        favourite = progress.favourite()
        if favourite is None:
            left = [one for one in progress.candidates if not progress.is_seen(one)]
            return first_looks(left[:UNRATED_A_LOOK], progress)
        doubtful = self._doubtful(favourite, progress)
        if doubtful:
            return Round(tuple(doubtful), SECOND_LOOK_SHARE, screen=True)
        return Round(_unchecked(favourite, progress), FINAL_SHARE)

    def runs_left(self, progress: Progress) -> int:
        """About how many runs are still to come; 0 once the race is over."""
        unseen = sum(not progress.is_seen(one) for one in kinds_of(progress))
        if unseen:
            return unseen + RUNS_AFTER_THE_FIRST_LOOK
        following = len(self.next_round(progress).settings)
        return max(following, RUNS_AFTER_THE_FIRST_LOOK - _later_starts(progress)) if following else 0

    def why_over(self, progress: Progress) -> str:
        """Why a race that is over spends no further start on what is not settled; empty while it is not over."""
        favourite = progress.favourite()
        if favourite is None or self.next_round(progress).settings:
            return ""
        rival, gain = self._rival(favourite, progress)
        spent = _later_starts(progress)
        if rival is None:
            return ""
        if spent >= self.max_later_starts:
            return f"it had made all {self.max_later_starts} starts that it allows itself after the first looks"
        gained = f"at most {100 * gain:.1f} %" if gain >= SMALLEST_SHOWN else "next to nothing"
        return (
            f"one more start would raise the rate by {gained} on average, and it makes none for less than "
            f"{100 * self._price(spent):.1f} %"
        )

    def _doubtful(self, favourite: LoaderSettings, progress: Progress) -> list[LoaderSettings]:
        """The rival most worth a start, if any is, and the favourite where it is known no better than that one.

        One rival at a time: what its start tells of settings like it is counted before the next is chosen.
        """
        rival, gain = self._rival(favourite, progress)
        spent = _later_starts(progress)
        if rival is None or spent >= self.max_later_starts or gain <= self._price(spent):
            return []
        again = progress.starts(favourite) <= progress.starts(rival) and progress.starts(favourite) < self.max_starts
        return [rival, favourite] if again else [rival]

    def _rival(self, favourite: LoaderSettings, progress: Progress) -> tuple[LoaderSettings | None, float]:
        """What of all that may still be started would gain most, and how much that is on average (of the rate)."""
        rated = [trial for trial in progress.trials.values() if counts(trial)]
        model = fit(rated, progress.probe, progress.cores, progress.paced) if rated else None
        belief = believe(progress.candidates, progress.trials, model)
        if belief is None or favourite not in belief:
            return None, 0.0
        gains = {one: belief.gain(favourite, one, _worth_of_thrift(favourite, one)) for one in belief.candidates}
        open_ = [one for one in gains if one != favourite and progress.starts(one) < self.max_starts]
        rival = max(open_, key=gains.__getitem__, default=None)
        return rival, gains[rival] if rival is not None else 0.0

    def _price(self, spent: int) -> float:
        return self.gain + GAIN_PRICE_RISE * spent


def _later_starts(progress: Progress) -> int:
    """Starts beyond a first look at every kind."""
    return sum(map(progress.starts, progress.candidates)) - len(kinds_of(progress))


def _worth_of_thrift(favourite: LoaderSettings, rival: LoaderSettings) -> float:
    return FEWER_WORKERS_WORTH if favourite.num_workers < rival.num_workers else 0.0


def _unchecked(favourite: LoaderSettings, progress: Progress) -> tuple[LoaderSettings, ...]:
    """What must be checked before the race is over: the favourite, and its twin where the epoch's edge matters."""
    if wants_a_check(favourite, progress):
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
