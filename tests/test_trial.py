"""One trial: what it measures, and that nothing which a loader does breaks it or is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests import faulty
from tests.scripted import probe_of
from workbench.errors import ProbeError, SourceError, TrialServerError
from workbench.loaders.settings import LoaderSettings
from workbench.measure import plan, probing
from workbench.measure.plan import limits_of
from workbench.measure.probing import ASSURED_BATCHES
from workbench.measure.stream import why_empty
from workbench.measure.trial import TrialPlan, TrialServer, measure

QUICK = TrialPlan(
    measure_seconds=0.2,
    max_measure_seconds=0.6,
    warmup_seconds=0.02,
    deadline_seconds=25,
    silence_seconds=3,
    check_seconds=0.5,
)
ZERO, TWO = LoaderSettings(), LoaderSettings(num_workers=2)


def marked_processes(marker: str) -> list[int]:
    """Processes that carry a trial server's mark in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if f"WORKBENCH_TRIAL={marker}".encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


def left_over(names: set[str]) -> set[str]:
    """Of these shared-memory names, those that still exist though no process alive maps them."""
    maps = ""
    for pid in filter(str.isdigit, os.listdir("/proc")) if names else ():
        with contextlib.suppress(OSError):
            maps += Path(f"/proc/{pid}/maps").read_text()
    return {name for name in names & set(os.listdir("/dev/shm")) if name not in maps}


