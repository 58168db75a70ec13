"""The SQLite file under a store: opened, checked before it is touched, and its troubles said in one sentence."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import StoreError

APPLICATION_ID = 0x4C574231  # "LWB1" in the file's header: another program's SQLite file is told apart
SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0  # how long to wait for another sweep's commit, which takes milliseconds
NEAR_SHOWN = 5  # files named beside a store that is not there
CHECKS = 3  # looks at a file before it is called damaged

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


def open_for_writing(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection that may write, with the schema in place; and whether readers can read while it writes."""
    db = _connect(f"{path.absolute().as_uri()}?mode=rwc")
    try:
        logged = _switch_to_wal(db)
        db.execute("PRAGMA synchronous = FULL")
        _create_schema(db)
    except BaseException:
        db.close()
        raise
    return db, logged


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


def open_for_reading(path: Path) -> sqlite3.Connection:
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


def check_file(path: Path, *, must_exist: bool) -> None:
    """Raises StoreError unless the file is a whole store of a version this program knows, or does not exist yet."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; a store is a file: give for instance {path / 'sweeps.db'}.")
    if not path.exists():
        if must_exist:
            raise StoreError(f"there is no store at {path}; {_another(path)}.")
        if not path.absolute().parent.is_dir():
            raise StoreError(f"{path} cannot be created: there is no folder {path.absolute().parent}; create it first.")
        return
    with said_plainly(path):
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


def _another(path: Path) -> str:
    """Which file to name instead of one that is not there."""
    near = sorted(one.name for one in path.absolute().parent.glob(f"*{path.suffix or '.db'}"))
    if near:
        listed = ", ".join(near[:NEAR_SHOWN]) + (", ..." if len(near) > NEAR_SHOWN else "")
        return f"name the file that a sweep wrote: beside it there is {listed}"
    return f"name the file that a sweep wrote, or let one write it: workbench sweep LOADER --store {path}"


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
            raise StoreError(damaged(path, verdict))
    finally:
        db.close()


def _foreign(path: Path) -> str:
    return f"{path} is a SQLite file of another program; it was left as it is: name another file."


def damaged(path: Path, detail: object) -> str:
    line = " ".join(str(detail).split())
    return f"{path} is damaged ({line}); it was left as it is: restore a copy, or name another file."


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """Turns what SQLite, the file system and malformed JSON report into one sentence for a person."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_plain(path, error)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}; check the path and its rights.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(damaged(path, f"a record that cannot be read: {error}")) from error


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
    return damaged(path, text)


def empty(path: Path) -> str:
    return f"{path} holds no sweep yet; run one first: workbench sweep LOADER --store {path}"
