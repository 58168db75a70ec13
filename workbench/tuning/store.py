"""SweepStore: sweeps and their runs in one SQLite file that several readers and one writer a sweep may use at once.

Every run has a row before it begins and its record right after it ends, each committed on its own: whatever kills the
process, what was finished is kept and what was not is known. Records are JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
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
from workbench.measure.stage_costs import StageCosts
from workbench.tuning.database import check_file, empty, open_for_reading, open_for_writing, said_plainly
from workbench.tuning.writer import is_alive, this_process

LOST_STARTS_ALLOWED = 1  # starts of one settings that may end with the whole process before they are given up
LATEST_FIRST = (
    "ORDER BY max(created, coalesce((SELECT max(started) FROM runs WHERE runs.sweep = sweeps.id), 0)) DESC, id DESC"
)


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
        check_file(self.path, must_exist=read_only)
        with said_plainly(self.path):
            self._db = open_for_reading(self.path) if read_only else self._open_to_write()
            if read_only and self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                self._db.close()
                raise StoreError(empty(self.path))

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
                [unique, *values, _json(this_process())],
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
            if writer and is_alive(json.loads(writer)):
                raise StoreError(
                    f"sweep {sweep.name!r} in {self.path} is being written by process {json.loads(writer)['pid']}; "
                    "wait for it or stop it, or start a sweep under another name."
                )
            db.execute("UPDATE sweeps SET writer = ?, ending = '' WHERE id = ?", [_json(this_process()), sweep.id])
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

    def save_stages(self, name: str, settings: LoaderSettings, costs: StageCosts) -> None:
        """Adds where a batch's time goes under these settings to the latest record of them in a sweep.

        Raises:
            StoreError: If the sweep has no record of these settings.
        """
        slim = dataclasses.asdict(costs) | {"batch_walls": ()}  # single batches are for their spread, not for keeping
        with self._writing() as db:
            rows = db.execute(
                "SELECT runs.id, record FROM runs JOIN sweeps ON sweeps.id = sweep WHERE name = ? "
                "AND record IS NOT NULL ORDER BY runs.id DESC",
                [name],
            ).fetchall()
            for number, text in rows:
                record = json.loads(text)
                if run_from_json(record).settings == settings:
                    db.execute("UPDATE runs SET record = ? WHERE id = ?", [_json(record | {"stages": slim}), number])
                    return
        raise StoreError(f"sweep {name!r} in {self.path} has no run of {settings.describe()} to add stages to.")

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

    def names(self, fingerprint: str | None = None) -> list[str]:
        """Names of all sweeps, or of those of a loader with this fingerprint, the one that ran last first."""
        wanted, values = ("1", []) if fingerprint is None else ("fingerprint = ?", [fingerprint])
        rows = self._rows(f"SELECT name FROM sweeps WHERE {wanted} {LATEST_FIRST}", values)
        return [row[0] for row in rows]

    def sweep(self, name: str | None = None, *, source: str | None = None) -> SweepRecord:
        """The sweep of that name, or the one that ran last (of that source).

        Raises:
            StoreError: If there is none; the message lists the names there are.
        """
        columns = "id, name, created, source, fingerprint, machine, space, strategy, options, probe, ending, notes"
        wanted, values = "name = ?", [name]
        if name is None:
            wanted, values = ("source = ?", [source]) if source is not None else ("1", [])
        rows = self._rows(f"SELECT {columns} FROM sweeps WHERE {wanted} {LATEST_FIRST} LIMIT 1", values)
        if not rows:
            raise StoreError(self._no_such_sweep(name, source))
        with said_plainly(self.path):
            return _sweep_from_row(rows[0])

    def runs(self, sweep: SweepRecord) -> list[TrialRun]:
        """Every finished run of a sweep, oldest first."""
        rows = self._rows("SELECT record FROM runs WHERE sweep = ? AND record IS NOT NULL ORDER BY id", [sweep.id])
        with said_plainly(self.path):
            return [run_from_json(json.loads(record)) for (record,) in rows]

    def _no_such_sweep(self, name: str | None, source: str | None) -> str:
        names = self.names()
        if not names or (name is None and source is None):  # then any would have done: there was none when it looked
            return empty(self.path)
        shown = ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        what = f"named {name!r}" if name is not None else f"of {source}"
        return f"{self.path} holds no sweep {what}; it holds {shown}."

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, said_plainly(self.path):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, begun by taking the write lock so that what is read in it stays true."""
        with self._lock, said_plainly(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _open_to_write(self) -> sqlite3.Connection:
        db, logged = open_for_writing(self.path)
        if not logged:
            self.notes = (f"{self.path} lies on a file system without WAL: readers wait while a run is saved.",)
        return db


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


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1
