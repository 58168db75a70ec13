"""Control: what other threads ask of a running sweep, and what it makes known to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Event = dict[str, Any]
Listener = Callable[[Event], None]

STATES = ("idle", "running", "paused", "stopping", "done", "failed")


class Control:
    """State of one sweep, safe to read and to change from any thread.

    A pause and a stop end the trial that runs; it is not counted, and after a pause it is started anew.

    Attributes:
        listeners: Called in the sweep's thread with every event; they must be quick and only pass it on.
        ending: Why the sweep was asked to end.
        cancelled: Whether the trial that runs, or ran last, was cancelled.
    """

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.ending = ""
        self.cancelled = False
        self._state = "idle"
        self._changed = threading.Condition()
        self._server: Any = None

    @property
    def state(self) -> str:
        """One of `STATES`."""
        return self._state

    def emit(self, kind: str, **values: Any) -> None:
        """Tells every listener; one that raises is told no more, so that it cannot end the sweep."""
        for listener in list(self.listeners):
            try:
                listener({"kind": kind, **values})
            except Exception as error:  # a listener is the caller's code, which may fail in any way
                self.listeners.remove(listener)
                if kind != "listener_failed":
                    self.emit("listener_failed", error=repr(error))

    def begin(self) -> None:
        """From idle to running."""
        self.ending = ""
        self._enter("running")

    def pause(self) -> bool:
        """Asks for a pause; says whether the sweep was running."""
        return self._ask("paused", only_from=("running",))

    def resume(self) -> bool:
        """Ends a pause; says whether there was one."""
        return self._ask("running", only_from=("paused",))

    def stop(self, ending: str) -> bool:
        """Asks for the end; says whether there was anything to end."""
        return self._ask("stopping", only_from=("running", "paused"), ending=ending)

    def finish(self, failed: bool = False) -> None:
        """To done or failed."""
        self._enter("failed" if failed else "done")

    def may_go_on(self) -> bool:
        """Waits while the sweep is paused; False once it is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != "paused")
            return self._state == "running"

    @contextmanager
    def cancelling(self, server: Any) -> Iterator[None]:
        """While it lasts, a pause or a stop cancels what `server` is doing; `cancelled` then says so."""
        with self._changed:
            self._server, self.cancelled = server, False
        try:
            self.cancel_if_asked()
            yield
        finally:
            with self._changed:
                self._server = None

    def cancel_if_asked(self) -> None:
        """Cancels what runs, if it should end; again, for a request that came while a trial was about to begin."""
        with self._changed:
            if self._server is None or self._state not in ("paused", "stopping"):
                return
            server, self.cancelled = self._server, True
        server.cancel()

    def wait_for_end(self, seconds: float) -> bool:
        """Waits at most that long; says whether the sweep has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state in ("idle", "done", "failed"), seconds)

    def _ask(self, state: str, only_from: tuple[str, ...], ending: str = "") -> bool:
        with self._changed:
            if self._state not in only_from:
                return False
            self._state, self.ending = state, ending
            self._changed.notify_all()
        self.emit("state", state=state)
        self.cancel_if_asked()
        return True

    def _enter(self, state: str) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()
        self.emit("state", state=state)
