"""Engine: probes the loader once, then runs what a strategy asks for, and saves every run before the next begins."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from workbench import machine
from workbench.errors import ProbeError, StoreError, TrialServerError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe, TrialRun
from workbench.measure.verdicts import COUNT_ADVICE
from workbench.tuning.control import Control, Event
from workbench.tuning.feasibility import why_infeasible, why_too_large
from workbench.tuning.results import Results, results_of, usable_cores_of
from workbench.tuning.run_plans import trial_plan
from workbench.tuning.space import Candidates, SearchSpace
from workbench.tuning.steps import step_name
from workbench.tuning.store import SweepRecord, SweepStore
from workbench.tuning.strategies import Progress, Round, Strategy
from workbench.tuning.trials import trials_of

if TYPE_CHECKING:
    from workbench.loaders.source import LoaderSource
    from workbench.measure.plan import TrialPlan

# What must be as it was for a sweep to go on: anything else changes the numbers themselves.
OPTIONS_THAT_SHAPE_NUMBERS = ("measure_seconds", "step", "samples_per_batch")
SECONDS_OF_A_CUT = 1.0  # left of the budget when it was what ended a run; a hang ends sooner, by its silence
SECONDS_OF_A_RUN_BESIDE_MEASURING = 1.0  # start, warm-up and end of a run, until one was seen


class Server(Protocol):
    """What a sweep needs of a trial server; `measure.trial.TrialServer` is the one."""

    def probe(self) -> Probe: ...

    def run(self, settings: LoaderSettings, plan: TrialPlan) -> TrialRun: ...

    def cancel(self) -> None: ...


ServerFactory = Callable[..., AbstractContextManager[Server]]


@dataclass(frozen=True)
class SweepPlan:
    """Everything a sweep was asked for.

    Attributes:
        source: The loader.
        space: Which settings; None takes those of the machine that the source can vary.
        strategy_name: Name of the strategy.
        strategy: Decides what to run next.
        store: Path of the store.
        name: Name in the store.
        measure_seconds: Measuring time of a run.
        budget_seconds: Time for the whole sweep, or None.
        memory_limit_bytes: Limit for all processes of a trial, or None.
        step: What to do with each batch, or None.
        samples_per_batch: The caller's word on it, or None.
        seed: Fixes the order of runs.
    """

    source: LoaderSource
    space: SearchSpace | None
    strategy_name: str
    strategy: Strategy
    store: Any
    name: str
    measure_seconds: float = 1.0
    budget_seconds: float | None = None
    memory_limit_bytes: int | None = None
    step: Any = None
    samples_per_batch: int | None = None
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """What shapes the measuring, as JSON values."""
        return {
            "measure_seconds": self.measure_seconds,
            "budget_seconds": self.budget_seconds,
            "memory_limit_bytes": self.memory_limit_bytes,
            "step": step_name(self.step),
            "samples_per_batch": self.samples_per_batch,
            "seed": self.seed,
        }


@dataclass
class Engine:
    """One sweep at work, in one thread; `results` may be read from others.

    Attributes:
        plan: What was asked for.
        control: What others ask meanwhile.
        server_factory: Starts a trial server: `factory(source, step=, samples_per_batch=, on_event=)`.
        notes: Sentences worth showing, in the order they came up.
    """

    plan: SweepPlan
    control: Control
    server_factory: ServerFactory
    notes: list[str] = field(default_factory=list)
    _record: SweepRecord | None = None
    _runs: list[TrialRun] = field(default_factory=list)
    _run_seconds: list[float] = field(default_factory=list)
    _deadline: float | None = None

    @property
    def results(self) -> Results | None:
        """What is known so far; None until the probe has ended."""
        record = self._record
        if record is None:
            return None
        return results_of(dataclasses.replace(record, notes=tuple(dict.fromkeys(self.notes))), list(self._runs))

    def work(self, resume: bool) -> None:
        """The whole sweep, to its end or to the first error.

        Raises:
            ProbeError: If the user's loader fails with 0 workers, or its samples cannot be counted; then nothing was
                stored.
            StoreError: If the store cannot be used, or, when resuming, does not match.
            TrialServerError: If the process that runs trials is lost.
        """
        if self.plan.budget_seconds is not None:
            self._deadline = time.monotonic() + self.plan.budget_seconds
        with SweepStore(self.plan.store) as store:
            self.notes += store.notes
            previous = self._find_previous(store) if resume else None
            fingerprint = machine.fingerprint()
            if previous is not None:
                self._refuse_other_conditions(store, previous, fingerprint)
            self.control.emit("phase", phase="starting")
            with self.server_factory(
                self.plan.source.to_turn(self.plan.space.turned() if self.plan.space else ()),
                step=self.plan.step,
                samples_per_batch=self.plan.samples_per_batch,
                on_event=self._pass_on,
            ) as server:
                self.control.emit("phase", phase="probing")
                probe = self._probe(server)
                if probe is None:
                    return
                _refuse_what_cannot_be_counted(probe)
                self._settle_candidates(store, previous, probe, fingerprint)
                self._run_to_the_end(store, server, probe)

    # -- before the first trial --

    def _probe(self, server: Server) -> Probe | None:
        """What the probe saw; None when the sweep was stopped meanwhile."""
        while self.control.may_go_on():
            with self.control.cancelling(server):
                try:
                    return server.probe()
                except (ProbeError, TrialServerError):
                    if not self.control.cancelled:
                        raise
        return None

    def _find_previous(self, store: SweepStore) -> SweepRecord:
        if self.plan.name:
            return store.sweep(self.plan.name)
        return store.sweep(source=self.plan.source.describe())

    def _refuse_other_conditions(self, store: SweepStore, previous: SweepRecord, fingerprint: dict[str, Any]) -> None:
        differences = machine.fingerprint_differences(previous.machine, fingerprint)
        if previous.fingerprint != self.plan.source.fingerprint():
            differences.append("the loader is defined differently")
        before, now = previous.options, self.plan.options()
        for name in OPTIONS_THAT_SHAPE_NUMBERS:
            if before.get(name) != now[name]:
                differences.append(f"{name} was {before.get(name)!r}, is {now[name]!r}")
        if differences:
            raise _not_the_same(store, previous, differences)

    def _settle_candidates(
        self, store: SweepStore, previous: SweepRecord | None, probe: Probe, fingerprint: dict[str, Any]
    ) -> None:
        candidates = self._candidates(probe)
        if previous is None:
            record = store.create_sweep(
                self.plan.name,
                source=self.plan.source.describe(),
                fingerprint=self.plan.source.fingerprint(),
                machine=fingerprint,
                candidates=candidates.settings,
                current=candidates.current,
                strategy=self.plan.strategy_name,
                options=self.plan.options(),
            )
        else:
            self._refuse_other_data(store, previous, probe, candidates)
            store.take_over(previous)
            record = dataclasses.replace(previous, ending="", strategy=self.plan.strategy_name)
            self._runs.extend(store.runs(record))
        self.notes += candidates.notes
        store.save_probe(record, probe)
        self._record = dataclasses.replace(record, probe=probe)
        self.control.emit("probe", probe=probe)
        self.control.emit(
            "plan",
            name=record.name,
            settings=record.candidates,
            current=record.current,
            runs_done=len(self._runs),
            runs_left=self.plan.strategy.runs_left(self._progress()),
        )

    def _candidates(self, probe: Probe) -> Candidates:
        source, pins = self.plan.source.as_seen(probe.returned, probe.fixed_knobs), machine.accelerator().pins
        current = probe.current or source.current
        space = self.plan.space or SearchSpace.for_machine().varied_only_by(source.accepts)
        return space.resolve(source, pins, current, probe.own_with_workers)

    def _refuse_other_data(
        self, store: SweepStore, previous: SweepRecord, probe: Probe, candidates: Candidates
    ) -> None:
        differences = []
        if self.plan.space is not None and set(candidates.settings) != set(previous.candidates):
            new = len(set(candidates.settings) - set(previous.candidates))
            gone = len(set(previous.candidates) - set(candidates.settings))
            differences.append(f"the space differs ({new} settings are new, {gone} are gone)")
        for name in ("epoch_samples", "samples_per_batch", "manifest_digest"):
            before, now = getattr(previous.probe, name, None), getattr(probe, name)
            if before is not None and now is not None and before != now:
                differences.append(f"{name.replace('_', ' ')} was {before}, is {now}")
        if differences:
            raise _not_the_same(store, previous, differences)

    # -- trials --

    def _run_to_the_end(self, store: SweepStore, server: Server, probe: Probe) -> None:
        record = self._record
        assert record is not None
        ending = "failed"
        try:
            ending = self._run_rounds(store, server, probe)
        finally:
            self._record = dataclasses.replace(record, probe=probe, ending=ending)
            store.end_sweep(record, ending, list(dict.fromkeys(self.notes)))

    def _run_rounds(self, store: SweepStore, server: Server, probe: Probe) -> str:
        """Runs round after round; gives why it ended."""
        while self.control.may_go_on():
            progress = self._progress()
            following = self.plan.strategy.next_round(progress)
            if not following.settings:
                return "finished"
            for settings in following.settings:
                if not self._still_wanted(settings):
                    continue
                ending = self._run_counted(store, server, probe, settings, following)
                if ending:
                    return ending
        return self.control.ending or "stopped"

    def _progress(self) -> Progress:
        assert self._record is not None
        cores = usable_cores_of(self._record.machine)
        trials = trials_of(self._runs, cores)
        return Progress(
            self._record.candidates,
            trials,
            self._record.current,
            self.plan.seed,
            self._record.probe,
            float(self._record.machine.get("usable_cores") or cores),
            self.plan.step is not None,
        )

    def _still_wanted(self, settings: LoaderSettings) -> bool:
        """False for settings whose earlier run in the same round did not end well."""
        return all(run.status == "ok" for run in self._runs if run.settings == settings)

    def _run_counted(
        self, store: SweepStore, server: Server, probe: Probe, settings: LoaderSettings, round_: Round
    ) -> str:
        """Runs these settings until a run counts; gives why the sweep must end instead, or nothing."""
        assert self._record is not None
        while True:
            if not self.control.may_go_on():
                return self.control.ending or "stopped"
            if why := self._why_infeasible(settings, probe):
                number = store.begin_run(self._record, settings)
                self._keep(store, number, TrialRun(settings, "skipped", why, started_at=time.time()), None)
                return ""
            if self._seconds_left() < self._expected_seconds(round_):
                return "budget"
            plan, cut_by_budget = self._trial_plan(settings, round_)
            number = store.begin_run(self._record, settings)
            self.control.emit("run_started", settings=settings, runs_done=len(self._runs))
            begun = time.monotonic()
            with self.control.cancelling(server):
                run = dataclasses.replace(server.run(settings, plan), screened=round_.screen)
            if self.control.cancelled and run.status != "ok":
                store.discard_run(number)
                continue
            if cut_by_budget and run.status == "timed_out" and self._seconds_left() < SECONDS_OF_A_CUT:
                store.discard_run(number)
                return "budget"
            self._run_seconds.append(time.monotonic() - begun)
            self._keep(store, number, run, self._run_seconds[-1])
            return ""

    def _keep(self, store: SweepStore, number: int, run: TrialRun, seconds: float | None) -> None:
        store.finish_run(number, run)
        self._runs.append(run)
        progress = self._progress()
        self.control.emit(
            "run_finished",
            run=run,
            trial=progress.trials[run.settings],
            runs_done=len(self._runs),
            runs_left=self.plan.strategy.runs_left(progress),
            seconds=seconds,
        )

    def _why_infeasible(self, settings: LoaderSettings, probe: Probe) -> str | None:
        shared = machine.shared_memory_bytes()
        limit = self.plan.memory_limit_bytes
        if all(run.settings != settings for run in self._runs):
            trials = list(self._progress().trials.values()) if limit is not None else []
            if why := why_too_large(settings, trials, probe, limit):
                return why
        return why_infeasible(
            settings,
            probe,
            free_shared_memory_bytes=shared.free_bytes if shared else None,
            memory_limit_bytes=limit,
            over_memory=[run.settings for run in self._runs if run.status == "over_memory"],
        )

    def _trial_plan(self, settings: LoaderSettings, round_: Round) -> tuple[TrialPlan, bool]:
        progress = self._progress()
        return trial_plan(
            settings,
            round_,
            progress,
            self._runs,
            measure_seconds=self.plan.measure_seconds,
            memory_limit_bytes=self.plan.memory_limit_bytes,
            seconds_left=self._seconds_left(),
            runs_left=self.plan.strategy.runs_left(progress),
        )

    def _seconds_left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _expected_seconds(self, round_: Round) -> float:
        if self._run_seconds:
            return statistics.median(self._run_seconds)
        return self.plan.measure_seconds * round_.measure_share + SECONDS_OF_A_RUN_BESIDE_MEASURING

    def _pass_on(self, event: Event) -> None:
        """An event of the trial server; it also shows that a trial runs which may have to end."""
        self.control.cancel_if_asked()
        self.control.emit(**event)


def _not_the_same(store: SweepStore, previous: SweepRecord, differences: list[str]) -> StoreError:
    return StoreError(
        f"sweep {previous.name!r} in {store.path} cannot be resumed: {'; '.join(differences)}; "
        "start a new sweep instead (without resume)."
    )


def _refuse_what_cannot_be_counted(probe: Probe) -> None:
    """Without a number of samples no batch has a rate, which every trial would find out anew."""
    if probe.samples_per_batch is None:
        what = f"no sample can be counted in the loader's first batch ({probe.batch_structure})"
        raise ProbeError(f"{what}: {COUNT_ADVICE}")
