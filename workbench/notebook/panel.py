"""TuningPanel: the notebook's control panel for one loader, from the values to try to the settings to take home."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from workbench.errors import StoreError, WorkbenchError
from workbench.loaders.source import LoaderSource
from workbench.notebook import reopening, saved, sizing, watch
from workbench.notebook.choices import Choices
from workbench.notebook.comparing import Comparer
from workbench.notebook.controls import ErrorBox, Frame, Limits, ProgressLine, Steering, heading
from workbench.notebook.evidence import recommendation_box
from workbench.notebook.exporting import ExportBox, Name, code_for, code_html
from workbench.notebook.folds import Fold
from workbench.notebook.gallery import Gallery, look_soon
from workbench.notebook.inspector import Inspector
from workbench.notebook.points import Running
from workbench.notebook.pump import Pump
from workbench.notebook.stage_look import StageLook
from workbench.notebook.succession import Newest, moved
from workbench.notebook.timekeeper import Timekeeper
from workbench.notebook.watch import Watched
from workbench.tuning.results import Results, load_results
from workbench.tuning.space import SearchSpace
from workbench.tuning.steps import step_of
from workbench.tuning.strategies import strategy_named
from workbench.tuning.sweep import Sweep

SHARE_FOR_DRAWING = 0.1  # of one core, at most, while trials run on the same cores
STANDS_FOR_PANEL = "Loader Workbench panel: it needs a running kernel; what its last sweep found is kept below."
REPLACED = "The sweep of an earlier definition of this loader was stopped."

_newest: Newest[TuningPanel] = Newest()


class TuningPanel:
    """A control panel: tick values, run, watch, stop, look at trials, export.

    Every trial is in the store as soon as it has ended, so that neither an interrupt nor a restart of the kernel loses
    any: a panel made anew for the same loader and store shows its last sweep, and can go on with one that ended early.
    Sweeps of other loaders in the store are counted, and offered to compare with, but never shown as this one's.
    Running the cell again while a sweep runs carries the sweep over into the new panel.

    Args:
        loader: What to tune: anything `Sweep` takes.
        step: What the training loop does with a batch, or None.
        store: File that keeps sweeps.
        space: Values ticked at first; None takes what suits the machine.
        strategy: Name of the strategy chosen at first.
        budget_seconds: Time for a sweep, or None.
        memory_limit: Most memory of a trial, or None.
        name: Name of the sweeps in the store; panels with the same name and store stand for each other.
        samples_per_batch: How many samples a batch holds, where that cannot be seen.
        measure_seconds: Measuring time of one start.
        server_factory: Starts the process that runs trials, as in `Sweep`.

    Attributes:
        sweep: The sweep that runs or ran last, or None.
        results: What it found so far, or what the store held; None before anything is known.
        widget: The panel itself, for use inside other layouts.

    Raises:
        SourceError: If the loader cannot be found or rebuilt, or the step's name names nothing that exists.
        SettingsError: If the strategy is unknown.
    """

    def __init__(
        self,
        loader: Any,
        step: Callable[..., Any] | str | None = None,
        store: str | Path = "sweeps.db",
        *,
        space: SearchSpace | None = None,
        strategy: str = "race",
        budget_seconds: float | str | None = None,
        memory_limit: int | str | None = None,
        name: str | None = None,
        samples_per_batch: int | None = None,
        measure_seconds: float = 1.0,
        server_factory: Callable[..., Any] | None = None,
    ) -> None:
        strategy_named(strategy)
        self.source = LoaderSource.of(loader)
        self._fingerprint = self.source.fingerprint()
        self.sweep: Sweep | None = None
        self.results: Any = None
        self._expression = repr(loader) if isinstance(loader, str) else "loader"
        self._store, self._name, self._step = Path(store), name, step
        self._server_factory = server_factory
        self._fixed = {"samples_per_batch": samples_per_batch, "measure_seconds": measure_seconds}
        self._fresh_seen = -1
        self._next_drawing = 0.0
        self._saved: Any = None
        self._drawing = threading.RLock()
        self._timekeeper = Timekeeper(measure_seconds)
        self._pump = Pump(self._show, self._pump_failed, tick=self._show_progress)
        self._build(space, strategy, budget_seconds, memory_limit)
        self._take_the_place_of_others()
        self._size_changed()

    # -- what can be done by hand, and from code --

    @property
    def space(self) -> SearchSpace:
        """The ticked values.

        Raises:
            SettingsError: If nothing is ticked.
        """
        return self.choices.space

    @property
    def state(self) -> str:
        """The sweep's state: "idle", "running", "paused", "stopping", "done" or "failed"."""
        return self.sweep.state if self.sweep is not None else "idle"

    def run(self) -> None:
        """Starts a sweep over the ticked values, or goes on with the earlier one where that is ticked; returns at once.

        Raises:
            SettingsError: If a sweep of this panel runs already, or what was typed makes no sense.
        """
        self.errors.clear()
        if self.state in ("running", "paused", "stopping"):
            raise WorkbenchError(f"the sweep is {self.state} already; wait for it, or stop it first")
        resume = self._continue.value and self._continue.layout.display is None
        sweep = self._new_sweep(resume)
        self._timekeeper.begin(self._pump.watched, self.results, self.limits.budget_seconds)
        self._attach(sweep)
        sweep.start(resume)
        self.setting.open(False)
        self.gallery.show(None, None, None)
        self._pump.begin(Watched(state="running"))

    def pause(self) -> None:
        """Pauses the sweep, or goes on with a paused one."""
        if self.sweep is None or self.state not in ("running", "paused"):
            return
        (self.sweep.resume if self.state == "paused" else self.sweep.pause)()

    def stop(self) -> None:
        """Ends the sweep; what is measured stays."""
        if self.state in ("running", "paused"):
            self.sweep.stop()
            threading.Thread(target=reopening.ended, args=(self.sweep,), daemon=True).start()  # asks until it ends
        self.stage_look.stop()

    def look_into_stages(self) -> None:
        """Measures where a batch's time goes under the chosen settings, and keeps that in the store; returns at once.

        Raises:
            WorkbenchError: If a sweep runs, which that would disturb, or no trial is chosen.
        """
        trial, name = self.inspector.trial, getattr(self.results, "name", "")
        if trial is None:
            raise WorkbenchError("no trial is chosen; choose one in the list or by a click on its point")
        if self.state in ("running", "paused", "stopping") or self.stage_look.active:
            raise WorkbenchError("something is being measured already, and both would be disturbed; wait for its end")
        self.stage_look.begin(name, trial.settings)

    def wait(self, timeout_seconds: float | None = None) -> Any:
        """Waits for the end of the sweep and until it is shown; gives the results. An interrupt stops the sweep."""
        if self.sweep is not None:
            self.sweep.wait(timeout_seconds)
            self._pump.wait(timeout_seconds)
        return self.results

    def __await__(self) -> Generator[Any, None, Any]:
        """`await panel` waits for the sweep without holding the notebook up."""
        if self.sweep is not None:
            yield from self.sweep.__await__()
        return self.results

    def code(self) -> str:
        """Python that does what the panel is set to do.

        Raises:
            SettingsError: If nothing is ticked.
        """
        arguments = self.limits.arguments() | {"name": self._name, "store": str(self._store)}
        if self._fixed["measure_seconds"] != 1.0:
            arguments["measure_seconds"] = self._fixed["measure_seconds"]
        if self._step is not None:
            arguments["step"] = self._step if isinstance(self._step, str) else Name("step")
        if self._fixed["samples_per_batch"] is not None:
            arguments["samples_per_batch"] = self._fixed["samples_per_batch"]
        return code_for(self._expression, arguments, self.space)

    # -- building --

    def _build(self, space: SearchSpace | None, strategy: str, budget: Any, memory: Any) -> None:
        self.errors = ErrorBox()
        guard = self.errors.guarded
        self.choices = Choices(self.source, space, guard(self._size_changed), step_of(self._step))
        self.limits = Limits(strategy, budget, memory, guard(self._size_changed))
        self.steering = Steering(
            guard(lambda _: self.run()), guard(lambda _: self.pause()), guard(lambda _: self.stop())
        )
        self.progress = ProgressLine()
        self.gallery = Gallery(guard(self._point_clicked))
        self.inspector = Inspector(guard(self._trial_chosen), guard(lambda _: self.look_into_stages()))
        self.stage_look = StageLook(
            self.source,
            step_of(self._step),
            self._store,
            self._stages_kept,
            self.inspector.say,
            self.errors.show,
            samples_per_batch=self._fixed["samples_per_batch"],
            server_factory=self._server_factory,
        )
        self.comparer = Comparer(self._store, self._fingerprint, guard(self._earlier_chosen))
        self.exporting = ExportBox(lambda: self.inspector.trial, guard)
        self._size, self._verdict, self._code, self._note = W.HTML(), W.HTML(), W.HTML(), W.HTML()
        self._continue = W.Checkbox(value=False, indent=False, layout=W.Layout(width="auto", display="none"))
        self._continue.add_class("wb-chip")
        setting = W.VBox([self.choices.widget, self.limits.widget])
        toolbar = W.Box([self.steering.widget, self._size], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        toolbar.add_class("wb-toolbar")
        self.setting = Fold("What to try", setting, opened=True)
        self.widget = Frame(
            [
                heading(f"Tune {self.source.name}", f"{self.source.describe()}. Trials are kept in {self._store}."),
                toolbar,
                self._continue,
                self._note,
                self.progress.widget,
                self.errors.widget,
                self.setting.widget,
                self.gallery.widget,
                self._verdict,
                self.comparer.widget,
                self.inspector.widget,
                Fold("Export", self.exporting.widget).widget,
                Fold("As code", self._code).widget,
            ],
            STANDS_FOR_PANEL,
        )

    # -- other panels and earlier sweeps --

    def _take_the_place_of_others(self) -> None:
        key = f"{self._store.absolute()}|{self._name or self.source.name}"
        old = _newest.take_place(key, self)
        if old is not None:
            old._retire()
        running = reopening.running_sweep(self._store, self._name or self.source.name)
        if running is not None and running.source.fingerprint() == self._fingerprint:
            self._adopt(running)
            return
        if running is not None:
            reopening.ended(running)
        self._reopen()
        if running is not None:
            self._note.value = f'<p class="wb-note">{REPLACED}</p>{self._note.value}'

    def _adopt(self, sweep: Sweep) -> None:
        self._attach(sweep)
        self._note.value = '<p class="wb-note">Watching the sweep that was running already.</p>'
        so_far = sweep.results
        done = so_far.starts if so_far is not None else 0
        self._timekeeper.adopt(so_far)
        self._pump.begin(Watched(state=sweep.state, runs_done=done, probed=so_far is not None))

    def _reopen(self) -> None:
        try:
            self.results, others = reopening.last_results(self._store, self._name, self._fingerprint)
        except StoreError as error:
            self.errors.show(error)
            return
        if self.results is None:
            told = reopening.told_of_others(self._store, others, self._name)
            self._note.value = f'<p class="wb-note">{escape(told)}</p>' if told else ""
        else:
            self._note.value = f'<p class="wb-note">{escape(reopening.told(self.results))}</p>'
            self._show_results(live=False)

    def _retire(self) -> None:
        if self.sweep is not None and self._pump.put in self.sweep.on_event:
            self.sweep.on_event.remove(self._pump.put)
        self._pump.end()
        self.gallery.close()
        self.widget.children = (moved(),)

    # -- a sweep --

    def _new_sweep(self, resume: bool) -> Sweep:
        return Sweep(
            self.source,
            None if resume else self.space,
            strategy=self.limits.strategy,
            budget_seconds=self.limits.budget_seconds,
            memory_limit=self.limits.memory_limit_bytes,
            step=self._step,
            store=self._store,
            name=self.results.name if resume else self._name,
            server_factory=self._server_factory,
            **self._fixed,
        )

    def _attach(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._fresh_seen, self._next_drawing = -1, 0.0
        self._note.value = ""
        sweep.on_event.append(self._pump.put)

    def _show(self, watched: Watched) -> None:
        """Called by the pump's thread, the only one that writes these widgets while nobody chooses a trial."""
        with self._drawing:
            self._draw(watched)

    def _draw(self, watched: Watched) -> None:
        self.steering.show(watched.state)
        if watched.fresh != self._fresh_seen and (watched.state != "running" or time.monotonic() >= self._next_drawing):
            self._fresh_seen = watched.fresh
            self._show_news(watched.active)
        self._show_progress(watched)
        rate = watched.rate
        running = Running(watched.running, rate) if watched.running is not None and rate is not None else None
        self.gallery.show_running(running)
        if watched.error is not None:
            self.errors.show(watched.error)
        if not watched.active:
            self._save()

    def _show_progress(self, watched: Watched) -> None:
        clock = self._timekeeper.text(watched, self.results)
        numbers = (watch.running_numbers(watched), watch.progress_text(watched), clock)
        words = watch.headline(watched, getattr(self.results, "ending", ""))
        self.progress.show(watched.runs_done, watched.runs_done + (watched.runs_left or 0), words, numbers)

    def _show_news(self, live: bool) -> None:
        """Shows what the sweep has found since; the more that takes, the longer it waits before the next time."""
        begun = time.thread_time()
        if self.sweep is not None and self.sweep.results is not None:
            self.results = self.sweep.results
        self._show_results(live)
        self._size_changed()
        self._next_drawing = time.monotonic() + (time.thread_time() - begun) / SHARE_FOR_DRAWING

    def _show_results(self, live: bool) -> None:
        results = self.results
        self.comparer.show(results, live)
        self.gallery.show(results, None, self.inspector.key, self.comparer.earlier)
        self.inspector.show(results)
        self.exporting.show(results)
        self._verdict.value = "" if results is None or not results.trials else _verdict_html(results, live)
        resumable = results is not None and not live and results.ending not in ("finished",) and bool(results.trials)
        self._continue.layout.display = None if resumable else "none"
        if resumable:
            self._continue.description = f"go on with the sweep that ended early ({results.name})"

    def _save(self) -> None:
        if self._saved is not None:
            self._saved.update(saved.bundle(self.results), raw=True)

    def _pump_failed(self, error: BaseException) -> None:
        self.errors.show(error)

    def _stages_kept(self, name: str) -> None:
        with self._drawing:
            if getattr(self.results, "name", "") == name:
                self.results = load_results(self._store, name)
                self._show_results(live=False)

    # -- callbacks --

    def _size_changed(self) -> None:
        try:
            current = self.source.current or getattr(self.results, "current", None)
            start = self._timekeeper.start(self._pump.watched, self.results)
            self._size.value = sizing.size_html(self.space, self.source, current, self.limits, start)
            self._code.value = code_html(self.code())
        except WorkbenchError as error:
            self._size.value = sizing.problem_html(error)

    def _point_clicked(self, key: int) -> None:
        with self._drawing:
            self.inspector.choose(key)

    def _trial_chosen(self, key: int | None) -> None:
        with self._drawing:
            self.gallery.show(self.results, None, key, self.comparer.earlier)
            self.exporting.show(self.results)

    def _earlier_chosen(self, earlier: Results | None) -> None:
        with self._drawing:
            self.gallery.show(self.results, None, self.inspector.key, earlier)

    # -- showing --

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.widget)
        self._saved = display(saved.bundle(self.results), raw=True, display_id=True)
        look_soon(lambda: self.gallery.settle(self.gallery.drawn))


def _verdict_html(results: Any, live: bool) -> str:
    so_far = '<p class="wb-note">So far; the sweep goes on.</p>' if live else ""
    return f"<h3>Recommendation</h3>{recommendation_box(results)}{so_far}"
