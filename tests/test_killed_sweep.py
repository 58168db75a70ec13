"""A sweep whose process or kernel is killed in a trial: nothing outlives it, the store is whole, resuming goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from tests.test_trial import left_over
from workbench.tuning.grid import BASELINE_STARTS
from workbench.tuning.results import load_results

ROOT = str(Path(__file__).parents[1])
TAG = "WORKBENCH_TEST_KILLED"
SECONDS_TO_BE_GONE = 5.0
SWEEP = """
import json, sys
import workbench as wb
from tests import faulty

def make(num_workers=0, multiprocessing_context=None):
    return faulty.make(num_workers=num_workers, multiprocessing_context=multiprocessing_context)

started = []
def hear(event):
    if event["kind"] == "run_started":
        started.append(event["settings"].num_workers)

def go(store, resume):
    space = wb.SearchSpace(num_workers=[0, 1, 2], multiprocessing_context=[None, "forkserver"])
    sweep = wb.Sweep(make, space, "grid", store=store, name="mine", measure_seconds=0.1, on_event=hear)
    return sweep.run(resume=resume, progress=False)
"""
RESUMED = """
found = go({store!r}, True)
print(json.dumps([started, found.ending]))
"""


class Script:
    """The sweep in a plain interpreter."""

    def begin(self, store: Path, environment: dict[str, str]) -> int:
        code = SWEEP + f"\ngo({str(store)!r}, False)"
        self._process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment)
        return self._process.pid

    def bury(self) -> None:
        self._process.wait()

    def resume(self, store: Path, environment: dict[str, str]) -> str:
        """What the resumed sweep prints."""
        code = SWEEP + RESUMED.format(store=str(store))
        again = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        return again.stdout


class Notebook:
    """The sweep in the cell of a Jupyter kernel, resumed in another kernel."""

    def begin(self, store: Path, environment: dict[str, str]) -> int:
        self._manager, self._client = start_new_kernel(env=environment, cwd=ROOT)
        self._client.execute(SWEEP + f"\ngo({str(store)!r}, False)")
        return self._manager.provisioner.pid

    def bury(self) -> None:
        self._client.stop_channels()
        self._manager.provisioner.process.wait()
        self._manager.cleanup_resources()

    def resume(self, store: Path, environment: dict[str, str]) -> str:
        """What the resumed sweep prints."""
        printed: list[str] = []
        manager, client = start_new_kernel(env=environment, cwd=ROOT)
        try:
            code = SWEEP + RESUMED.format(store=str(store))
            reply = client.execute_interactive(
                code, output_hook=lambda message: printed.append(message["content"].get("text", "")), timeout=120
            )
            assert reply["content"]["status"] == "ok", reply["content"]
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        return "".join(printed)


def alive_after(seconds: float, tag: str) -> list[int]:
    """Processes that were begun with this mark in their environment and are alive when so much time has passed."""
    deadline = time.monotonic() + seconds
    while True:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"{TAG}={tag}".encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def left_in(scratch: Path) -> list[str]:
    """What trials left among the temporary files."""
    return [name for name in os.listdir(scratch) if name.startswith("workbench-")]


def saved(store: Path) -> dict[int, str]:
    """Records of finished runs by number."""
    db = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        return dict(db.execute("SELECT id, record FROM runs WHERE record IS NOT NULL"))
    finally:
        db.close()


def wait_for_a_trial(store: Path, after: int) -> None:
    """Returns as soon as a trial has been begun after so many finished ones."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            db = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
            done, begun = db.execute("SELECT count(record), count(*) FROM runs").fetchone()
            db.close()
            if done >= after and begun > done:
                return
        except sqlite3.Error:
            pass
        time.sleep(0.002)
    raise AssertionError(f"no trial was begun after {after} others")


@pytest.mark.parametrize(
    ("place", "after", "seconds_into_it"),
    [(Script(), 0, 0.0), (Script(), 2, 0.04), (Script(), 3, 0.5), (Notebook(), 1, 0.02)],
    ids=["script-0.00s", "script-0.04s", "script-0.50s", "notebook-0.02s"],
)
def test_a_killed_sweep_leaves_nothing_alive_and_goes_on_where_it_was(place, after, seconds_into_it, tmp_path):
    store, scratch, tag = tmp_path / "s.db", tmp_path / "scratch", uuid.uuid4().hex
    scratch.mkdir()
    environment = {**os.environ, TAG: tag, "TMPDIR": str(scratch)}
    names = set(os.listdir("/dev/shm"))

    pid = place.begin(store, environment)
    wait_for_a_trial(store, after)
    time.sleep(seconds_into_it)
    os.kill(pid, signal.SIGKILL)
    place.bury()

    assert alive_after(SECONDS_TO_BE_GONE, tag) == []
    assert left_in(scratch) == []
    assert left_over(set(os.listdir("/dev/shm")) - names) == set()
    before = saved(store)
    left = load_results(store)
    assert left.ending == "" and sum(len(trial.runs) for trial in left.trials) == len(before) >= after

    started, ending = json.loads(place.resume(store, environment).splitlines()[-1])
    now = saved(store)

    assert ending == "finished"
    assert {number: now[number] for number in before} == before
    assert len(now) == len(before) + len(started)
    settings = [json.dumps(json.loads(record)["settings"], sort_keys=True) for record in now.values()]
    most = BASELINE_STARTS + 2  # the first start of each of the two processes is over cold files, and does not count
    assert len(set(settings)) == 5 and max(map(settings.count, settings)) <= most
    assert alive_after(SECONDS_TO_BE_GONE, tag) == [] and left_in(scratch) == []


def test_a_sweep_on_the_command_line_is_resumed_by_its_option(tmp_path):
    loader = tmp_path / "mine.py"
    loader.write_text(
        "from tests import faulty\ndef make(num_workers=0):\n    return faulty.make(num_workers=num_workers)\n"
    )
    store = tmp_path / "s.db"
    words = [sys.executable, "-m", "workbench.cli", "sweep", f"{loader}:make", "--num-workers", "0,1"]
    words += ["--strategy", "grid", "--store", str(store), "--name", "mine", "--json"]
    environment = {**os.environ, "PYTHONPATH": ROOT}

    killed = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for_a_trial(store, after=1)
    killed.kill()
    killed.wait()
    before = saved(store)
    again = subprocess.run([*words, "--resume"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["name"] == "mine"
    now = saved(store)
    assert len(before) >= 1 and {number: now[number] for number in before} == before
