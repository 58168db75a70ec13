"""SweepStore: sweeps and their runs in one SQLite file that several readers and one writer a sweep may use at once.

Every run has a row before it begins and its record right after it ends, each committed on its own: whatever kills the
process, what was finished is kept and what was not is known. Records are JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe, TrialRun, probe_from_json, run_from_json, to_json

APPLICATION_ID = 0x4C574231  # "LWB1" in the file's header: another program's SQLite file is told apart
SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0  # how long to wait for another sweep's commit, which takes milliseconds
CHECKS = 3  # looks at a file before it is called damaged
LOST_STARTS_ALLOWED = 1  # starts of one settings that may end with the whole process before they are given up

_SCHEMA = """
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created REAL NOT NULL,      -- seconds since the epoch, UTC
    source TEXT NOT NULL,       -- one line that describes the loader
    fingerprint TEXT NOT NULL,  -- of the loader's definition
    machine TEXT NOT NULL,      -- JSON
    space TEXT NOT NULL,        -- JSON: candidate settings and current settings
    strategy TEXT NOT NULL,
    options TEXT NOT NULL,      -- JSON
    probe TEXT,                 -- JSON
    ending TEXT NOT NULL DEFAULT '',
    notes TEXT NOT NULL DEFAULT '[]',
    writer TEXT                 -- JSON: who writes it now
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    sweep INTEGER NOT NULL REFERENCES sweeps(id),
    settings TEXT NOT NULL,     -- JSON with sorted keys
    started REAL NOT NULL,      -- seconds since the epoch, UTC
    lost INTEGER NOT NULL DEFAULT 0,  -- 1: its process died before the run ended
    record TEXT                 -- JSON of the TrialRun; NULL until it ended
);
CREATE INDEX runs_of_a_sweep ON runs(sweep);
"""


@dataclass(frozen=True)
class SweepRecord:
    """What is known about one sweep beside its runs.

    Attributes:
        id: Its row.
        name: Unique in the file.
        created: Seconds since the epoch (UTC).
        source: One line that describes the loader.
        fingerprint: Of the loader's definition, for resuming.
        machine: `machine.fingerprint()` of where it ran.
        candidates: Settings of its space, the current ones among them.
        current: The user's settings, or None when unknown.
        strategy: Name of the strategy.
        options: What else shaped the measuring (seconds, step, limits), as JSON values.
        probe: What the probe saw, or None when there was none yet.
        ending: Why it ended: "finished", "budget", "stopped", "interrupted"; empty while it runs or when it was killed.
        notes: Sentences worth showing.
    """

    id: int
    name: str
    created: float
    source: str
    fingerprint: str
    machine: dict[str, Any]
    candidates: tuple[LoaderSettings, ...]
    current: LoaderSettings | None
    strategy: str
    options: dict[str, Any]
    probe: Probe | None = None
    ending: str = ""
    notes: tuple[str, ...] = ()


class SweepStore:
    """An open store; a context manager.

    Args:
        path: The file; created, with its schema, unless `read_only`.
        read_only: Open for reading, which needs no permission to write.

    Raises:
        StoreError: If the file is missing (read only), damaged, from a newer version, another program's, or cannot be
            opened. The file is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.notes: tuple[str, ...] = ()
        self._lock = threading.RLock()
        _check_file(self.path, must_exist=read_only)
        with _said_plainly(self.path):
            self._db = _open_for_reading(self.path) if read_only else self._open_for_writing()
            if read_only and self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                self._db.close()
                raise StoreError(_empty(self.path))

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        with self._lock:
            self._db.close()

    # -- writing --

    def create_sweep(
        self,
        name: str,
        *,
        source: str,
        fingerprint: str,
        machine: Mapping[str, Any],
        candidates: Sequence[LoaderSettings],
        current: LoaderSettings | None,
        strategy: str,
        options: Mapping[str, Any],
    ) -> SweepRecord:
        """A new sweep that this process writes; a name that is taken gets "-2", "-3", ... appended."""
        space = {
            "candidates": [one.as_dict() for one in candidates],
            "current": current.as_dict() if current else None,
        }
        values = [time.time(), source, fingerprint, _json(machine), _json(space), strategy, _json(options)]
        with self._writing() as db:
            taken = {row[0] for row in db.execute("SELECT name FROM sweeps")}
            unique = next(n for n in _numbered(name) if n not in taken)
            db.execute(
                "INSERT INTO sweeps (name, created, source, fingerprint, machine, space, strategy, options, writer) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [unique, *values, _json(_this_process())],
            )
        return self.sweep(unique)

    def take_over(self, sweep: SweepRecord) -> None:
        """Makes this process the writer of a sweep that another one left, and settles the runs it left unfinished.

        A settings whose run was cut short once is simply started again; one that was cut short again is given up as
        "killed", so that settings which take the whole process down cannot do so for ever.

        Raises:
            StoreError: If the process that writes the sweep is still alive.
        """
        with self._writing() as db:
            (writer,) = db.execute("SELECT writer FROM sweeps WHERE id = ?", [sweep.id]).fetchone()
            if writer and _is_alive(json.loads(writer)):
                raise StoreError(
                    f"sweep {sweep.name!r} in {self.path} is being written by process {json.loads(writer)['pid']}; "
                    "wait for it or stop it, or start a sweep under another name."
                )
            db.execute("UPDATE sweeps SET writer = ?, ending = '' WHERE id = ?", [_json(_this_process()), sweep.id])
            db.execute("UPDATE runs SET lost = 1 WHERE sweep = ? AND record IS NULL", [sweep.id])
            _give_up_on_killers(db, sweep.id)

    def save_probe(self, sweep: SweepRecord, probe: Probe) -> None:
        """Keeps what the probe saw."""
        with self._writing() as db:
            db.execute("UPDATE sweeps SET probe = ? WHERE id = ?", [_json(to_json(probe)), sweep.id])

    def begin_run(self, sweep: SweepRecord, settings: LoaderSettings) -> int:
        """Says that a run is about to start; gives the number to finish or discard it by."""
        with self._writing() as db:
            cursor = db.execute(
                "INSERT INTO runs (sweep, settings, started) VALUES (?, ?, ?)",
                [sweep.id, _json(settings.as_dict()), time.time()],
            )
            return int(cursor.lastrowid or 0)

    def finish_run(self, number: int, run: TrialRun) -> None:
        """Keeps the record of a run that ended."""
        with self._writing() as db:
            db.execute("UPDATE runs SET record = ? WHERE id = ?", [_json(to_json(run)), number])

    def discard_run(self, number: int) -> None:
        """Forgets a run that somebody stopped: it says nothing about its settings."""
        with self._writing() as db:
            db.execute("DELETE FROM runs WHERE id = ?", [number])

    def end_sweep(self, sweep: SweepRecord, ending: str, notes: Sequence[str] = ()) -> None:
        """Says why the sweep ended; this process no longer writes it."""
        with self._writing() as db:
            db.execute(
                "UPDATE sweeps SET ending = ?, notes = ?, writer = NULL WHERE id = ?",
                [ending, _json(list(notes)), sweep.id],
            )

    # -- reading --

    def names(self) -> list[str]:
        """Names of all sweeps, latest first."""
        return [row[0] for row in self._rows("SELECT name FROM sweeps ORDER BY created DESC, id DESC")]

    def sweep(self, name: str | None = None, *, source: str | None = None) -> SweepRecord:
        """The sweep of that name, or the latest one (of that source).

        Raises:
            StoreError: If there is none; the message lists the names there are.
        """
        columns = "id, name, created, source, fingerprint, machine, space, strategy, options, probe, ending, notes"
        wanted, values = "name = ?", [name]
        if name is None:
            wanted, values = ("source = ?", [source]) if source is not None else ("1", [])
        rows = self._rows(f"SELECT {columns} FROM sweeps WHERE {wanted} ORDER BY created DESC, id DESC LIMIT 1", values)
        if not rows:
            raise StoreError(self._no_such_sweep(name, source))
        with _said_plainly(self.path):
            return _sweep_from_row(rows[0])

    def runs(self, sweep: SweepRecord) -> list[TrialRun]:
        """Every finished run of a sweep, oldest first."""
        rows = self._rows("SELECT record FROM runs WHERE sweep = ? AND record IS NOT NULL ORDER BY id", [sweep.id])
        with _said_plainly(self.path):
            return [run_from_json(json.loads(record)) for (record,) in rows]

    def _no_such_sweep(self, name: str | None, source: str | None) -> str:
        names = self.names()
        if not names:
            return _empty(self.path)
        shown = ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        what = f"named {name!r}" if name is not None else f"of {source}"
        return f"{self.path} holds no sweep {what}; it holds {shown}."

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, _said_plainly(self.path):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, begun by taking the write lock so that what is read in it stays true."""
        with self._lock, _said_plainly(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _open_for_writing(self) -> sqlite3.Connection:
        db = _connect(f"{self.path.absolute().as_uri()}?mode=rwc")
        try:
            if not _switch_to_wal(db):
                self.notes = (f"{self.path} lies on a file system without WAL: readers wait while a run is saved.",)
            db.execute("PRAGMA synchronous = FULL")
            _create_schema(db)
        except BaseException:
            db.close()
            raise
        return db


def _connect(uri: str) -> sqlite3.Connection:
    # Sweeps write from their own thread while a notebook reads; SweepStore's lock keeps them apart.
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _switch_to_wal(db: sqlite3.Connection) -> bool:
    """Whether the file now has a write-ahead log; some network file systems cannot hold one."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return db.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal"
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself for another connection that is switching at the same moment.
            if "locked" in str(error) and time.monotonic() < give_up:
                time.sleep(0.02)
                continue
            if "readonly" in str(error) or "full" in str(error) or "locked" in str(error):
                raise
            db.execute("PRAGMA journal_mode = DELETE").fetchone()
            return False


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """Reads beside a writer at work; from a folder where nothing can be written, reads the file as it lies there."""
    if os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK):
        # "rw", so that closing removes the log that opening made; "ro" would leave it behind.
        db = _connect(f"{path.absolute().as_uri()}?mode=rw")
        db.execute("PRAGMA query_only = 1")
        return db
    return _open_untouched(path)


