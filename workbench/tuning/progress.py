"""One updating line that shows how far a sweep is, in a terminal or a notebook."""

from __future__ import annotations

import queue
import sys
import time
from typing import Any

from workbench.loaders.settings import workers
from workbench.measure.phases import PROBE_WORDS
from workbench.measure.result import TrialResult
from workbench.tuning.control import Event

SECONDS_BETWEEN_DRAWINGS = 1.0  # an hour's sweep draws some 100 kB in a terminal, and one widget in a notebook
SECONDS_BETWEEN_LINES_IN_A_FILE = 10.0  # where a line cannot be rewritten, each drawing adds one
BEFORE_RUNS = "{desc} [{elapsed}]"
OF_RUNS = "{l_bar}{bar}| {n_fmt}/{total_fmt} runs [{elapsed}<{remaining}{postfix}]"


class ProgressLine:
    """A progress bar fed with a sweep's events; `__call__` is for the sweep's thread, `draw` for the caller's."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._bar: Any = None
        self._fastest: TrialResult | None = None
        self._next_drawing = 0.0
        self._begun = self._probed = False

    def __call__(self, event: Event) -> None:
        if event["kind"] in ("phase", "probe", "run_started", "run_finished", "state"):
            self._begun |= event["kind"] != "state"
            self._events.put(event)

    def draw(self) -> None:
        """Shows what has come in since the last call; nothing before the sweep got past what it was asked for."""
        if not self._begun:
            return
        if self._bar is None:
            self._bar = _new_bar()
        while not self._events.empty():
            self._take(self._events.get())
        if time.monotonic() >= self._next_drawing:
            self._bar.refresh()
            self._next_drawing = time.monotonic() + seconds_between_drawings()

    def close(self) -> None:
        """Leaves the last state standing, also of a sweep that ended before anyone looked."""
        if self._begun:
            self.draw()
            self._bar.set_description_str("", refresh=False)
            self._bar.close()

    def _take(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "phase" and not self._probed and event.get("phase") in PROBE_WORDS:
            self._bar.bar_format = BEFORE_RUNS
            self._bar.set_description_str(PROBE_WORDS[event["phase"]], refresh=False)
        elif kind == "probe":
            self._probed, self._bar.bar_format = True, OF_RUNS
            self._bar.set_description_str("", refresh=False)
        elif kind == "state" and event["state"] in ("paused", "stopping"):
            self._bar.set_description_str(event["state"], refresh=False)
        elif kind == "run_started":
            self._bar.set_description_str(event["settings"].describe(), refresh=False)
        elif kind == "run_finished":
            _set_place(self._bar, event["runs_done"], event["runs_done"] + event["runs_left"])
            self._show_fastest(event["trial"])

    def _show_fastest(self, trial: TrialResult) -> None:
        rate, best = trial.samples_per_second, self._fastest.samples_per_second if self._fastest else None
        if trial.status != "ok" or rate is None:
            return
        if best is None or rate > best or (self._fastest and self._fastest.settings == trial.settings):
            self._fastest = trial
            self._bar.set_postfix_str(
                f"fastest {rate:,.0f} samples/s with {workers(trial.settings.num_workers)}", refresh=False
            )


def _new_bar() -> Any:
    from tqdm.auto import tqdm

    return tqdm(
        total=None,
        leave=True,
        dynamic_ncols=True,
        mininterval=seconds_between_drawings(),
        bar_format=OF_RUNS,
    )


def _set_place(bar: Any, done: int, total: int) -> None:
    if hasattr(bar, "container"):  # a notebook's bar takes a new total only in a reset, which also restarts its clock
        began = bar.start_t
        bar.reset(total)
        bar.start_t = began
    bar.total, bar.n = total, done


def seconds_between_drawings() -> float:
    """How long a line stands before it is drawn again: longer where it cannot be rewritten, as in a file."""
    rewritable = sys.stderr.isatty() or "ipykernel" in sys.modules
    return SECONDS_BETWEEN_DRAWINGS if rewritable else SECONDS_BETWEEN_LINES_IN_A_FILE
