"""The store keeps every run that ended, refuses files it must not touch, and lets several programs in at once."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.scripted import probe_of, run_of
from workbench.errors import StoreError
from workbench.loaders.settings import LoaderSettings
from workbench.tuning.database import SCHEMA_VERSION
from workbench.tuning.results import load_results
from workbench.tuning.store import SweepStore

A, B = LoaderSettings(), LoaderSettings(num_workers=2, persistent_workers=True)


def new_sweep(store: SweepStore, name: str = "one", **changes):
    known = {
        "source": "DataLoader over Photos",
        "fingerprint": "abc",
        "machine": {"cpu": "x", "usable_cores": 2},
        "candidates": [A, B],
        "current": A,
        "strategy": "grid",
        "options": {"measure_seconds": 1.0},
    }
    return store.create_sweep(name, **{**known, **changes})


def test_what_is_saved_is_read_back_equal(tmp_path):
    run = run_of(B, 123.4, memory_bytes=5, notes=("odd",), worker_samples=(1, 2))
    with SweepStore(tmp_path / "s.db") as store:
        sweep = new_sweep(store)
        store.save_probe(sweep, probe_of(current=A))
        store.finish_run(store.begin_run(sweep, B), run)
        store.end_sweep(sweep, "finished", ["a note"])

    with SweepStore(tmp_path / "s.db", read_only=True) as store:
        found = store.sweep("one")
        assert store.runs(found) == [run]
    assert (found.candidates, found.current, found.probe) == ((A, B), A, probe_of(current=A))
    assert (found.ending, found.notes, found.machine["cpu"]) == ("finished", ("a note",), "x")


def test_a_run_is_on_disk_before_the_next_begins(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        sweep = new_sweep(store)
        store.finish_run(store.begin_run(sweep, A), run_of(A, 10.0))
        store.begin_run(sweep, B)

        assert [trial.settings for trial in load_results(tmp_path / "s.db").trials] == [A]


def test_the_file_is_marked_versioned_and_logs_ahead(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        new_sweep(store)
    db = sqlite3.connect(tmp_path / "s.db")

    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA application_id").fetchone() != (0,)
    db.close()


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        assert [new_sweep(store).name for _ in range(3)] == ["one", "one-2", "one-3"]
        assert store.names() == ["one-3", "one-2", "one"]


def test_names_can_be_those_of_one_loader(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        for fingerprint in ("a", "b", "a"):
            new_sweep(store, fingerprint=fingerprint)
        assert (store.names("a"), store.names("b"), store.names("c")) == (["one-3", "one"], ["one-2"], [])


def test_the_latest_sweep_is_the_default_and_unknown_names_list_those_there_are(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        new_sweep(store, "old")
        new_sweep(store, "new")

    assert load_results(tmp_path / "s.db").name == "new"
    assert load_results(tmp_path / "s.db", "old").name == "old"
    with pytest.raises(StoreError, match="'older'; it holds 'new', 'old'"):
        load_results(tmp_path / "s.db", "older")


def test_a_sweep_that_went_on_is_later_than_one_that_began_after_it(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        old, _ = new_sweep(store, "old"), new_sweep(store, "new")
        store.begin_run(old, A)
        assert store.names() == ["old", "new"] and store.sweep().name == "old"


def test_a_store_without_sweeps_says_what_to_do(tmp_path):
    SweepStore(tmp_path / "s.db").close()

    with pytest.raises(StoreError, match="no sweep yet; run one first"):
        load_results(tmp_path / "s.db")


def written_by_a_newer_version(path):
    SweepStore(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()


def torn(path):
    with SweepStore(path) as store:
        sweep = new_sweep(store)
        for _ in range(40):
            store.finish_run(store.begin_run(sweep, A), run_of(A, 10.0))
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + 6000] = random.Random(0).randbytes(6000)
    path.write_bytes(data)


def cut_short(path):
    torn(path)
    path.write_bytes(path.read_bytes()[:5000])


def of_another_program(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE customers (id INTEGER)")
    db.commit()
    db.close()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (written_by_a_newer_version, "newer Loader Workbench"),
        (torn, "damaged"),
        (cut_short, "damaged"),
        (of_another_program, "another program"),
        (lambda path: path.write_text("samples_per_second\n123\n"), "not a SQLite file"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(500)), "damaged"),
    ],
)
def test_files_it_must_not_touch_are_refused_in_one_sentence_and_left_alone(tmp_path, make, says, read_only):
    path = tmp_path / "s.db"
    make(path)
    before = path.read_bytes()

    with pytest.raises(StoreError, match=says) as caught:
        SweepStore(path, read_only=read_only)

    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["s.db"]
    assert "\n" not in str(caught.value)


def test_a_record_that_is_no_json_is_damage_and_not_a_crash(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        sweep = new_sweep(store)
        store.finish_run(store.begin_run(sweep, A), run_of(A, 1.0))
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("UPDATE runs SET record = '{\"settings\": 3'")
    db.commit()
    db.close()

    with pytest.raises(StoreError, match="damaged"):
        load_results(tmp_path / "s.db")


def test_missing_files_folders_and_places_are_told_apart(tmp_path):
    with pytest.raises(StoreError, match="there is no store at"):
        load_results(tmp_path / "none.db")
    with pytest.raises(StoreError, match="is a folder"):
        SweepStore(tmp_path)
    with pytest.raises(StoreError, match="there is no folder"):
        SweepStore(tmp_path / "nowhere" / "s.db")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_said_so_and_what_was_saved_stays(tmp_path):
    path = tmp_path / "s.db"
    with SweepStore(path) as store:
        sweep = new_sweep(store)
        store.finish_run(store.begin_run(sweep, A), run_of(A, 10.0))
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="the disk is full; what was saved is safe"):
            for _ in range(50):
                store.finish_run(store.begin_run(sweep, B), run_of(B, 10.0))

    assert load_results(path).trials[0].settings == A


def test_a_folder_without_write_permission_can_be_read_and_says_so_when_written(tmp_path):
    """As another user: root may write everywhere."""
    path = tmp_path / "s.db"
    with SweepStore(path) as store:
        new_sweep(store)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    path.chmod(0o444)
    code = (
        "import os\n"
        "from workbench.errors import StoreError\n"
        "from workbench.tuning.store import SweepStore\n"
        "os.getuid() or os.setuid(65534)\n"
        f"print(SweepStore({str(path)!r}, read_only=True).names())\n"
        f"for target in ({str(path)!r}, {str(tmp_path / 'new.db')!r}):\n"
        "    try: SweepStore(target); print('opened')\n"
        "    except StoreError as error: print(error)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.getcwd())

    lines = done.stdout.splitlines()
    assert lines[0] == "['one']", done.stderr
    assert all("writable" in line for line in lines[1:]) and len(lines) == 3


def test_where_no_log_can_be_kept_the_store_works_without(tmp_path, monkeypatch):
    class NoLog:
        def __init__(self, db):
            self._db = db

        def execute(self, query, values=()):
            if query == "PRAGMA journal_mode = WAL":
                raise sqlite3.OperationalError("locking protocol")
            return self._db.execute(query, values)

        def __getattr__(self, name):
            return getattr(self._db, name)

    import workbench.tuning.database as module

    connect = module._connect
    monkeypatch.setattr(module, "_connect", lambda uri: NoLog(connect(uri)))
    with SweepStore(tmp_path / "s.db") as store:
        new_sweep(store)
        assert "without WAL" in store.notes[0]
    monkeypatch.undo()

    assert load_results(tmp_path / "s.db").name == "one"


def test_two_writers_and_a_reader_share_one_file(tmp_path):
    path, errors = tmp_path / "s.db", []

    def write(name):
        try:
            with SweepStore(path) as store:
                sweep = new_sweep(store, name)
                for _ in range(25):
                    store.finish_run(store.begin_run(sweep, A), run_of(A, 10.0))
                store.end_sweep(sweep, "finished")
        except Exception as error:  # a thread's error has to reach the test
            errors.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists() and path.stat().st_size:
            try:
                load_results(path)
            except StoreError as error:
                assert "no sweep yet" in str(error)
    for writer in writers:
        writer.join()

    assert not errors
    assert [len(load_results(path, name).trials[0].runs) for name in ("one", "two")] == [25, 25]


def killed_during(path, settings, times):
    """A process that begins a run and dies, that many times."""
    code = (
        "import os, sys, json\n"
        "from workbench.loaders.settings import LoaderSettings\n"
        "from workbench.tuning.store import SweepStore\n"
        "store = SweepStore(sys.argv[1]); sweep = store.sweep('one'); store.take_over(sweep)\n"
        "store.begin_run(sweep, LoaderSettings.from_dict(json.loads(sys.argv[2])))\n"
        "os._exit(9)\n"
    )
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", code, str(path), json.dumps(settings.as_dict())])
        assert done.returncode == 9


def test_a_run_cut_short_once_is_done_again_and_one_cut_short_twice_is_given_up(tmp_path):
    path = tmp_path / "s.db"
    with SweepStore(path) as store:
        store.end_sweep(new_sweep(store), "stopped")
    killed_during(path, B, times=1)
    with SweepStore(path) as store:
        sweep = store.sweep("one")
        store.take_over(sweep)
        assert store.runs(sweep) == []
        store.end_sweep(sweep, "stopped")
    killed_during(path, B, times=1)

    with SweepStore(path) as store:
        store.take_over(sweep)
        runs = store.runs(sweep)
    assert [(run.settings, run.status) for run in runs] == [(B, "killed")]
    assert "2 times" in runs[0].reason


def test_a_run_somebody_stopped_leaves_nothing(tmp_path):
    with SweepStore(tmp_path / "s.db") as store:
        sweep = new_sweep(store)
        store.discard_run(store.begin_run(sweep, A))
        store.take_over(sweep)
        store.take_over(sweep)

        assert store.runs(sweep) == []


def test_a_sweep_whose_writer_lives_is_not_taken_over(tmp_path):
    code = (
        "import sys\n"
        "from workbench.tuning.store import SweepStore\n"
        "store = SweepStore(sys.argv[1]); store.take_over(store.sweep('one')); print('mine', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with SweepStore(tmp_path / "s.db") as store:
        sweep = new_sweep(store)
        store.end_sweep(sweep, "stopped")
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "s.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout.readline() == "mine\n"
            with pytest.raises(StoreError, match=f"being written by process {other.pid}"):
                store.take_over(sweep)
            other.stdin.close()
            other.wait()
        store.take_over(sweep)


def test_nothing_in_the_store_is_ever_unpickled():
    import workbench.tuning.store as module

    folder = Path(module.__file__).parent
    for name in ("store.py", "database.py", "results.py"):
        text = (folder / name).read_text()
        assert "import pickle" not in text and "cloudpickle" not in text and "marshal" not in text