def _open_untouched(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing and, unless a writer is at work, leaves nothing beside the file."""
    return _connect(f"{path.absolute().as_uri()}?mode=ro{'' if _has_log(path) else '&immutable=1'}")


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def _create_schema(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _SCHEMA.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check_file(path: Path, *, must_exist: bool) -> None:
    """Raises StoreError unless the file is a whole store of a version this program knows, or does not exist yet."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; a store is a file: give for instance {path / 'sweeps.db'}.")
    if not path.exists():
        if must_exist:
            raise StoreError(f"there is no store at {path}; give the file that a sweep wrote (store=, or --store).")
        if not path.absolute().parent.is_dir():
            raise StoreError(f"{path} cannot be created: there is no folder {path.absolute().parent}; create it first.")
        return
    with _said_plainly(path):
        if path.stat().st_size == 0:
            return
        _check_header(path)
        for attempt in range(CHECKS):
            try:
                return _check_contents(path)
            except (StoreError, sqlite3.DatabaseError):
                # A writer that came in the middle of the check may have been seen half-way; look again.
                if attempt == CHECKS - 1:
                    raise
                time.sleep(0.05)


def _check_header(path: Path) -> None:
    """Tells foreign and newer files by their first bytes, where SQLite keeps both numbers (file format, 1.3)."""
    with path.open("rb") as file:
        head = file.read(100)
    if head[:16] != b"SQLite format 3\0":
        raise StoreError(f"{path} is not a sweep store (not a SQLite file); it was left as it is: name another file.")
    version, application = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    if application not in (0, APPLICATION_ID):
        raise StoreError(_foreign(path))
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer Loader Workbench (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); it was left as it is: upgrade with pip install -U loader-workbench."
        )


