"""A job on a trial server of its own, in a thread: told about step by step, and ended within a second when asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from workbench import machine
from workbench.errors import WorkbenchError
from workbench.measure.trial import TrialServer
from workbench.tuning.control import Control, Event, Listener

SECONDS_BETWEEN_CANCELS = 0.1  # a request that comes just before a trial begins is made again

Job = Callable[[Any, Control], None]


class Errand:
    """One job of one loader.

    Args:
        source: The loader, as a `LoaderSource`.
        step: What to do with a batch, or None.
        job: Called in the thread with the server and the control; it emits what it finds through the latter.
        samples_per_batch: As for `TrialServer`.
        server_factory: Stands in for `TrialServer`.

    Attributes:
        error: What ended it, unless that was `stop`.
    """

    def __init__(
        self,
        source: Any,
        step: Any,
        job: Job,
        *,
        samples_per_batch: int | None = None,
        server_factory: Callable[..., Any] | None = None,
    ) -> None:
        self._source, self._step, self._job = source, step, job
        self._samples = samples_per_batch
        self._factory = server_factory or _trial_server
        self._control = Control()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def on_event(self) -> list[Listener]:
        """Listeners, called in the job's thread."""
        return self._control.listeners

    @property
    def state(self) -> str:
        """ "idle", "running", "stopping", "done" or "failed"."""
        return self._control.state

    @property
    def stopped(self) -> bool:
        """Whether it ends, or has ended, because it was asked to."""
        return self._control.ending == "stopped"

    def start(self) -> None:
        """Begins; returns at once."""
        self._control.begin()
        self._thread = threading.Thread(target=self._work, name="workbench-errand", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the job; returns at once."""
        if self._control.stop("stopped"):
            threading.Thread(target=self._insist, name="workbench-errand-stop", daemon=True).start()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits for the end; says whether it has come. An interrupt stops the job."""
        try:
            if self._thread is not None:
                self._thread.join(timeout_seconds)
        except KeyboardInterrupt:
            self.stop()
            raise
        return self._thread is None or not self._thread.is_alive()

    def _insist(self) -> None:
        while not self._control.wait_for_end(SECONDS_BETWEEN_CANCELS):
            self._control.cancel_if_asked()

    def _work(self) -> None:
        control = self._control
        try:
            control.emit("phase", phase="starting")
            with self._factory(
                self._source, step=self._step, samples_per_batch=self._samples, on_event=self._pass_on
            ) as server:
                with control.cancelling(server):
                    control.emit("phase", phase="probing")
                    server.probe()
                    if control.may_go_on():
                        self._job(server, control)
        except WorkbenchError as error:
            self.error = None if control.state == "stopping" else error  # a trial that was cancelled says so
        except BaseException as error:  # kept for whoever waits: a thread has no caller to raise it to
            self.error = error
        finally:
            if self.error is not None:
                control.emit("error", error=self.error)
            control.finish(failed=self.error is not None)

    def _pass_on(self, event: Event) -> None:
        self._control.emit(**event)


def _trial_server(source: Any, **options: Any) -> TrialServer:
    """One that starts interpreters of their own where there is an accelerator, which a fork cannot use."""
    return TrialServer(source, fresh=machine.accelerator().kind is not None, **options)
