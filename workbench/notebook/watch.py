"""From a sweep's events to what the panel shows of it: a frozen record and a pure function that takes one event in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.measure.phases import PROBE_WORDS
from workbench.notebook import formatting

RATES_KEPT = 8  # windows of the running trial that its rate is told from
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
        phase: What it does before the first trial; empty from then on.
        probed: Whether the probe has ended.
        batch_seconds: What a batch took in the probe, or None.
        planned: Settings of its space.
        runs_done: Finished starts.
        runs_left: About how many are to come; None until it is known.
        run_seconds: Wall seconds of each start that ended.
        running: The settings that are being measured.
        rates: Samples per second of its last windows.
        memory_bytes: Its memory at the last reading.
        fresh: Counts finished starts and everything else that changes what the charts show.
        error: What ended the sweep, or None.
    """

    state: str = "idle"
    phase: str = ""
    probed: bool = False
    batch_seconds: float | None = None
    planned: int | None = None
    runs_done: int = 0
    runs_left: int | None = None
    run_seconds: tuple[float, ...] = ()
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
        return watched if watched.probed else dataclasses.replace(watched, phase=str(event.get("phase", "")))
    if kind == "probe":
        return dataclasses.replace(watched, probed=True, phase="", batch_seconds=event["probe"].batch_seconds)
    if kind == "plan":
        return dataclasses.replace(
            watched,
            planned=len(event["settings"]),
            probed=True,
            phase="",
            runs_done=event.get("runs_done", watched.runs_done),
            runs_left=event.get("runs_left", watched.runs_left),
            fresh=watched.fresh + 1,
        )
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
            run_seconds=watched.run_seconds + ((event["seconds"],) if event.get("seconds") is not None else ()),
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
        return STATE_WORDS["running"] + ": " + PROBE_WORDS.get(watched.phase, watched.phase)
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


def time_text(
    watched: Watched, elapsed_seconds: float, start_seconds: float, budget_seconds: float | None = None
) -> str:
    """How long the sweep has run and about how long it still will: "12 s, about 40 s left"; empty when none runs.

    Args:
        watched: What is known of it.
        elapsed_seconds: Since it began.
        start_seconds: What one start takes.
        budget_seconds: After which it ends in any case, or None.
    """
    if watched.state != "running":
        return ""
    told = formatting.clock(elapsed_seconds)
    if not watched.runs_left:
        return told
    left = watched.runs_left * start_seconds
    if budget_seconds is not None:
        left = max(0.0, min(left, budget_seconds - elapsed_seconds))
    return f"{told}, about {formatting.about(left)} left"


def _window_rate(window: dict[str, Any]) -> float:
    return window["samples"] / window["seconds"]