def _check_contents(path: Path) -> None:
    db = _open_untouched(path)
    try:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and tables:
            raise StoreError(_foreign(path))
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreError(_damaged(path, verdict))
    finally:
        db.close()


def _foreign(path: Path) -> str:
    return f"{path} is a SQLite file of another program; it was left as it is: name another file."


def _damaged(path: Path, detail: object) -> str:
    line = " ".join(str(detail).split())
    return f"{path} is damaged ({line}); it was left as it is: restore a copy, or name another file."


@contextmanager
def _said_plainly(path: Path) -> Iterator[None]:
    """Turns what SQLite, the file system and malformed JSON report into one sentence for a person."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_plain(path, error)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}; check the path and its rights.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(_damaged(path, f"a record that cannot be read: {error}")) from error


def _plain(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    if "full" in text:
        return f"{path} cannot grow: the disk is full; what was saved is safe: free some space and resume the sweep."
    if "readonly" in text or "unable to open" in text:
        return f"{path} cannot be opened ({text}); make the file and its folder writable, or name another file."
    if "locked" in text or "busy" in text:
        return f"{path} stayed locked for {BUSY_SECONDS:.0f} s; another program holds it: close that program and retry."
    if "disk I/O" in text:
        return f"{path} cannot be read or written ({text}); check the disk, or name a file on a local one."
    if isinstance(error, sqlite3.ProgrammingError):
        return f"{path} was closed; open the store again."
    return _damaged(path, text)


def _give_up_on_killers(db: sqlite3.Connection, sweep: int) -> None:
    lost = db.execute(
        "SELECT settings, max(id), max(started) FROM runs WHERE sweep = ? AND lost = 1 GROUP BY settings "
        "HAVING count(*) > ? AND sum(record IS NOT NULL) = 0",
        [sweep, LOST_STARTS_ALLOWED],
    ).fetchall()
    for settings, number, started in lost:
        run = TrialRun(
            LoaderSettings.from_dict(json.loads(settings)),
            "killed",
            f"the process that ran the sweep ended {LOST_STARTS_ALLOWED + 1} times during this trial, perhaps for lack "
            "of memory; it is not tried again: start a new sweep without these settings, or with a memory limit.",
            started_at=started,
        )
        db.execute("UPDATE runs SET record = ? WHERE id = ?", [_json(to_json(run)), number])


def _sweep_from_row(row: tuple[Any, ...]) -> SweepRecord:
    number, name, created, source, fingerprint, machine, space, strategy, options, probe, ending, notes = row
    settings = json.loads(space)
    return SweepRecord(
        id=number,
        name=name,
        created=created,
        source=source,
        fingerprint=fingerprint,
        machine=json.loads(machine),
        candidates=tuple(LoaderSettings.from_dict(one) for one in settings["candidates"]),
        current=LoaderSettings.from_dict(settings["current"]) if settings["current"] else None,
        strategy=strategy,
        options=json.loads(options),
        probe=probe_from_json(json.loads(probe)) if probe else None,
        ending=ending,
        notes=tuple(json.loads(notes)),
    )


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _empty(path: Path) -> str:
    return f"{path} holds no sweep yet; run one first: workbench sweep LOADER --store {path}"


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def _is_alive(writer: Mapping[str, Any]) -> bool:
    """Whether that very process still runs on this host; a process of another host is taken for gone."""
    if writer.get("host") != socket.gethostname():
        return False
    pid = writer.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return writer.get("born") in (None, _born(pid))


def _born(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot: a number used again for another process is told apart."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
