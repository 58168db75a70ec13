"""How long each run of a sweep measures and what it looks at: pure functions of what is known when it begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from workbench.loaders.settings import LoaderSettings
from workbench.measure.plan import LEAST_DEADLINE_SECONDS, TrialPlan
from workbench.measure.records import TrialRun
from workbench.tuning.belief import TAIL_TIMES, has_tail
from workbench.tuning.rounds import Progress, Round

SCREEN_WARMUP_SECONDS = 0.1  # beside the queue, which is used up once in any case
SCREEN_WINDOW_SECONDS = 0.04
LONGEST_SHARE = 2.0  # a run that is not precise yet goes on for as long again; a further start tells more than that
LEAST_BATCHES, LEAST_BATCHES_OF_A_LOOK = 12, 8
"""Batches that a run is to time: of four, a lucky one decides, and a tail of one slow batch in ten is not seen."""
TAILED_TIMES = 3
"""So many times as many where some take far longer than others, which a short look meets or misses by chance."""
LEAST_ROUNDS = 2
"""The same in rounds, one batch of each worker."""
LONGEST_STRETCH = 10.0
"""No run is stretched beyond this many times the sweep's measuring time for the sake of them ..."""
RUNS_THAT_SHARE_THE_BUDGET = 4
"""... nor beyond its part of what is left of the budget, shared by at least this many."""


def trial_plan(
    settings: LoaderSettings,
    round_: Round,
    progress: Progress,
    runs: Sequence[TrialRun],
    *,
    measure_seconds: float,
    memory_limit_bytes: int | None,
    seconds_left: float,
    runs_left: int,
) -> tuple[TrialPlan, bool]:
    """How the next run of these settings measures, and whether the budget cuts its deadline.

    What does not change from start to start is looked at in the first start over warm files only, and never in a
    short first look. A slow loader's runs last until they hold enough batches, but for the very first one, which is
    over cold files and does not count.

    Args:
        settings: What is started.
        round_: What the strategy asked for.
        progress: What is known so far.
        runs: All runs of the sweep so far.
        measure_seconds: Measuring time of a whole run.
        memory_limit_bytes: Limit for all processes of a trial, or None.
        seconds_left: Of the budget; infinite without one.
        runs_left: About how many runs are still to come.
    """
    earlier = [run for run in runs if run.settings == settings]
    warm = [run for run in earlier if not run.cold]
    first, cut = not round_.screen and all(run.screened for run in warm), seconds_left < LEAST_DEADLINE_SECONDS
    share = seconds_left / max(RUNS_THAT_SHARE_THE_BUDGET, 2 * runs_left)
    batches = enough_batches(settings, progress, look=round_.screen) if runs else 0
    seconds = measure_seconds * round_.measure_share
    stretched = min(batches * slowest_batch_seconds(settings, progress), LONGEST_STRETCH * measure_seconds, share)
    longest = max(seconds, stretched)
    plan = TrialPlan(
        measure_seconds=seconds,
        max_measure_seconds=longest * LONGEST_SHARE,
        least_batches=batches,
        deadline_seconds=seconds_left if cut else None,
        memory_limit_bytes=memory_limit_bytes,
        check_data=first,
        measure_edge=first,
        measure_growth=first,
        fill_queue=first or not earlier,
        seed=len(warm),
    )
    if round_.screen:
        plan = dataclasses.replace(
            plan,
            measure_seconds=longest,
            max_measure_seconds=longest,
            window_seconds=SCREEN_WINDOW_SECONDS,
            warmup_seconds=SCREEN_WARMUP_SECONDS,
        )
    elif first:
        plan = dataclasses.replace(plan, check_seconds=plan.check_seconds * round_.measure_share)
    return plan, cut


def enough_batches(settings: LoaderSettings, progress: Progress, look: bool) -> int:
    """Batches that a run of these settings is to time: `LEAST_ROUNDS` at least, and more where there is a tail."""
    batches = max(LEAST_BATCHES_OF_A_LOOK if look else LEAST_BATCHES, LEAST_ROUNDS * settings.num_workers)
    return batches * (TAILED_TIMES if _has_tail(progress) else 1)


def slowest_batch_seconds(settings: LoaderSettings, progress: Progress) -> float:
    """The longest that a batch of these settings may take on average; 0 where nothing tells.

    What a batch takes is known from runs of these settings; before that, from the probe, shared out over as many
    workers as there are cores, and not less than in the fastest run so far: a step, or what is shared, paces all.
    """
    own = progress.trials.get(settings)
    if own is not None and own.batches_per_second:
        return 1 / own.batches_per_second
    rates = [trial.batches_per_second for trial in progress.trials.values() if trial.batches_per_second]
    alone = (progress.probe.batch_seconds if progress.probe else None) or 0.0
    return max(alone / max(1.0, min(settings.num_workers, progress.cores)), 1 / max(rates) if rates else 0.0)


def _has_tail(progress: Progress) -> bool:
    """Whether the probe, or any run without workers, met a batch that took far longer than others."""
    probe, runs = progress.probe, [run for trial in progress.trials.values() for run in trial.runs]
    seen = (probe.batch_seconds or 0.0, probe.longest_batch_seconds or 0.0) if probe else (0.0, 0.0)
    return seen[1] > TAIL_TIMES * seen[0] > 0 or any(has_tail([run]) for run in runs if run.status == "ok")
