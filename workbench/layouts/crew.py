"""The processes that write shards: fresh interpreters, so that a notebook's kernel is neither forked nor imported."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from workbench.errors import ConversionError, LayoutError
from workbench.layouts.pieces import Done, Interrupted, Job, Piece, write_piece

REPORT_SECONDS = 0.2
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from workbench.layouts.crew import member; member(sys.argv[2])"
)
_KINDS = {kind.__name__: kind for kind in (Interrupted, ConversionError, LayoutError)}


def run_pieces(
    job: Job,
    pieces: Iterable[Piece],
    processes: int,
    notes: Path,
    on_done: Callable[[Done], None],
    on_samples: Callable[[int], None],
) -> None:
    """Write every piece; ``on_done`` and ``on_samples`` (samples read since the last call) run in this thread.

    With one process the work is done here. After a failure the pieces before the failed one still finish, so that the
    first bad sample is the one that is named.

    Raises:
        ConversionError, LayoutError: The failure of the first piece that failed.
    """
    if processes <= 1:
        for piece in pieces:
            ticks = _Ticks(on_samples)
            done = write_piece(job, piece, ticks.tick)
            ticks.flush()
            on_done(done)
        return
    path = notes / "job.pickle"
    _write_private(path, pickled(job))
    crew = _Crew(path, processes)
    try:
        crew.run(iter(pieces), on_done, on_samples)
    finally:
        crew.close()
        path.unlink(missing_ok=True)


def _write_private(path: Path, content: bytes) -> None:
    """For this user's eyes only: a remote source carries its credentials to the processes that read it."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def pickled(job: Job) -> bytes:
    """The job for another process.

    Raises:
        ConversionError: Something in it cannot be sent.
    """
    try:
        return cloudpickle.dumps(job)
    except Exception as error:
        raise ConversionError(
            f"The source or the transform cannot be sent to other processes ({type(error).__name__}: {error}): "
            "pass processes=1, or open files and connections inside the transform."
        ) from error


class _Crew:
    def __init__(self, job: Path, processes: int) -> None:
        self._job, self._limit = job, processes
        self._events: queue.Queue[tuple[_Member, dict[str, Any] | None]] = queue.Queue()
        self._members: list[_Member] = []
        self._busy: dict[_Member, Piece] = {}

    def run(self, pieces: Iterator[Piece], on_done: Callable[[Done], None], on_samples: Callable[[int], None]) -> None:
        failure: tuple[int, Exception] | None = None
        more = True
        while True:
            while more and failure is None and (len(self._busy) < self._limit):
                piece = next(pieces, None)
                more = piece is not None
                if piece is not None:
                    self._give(piece)
            waiting = [p for p in self._busy.values() if failure is None or p.number < failure[0]]
            if not waiting:
                break
            member, event = self._events.get()
            if event is not None and "samples" in event:
                on_samples(event["samples"])
                continue
            piece = self._busy.pop(member, None)
            if piece is None:
                continue
            if event is not None and "done" in event:
                on_done(_with_spool(Done.from_document(event["done"]), piece))
                continue
            error = _failure(member, event, piece)
            if failure is None or piece.number < failure[0]:
                failure = (piece.number, error)
        if failure is not None:
            raise failure[1]

    def close(self) -> None:
        for member in self._members:
            member.stop()

    def _give(self, piece: Piece) -> None:
        idle = [member for member in self._members if member not in self._busy and member.alive()]
        if not idle:
            idle = [_Member(self._job, self._events)]
            self._members += idle
        self._busy[idle[0]] = piece
        idle[0].give(piece)


class _Member:
    """One child process, and the thread that reads what it reports."""

    def __init__(self, job: Path, events: queue.Queue) -> None:
        command = [sys.executable, "-c", _BOOT, json.dumps([str(entry) for entry in sys.path]), str(job)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._events = events
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def give(self, piece: Piece) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(piece.__dict__).encode("utf-8") + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its reader reports the end

    def alive(self) -> bool:
        return self._process.poll() is None

    def code(self) -> int | None:
        return self._process.wait()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put((self, json.loads(line)))
        self._events.put((self, None))


class _Ticks:
    """Counts samples and reports them a few times a second."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report, self._count, self._next = report, 0, time.monotonic() + REPORT_SECONDS

    def tick(self) -> None:
        self._count += 1
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        if self._count:
            self._report(self._count)
        self._count, self._next = 0, time.monotonic() + REPORT_SECONDS


def member(job_path: str) -> None:
    """Life of a child: a piece a line on standard input, events on standard output, gone when the parent is.

    Whatever the transform prints goes to standard error.
    """
    reports = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    given: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_watch_parent, args=(given,), daemon=True).start()

    def report(event: dict[str, Any]) -> None:
        try:
            reports.write(json.dumps(event) + "\n")
        except BrokenPipeError:
            os._exit(0)

    job: Job | None = None
    while True:
        piece = Piece(**json.loads(given.get()))
        ticks = _Ticks(lambda count: report({"samples": count}))
        try:
            job = job or cloudpickle.loads(Path(job_path).read_bytes())
            done = write_piece(job, piece, ticks.tick)
        except Exception as error:
            kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), None)
            report({"error": str(error) if kind else f"{type(error).__name__}: {error}", "kind": kind})
            continue
        ticks.flush()
        report({"done": done.to_document()})


def _watch_parent(given: queue.SimpleQueue) -> None:
    for line in sys.stdin:
        given.put(line)
    os._exit(0)


def _with_spool(done: Done, piece: Piece) -> Done:
    return replace(done, piece=piece)


def _failure(member: _Member, event: dict[str, Any] | None, piece: Piece) -> Exception:
    if event is None:
        code = member.code()
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return Interrupted(
            f"The process that wrote {piece.name} {how} (out of memory?): finished shards are kept; "
            "run the same conversion again, with fewer processes."
        )
    if event["kind"] is None:
        return Interrupted(f"Writing {piece.name} failed ({event['error']}): finished shards are kept.")
    return _KINDS[event["kind"]](event["error"])
