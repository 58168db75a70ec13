"""A sweep runs what its strategy asks for, keeps what ended, and obeys pause, stop, budget and resume."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import workbench.tuning.engine as engine
from tests.scripted import ScriptedServer, broken_probe, factory, probe_of, run_of
from workbench.errors import ProbeError, SettingsError, StoreError, TrialServerError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun
from workbench.tuning.progress import ProgressLine
from workbench.tuning.results import load_results
from workbench.tuning.space import SearchSpace
from workbench.tuning.strategies import STRATEGIES
from workbench.tuning.sweep import Sweep, running_sweeps

SPACE = SearchSpace(num_workers=[0, 1, 2, 4])
W0, W1, W2, W4 = (LoaderSettings(num_workers=n) for n in (0, 1, 2, 4))


def by_workers(settings: LoaderSettings) -> float:
    """100 samples/s in the main process, 90 for each of up to three workers."""
    return 90.0 * min(3, settings.num_workers) or 100.0


@pytest.fixture
def sweep(tmp_path):
    """Makes sweeps over a scripted server in one store."""

    def make(server: ScriptedServer | None = None, **options) -> Sweep:
        known = {
            "space": SPACE,
            "strategy": "grid",
            "store": tmp_path / "s.db",
            "server_factory": server or ScriptedServer(by_workers),
        }
        return Sweep(factory, **{**known, **options})

    return make


# -- a whole sweep --


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_sweep_finds_the_fewest_workers_on_the_plateau(sweep, strategy):
    results = sweep(
        ScriptedServer(by_workers, spread=0.005), strategy=strategy, space=SearchSpace(num_workers=[0, 1, 2, 3, 4, 6])
    ).run(progress=False)

    assert results.best == LoaderSettings(num_workers=3)
    assert results.ending == "finished" and results.current == LoaderSettings()


def test_what_is_returned_is_what_is_stored(sweep, tmp_path):
    results = sweep(name="mine").run(progress=False)
    stored = load_results(tmp_path / "s.db")

    assert stored == results and stored.name == "mine"
    assert stored.frame.equals(results.frame)


def test_a_fault_in_some_trials_leaves_the_others(sweep):
    def rate(settings):
        if settings == W2:
            return TrialRun(settings, "failed", "worker 1 was killed by signal 9")
        return by_workers(settings)

    results = sweep(ScriptedServer(rate)).run(progress=False)

    assert results.best == W4
    assert list(results.failed["reason"]) == ["worker 1 was killed by signal 9"]


def test_current_settings_that_fail_are_started_once(sweep):
    server = ScriptedServer(lambda settings: TrialRun(settings, "failed", "x") if settings == W0 else 90.0)

    results = sweep(server).run(progress=False)

    assert server.starts.count(W0) == 1 and results.best == W1


def test_a_loader_that_fails_with_no_workers_is_the_callers_error_and_no_sweep_is_stored(sweep, tmp_path):
    server = ScriptedServer(by_workers, probe=broken_probe())

    failing = sweep(server)
    with pytest.raises(ProbeError, match="no file"):
        failing.run(progress=False)

    assert failing.state == "failed" and server.closed == 1 and not server.starts
    with pytest.raises(StoreError, match="no sweep yet"):
        load_results(tmp_path / "s.db")


def test_a_loader_whose_samples_cannot_be_counted_is_refused_before_the_first_trial(sweep):
    server = ScriptedServer(by_workers, probe=probe_of(samples_per_batch=None, batch_structure="int"))

    with pytest.raises(ProbeError, match=r"no sample can be counted in .* first batch \(int\): .*samples_per_b"):
        sweep(server).run(progress=False)

    assert not server.starts


def test_what_shared_memory_cannot_hold_is_skipped_without_a_start(sweep, monkeypatch):
    monkeypatch.setattr(engine.machine, "shared_memory_bytes", lambda: engine.machine.SharedMemory(64 << 20, 64 << 20))
    server = ScriptedServer(by_workers, probe=probe_of(batch_bytes=16 << 20))

    results = sweep(server).run(progress=False)

    assert {one.num_workers for one in server.starts} == {0, 1}
    skipped = results.failed
    assert set(skipped["status"]) == {"skipped"} and all("shared memory" in why for why in skipped["reason"])


def test_what_needs_more_than_settings_over_the_memory_limit_is_skipped(sweep):
    def rate(settings):
        if settings.num_workers >= 2:
            return TrialRun(settings, "over_memory", "held 9 GB")
        return by_workers(settings)

    server = ScriptedServer(rate)
    results = sweep(server, memory_limit="8GiB", seed=0).run(progress=False)

    assert server.plans[0].memory_limit_bytes == 8 << 30
    assert results.best == W0
    assert set(results.failed["status"]) <= {"over_memory", "skipped"} and len(results.failed) == 2


def test_one_time_checks_are_made_in_the_first_warm_start_only(sweep):
    first = True

    def rate(settings):
        nonlocal first
        cold, first = first, False
        return run_of(settings, by_workers(settings), cold=cold)

    server = ScriptedServer(rate)
    sweep(server).run(progress=False)

    mine = [plan for settings, plan in zip(server.starts, server.plans, strict=True) if settings == W0]
    assert [plan.check_data for plan in mine[:3]] == [True, True, False]
    assert [plan.seed for plan in mine[:3]] == [0, 0, 1]


def test_the_server_is_told_what_the_caller_said(sweep):
    server = ScriptedServer(by_workers)

    def step(batch):
        return batch

    sweep(server, samples_per_batch=7, step=step).run(progress=False)

    assert server.options["samples_per_batch"] == 7 and server.options["step"] is step


@pytest.mark.parametrize(
    "options",
    [
        {"budget_seconds": -1},
        {"memory_limit": "lots"},
        {"samples_per_batch": 0},
        {"measure_seconds": 0},
        {"space": [0, 1]},
        {"step": 3},
    ],
)
def test_nonsense_is_refused_when_the_sweep_is_made(sweep, options):
    with pytest.raises(SettingsError, match=str(next(iter(options.values())))[:4].strip("[")):
        sweep(**options)


def test_the_default_space_keeps_to_the_knobs_the_factory_takes(tmp_path):
    def only_workers(num_workers=0):
        return iter(())

    fixed = ("num_workers", "prefetch_factor", "persistent_workers")
    server = ScriptedServer(by_workers, probe=probe_of(returned="an iterator", fixed_knobs=fixed))
    results = Sweep(only_workers, strategy="grid", store=tmp_path / "s.db", server_factory=server).run(progress=False)

    assert len({one.num_workers for one in server.starts}) == len(results.trials) >= 3


def test_a_knob_the_factory_does_not_take_ends_the_sweep_before_a_trial(sweep):
    server = ScriptedServer(by_workers, probe=probe_of(returned="an iterator", fixed_knobs=("batch_size",)))

    with pytest.raises(SettingsError, match=r"batch_size=8 cannot be tried: .* returned an iterator, not a DataLoader"):
        sweep(server, space=SearchSpace(batch_size=[8, 16])).run(progress=False)
    assert not server.starts


# -- events and progress --


def test_listeners_hear_the_plan_every_run_and_the_end_and_cannot_break_the_sweep(sweep):
    heard, broken = [], []

    def breaks(event):
        broken.append(event)
        raise RuntimeError("listener")

    running = sweep(on_event=heard.append)
    running.on_event.append(breaks)
    results = running.run(progress=False)

    kinds = [event["kind"] for event in heard]
    assert len(broken) == 1
    assert kinds.index("probe") < kinds.index("plan") < kinds.index("run_started") < kinds.index("run_finished")
    assert kinds.count("run_started") == kinds.count("run_finished") == sum(len(t.runs) for t in results.trials)
    assert heard[-1] == {"kind": "state", "state": "done"}
    assert next(event["runs_left"] for event in reversed(heard) if event["kind"] == "run_finished") == 0


def test_progress_is_one_short_line_on_stderr_and_nothing_on_stdout(sweep, capsys):
    sweep(ScriptedServer(by_workers, spread=0.3)).run()

    out, err = capsys.readouterr()
    assert out == "" and "runs" in err and "fastest" in err and len(err) < 5_000


def test_what_goes_on_before_the_first_run_is_said_with_the_seconds_it_takes(capsys):
    line = ProgressLine()
    line({"kind": "phase", "phase": "first batch"})
    line.draw()
    assert "reading a few batches with 0 workers to learn sizes and times [00:00]" in capsys.readouterr().err
    line({"kind": "probe", "probe": None})
    line({"kind": "phase", "phase": "first batch"})  # of a run
    line.close()
    err = capsys.readouterr().err
    assert "reading" not in err and "runs [00:00" in err


# -- control --


def hanging(settings) -> bool:
    return settings.num_workers == 2


def test_stop_ends_the_trial_that_runs_and_keeps_the_finished_ones(sweep, tmp_path):
    server = ScriptedServer(by_workers, hang=hanging)
    running = sweep(server).start()
    assert server.hanging.wait(10)
    assert running.state == "running" and running in running_sweeps()

    running.stop()
    results = running.wait(timeout_seconds=10)

    assert running.state == "done" and running not in running_sweeps()
    assert results.ending == "stopped" and results.best is not None
    assert results.trial(W2).status == "skipped" and "stopped before its turn" in results.trial(W2).reason
    assert load_results(tmp_path / "s.db") == results
    assert server.closed == 1


def test_pause_gives_the_machine_back_and_the_trial_is_done_anew(sweep):
    server = ScriptedServer(by_workers, hang=lambda settings: hanging(settings) and not resumed.is_set())
    resumed = threading.Event()
    running = sweep(server).start()
    assert server.hanging.wait(10)

    running.pause()
    assert running.state == "paused"
    assert running.wait(timeout_seconds=0.3) is not None
    starts = len(server.starts)
    assert running.wait(timeout_seconds=0.3).trial(W2) is None and len(server.starts) == starts
    resumed.set()
    running.resume()
    results = running.wait(timeout_seconds=10)

    assert running.state == "done" and results.trial(W2).status == "ok"
    assert not any(run.status == "killed" for trial in results.trials for run in trial.runs)


def test_a_paused_sweep_can_be_stopped(sweep):
    server = ScriptedServer(by_workers, hang=hanging)
    running = sweep(server).start()
    assert server.hanging.wait(10)
    running.pause()
    running.stop()

    assert running.wait(timeout_seconds=10).ending == "stopped" and running.state == "done"


@pytest.mark.parametrize("error", [broken_probe(), TrialServerError("did not start (cancelled)")])
def test_a_stop_while_the_loader_is_probed_is_not_the_loaders_fault(sweep, error):
    began = threading.Event()

    class Slow(ScriptedServer):
        def probe(self):
            began.set()
            assert self._cancelled.wait(10)
            raise error

    running = sweep(Slow(by_workers)).start()
    assert began.wait(10)
    running.stop()

    assert running.wait(timeout_seconds=10) is None and running.state == "done" and running.error is None


def test_asking_an_idle_or_ended_sweep_to_pause_or_stop_does_nothing(sweep):
    running = sweep()
    running.pause(), running.resume(), running.stop()
    assert running.state == "idle" and running.results is None
    running.run(progress=False)
    running.stop()
    assert running.state == "done" and running.results.ending == "finished"


def test_a_sweep_under_way_cannot_be_started_twice_but_an_ended_one_can(sweep):
    server = ScriptedServer(by_workers, hang=hanging)
    running = sweep(server, name="mine").start()
    assert server.hanging.wait(10)
    with pytest.raises(SettingsError, match="running already"):
        running.start()
    running.stop()
    running.wait()
    server.hang = lambda settings: False

    assert running.run(progress=False).name == "mine-2"


def test_running_a_cell_again_stops_the_sweep_it_began_before(sweep):
    server = ScriptedServer(by_workers, hang=hanging)
    old = sweep(server).start()
    assert server.hanging.wait(10)

    new = sweep()
    new.start()

    assert old.state == "done" and old.results.ending == "stopped"
    assert new.wait().ending == "finished"


def test_an_error_in_the_thread_reaches_whoever_waits(sweep):
    def explode(settings):
        raise RuntimeError("the server broke")

    running = sweep(ScriptedServer(explode)).start()

    with pytest.raises(RuntimeError, match="the server broke"):
        running.wait()
    assert running.state == "failed" and isinstance(running.error, RuntimeError)
    assert running.results.ending == "failed"


def test_a_sweep_can_be_awaited(sweep):
    async def both():
        return await sweep().start()

    assert asyncio.run(both()).best == W4


def interrupt_soon(event: threading.Event) -> None:
    def send():
        event.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


def test_an_interrupt_keeps_what_was_found_and_says_so(sweep, tmp_path):
    server = ScriptedServer(by_workers, hang=hanging)
    interrupt_soon(server.hanging)

    results = sweep(server).run(progress=False)

    assert results.ending == "interrupted" and "interrupted first" in results.recommendation
    assert load_results(tmp_path / "s.db") == results
    assert sweep().run(progress=False).ending == "finished"


def test_an_interrupt_before_anything_was_found_is_an_interrupt(sweep):
    began = threading.Event()

    class Slow(ScriptedServer):
        def probe(self):
            began.set()
            self._cancelled.wait(10)
            raise broken_probe()

    interrupt_soon(began)

    with pytest.raises(KeyboardInterrupt):
        sweep(Slow(by_workers)).run(progress=False)


# -- budget --


def test_a_budget_ends_the_sweep_with_the_best_so_far(sweep, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: clock[0])

    def a_run_takes_three_seconds(settings):
        clock[0] += 3.0

    server = ScriptedServer(by_workers, before_run=a_run_takes_three_seconds)
    results = sweep(server, budget_seconds=8).run(progress=False)

    assert results.ending == "budget" and len(server.starts) == 2
    assert results.best is not None and "the time budget ended first" in results.recommendation
    unrun = results.failed
    assert set(unrun["status"]) == {"skipped"} and all("budget" in why for why in unrun["reason"])
    assert all(plan.deadline_seconds <= 8 for plan in server.plans)


@pytest.mark.parametrize(
    ("seconds", "status", "ending"), [(29.5, "skipped", "budget"), (15.0, "timed_out", "finished")]
)
def test_a_trial_that_the_budget_cuts_off_is_told_from_one_that_hangs(sweep, monkeypatch, seconds, status, ending):
    clock = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: clock[0])

    def rate(settings):
        if settings != W2:
            return by_workers(settings)
        clock[0] += seconds
        return TrialRun(settings, "timed_out", "no end")

    results = sweep(ScriptedServer(rate), budget_seconds=30).run(progress=False)

    assert results.trial(W2).status == status and results.ending == ending
    assert results.best is not None or ending == "budget"


# -- resume --


def test_a_stopped_sweep_goes_on_without_repeating_a_finished_run(sweep, tmp_path):
    server = ScriptedServer(by_workers, hang=hanging)
    first = sweep(server, name="mine").start()
    assert server.hanging.wait(10)
    first.stop()
    done = [run for trial in first.wait().trials for run in trial.runs if trial.status == "ok"]

    again = ScriptedServer(by_workers)
    results = sweep(again, name="mine").run(resume=True, progress=False)

    runs = [run for trial in results.trials for run in trial.runs]
    assert all(run in runs for run in done) and len(runs) == len(done) + len(again.starts)
    assert results.name == "mine" and results.ending == "finished" and results.trial(W2).status == "ok"
    assert load_results(tmp_path / "s.db") == results


def test_a_finished_sweep_resumed_runs_nothing(sweep):
    first = sweep(name="mine").run(progress=False)
    again = ScriptedServer(by_workers)

    assert sweep(again, name="mine").run(resume=True, progress=False).trials == first.trials
    assert not again.starts


def test_without_a_name_the_latest_sweep_of_the_loader_is_resumed(sweep):
    first = sweep().run(progress=False)

    assert sweep().run(resume=True, progress=False).name == first.name


def test_a_sweep_killed_with_its_process_resumes_from_the_last_saved_run(sweep, tmp_path):
    code = (
        "import os, sys\n"
        "from tests.scripted import ScriptedServer, factory\n"
        "from tests.test_sweep import SPACE, by_workers\n"
        "from workbench.tuning.sweep import Sweep\n"
        "def die(settings):\n"
        "    if len(server.starts) == 4: os._exit(9)\n"
        "server = ScriptedServer(by_workers, before_run=die)\n"
        "Sweep(factory, SPACE, 'grid', store=sys.argv[1], name='mine', server_factory=server).run(progress=False)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s.db")])
    assert died.returncode == 9
    left = load_results(tmp_path / "s.db")
    assert left.ending == "" and sum(len(trial.runs) for trial in left.trials) == 3

    server = ScriptedServer(by_workers)
    results = sweep(server, name="mine").run(resume=True, progress=False)

    assert sum(len(trial.runs) for trial in results.trials) == 3 + len(server.starts)
    assert results.ending == "finished"


def test_a_store_that_cannot_grow_ends_the_sweep_in_one_sentence_and_what_was_saved_goes_on(sweep, tmp_path):
    code = (
        "import resource, sys\n"
        "from tests.scripted import ScriptedServer, factory\n"
        "from tests.test_sweep import SPACE, by_workers\n"
        "from workbench.errors import StoreError\n"
        "from workbench.tuning.sweep import Sweep\n"
        "def fill(settings):\n"
        "    if len(server.starts) == 6: resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))\n"
        "server = ScriptedServer(by_workers, spread=0.3, before_run=fill)\n"
        "try:\n"
        "    Sweep(factory, SPACE, 'grid', store=sys.argv[1], name='mine', server_factory=server).run(progress=False)\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    full = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s.db")], capture_output=True, text=True)
    assert "s.db cannot be" in full.stdout and "check the disk" in full.stdout and full.stderr == ""
    left = sum(len(trial.runs) for trial in load_results(tmp_path / "s.db").trials)
    assert left >= 5

    server = ScriptedServer(by_workers, spread=0.3)
    results = sweep(server, name="mine").run(resume=True, progress=False)

    assert results.ending == "finished"
    assert sum(len(trial.runs) for trial in results.trials) == left + len(server.starts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"space": SearchSpace(num_workers=[0, 1, 8])}, "1 settings are new, 2 are gone"),
        ({"measure_seconds": 2.0}, "measure_seconds was 1.0, is 2.0"),
        ({"step": print}, "step was '', is 'print'"),
    ],
)
def test_a_sweep_that_asks_for_something_else_is_not_resumed(sweep, options, says):
    sweep(name="mine").run(progress=False)

    with pytest.raises(StoreError, match=says):
        sweep(name="mine", **options).run(resume=True, progress=False)


def test_another_loader_machine_or_data_set_is_not_resumed(sweep, tmp_path, monkeypatch):
    sweep(name="mine").run(progress=False)

    def other(num_workers=0, prefetch_factor=None, persistent_workers=False):
        return iter([1])

    with pytest.raises(StoreError, match="the loader is defined differently"):
        Sweep(
            other, SPACE, "grid", store=tmp_path / "s.db", name="mine", server_factory=ScriptedServer(by_workers)
        ).run(resume=True, progress=False)
    with pytest.raises(StoreError, match="samples per batch was 16, is 8"):
        sweep(ScriptedServer(by_workers, probe=probe_of(samples_per_batch=8)), name="mine").run(
            resume=True, progress=False
        )
    here = engine.machine.fingerprint()
    monkeypatch.setattr(engine.machine, "fingerprint", lambda: {**here, "torch": "9.9.9"})
    with pytest.raises(StoreError, match=r"torch was .*, is 9\.9\.9"):
        sweep(name="mine").run(resume=True, progress=False)


def test_resuming_what_is_not_there_lists_what_is(sweep):
    with pytest.raises(StoreError, match="no sweep yet"):
        sweep(name="mine").run(resume=True, progress=False)
    sweep(name="mine").run(progress=False)
    with pytest.raises(StoreError, match="'other'; it holds 'mine'"):
        sweep(name="other").run(resume=True, progress=False)


def test_after_a_sweep_no_thread_of_it_is_left(sweep):
    before = set(threading.enumerate())
    sweep().run(progress=False)
    give_up = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < give_up:
        time.sleep(0.01)

    assert not [thread for thread in set(threading.enumerate()) - before if "workbench" in thread.name]