@pytest.fixture
def nothing_left(tmp_path, monkeypatch):
    """After the test no descriptor, shared-memory name or temporary file is left that was not there before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(os.listdir("/dev/shm"))
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    new = set(os.listdir("/dev/shm")) - before
    deadline = time.monotonic() + 5
    while (left := left_over(new)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == set()
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # fewer where a test before left some to the collector


def run_one(loader: Any, settings: LoaderSettings, plan: TrialPlan = QUICK) -> Any:
    """A run of the faulty loader, then one that must be untouched by it; nothing carries the mark afterwards."""
    with TrialServer(loader) as server:
        run = server.run(settings, plan)
        assert server.run(settings, plan).status == run.status
        marker = server._marker
    assert marked_processes(marker) == []
    return run


def test_what_watching_costs_is_counted_beside_how_long_it_was_watched(nothing_left):
    longer = replace(QUICK, measure_seconds=1.0, max_measure_seconds=1.0)
    with TrialServer(faulty.make()) as server:
        run = server.run(TWO, longer)
    assert 0 < run.memory.sampling_seconds < run.memory.sampled_seconds


def test_a_healthy_loader_is_measured_at_0_and_2_workers(nothing_left):
    with TrialServer(faulty.make()) as server:
        probe = server.probe()
        assert (probe.samples_per_batch, probe.batch_bytes, probe.epoch_batches, probe.epoch_samples) == (
            4,
            16,
            1000,
            4000,
        )
        for settings in (ZERO, TWO):
            run = server.run(settings, QUICK)
            assert (run.status, run.reason) == ("ok", "")
            assert sum(w.samples for w in run.windows) == 4 * sum(w.batches for w in run.windows)
            assert all(w.batches % max(1, settings.num_workers) == 0 for w in run.windows)
            assert run.memory.peak_rss_bytes >= run.memory.anonymous_bytes > 1 << 20
            assert run.first_batch_seconds > 0 and run.epoch_edge_seconds > 0 and run.shutdown_seconds >= 0
            assert run.start_method == ("fork" if settings.num_workers else "")


def test_measure_states_an_interval_over_several_starts(nothing_left):
    result = measure(faulty.make(num_workers=1), starts=3, measure_seconds=0.2)
    assert result.settings.num_workers == 1
    assert [run.status for run in result.runs] == ["ok"] * 3
    assert result.samples_per_second_low < result.samples_per_second < result.samples_per_second_high
    assert result.estimate.starts >= 2 and not result.estimate.in_run_only  # one that others disturbed is left out


WORKER_FAULTS = {
    "raises": ("failed", "ValueError: sample is broken"),
    "raises_two_part": ("failed", "TwoPartError: shard-0007 gave no answer in 5 s"),
    "raises_unpicklable": ("timed_out", "hang"),
    "runs_out_of_memory": ("over_memory", "MemoryError (/"),
    "interrupted": ("failed", "ended in mid-epoch without an error (exit code 0)"),
    "interrupts_everyone": ("ok", ""),
    "exits": ("failed", "exited with code 3"),
    "ends_quietly": ("failed", "ended in mid-epoch without an error (exit code 0)"),
    "leaves": ("failed", "exited with code 5"),
    "is_killed": ("killed", "SIGKILL"),
    "segfaults": ("failed", "SIGSEGV"),
    "aborts": ("failed", "SIGABRT"),
    "hangs": ("timed_out", "hang at batch"),
    "spins": ("timed_out", "hang at batch"),
    "stops": ("timed_out", "hang at batch"),
    "ignores_sigterm_and_hangs": ("timed_out", "hang at batch"),
    "leaves_a_daemon": ("ok", ""),
    "prints_much": ("ok", ""),
}


@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_a_fault_in_a_worker_is_a_row_with_a_reason(fault, nothing_left):
    status, text = WORKER_FAULTS[fault]
    patience = 8 if "exit code 0" in text else 3  # torch looks for workers that ended so every 5 s
    run = run_one(faulty.make(fault, only_in_worker=True), TWO, replace(QUICK, silence_seconds=patience))
    assert run.status == status, run
    assert text in run.reason


def test_a_worker_whose_end_nobody_noticed_is_told_apart_from_one_that_hangs():
    run = run_one(faulty.dies_unnoticed, TWO, QUICK)
    assert run.status == "failed"
    assert "a worker exited with code 3" in run.reason


MAIN_FAULTS = {
    "raises": ("failed", "ValueError: sample is broken"),
    "raises_two_part": ("failed", "TwoPartError: shard-0007 gave no answer in 5 s"),
    "exits": ("failed", "exited with code 3"),
    "is_killed": ("killed", "SIGKILL"),
    "segfaults": ("failed", "SIGSEGV"),
    "hangs": ("timed_out", "hang at batch 11"),
}


@pytest.mark.parametrize("fault", MAIN_FAULTS)
def test_a_fault_at_0_workers_after_the_first_batches_is_a_row_too(fault, nothing_left):
    status, text = MAIN_FAULTS[fault]
    run = run_one(faulty.make(fault), ZERO)
    assert run.status == status
    assert text in run.reason


def test_a_batch_that_cannot_be_sent_is_a_hang_with_its_cause(nothing_left):
    loader = DataLoader(faulty.Faulty(), batch_size=4, collate_fn=faulty.handles)
    run = run_one(loader, TWO, replace(QUICK, silence_seconds=20))
    assert run.status == "timed_out"
    assert "could not pickle its batch" in run.reason and "OSError: a handle cannot be sent" in run.reason


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_started_worker_cannot_take_is_named_by_its_place(method, nothing_left):
    run = run_one(faulty.holder, LoaderSettings(num_workers=1, multiprocessing_context=method))
    assert run.status == "failed"
    assert f"{method} has to pickle the loader and cannot: dataset.tools['lock']" in run.reason


def test_a_loader_that_cannot_be_made_with_workers_is_a_row(nothing_left):
    run = run_one(faulty.not_with_workers, LoaderSettings(num_workers=1))
    assert run.status == "failed"
    assert "FileNotFoundError: index.json" in run.reason and "faulty.py" in run.reason


def test_a_loader_that_never_yields_ends_the_probe_at_its_deadline(monkeypatch, nothing_left):
    monkeypatch.setattr(plan, "PROBE_SECONDS", 2.0)
    said = "hang at batch 1: nothing came for 2 s"
    with TrialServer(DataLoader(faulty.HangsAtStart())) as server, pytest.raises(ProbeError, match=said):
        server.probe()
    assert marked_processes(server._marker) == []


@pytest.mark.parametrize("nothing", [[], None, torch.zeros(0, 3)])
def test_batches_without_samples_have_no_rate(nothing):
    loader = DataLoader(faulty.Faulty(), batch_size=4, collate_fn=lambda samples: nothing)
    result = measure(loader, LoaderSettings(num_workers=1), starts=1, measure_seconds=0.1)
    assert (result.status, result.samples_per_second) == ("failed", None)
    assert "no sample could be counted" in result.reason and "samples_per_batch" in result.reason


def test_an_error_reads_the_same_at_0_and_2_workers_and_names_the_users_line():
    with TrialServer(faulty.make("raises_two_part")) as server:
        zero, two = server.run(ZERO, QUICK), server.run(TWO, QUICK)
    assert zero.error_type == two.error_type == "TwoPartError"
    assert zero.reason == two.reason
    assert "faulty.py" in zero.reason and "in raises_two_part" in zero.reason
    assert any("worker" in note for note in two.notes)


CELLS = (
    "import sys, torch\nfrom torch.utils.data import DataLoader, Dataset",
    "class Rows(Dataset):\n"
    "    def __len__(self):\n"
    "        return 4000\n"
    "    def __getitem__(self, index):\n"
    "        return torch.tensor(float(index)) if index < 60 else self.missing[index]\n",
    "from workbench.loaders.settings import LoaderSettings\n"
    "from workbench.measure.trial import TrialPlan, TrialServer\n"
    "with TrialServer(DataLoader(Rows(), batch_size=4, collate_fn=lambda rows: rows)) as server:\n"
    "    for workers in (0, 1):\n"
    "        run = server.run(LoaderSettings(num_workers=workers), TrialPlan(measure_seconds=0.2))\n"
    "        print(run.reason)\n"
    "print('self.missing[index]' in run.traceback_text)\n"
    "print(server.probe().pickle_problems['spawn'])\n",
)
NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    shell.run_cell(cell, store_history=True).raise_error()
"""


