"""The pump: the one thread that takes the events of what runs to a panel's widgets, four times a second."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from workbench.notebook.watch import Watched, taken_in

SECONDS_BETWEEN = 0.25
SECONDS_BETWEEN_TICKS = 1.0


class Pump:
    """Collects events from a working thread and hands the record of them on, from a thread of its own.

    Args:
        show: Called with the record whenever events came in; the last call sees the end of what runs.
        failed: Called with an error that `show` raises, which is then called again with the next events.
        take_in: Gives the record after one event; records have an attribute `active`.
        nothing: The record before any event.
        tick: Called with the record every second in which no event came, for clocks.
    """

    def __init__(
        self,
        show: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        take_in: Callable[[Any, dict[str, Any]], Any] = taken_in,
        nothing: Any = None,
        tick: Callable[[Any], None] = lambda record: None,
    ) -> None:
        self.watched = Watched() if nothing is None else nothing
        self._show, self._failed, self._take_in, self._tick = show, failed, take_in, tick
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, event: dict[str, Any]) -> None:
        """Takes one event; for the working thread, which it does not hold up."""
        self._events.put(event)

    def begin(self, watched: Any) -> None:
        """Starts anew from `watched`; returns at once."""
        self.watched = watched
        self._thread = threading.Thread(target=self._work, name="workbench-panel", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Lets the thread end without showing anything more."""
        self._thread = None

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits until the end of what runs has been shown; says whether it has."""
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def drain(self) -> bool:
        """Takes in what has come so far; says whether that was anything."""
        came = False
        while not self._events.empty():
            self.watched = self._take_in(self.watched, self._events.get())
            came = True
        return came

    def _work(self) -> None:
        mine = threading.current_thread()
        next_tick = 0.0
        while self._thread is mine:
            if self.drain() or not next_tick:
                next_tick = time.monotonic() + SECONDS_BETWEEN_TICKS
                self._try(self._show)
            elif time.monotonic() >= next_tick:
                next_tick = time.monotonic() + SECONDS_BETWEEN_TICKS
                self._try(self._tick)
            if not self.watched.active:
                return
            time.sleep(SECONDS_BETWEEN)

    def _try(self, show: Callable[[Any], None]) -> None:
        try:
            show(self.watched)
        except Exception as error:  # the thread must go on: the sweep does
            self._failed(error)
