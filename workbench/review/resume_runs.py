"""Processes of a resume test: start one, watch it, kill it with SIGKILL at a cut, and read what it left."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
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


class JobServer:
    """The process that imports what all jobs need and forks one for each; a context manager."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workbench.review.resume_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )

    def fork(self, folder: Path) -> None:
        """Have the job done that lies in ``folder``; BrokenPipeError if the process is gone."""
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()

    def stderr(self) -> bytes:
        """What the process itself wrote to stderr."""
        return os.pread(self._errors.fileno(), 1 << 20, 0)

    def __enter__(self) -> JobServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._errors.close()


class Runner:
    """Runs jobs one after the other, each in a process of its own.

    Args:
        folder: Where the shipped loader lies, as ``loader.pickle``; every job gets a folder in it.
        timeout_seconds: Longest silence of a job.
        server: Forks the processes.
    """

    def __init__(self, folder: Path, timeout_seconds: float, server: JobServer) -> None:
        self.folder, self.timeout_seconds, self._server = folder, timeout_seconds, server
        self.jobs = 0

    def run(self, job: Job) -> Run:
        """Do one job; one that waits is killed with SIGKILL, workers included, once its last state is saved."""
        self.jobs += 1
        folder = self.folder / str(self.jobs)
        folder.mkdir()
        (folder / "job.pickle").write_bytes(pickle.dumps(job))
        os.mkfifo(folder / "events")
        lines: queue.Queue[str | None] = queue.Queue()
        pump = threading.Thread(target=_pump, args=(folder / "events", lines), daemon=True)
        pump.start()
        events: list[dict[str, Any]] = []
        try:
            self._server.fork(folder)
            timed_out = _watch(job, lines, events, self.timeout_seconds)
        except BrokenPipeError:
            timed_out = False
        finally:
            _kill(events)
            _let_go(folder / "events")
            pump.join(timeout=5)
        own = folder / "stderr"
        stderr = (own.read_bytes() if own.exists() else self._server.stderr()).decode(errors="replace")[-2_000:]
        return Run(folder, tuple(_batches(folder / "batches.pickle")), tuple(events), timed_out, stderr)


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


def _kill(events: list[dict[str, Any]]) -> None:
    """SIGKILL for the process and all its workers, as an outage or a preemption ends them."""
    started = next((event for event in events if event["event"] == "started"), None)
    if started is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started["pid"], signal.SIGKILL)


def _let_go(fifo: Path) -> None:
    """Give a reader that still waits for a writer its end of file."""
    with contextlib.suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def _pump(fifo: Path, lines: queue.Queue[str | None]) -> None:
    with open(fifo, encoding="utf-8", errors="replace") as events:
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
