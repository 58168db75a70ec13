"""From what was seen of a run to its status and reason."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import asdict, replace
from typing import Any

import pytest

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Memory
from workbench.measure.verdicts import judge, make_run, overhead, project, repeated_warnings

LIMITS = {"deadline_seconds": 60, "silence_seconds": 15, "memory_bytes": 4 << 30, "floor_bytes": 1 << 30}
WINDOW = {"at_seconds": 0.0, "seconds": 0.5, "batches": 10, "samples": 40, "foreign_cores": 0.0}
TWO = LoaderSettings(num_workers=2)
LIBRARY = os.path.join(sysconfig.get_path("stdlib"), "ctypes", "__init__.py")
CRASHED = f"""Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "{LIBRARY}", line 519 in string_at
  File "/home/me/data.py", line 9 in read
  File "/home/me/data.py", line 5 in __getitem__

Extension modules: numpy._core._multiarray_umath, torch._C (total: 40)
"""
WRONG = {"status": "wrong_data", "reason": "lost"}


def seen(ended: str, **more: Any) -> dict[str, Any]:
    return {"ended": ended, "phase": "measure", "batches": 10, "output": "", "exit_code": None, "memory": {}} | more


def error(type_: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "message": message, "traceback": "", "line": "user.py:7 in f", "worker": None} | more


@pytest.mark.parametrize(
    ("verdict", "status", "text"),
    [
        (seen("finished", done={}, windows=[WINDOW]), "ok", ""),
        (seen("finished", done={}, windows=[]), "failed", "nothing could be measured in 10 batches"),
        (seen("finished", done={}, windows=[WINDOW | {"samples": 0}]), "failed", "no sample could be counted in 10"),
        (seen("finished", done={"check": WRONG}, windows=[WINDOW]), "wrong_data", "lost"),
        (seen("finished", error=error("KeyError", "'a'", worker=1)), "failed", "KeyError: 'a' (user.py:7 in f)"),
        (seen("finished", error=error("OSError", "x", exit_codes={"0": -9})), "killed", "0 was killed (SIGKILL)"),
        (seen("finished", error=error("OSError", "", exit_codes={"1": -7})), "failed", "SIGBUS"),
        (seen("finished", error=error("RuntimeError", "x", exit_codes={"1": 7})), "failed", "exited with code 7"),
        (seen("finished", error=error("ValueError", "x", worker=0, exit_codes={"1": -15})), "failed", "ValueError: x"),
        (seen("finished", error=error("MemoryError", "")), "over_memory", "MemoryError (user.py:7 in f); use fewer"),
        (
            seen("finished", error=error("FileNotFoundError", "", line="", ended_workers=[1])),
            "failed",
            "worker 1 ended in mid-epoch without an error (exit code 0)",
        ),
        (seen("finished", error=error("FileNotFoundError", "x", ended_workers=[1])), "failed", "FileNotFoundError: x"),
        (
            seen("finished", error=error("TypeError", "cannot pickle 'lock'", unsendable="dataset.lock (TypeError)")),
            "failed",
            "has to pickle the loader and cannot: dataset.lock (TypeError)",
        ),
        (seen("finished", error=error("RuntimeError", "unable to allocate shared memory(shm)")), "failed", "/dev/shm"),
        (seen("finished", error=error("OSError", "[Errno 24] Too many open files")), "failed", "ulimit"),
        (
            seen("finished", error=error("EOFError", ""), output="unable to open: Too many open files (24)"),
            "failed",
            "too many open files",
        ),
        (seen("finished", error=error("EOFError", ""), output="insufficient shared memory"), "failed", "EOFError"),
        (seen("finished", error=error("RuntimeError", "stack expects each tensor to be equal size")), "failed", "pads"),
        (
            seen("finished", error=error("RuntimeError", "Cannot re-initialize CUDA in forked subprocess.")),
            "failed",
            "copy in the training loop",
        ),
        (seen("exited", exit_code=-11), "failed", "the trial's process crashed (SIGSEGV)"),
        (seen("exited", exit_code=-11, output=CRASHED), "failed", "in native code, called from /home/me/data.py:9"),
        (seen("exited", exit_code=-9, memory={"peak_pss_bytes": 3 << 30}), "killed", "last seen at 3"),
        (seen("exited", exit_code=7), "failed", "exited with code 7"),
        (seen("memory", memory={"peak_pss_bytes": 5 << 30}), "over_memory", "over the limit of 4"),
        (seen("machine memory"), "over_memory", "the machine had less than 1"),
        (seen("cancelled"), "killed", "stopped"),
        (seen("server lost"), "failed", "the next trial starts a new one"),
        (seen("silence", silent_seconds=15.2), "timed_out", "hang at batch 11: nothing came for 15 s"),
        (seen("silence", children=[-9, 0, 3]), "failed", "a worker exited with code 3 without an error"),
        (seen("silence", children=[-11, -9]), "failed", "a worker crashed (SIGSEGV)"),
        (seen("silence", children=[-9]), "timed_out", "hang at batch 11"),
        (seen("silence", children=[1], output="[Errno 24] Too many open files"), "timed_out", "ran out of open files"),
        (seen("silence", batches=0, silent_seconds=15), "timed_out", "'spawn' or 'forkserver'"),
        (seen("silence", output="OSError: [Errno 24] Too many open files"), "timed_out", "ran out of open files"),
        (
            seen("silence", output='  File "queues.py", line 244, in _feed\nRuntimeError: a handle cannot be sent'),
            "timed_out",
            "could not pickle its batch or its exception, which torch waits for for ever; its last line of output:",
        ),
        (seen("silence", output="PicklingError: f"), "timed_out", "could not pickle"),
        (seen("deadline", silent_seconds=0.1), "timed_out", "not done after 60 s, in phase measure"),
        (seen("deadline", silent_seconds=0.1, phase="epoch edge", windows=[WINDOW]), "ok", ""),
        (seen("deadline", silent_seconds=14, phase="shutdown", windows=[WINDOW]), "timed_out", "hang"),
    ],
)  # fmt: skip
def test_how_it_ended_says_what_it_was(verdict, status, text):
    assert judge(TWO, verdict, LIMITS)[0] == status
    assert text in judge(TWO, verdict, LIMITS)[1]


def test_only_ok_has_no_reason():
    assert judge(TWO, seen("finished", done={}, windows=[WINDOW]), LIMITS) == ("ok", "")


def test_a_pool_of_threads_in_every_worker_is_oversubscription_and_the_loaders_own_threads_are_not():
    def notes(busy: int) -> tuple[str, ...]:
        verdict = seen("finished", done={}, windows=[WINDOW], busy_threads=busy, peak_threads=20)
        return make_run(TWO, verdict, LIMITS, cores=2, started_at=0.0, cold=False).notes

    assert notes(3) == ()
    assert "2 workers x 6 busy threads on 2 cores (20 threads in all)" in notes(6)[0]


def test_a_rate_that_falls_within_a_start_is_told():
    falling = [WINDOW | {"samples": samples} for samples in (40, 40, 40, 40, 10, 10, 10, 10)]
    run = make_run(TWO, seen("finished", done={}, windows=falling), LIMITS, cores=2, started_at=0.0, cold=False)
    assert "not steady: the rate fell from 80 to 20 samples/s" in run.notes[0]


def test_the_same_warning_is_shown_once_with_a_count():
    output = "/a.py:3: RuntimeWarning: slow path in use\n  warnings.warn(\n" * 40 + "fine\n"
    assert len(repeated_warnings(output)) == 1
    assert "slow path in use (40 times)" in repeated_warnings(output)[0]


def test_overhead_is_wall_time_that_the_loader_and_the_clock_do_not_account_for():
    assert overhead({"done": {"accounted_seconds": 2.0}, "wall_seconds": 2.25}) == 0.25
    assert overhead({"done": None, "wall_seconds": 2.25}) is None


GROWING = Memory(
    peak_pss_bytes=1 << 30,
    growth_bytes_per_1000_samples=float(1 << 20),
    growth_samples=5000,
    growth_established=True,
    growth_in_workers=True,
    growth_kind="anonymous",
)


def test_established_growth_is_projected_to_the_end_of_an_epoch():
    assert project(GROWING, 10_000, 110_000).projected_peak_bytes == (1 << 30) + (100 << 20)
    assert project(GROWING, 10_000, 5_000).projected_peak_bytes == 1 << 30
    assert project(GROWING, 10_000, None).projected_peak_bytes is None
    assert project(replace(GROWING, growth_kind="copy-on-write"), 10_000, 110_000).projected_peak_bytes is None


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (LoaderSettings(2), "; use fewer workers or a smaller prefetch_factor"),
        (LoaderSettings(1, 2), "; use fewer workers or a smaller prefetch_factor"),
        (LoaderSettings(1, 1), "; use 0 workers"),
        (LoaderSettings(0), "; with 0 workers the loader alone needs at least that much: allow more"),
    ],
)
def test_what_to_do_about_memory_depends_on_what_is_left_to_lower(settings, advice):
    for ended in ("memory", "machine memory"):
        assert advice in judge(settings, seen(ended), LIMITS)[1]
    grown = seen("finished", done={"samples": 0}, windows=[WINDOW], memory=asdict(GROWING))
    run = make_run(settings, grown, LIMITS, cores=2, started_at=0.0, cold=False, epoch_samples=10_000_000)
    assert advice in run.reason


def test_a_projected_peak_over_the_limit_does_not_pass_and_growth_is_told_with_its_samples():
    verdict = seen("finished", done={"samples": 0}, windows=[WINDOW], memory=asdict(GROWING))
    run = make_run(TWO, verdict, LIMITS, cores=2, started_at=0.0, cold=False, epoch_samples=100_000)
    assert run.status == "ok"
    assert "per 1,000 samples in the workers, seen over 5,000 samples, 1.2 GB in all by the end of" in run.notes[0]
    assert "a cache without a bound" in run.notes[0] and "MALLOC_MMAP_THRESHOLD_=65536" in run.notes[0]
    run = make_run(TWO, verdict, LIMITS, cores=2, started_at=0.0, cold=False, epoch_samples=10_000_000)
    assert run.status == "over_memory"
    assert "by the end of an epoch, over the limit of" in run.reason
