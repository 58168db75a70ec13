"""From the runs of a sweep to one TrialResult a settings, with the spread between starts that all of them share."""

from __future__ import annotations

import math
from collections.abc import Iterable

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate, clearly_below, pooled_spread

# Single starts of one settings spread by 2 to 5 % on a quiet machine and by up to 30 % on a busy one.
SURE_LOSS_OF_A_SINGLE_START = 0.25
# Where no spread at all is known: the highest of 30 starts on a busy machine was 2.6 times the lowest.
SURE_LOSS_WITHOUT_SPREAD = 2 / 3


def trials_of(runs: Iterable[TrialRun], cores: int) -> dict[LoaderSettings, TrialResult]:
    """One result a settings, in the order in which settings were first run.

    A run over cold files is left out as soon as its settings have a warm one: the two are not the same experiment.

    Args:
        runs: Every finished run, oldest first.
        cores: Cores the measured processes could use.
    """
    grouped: dict[LoaderSettings, list[TrialRun]] = {}
    for run in runs:
        grouped.setdefault(run.settings, []).append(run)
    kept = {settings: _warm(group) for settings, group in grouped.items()}
    spread = pooled_spread(list(kept.values()), cores)
    return {settings: TrialResult(settings, group, spread, cores) for settings, group in kept.items()}


def surely_slower(slower: RateEstimate, faster: RateEstimate) -> bool:
    """Whether `slower` is below `faster` for certain.

    While no settings of the sweep has been started twice, intervals do not contain the spread between starts; then a
    rate must lie a quarter lower. Below a third it is slower whatever its interval, which after two starts on a busy
    machine can reach from nothing to several times the rate.
    """
    if slower.samples_per_second < (1 - SURE_LOSS_WITHOUT_SPREAD) * faster.samples_per_second:
        return True
    if math.isinf(slower.relative_error) or math.isinf(faster.relative_error):
        return False
    if slower.in_run_only or faster.in_run_only:
        limit = (1 - SURE_LOSS_OF_A_SINGLE_START) * faster.samples_per_second
        return slower.samples_per_second < limit and clearly_below(slower, faster)
    return clearly_below(slower, faster)


def _warm(runs: list[TrialRun]) -> tuple[TrialRun, ...]:
    warm = tuple(run for run in runs if not (run.cold and run.status == "ok"))
    return warm if any(run.status == "ok" for run in warm) else tuple(runs)
