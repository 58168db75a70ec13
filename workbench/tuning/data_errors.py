"""Errors of the data themselves in settings that failed: other settings may just not have come to the same samples."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workbench.measure.result import TrialResult
from workbench.tuning.ranking import counts

if TYPE_CHECKING:
    from workbench.tuning.results import Results

# Where torch fetches a batch from the dataset: starting, pickling and handing over happen outside of it.
_FETCHING = re.compile(r'_utils[/\\]fetch\.py", line \d+, in fetch')


def data_error(results: Results) -> TrialResult | None:
    """The settings that failed by an error of the data which the recommended settings may not have come to.

    None where nothing failed so, and where the recommended settings read a whole epoch without it: then it is
    something about those that failed.
    """
    best = results.ranking.order[0]
    if not _batches_read(best) or _covers_an_epoch(best, results):
        return None
    failed = [trial for trial in results.trials if not counts(trial) and _raised_by_data(trial)]
    return max(failed, key=_reached, default=None)


def would_meet_it(results: Results, failed: TrialResult) -> bool:
    """Whether the recommended settings read no more of the data than what failed had asked for."""
    return _batches_read(results.ranking.order[0]) <= _reached(failed)


def data_error_words(results: Results, failed: TrialResult) -> str:
    """Whose error it is, how far the recommended settings came, and what to do."""
    best, epoch = results.ranking.order[0], _epoch_batches(results)
    read = f"{_batches_read(best):,}" + (f" of {epoch:,}" if epoch else "") + " batches"
    met = f"only {read} and would meet it too" if would_meet_it(results, failed) else f"{read}, and may meet it later"
    return (
        f"The data set raised an error, which says nothing about workers: {best.settings.describe()} took {met}. Mend "
        f"or leave out what fails, then sweep again. {failed.settings.describe()}: {failed.reason}"
    )


def _raised_by_data(trial: TrialResult) -> bool:
    """Whether fetching a batch raised what ended it; the reasons of what only workers can meet begin otherwise."""
    return any(
        run.status == "failed"
        and bool(run.error_type)
        and run.reason.startswith(run.error_type)
        and _FETCHING.search(run.traceback_text) is not None
        for run in trial.runs
    )


def _batches_read(trial: TrialResult) -> int:
    """Batches that came in the longest of its starts."""
    return max(run.batches_total for run in trial.runs)


def _reached(trial: TrialResult) -> int:
    """How many batches these settings had asked for when they failed."""
    return _batches_read(trial) + (trial.settings.batches_in_flight if trial.settings.num_workers else 1)


def _covers_an_epoch(best: TrialResult, results: Results) -> bool:
    epoch = _epoch_batches(results)
    return epoch is not None and _batches_read(best) >= epoch


def _epoch_batches(results: Results) -> int | None:
    """Batches of an epoch, where the recommended settings form them as the probe saw them."""
    asked, current = results.ranking.order[0].settings.batch_size, results.current
    same = asked is None or (current is not None and asked == current.batch_size)
    return results.probe.epoch_batches if results.probe and same else None
