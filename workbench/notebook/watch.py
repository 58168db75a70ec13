"""From a sweep's events to what the panel shows of it: a frozen record and a pure function that takes one event in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.notebook import formatting

RATES_KEPT = 8  # windows of the running trial that its rate is told from
PHASE_WORDS = {
    "starting": "starting the process that runs trials",
    "probing": "looking at the first batches with 0 workers",
}
STATE_WORDS = {
    "idle": "Ready.",
    "running": "Running",
    "paused": "Paused: the machine is free. Resume goes on with the next trial.",
    "stopping": "Stopping …",
    "done": "Finished.",
    "failed": "Ended with an error.",
}
ENDING_WORDS = {
    "stopped": "Stopped. What was measured is kept.",
    "interrupted": "Interrupted. What was measured is kept.",
    "budget": "The time budget ended. What was measured is kept.",
    "failed": "Ended with an error. What was measured is kept.",
}


@dataclass(frozen=True)
class Watched:
    """What is known of a sweep from its events.

    Attributes:
        state: The sweep's state.
        phase: What it does before the first trial, or inside one.
        planned: Settings of its space.
        runs_done: Finished starts.
        runs_left: About how many are to come; None until it is known.
        running: The settings that are being measured.
        rates: Samples per second of its last windows.
        memory_bytes: Its memory at the last reading.
        fresh: Counts finished starts and everything else that changes what the charts show.
        error: What ended the sweep, or None.
    """

    state: str = "idle"
    phase: str = ""
    planned: int | None = None
    runs_done: int = 0
    runs_left: int | None = None
    running: LoaderSettings | None = None
    rates: tuple[float, ...] = ()
    memory_bytes: int | None = None
    fresh: int = 0
    error: BaseException | None = None

    @property
    def active(self) -> bool:
        """Whether the sweep has begun and not ended."""
        return self.state in ("running", "paused", "stopping")

    @property
    def rate(self) -> float | None:
        """Samples per second of the running trial over its last windows, or None."""
        return sum(self.rates) / len(self.rates) if self.rates else None


def taken_in(watched: Watched, event: dict[str, Any]) -> Watched:
    """`watched` after one event of the sweep; kinds that it does not know change nothing."""
    kind = event["kind"]
    if kind == "state":
        ended = event["state"] in ("done", "failed", "paused")
        return dataclasses.replace(
            watched,
            state=event["state"],
            phase="",
            running=None if ended else watched.running,
            rates=() if ended else watched.rates,
            fresh=watched.fresh + 1,
        )
    if kind == "phase":
        return dataclasses.replace(watched, phase=str(event.get("phase", "")))
    if kind == "plan":
        return dataclasses.replace(watched, planned=len(event["settings"]), phase="", fresh=watched.fresh + 1)
    if kind == "run_started":
        return dataclasses.replace(watched, running=event["settings"], rates=(), memory_bytes=None, phase="")
    if kind == "window":
        return dataclasses.replace(watched, rates=(*watched.rates, _window_rate(event["window"]))[-RATES_KEPT:])
    if kind == "memory":
        return dataclasses.replace(watched, memory_bytes=event.get("cost_bytes") or event.get("rss_bytes"))
    if kind == "run_finished":
        return dataclasses.replace(
            watched,
            runs_done=event["runs_done"],
            runs_left=event["runs_left"],
            running=None,
            rates=(),
            fresh=watched.fresh + 1,
        )
    return dataclasses.replace(watched, error=event["error"]) if kind == "error" else watched


def headline(watched: Watched, ending: str = "") -> str:
    """What the sweep is doing, or how it ended, in a sentence that changes with each trial, not with each window."""
    if watched.state == "done":
        return ENDING_WORDS.get(ending, STATE_WORDS["done"])
    if watched.state != "running":
        return STATE_WORDS[watched.state]
    if watched.running is not None:
        return f"Measuring {watched.running.describe()}"
    if watched.phase:
        return STATE_WORDS["running"] + ": " + PHASE_WORDS.get(watched.phase, watched.phase)
    return STATE_WORDS["running"]


def running_numbers(watched: Watched) -> str:
    """The running trial's rate and memory so far; empty between trials."""
    told = [formatting.rate(watched.rate)] if watched.rate is not None else []
    told += [format_bytes(watched.memory_bytes)] if watched.memory_bytes is not None and watched.running else []
    return " · ".join(told)


def progress_text(watched: Watched) -> str:
    """How far the sweep is: "7 of about 24 starts, 17 settings"."""
    if not watched.runs_done and watched.planned is None:
        return ""
    total = watched.runs_done + (watched.runs_left or 0)
    done = (
        f"{watched.runs_done} of about {total} starts"
        if watched.runs_left
        else formatting.count(watched.runs_done, "start")
    )
    return done + (f", {formatting.count(watched.planned, 'settings', 'settings')}" if watched.planned else "")


def _window_rate(window: dict[str, Any]) -> float:
    return window["samples"] / window["seconds"]