def test_an_error_of_a_class_from_a_notebook_is_told_by_its_cell_and_line():
    root = str(Path(__file__).parents[1])
    code = NOTEBOOK.format(cells=CELLS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    zero, one, quoted, problem = done.stdout.strip().splitlines()[-4:]

    assert "'Rows' object has no attribute 'missing' (In[2], line 5, in __getitem__)" in zero
    assert one == zero and quoted == "True"
    assert problem.startswith("dataset: class Rows lives in __main__")


def test_100_mb_of_output_are_drained_and_capped():
    run = run_one(faulty.make("prints_much", only_in_worker=True), TWO)
    assert run.output_bytes >= 100_000_000
    assert len(run.output_tail) < 100_000


def test_a_ceiling_stops_a_trial_that_grows():
    plan = TrialPlan(memory_limit_bytes=1_500_000_000, deadline_seconds=60, silence_seconds=40)
    with TrialServer(faulty.make("eats_memory", only_in_worker=True)) as server:
        run = server.run(TWO, plan)
    assert run.status == "over_memory"
    assert "over the limit of" in run.reason
    assert 1_500_000_000 < run.memory.peak_pss_bytes < 2_000_000_000  # half a second more at the pace it eats


def test_descriptors_running_out_is_named():
    loader = DataLoader(
        faulty.Faulty("runs_out_of_descriptors", only_in_worker=True), batch_size=4, collate_fn=faulty.many_tensors
    )
    run = run_one(loader, LoaderSettings(num_workers=2, prefetch_factor=8))
    assert run.status in ("failed", "timed_out")
    assert "open files" in run.reason


def test_a_loader_that_fails_at_once_is_the_users_own_error_and_nothing_starts(nothing_left):
    with (
        TrialServer(faulty.make("raises", at=5)) as server,
        pytest.raises(ProbeError, match="sample is broken") as caught,
    ):
        server.probe()
    assert caught.value.error_type == "ValueError"
    assert "faulty.py" in caught.value.traceback_text


def test_an_empty_loader_says_why():
    loader = DataLoader(TensorDataset(torch.arange(3.0)), batch_size=8, drop_last=True)
    with TrialServer(loader) as server, pytest.raises(ProbeError, match="no batch"):
        server.probe()


@pytest.mark.parametrize(
    ("samples", "more", "told"),
    [
        (0, {}, "holds 0 samples; give it some"),
        (3, {"drop_last": True}, "take a smaller batch_size or drop_last=False"),
        (3, {"sampler": []}, "its sampler takes none"),
    ],
)
def test_why_a_loader_is_empty_names_a_way_out(samples, more, told):
    assert told in why_empty(DataLoader(TensorDataset(torch.zeros(samples)), batch_size=8, **more))


class Endless(IterableDataset):
    def __iter__(self):
        value = 0
        while True:
            yield torch.tensor(value)
            value += 1


def test_an_endless_stream_is_measured_and_has_neither_an_epoch_nor_an_edge():
    with TrialServer(DataLoader(Endless(), batch_size=12)) as server:
        assert (server.probe().epoch_batches, server.probe().epoch_ends) == (None, False)
        runs = [server.run(settings, QUICK) for settings in (ZERO, LoaderSettings(num_workers=1))]
    for run in runs:
        assert (run.status, run.epoch_edge_seconds) == ("ok", None)
        assert {w.samples / w.batches for w in run.windows} == {12}


class Ticking(Dataset):
    """Each sample moves a made-up clock on by a tenth of a second."""

    def __init__(self, length):
        self.length, self.now = length, 0.0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.now += 0.1
        return torch.tensor(index)


@pytest.mark.parametrize(("length", "seen"), [(100_000, ASSURED_BATCHES), (15, 15)])
def test_the_probe_goes_on_to_the_end_of_an_epoch_only_where_it_is_stated_to_be_near(monkeypatch, length, seen):
    data = Ticking(length)
    monkeypatch.setattr(probing, "time", SimpleNamespace(perf_counter=lambda: data.now))
    look = probing._Look(DataLoader(data), {"samples_per_batch": None}, [0])
    look.first()
    look.rest()
    assert look.batches == seen


class Long(Endless):
    def __len__(self):
        return 10**9


def test_a_stream_too_long_to_be_seen_through_has_an_edge_where_it_states_its_length():
    with TrialServer(DataLoader(Long(), batch_size=12)) as server:
        assert (server.probe().epoch_batches, server.probe().epoch_ends) == (None, True)
        assert server.run(LoaderSettings(num_workers=1), QUICK).epoch_edge_seconds > 0


def test_an_epoch_shorter_than_the_warm_up_is_measured_in_whole_epochs():
    loader = DataLoader(TensorDataset(torch.arange(48.0)), batch_size=16)
    with TrialServer(loader) as server:
        run = server.run(LoaderSettings(num_workers=1, persistent_workers=True), QUICK)
    assert (run.status, run.mode) == ("ok", "epochs")
    assert all(w.batches % 3 == 0 and w.samples == 16 * w.batches for w in run.windows)


@pytest.mark.parametrize("settings", [ZERO, TWO])
def test_slow_batches_get_the_time_that_a_run_of_them_needs(settings):
    """At 10 s a batch, the first, two rounds of warm-up and drain, and one window alone are a minute."""
    limits = limits_of(TrialPlan(), settings, probe_of(batch_seconds=10.0), cores=2)

    assert limits["deadline_seconds"] >= 120 and limits["silence_seconds"] >= 300
    assert limits_of(TrialPlan(), settings, probe_of(batch_seconds=0.01), cores=2)["deadline_seconds"] == 60
    assert limits_of(TrialPlan(deadline_seconds=5), settings, probe_of(), cores=2)["deadline_seconds"] == 5


def test_cancel_ends_the_running_trial_and_the_next_one_runs(nothing_left):

    with TrialServer(faulty.make()) as server:
        server.probe()
        threading.Timer(0.6, server.cancel).start()
        run = server.run(TWO, TrialPlan(measure_seconds=30, max_measure_seconds=30))
        assert (run.status, run.batches_total > 0) == ("killed", True)
        assert server.run(TWO, QUICK).status == "ok"


KERNEL = """
import sys, time
sys.path.insert(0, {root!r})
from tests import faulty
from tests.scripted import probe_of
from workbench.measure.trial import TrialServer, TrialPlan
from workbench.loaders.settings import LoaderSettings
server = TrialServer(faulty.make())
server.probe()
print(server._marker, server._directory, flush=True)
settings = LoaderSettings(num_workers=2, multiprocessing_context={method!r})
server.run(settings, TrialPlan(measure_seconds=60, max_measure_seconds=60))
"""


@pytest.mark.parametrize(("method", "wait"), [("fork", 0.0), ("fork", 0.03), ("fork", 1.5), ("forkserver", 3.0)])
def test_nothing_survives_a_kernel_that_is_killed(method, wait):
    root = str(Path(__file__).parents[1])
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL.format(root=root, method=method)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    marker, directory = kernel.stdout.readline().split()
    time.sleep(wait)
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    deadline = time.monotonic() + 5
    while (marked_processes(marker) or Path(directory).exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marked_processes(marker) == []
    assert not Path(directory).exists()
    kernel.stdout.close()


def test_a_small_shared_memory_is_named_and_the_next_trial_runs():
    """16 MiB of /dev/shm in a mount namespace of its own; batches of 4 MiB, 2 workers, 4 each."""
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
from torch.utils.data import DataLoader, TensorDataset
from workbench.loaders.settings import LoaderSettings
from workbench.measure.trial import TrialPlan, TrialServer
loader = DataLoader(TensorDataset(torch.zeros(256, 1 << 18)), batch_size=4)
plan = TrialPlan(measure_seconds=0.2, silence_seconds=5, check_data=False)
with TrialServer(loader) as server:
    runs = [server.run(s, plan) for s in (LoaderSettings(num_workers=2, prefetch_factor=4), LoaderSettings())]
print(json.dumps([(run.status, run.reason) for run in runs]))
"""
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (status, reason), second = json.loads(done.stdout.strip().splitlines()[-1])
    assert status == "failed" and "shared memory" in reason and "--shm-size" in reason
    assert second == ["ok", ""]


def test_code_that_starts_threads_when_it_is_loaded_is_run_without_forking(tmp_path):
    (tmp_path / "threaded.py").write_text(
        "import threading, time, torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "def make(num_workers=0):\n"
        "    return DataLoader(TensorDataset(torch.arange(4000.)), batch_size=8, num_workers=num_workers)\n"
    )
    with TrialServer(f"{tmp_path}/threaded.py:make") as server:
        for settings in (ZERO, TWO, ZERO):
            assert server.run(settings, QUICK).status == "ok"
        marker = server._marker
    assert marked_processes(marker) == []


def test_a_step_paces_the_trial():
    """A step that sleeps 20 ms a batch of 4 allows no more than 200 samples a second, however fast the loader."""
    with TrialServer(faulty.make(), step=lambda batch: time.sleep(0.02)) as server:
        run = server.run(TWO, QUICK)
    assert run.status == "ok"
    assert all(w.samples_per_second <= 200 for w in run.windows)


def test_the_first_run_is_marked_cold_and_later_ones_are_not():
    with TrialServer(faulty.make()) as server:
        assert [server.run(ZERO, QUICK).cold for _ in range(2)] == [True, False]


def test_a_loader_that_cannot_be_loaded_elsewhere_is_an_error_that_says_so(tmp_path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\ndef make(num_workers=0):\n    return []\n")
    with TrialServer(f"{tmp_path}/broken.py:make") as server, pytest.raises(SourceError, match="no licence"):
        server.probe()


def test_a_closed_server_says_so():
    server = TrialServer(faulty.make())
    server.close()
    with pytest.raises(TrialServerError, match="closed"):
        server.run(ZERO, QUICK)


def test_a_warden_that_is_killed_takes_its_trial_with_it_and_a_new_one_starts():
    with TrialServer(faulty.make()) as server:
        server.probe()
        threading.Timer(0.5, lambda: os.kill(server._warden.pid, signal.SIGKILL)).start()
        run = server.run(TWO, TrialPlan(measure_seconds=30, max_measure_seconds=30))
        assert run.status == "failed"
        assert server.run(TWO, QUICK).status == "ok"
        marker = server._marker
    assert marked_processes(marker) == []


def test_the_calling_process_is_as_it_was():
    """Threads, signal handlers, random state, thread counts and the start method of the caller are untouched."""

    def state() -> tuple[Any, ...]:
        import multiprocessing
        import random

        handlers = tuple(signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD))
        return (
            threading.active_count(),
            handlers,
            random.getstate(),
            torch.random.get_rng_state().sum().item(),
            torch.get_num_threads(),
            multiprocessing.get_start_method(allow_none=True),
            torch.multiprocessing.get_sharing_strategy(),
        )

    before = state()
    with TrialServer(faulty.make()) as server:
        server.run(TWO, QUICK)
    assert state() == before


@pytest.mark.parametrize("at", [0, 1])
def test_a_worker_that_dies_before_the_first_batch_is_named_by_its_exit_code(at):
    with TrialServer(faulty.make("exits", at=at, only_in_worker=True)) as server:
        run = server.run(TWO, QUICK)
    assert run.status == "failed"
    assert "code 3" in run.reason
