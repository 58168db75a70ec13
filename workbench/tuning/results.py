"""Results: what a sweep found, as a table, as one recommended settings, and in words."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workbench import machine
from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.measure.records import Probe, TrialRun
from workbench.measure.result import RESULT_COLUMNS, TrialResult
from workbench.tuning.ranking import Ranking, counts, pareto, rank
from workbench.tuning.recommendation import recommend, why_nothing
from workbench.tuning.store import SweepRecord, SweepStore
from workbench.tuning.trials import trials_of

if TYPE_CHECKING:
    import pandas

# Columns whose values may be missing keep their type through pandas' nullable dtypes: NA, never 0 and never a float.
_DTYPES = {
    **dict.fromkeys(("num_workers", "prefetch_factor", "batch_size", "worker_threads", "windows", "rank"), "Int64"),
    **dict.fromkeys(("peak_pss_bytes", "peak_rss_bytes", "peak_shm_bytes"), "Int64"),
    **dict.fromkeys(("pin_memory", "persistent_workers", "batch_on_worker", "in_order", "non_blocking"), "boolean"),
    **dict.fromkeys(("multiprocessing_context", "layout", "sharing_strategy", "status", "reason"), "string"),
}
_WHY_NOT_RUN = {
    "budget": "not run: the time budget ended before its turn; give a larger budget, or resume the sweep.",
    "stopped": "not run: the sweep was stopped before its turn; resume it to run the rest.",
    "interrupted": "not run: the sweep was interrupted before its turn; resume it to run the rest.",
    "failed": "not run: the sweep ended with an error before its turn; resume it to run the rest.",
}


@dataclass(frozen=True)
class Results:
    """What is known after, or during, a sweep.

    Attributes:
        trials: One result a settings that was run or skipped.
        probe: What the probe saw; None before it ended.
        machine: `machine.fingerprint()` of where it ran.
        name: Name of the sweep in its store.
        source: One line that describes the loader.
        current: The user's own settings, or None when unknown.
        strategy: Name of the strategy.
        options: What else shaped the measuring: seconds a run, step, limits.
        created: Seconds since the epoch (UTC) when the sweep began.
        ending: Why it ended: "finished", "budget", "stopped", "interrupted", "failed"; empty while it runs.
        notes: Sentences worth showing.
    """

    trials: tuple[TrialResult, ...]
    probe: Probe | None
    machine: dict[str, Any]
    name: str
    source: str = ""
    current: LoaderSettings | None = None
    strategy: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0
    ending: str = ""
    notes: tuple[str, ...] = ()

    @cached_property
    def ranking(self) -> Ranking:
        """The order of all settings that count."""
        return rank(self.trials, self.current, self.probe)

    @cached_property
    def best(self) -> LoaderSettings | None:
        """The recommended settings, or None; `reason` then says why."""
        return self.ranking.order[0].settings if self.ranking.order else None

    @property
    def starts(self) -> int:
        """How many times the loader was started; what was skipped never was."""
        return sum(run.status != "skipped" for trial in self.trials for run in trial.runs)

    @cached_property
    def reason(self) -> str:
        """Why there is no `best`; empty when there is one."""
        return "" if self.best is not None else why_nothing(self)

    @cached_property
    def recommendation(self) -> str:
        """In words: what, how much faster, how sure, what it costs in memory, what is tied, what was not settled."""
        return recommend(self)

    @property
    def frame(self) -> pandas.DataFrame:
        """One row a settings: the knobs, then the columns of `RESULT_COLUMNS`, then `rank`; unknown is NA."""
        return self._frame_of(self.trials)

    @property
    def pareto(self) -> pandas.DataFrame:
        """Rows that no other row beats in rate and peak memory at once, least memory first."""
        return self._frame_of(pareto(self.trials))

    @property
    def failed(self) -> pandas.DataFrame:
        """Rows whose status is not "ok", each with its reason."""
        return self._frame_of([trial for trial in self.trials if trial.status != "ok"])

    def best_within(self, memory: str | int) -> LoaderSettings | None:
        """The recommended settings among those whose peak memory is known and within the limit; None if there are none.

        Args:
            memory: Bytes, or a size such as "4GiB"; compared with `peak_pss_bytes`.
        """
        limit = machine.parse_bytes(memory)
        fitting = [t for t in self.trials if t.peak_pss_bytes is not None and t.peak_pss_bytes <= limit]
        order = rank(fitting, self.current, self.probe).order
        return order[0].settings if order else None

    def trial(self, settings: LoaderSettings) -> TrialResult | None:
        """The result of these settings, or None when they are not in the sweep."""
        return next((trial for trial in self.trials if trial.settings == settings), None)

    def _frame_of(self, trials: Sequence[TrialResult]) -> pandas.DataFrame:
        import pandas

        ranks = {trial.settings: position for position, trial in enumerate(self.ranking.order, start=1)}
        rows = [trial.row() | {"rank": ranks.get(trial.settings)} for trial in trials]
        columns = [*KNOBS, *RESULT_COLUMNS, "rank"]
        return pandas.DataFrame(
            {name: pandas.array([row[name] for row in rows], dtype=_DTYPES.get(name, "Float64")) for name in columns}
        )

    def __repr__(self) -> str:
        able = sum(counts(trial) for trial in self.trials)
        return (
            f"Results of sweep {self.name!r}: {len(self.trials)} settings, {able} of them rated\n{self.recommendation}"
        )

    def _repr_html_(self) -> str:
        text = "".join(f"<p>{html.escape(line)}</p>" for line in self.recommendation.splitlines() if line)
        return f"<div>{text}{_html_table(self)}</div>"


def results_of(record: SweepRecord, runs: Sequence[TrialRun]) -> Results:
    """Results from what a store holds; a settings that never had its turn is "skipped", with why."""
    cores = usable_cores_of(record.machine)
    trials = trials_of(runs, cores)
    if why := _WHY_NOT_RUN.get(record.ending):
        for settings in record.candidates:
            if settings not in trials:
                trials[settings] = _skipped(settings, why, cores)
    elif record.ending == "finished" and len(trials) < len(record.candidates):
        trials |= _left_out(record, trials, cores)
    place = {settings: position for position, settings in enumerate(record.candidates)}
    ordered = sorted(trials.values(), key=lambda trial: place.get(trial.settings, len(place)))
    return Results(
        trials=tuple(ordered),
        probe=record.probe,
        machine=record.machine,
        name=record.name,
        source=record.source,
        current=record.current,
        strategy=record.strategy,
        options=record.options,
        created=record.created,
        ending=record.ending,
        notes=record.notes,
    )


def _left_out(
    record: SweepRecord, trials: dict[LoaderSettings, TrialResult], cores: int
) -> dict[LoaderSettings, TrialResult]:
    """What a finished search saw no reason to run, each with what was expected of it."""
    from workbench.tuning.advice import why_not_run

    left = [settings for settings in record.candidates if settings not in trials]
    exact, paced = float(record.machine.get("usable_cores") or cores), bool(record.options.get("step"))
    reasons = why_not_run(list(trials.values()), left, record.probe, exact, paced)
    return {settings: _skipped(settings, reasons[settings], cores) for settings in left}


def _skipped(settings: LoaderSettings, why: str, cores: int) -> TrialResult:
    return TrialResult(settings, (TrialRun(settings, "skipped", why),), None, cores)


def load_results(path: str | os.PathLike[str], name: str | None = None) -> Results:
    """Results of a stored sweep; also of one that is still running, as far as it is.

    Args:
        path: The store.
        name: The sweep; None takes the latest.

    Raises:
        StoreError: If the store cannot be read, or holds no sweep of that name (the message lists those it holds).
    """
    with SweepStore(path, read_only=True) as store:
        record = store.sweep(name)
        return results_of(record, store.runs(record))


def usable_cores_of(fingerprint: dict[str, Any]) -> int:
    """Whole cores in a machine's fingerprint; 1 when it does not say."""
    return max(1, round(float(fingerprint.get("usable_cores") or 1)))


def _html_table(results: Results) -> str:
    """A table that reads without scripts: one row a settings, the recommended first, what failed last."""
    ranks = {trial.settings: position for position, trial in enumerate(results.ranking.order, start=1)}
    rows = sorted(results.trials, key=lambda trial: ranks.get(trial.settings, len(ranks) + 1))
    head = ("rank", "settings", "samples/s", "95 % interval", "first batch", "peak memory", "status")
    lines = ["".join(f"<th>{name}</th>" for name in head)]
    for trial in rows:
        estimate = trial.estimate if counts(trial) else None
        cells = (
            str(ranks.get(trial.settings, "–")),
            trial.settings.describe(),
            f"{estimate.samples_per_second:,.0f}" if estimate else "–",
            f"{estimate.low:,.0f} to {estimate.high:,.0f}" if estimate else "–",
            "–" if trial.first_batch_seconds is None else f"{trial.first_batch_seconds:.2f} s",
            machine.format_bytes(trial.peak_pss_bytes),
            trial.status if trial.status == "ok" else f"{trial.status}: {trial.reason}",
        )
        lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
