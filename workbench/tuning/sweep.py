"""Sweep: many trials over a space, started, watched, paused and stopped from a script, a notebook or a terminal."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from workbench import machine
from workbench.errors import SettingsError, WorkbenchError
from workbench.tuning.control import Control, Listener
from workbench.tuning.engine import Engine, ServerFactory, SweepPlan
from workbench.tuning.progress import ProgressLine
from workbench.tuning.results import Results
from workbench.tuning.space import SearchSpace
from workbench.tuning.steps import step_of
from workbench.tuning.strategies import strategy_named

LOOK_SECONDS = 0.1  # how often a waiting caller looks up, which bounds how late an interrupt is seen
SECONDS_TO_END = 10.0  # for the sweep that a new one under the same name replaces

_running: dict[str, Sweep] = {}
_registry_lock = threading.Lock()


def running_sweeps() -> list[Sweep]:
    """Every sweep of this process that has begun and not ended; a panel can adopt one."""
    with _registry_lock:
        return list(_running.values())


class Sweep:
    """A sweep over one loader.

    `run` blocks and shows a progress line; `start`, `pause`, `resume`, `stop` and `wait` do the same work in a thread.
    Every run is saved in the store before the next begins, so that stopping at any time keeps what was found.

    Args:
        loader: What to tune: anything `LoaderSource.of` takes.
        space: Settings to try; None takes `SearchSpace.for_machine` as far as the loader can vary its knobs.
        strategy: Name of a strategy in `strategies.STRATEGIES`.
        budget_seconds: Time for the whole sweep, as seconds or "2m"; None for no limit.
        memory_limit: Most memory that all processes of a trial may use, as bytes or "8GiB"; None for no limit.
        step: What the training loop does with a batch, called after each one; or "file.py:function".
        store: File that keeps the sweep.
        name: Name in the store; None takes the loader's name and the time. A name that is taken gets a number.
        samples_per_batch: How many samples a batch holds, where the probe cannot tell.
        measure_seconds: Measuring time of one run. Short looks take a share of it; runs of a slow loader go on until
            they hold some batches, up to ten times as long.
        seed: Fixes the order of runs.
        on_event: Called in the sweep's thread with every event, a dict with a "kind".
        server_factory: Starts the process that runs trials; None takes `measure.trial.TrialServer`.

    Attributes:
        on_event: The list of listeners; append to it.

    Raises:
        SourceError: If the loader cannot be found or rebuilt.
        SettingsError: If the strategy is unknown, or a number or size makes no sense.
    """

    def __init__(
        self,
        loader: Any,
        space: SearchSpace | None = None,
        strategy: str = "race",
        budget_seconds: float | str | None = None,
        memory_limit: int | str | None = None,
        step: Callable[..., Any] | str | None = None,
        store: str | os.PathLike[str] = "sweeps.db",
        name: str | None = None,
        samples_per_batch: int | None = None,
        *,
        measure_seconds: float = 1.0,
        seed: int = 0,
        on_event: Listener | None = None,
        server_factory: ServerFactory | None = None,
    ) -> None:
        from workbench.loaders.source import LoaderSource

        self.source = LoaderSource.of(loader)
        self.store = Path(store)
        step = step_of(step)
        self.name = name
        self._plan = SweepPlan(
            source=self.source,
            space=_checked_space(space, step),
            strategy_name=strategy,
            strategy=strategy_named(strategy),
            store=self.store,
            name=name or "",
            measure_seconds=machine.parse_seconds(measure_seconds, "measure_seconds"),
            budget_seconds=None if budget_seconds is None else machine.parse_seconds(budget_seconds, "budget_seconds"),
            memory_limit_bytes=None if memory_limit is None else machine.parse_bytes(memory_limit),
            step=step,
            samples_per_batch=_checked_count(samples_per_batch),
            seed=seed,
        )
        self._server_factory = server_factory or _trial_server
        self._control = Control()
        self._engine: Engine | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if on_event is not None:
            self.on_event.append(on_event)

    @property
    def on_event(self) -> list[Listener]:
        """Listeners, called in the sweep's thread."""
        return self._control.listeners

    @property
    def state(self) -> str:
        """ "idle", "running", "paused", "stopping", "done" or "failed"."""
        return self._control.state

    @property
    def error(self) -> BaseException | None:
        """What ended a failed sweep."""
        return self._error

    @property
    def results(self) -> Results | None:
        """What is known so far, at any time; None until the probe has ended."""
        return self._engine.results if self._engine else None

    def run(self, resume: bool = False, progress: bool = True) -> Results:
        """Runs the sweep and waits for it.

        An interrupt (Ctrl-C, a notebook's Stop) ends it within a second and gives what was found until then; its
        `ending` is "interrupted".

        Args:
            resume: Go on with the sweep of this name, or the latest of this loader, without repeating finished runs.
            progress: Show a progress line on stderr, or as a widget in a notebook.

        Raises:
            ProbeError: If the loader fails with 0 workers; no sweep was started then.
            StoreError: If the store cannot be used, or, when resuming, does not match.
            KeyboardInterrupt: If the interrupt came before there was anything to keep.
        """
        line = ProgressLine() if progress else None
        if line:
            self.on_event.append(line)
        try:
            self.start(resume)
            return self._wait_showing(line)
        finally:
            if line:
                line.close()
                if line in self.on_event:
                    self.on_event.remove(line)

    def start(self, resume: bool = False) -> Sweep:
        """Begins in a background thread; a sweep of this name that this process still runs is stopped first.

        Raises:
            SettingsError: If this sweep is under way already.
        """
        if self.state not in ("idle", "done", "failed"):
            raise SettingsError(
                f"this sweep is {self.state} already; wait for it, or stop it before starting it again."
            )
        notes = self._replace_others()
        plan = self._plan if self.name or resume else _named_by_time(self._plan)
        self._error = None
        self._engine = Engine(plan, self._control, self._server_factory, notes)
        self._control.begin()
        with _registry_lock:
            _running[self._key] = self
        self._thread = threading.Thread(target=self._work, args=(resume,), name="workbench-sweep", daemon=True)
        self._thread.start()
        return self

    def pause(self) -> None:
        """Frees the machine within a second; the trial that ran is started anew after `resume`."""
        self._control.pause()

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._control.resume()

    def stop(self) -> None:
        """Ends the sweep within a second, keeping every finished run; returns at once, `wait` waits for the end."""
        self._control.stop("stopped")

    def wait(self, timeout_seconds: float | None = None) -> Results | None:
        """Waits for the end and gives the results; an interrupt stops the sweep and gives what was found.

        Args:
            timeout_seconds: Wait at most that long and give what is known then; None waits for the end.

        Raises:
            WorkbenchError: What ended a failed sweep.
        """
        return self._wait_showing(None, timeout_seconds)

    def __await__(self) -> Generator[Any, None, Results | None]:
        """`await sweep` waits without blocking the notebook's kernel; cancelling it stops the sweep."""
        return self._wait_politely().__await__()

    def __repr__(self) -> str:
        return f"Sweep of {self.source.name}: {self.state}, store {str(self.store)!r}"

    @property
    def _key(self) -> str:
        return f"{self.store.absolute()}|{self.name or self.source.name}"

    def _work(self, resume: bool) -> None:
        engine = self._engine
        assert engine is not None
        try:
            engine.work(resume)
        except BaseException as error:  # kept for whoever waits: a thread has no caller to raise it to
            self._error = error
        finally:
            with _registry_lock:
                if _running.get(self._key) is self:
                    del _running[self._key]
            if self._error is not None:
                self._control.emit("error", error=self._error)
            self._control.finish(failed=self._error is not None)

    def _replace_others(self) -> list[str]:
        with _registry_lock:
            old = _running.get(self._key)
            others = [sweep for key, sweep in _running.items() if key != self._key]
        if old is not None and old is not self:
            old.stop()
            if not old._ended(SECONDS_TO_END):
                raise WorkbenchError(
                    f"a sweep of {self.source.name} that was started before does not end; restart the kernel, "
                    "or give this one another name."
                )
        return [
            f"Another sweep of this process ({other.source.name}) was measuring at the same time: both are disturbed."
            for other in others
        ]

    def _wait_showing(self, line: ProgressLine | None, timeout_seconds: float | None = None) -> Results | None:
        give_up = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            while not self._ended(LOOK_SECONDS):
                if line:
                    line.draw()
                if give_up is not None and time.monotonic() >= give_up:
                    return self.results
        except KeyboardInterrupt:
            self._control.stop("interrupted")
            self._ended(SECONDS_TO_END)
            if self.results is None:
                raise
        return self._outcome()

    async def _wait_politely(self) -> Results | None:
        try:
            while not self._ended(0):
                await asyncio.sleep(LOOK_SECONDS)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._control.stop("interrupted")
            raise
        return self._outcome()

    def _ended(self, seconds: float) -> bool:
        self._control.cancel_if_asked()
        return self._control.wait_for_end(seconds)

    def _outcome(self) -> Results | None:
        if self._error is not None:
            raise self._error
        return self.results


def _trial_server(source: Any, **options: Any) -> Any:
    from workbench.measure.trial import TrialServer

    return TrialServer(source, **options)


def _named_by_time(plan: SweepPlan) -> SweepPlan:
    """Without a name, the loader's and the time, for instance "train.py:make_loader-20260131-142501"."""
    loader = plan.source.name.rpartition("/")[2].removeprefix("sample:")
    return dataclasses.replace(plan, name=f"{loader}-{time.strftime('%Y%m%d-%H%M%S')}")


def _checked_space(space: SearchSpace | None, step: Callable[..., Any] | None) -> SearchSpace | None:
    if isinstance(space, SearchSpace):
        space.refuse_for(step)
    if space is None or isinstance(space, SearchSpace):
        return space
    raise SettingsError(f"space={space!r} is no SearchSpace; write SearchSpace(num_workers=[0, 1, 2], ...).")


def _checked_count(samples: int | None) -> int | None:
    if samples is None or (isinstance(samples, int) and not isinstance(samples, bool) and samples > 0):
        return samples
    raise SettingsError(f"samples_per_batch={samples!r} must be a whole number above 0, or None to let the probe tell.")
