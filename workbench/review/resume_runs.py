"""Processes of a resume test: start one, watch it, kill it with SIGKILL at a cut, read what it left."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.review.resume_differences import Columns
from workbench.review.resume_process import Job


@dataclass(frozen=True)
class Run:
    """What one process of a resume test did.

    Attributes:
        folder: Where its states lie.
        batches: Digests of the batches that it noted.
        events: What it said.
        timed_out: It was killed because it said nothing for too long.
        stderr: The end of what it wrote to stderr.
    """

    folder: Path
    batches: tuple[Columns, ...]
    events: tuple[dict[str, Any], ...]
    timed_out: bool = False
    stderr: str = field(default="", repr=False)

    def event(self, kind: str) -> dict[str, Any] | None:
        """The first event of a kind, or None."""
        return next((event for event in self.events if event["event"] == kind), None)

    def state(self, after: int) -> Path | None:
        """The state that was saved after so many batches, or None."""
        path = self.folder / f"state-{after}.pickle"
        return path if path.exists() else None

    @property
    def trouble(self) -> str | None:
        """Why it did not end as it should, in words; None if it did."""
        if self.timed_out:
            return "nothing came for too long; it was stopped"
        failed = self.event("failed")
        if failed:
            return f"{failed['error']}: {_first_sentence(failed['text'])}"
        if self.event("stateless"):
            return f"{self.event('stateless')['type']} has no state_dict()"
        if not self.event("ended") and not self.event("saved") and not self.event("cost"):
            return f"the process ended early: {self.stderr.strip()[-300:] or 'no message'}"
        return None


def run(job: Job, folder: Path, timeout_seconds: float) -> Run:
    """Run one job in a process of its own; a job that waits is killed with SIGKILL once its last state is saved.

    Args:
        job: What it does; the loader lies shipped in ``folder.parent``.
        folder: A new folder for what it leaves.
        timeout_seconds: Longest silence.
    """
    folder.mkdir()
    with open(folder / "job.pickle", "wb") as file:
        pickle.dump(job, file)
    reading, writing = os.pipe()
    with open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench.review.resume_process", str(folder), str(writing)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    lines: queue.Queue[str | None] = queue.Queue()
    pump = threading.Thread(target=_pump, args=(reading, lines), daemon=True)
    pump.start()
    events: list[dict[str, Any]] = []
    timed_out = False
    try:
        timed_out = _watch(job, lines, events, timeout_seconds)
    finally:
        _kill(process)
    pump.join(timeout=5)
    return Run(
        folder,
        tuple(_batches(folder / "batches.pickle")),
        tuple(events),
        timed_out,
        (folder / "stderr").read_text(errors="replace")[-2_000:],
    )


def _watch(job: Job, lines: queue.Queue[str | None], events: list[dict[str, Any]], timeout_seconds: float) -> bool:
    """Collect events until the job is through (False) or silent for too long (True)."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return True
        if line is None:
            return False
        events.append(json.loads(line))
        deadline = time.monotonic() + timeout_seconds
        if events[-1]["event"] in ("ended", "failed", "stateless", "cost"):
            return False
        if job.wait and events[-1].get("after") == job.save_after[-1]:
            return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the process and all its workers, as an outage or a preemption ends them."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _pump(reading: int, lines: queue.Queue[str | None]) -> None:
    with open(reading, encoding="utf-8", errors="replace") as events:
        for line in events:
            if line.endswith("\n"):  # the kill may cut off the last one
                lines.put(line)
    lines.put(None)


def _batches(path: Path) -> list[Columns]:
    batches: list[Columns] = []
    if path.exists():
        with open(path, "rb") as file:
            while True:
                try:
                    batches.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):  # the last one may be cut off by the kill
                    break
    return batches


def _first_sentence(text: str) -> str:
    """The message itself, out of the traceback that a worker's exception comes with."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:400]
