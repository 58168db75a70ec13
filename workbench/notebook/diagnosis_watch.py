"""From the events of a running diagnosis to what its panel shows: a frozen record, and a function that takes one in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from workbench.measure.phases import PROBE_WORDS

LAPS = 2  # of each kind in a start, see `workbench.measure.diagnosing`
KINDS = ("loader", "step", "combined")
LAST_OF_THE_PROBE = ("epoch length", "reference")
SECONDS_TO_BEGIN, SECONDS_A_START = 4.5, 0.8  # beside timing: importing torch and probing; queue and shutdown
PART_WORDS = {
    "loader": "timing the loader alone",
    "moved": "timing the loader and the copy to the device",
    "step": "timing the step alone",
    "combined": "timing both, as in training",
}
STATE_WORDS = {
    "idle": "Ready.",
    "running": "Running",
    "stopping": "Stopping …",
    "failed": "Ended with an error.",
}
STOPPED = "Stopped. What was measured is kept."
STOPPED_EARLY = "Stopped before anything was measured."


@dataclass(frozen=True)
class Examined:
    """What is known of a diagnosis from its events.

    Attributes:
        state: "idle", "running", "stopping", "done" or "failed".
        phase: What it does, beside timing.
        probed: Whether the probe has ended.
        begun: Starts that have begun.
        part: What is being timed, "" between two such stretches.
        most_starts: Starts after which it ends at the latest.
        starts: Those that have ended.
        laps: (kind, samples, seconds) of every stretch that was timed.
        found: The diagnosis as it stands; None before the second start has ended.
        trace: Whether it records a trace and measures nothing.
        stopped: Whether it was asked to end.
        error: What ended it, or None.
    """

    state: str = "idle"
    phase: str = ""
    probed: bool = False
    begun: int = 0
    part: str = ""
    most_starts: int = 1
    starts: int = 0
    laps: tuple[tuple[str, int, float], ...] = ()
    found: Any = None
    trace: bool = False
    stopped: bool = False
    error: BaseException | None = None

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state in ("running", "stopping")

    @property
    def rates(self) -> dict[str, float]:
        """Samples per second by kind, over the stretches so far."""
        kinds = dict.fromkeys(kind for kind, _, _ in self.laps)
        sums = {k: [(samples, seconds) for kind, samples, seconds in self.laps if kind == k] for k in kinds}
        return {kind: sum(n for n, _ in pairs) / sum(s for _, s in pairs) for kind, pairs in sums.items()}

    @property
    def laps_in_all(self) -> int:
        """Stretches that it times at most."""
        kinds = {*KINDS, *(kind for kind, _, _ in self.laps)}
        return LAPS * len(kinds) * self.most_starts


def taken_in(seen: Examined, event: dict[str, Any]) -> Examined:
    """`seen` after one event; kinds that it does not know change nothing."""
    kind = event["kind"]
    if kind == "state":
        stopped = seen.stopped or event["state"] == "stopping"
        return dataclasses.replace(seen, state=event["state"], phase="", part="", stopped=stopped)
    if kind == "phase":
        return _in_phase(seen, str(event.get("phase", "")), str(event.get("part") or ""))
    if kind == "window" and seen.part:
        window = event["window"]
        return dataclasses.replace(seen, laps=(*seen.laps, (seen.part, window["samples"], window["seconds"])))
    if kind == "start_finished":
        return dataclasses.replace(seen, starts=event["starts"], found=event["found"] or seen.found, part="")
    return dataclasses.replace(seen, error=event["error"]) if kind == "error" else seen


def _in_phase(seen: Examined, phase: str, part: str) -> Examined:
    """The first batch is the first that is told of the probe, and of each start after it."""
    begins = phase == "first batch"
    probed = seen.probed or (begins and seen.phase in LAST_OF_THE_PROBE)
    begun = seen.begun + (1 if begins and probed else 0)
    return dataclasses.replace(seen, phase=phase, part=part, probed=probed, begun=begun)


def seconds_needed(starts: int, seconds: float) -> float:
    """About how long so many starts take, with stretches of this length; a slow start of the loader comes on top."""
    return SECONDS_TO_BEGIN + starts * (LAPS * len(KINDS) * seconds + SECONDS_A_START)


def headline(seen: Examined) -> str:
    """What it is doing, or how it ended, in a sentence."""
    if seen.state == "done":
        return _ending(seen)
    if seen.state != "running":
        return STATE_WORDS[seen.state]
    if not seen.probed and seen.phase in PROBE_WORDS:
        return f"Running: {PROBE_WORDS[seen.phase]}"
    if seen.trace:
        return "Recording a trace of single steps"
    doing = PART_WORDS.get(seen.part, "starting the loader and filling its queue")
    return f"Start {max(seen.starts + 1, seen.begun)} of at most {seen.most_starts}: {doing}"


def _ending(seen: Examined) -> str:
    if seen.stopped:
        return STOPPED if seen.laps or seen.found is not None else STOPPED_EARLY
    if seen.trace:
        return "The trace is recorded."
    settled = "settled" if seen.starts < seen.most_starts else "ended"
    return f"Finished: {settled} after {seen.starts} starts."
