"""Predicting: few settings measured, the rest predicted, and the best prediction put to the test."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.loaders.settings import LoaderSettings
from workbench.tuning.forecast import forecast_from
from workbench.tuning.ranking import counts
from workbench.tuning.rounds import STARTS_TO_WIN, Progress, Round, first_looks, kinds_of, to_settle

TEST_SHARE = 0.3  # of the measuring time, for a prediction that is put to the test
MOST_VERIFIED = 4  # predictions that are put to the test, one after the other ...
WORTH_A_TEST = 0.05  # ... while they promise so much more than those before gave: single starts tell no less apart

ASSUMED_ERROR = 0.15  # of a prediction, relative, while too few trials were run to see it


@dataclass(frozen=True)
class Predicting:
    """The strategy "forecast": few settings measured, the rest predicted, and the best prediction put to the test.

    A prediction that does not hold is tested once more, since a single start may be an unlucky one; then it corrects
    the model, and what promises clearly more is tested next, or as much from fewer workers. The model knows workers,
    prefetch depth, batch size and order; of other knobs it expects nothing, so they keep their current values.

    Attributes:
        most_verified: Predictions that are tested at most.
    """

    most_verified: int = MOST_VERIFIED

    def next_round(self, progress: Progress) -> Round:
        """The settings that the model is fitted to, then its best prediction, until that is what was tested last."""
        unseen = [one for one in _anchors(progress) if not progress.is_seen(one)]
        if unseen:
            return first_looks(unseen, progress, closing=False)
        unlucky = self._far_below_its_prediction(progress)
        if unlucky is not None:
            return Round((unlucky,), TEST_SHARE, screen=True)
        best = self._worth_a_test(progress)
        return Round((best,), TEST_SHARE) if best else Round(to_settle(progress), TEST_SHARE, screen=True)

    def runs_left(self, progress: Progress) -> int:
        """About how many runs are still to come; 0 once the best prediction was tested."""
        unseen = sum(not progress.is_seen(one) for one in _anchors(progress))
        return unseen + STARTS_TO_WIN if unseen else len(self.next_round(progress).settings)

    def _far_below_its_prediction(self, progress: Progress) -> LoaderSettings | None:
        """What was tested in a single start, and fell below what the other settings let expect with their error."""
        rated = {one: trial for one, trial in progress.trials.items() if counts(trial)}
        for one, trial in rated.items():
            if progress.starts(one) > 1 or not progress.is_checked(one):
                continue
            others = [other for other in rated.values() if other is not trial]
            if not others:
                continue
            told = forecast_from(others, [one], progress.probe, progress.cores, progress.paced).predictions[0]
            least = told.low or (told.samples_per_second or 0.0) * math.exp(-2 * ASSUMED_ERROR)
            if (trial.samples_per_second or least) < least:
                return one
        return None

    def _worth_a_test(self, progress: Progress) -> LoaderSettings | None:
        """The best prediction, where it promises clearly more than what was tested, or as much from fewer workers."""
        rated = [trial for trial in progress.trials.values() if counts(trial)]
        alive = [
            one for one in progress.candidates if one not in progress.trials or progress.trials[one].status == "ok"
        ]
        if not rated:
            return next((one for one in alive if not progress.is_seen(one)), None)
        found = forecast_from(rated, alive, progress.probe, progress.cores, progress.paced)
        tested = [trial for trial in rated if progress.is_checked(trial.settings)]
        if found.best is None or progress.is_checked(found.best) or len(tested) >= self.most_verified:
            return None
        promised = found.prediction(found.best)
        fastest = max(tested, key=lambda trial: trial.samples_per_second or 0.0, default=None)
        if fastest is None or promised is None or found.best.num_workers < fastest.settings.num_workers:
            return found.best
        least = (1 + WORTH_A_TEST) * (fastest.samples_per_second or 0.0)
        return found.best if (promised.samples_per_second or 0.0) > least else None


def _anchors(progress: Progress) -> list[LoaderSettings]:
    """What models are fitted to: the current settings, none and the fewest workers, each in its plainest form.

    A layout says nothing of another, so that each has its fewest workers looked at.
    """
    kinds = sorted(kinds_of(progress), key=lambda one: (one.num_workers, one.batch_on_worker))
    first = {one.num_workers: one for one in reversed(kinds)}
    counts_above = sorted(count for count in first if count)
    chosen = [progress.current] if progress.current in progress.candidates else []
    chosen += [first[0]] if 0 in first else []
    chosen += [first[counts_above[0]]] if counts_above else []
    layouts = {one.layout for one in chosen}
    for one in (kind for kind in kinds if kind.num_workers and kind.layout not in layouts):
        layouts.add(one.layout)
        chosen.append(one)
    return list(dict.fromkeys(chosen))
