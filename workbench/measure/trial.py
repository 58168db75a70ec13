"""Runs trials in isolated processes: `TrialServer` for many of one loader, `measure` for one settings.

Whatever the loader does, a trial ends within its deadline as a record with a reason, and leaves nothing behind; the
calling process is never forked and never runs the loader. `warden.py` says how.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workbench import machine
from workbench.errors import ProbeError, SourceError, TrialServerError
from workbench.loaders import shipping
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.measure.plan import TrialPlan, limits_of
from workbench.measure.records import Probe, TrialRun, probe_from_json
from workbench.measure.result import TrialResult
from workbench.measure.verdicts import judge, make_run

SERVER_SECONDS = 120.0
"""How long importing torch and loading the user's module may take."""
MARKER = "WORKBENCH_TRIAL"


class TrialServer:
    """Runs trials of one loader, one after another, each in a process of its own.

    Use it as a context manager. All methods may be called from any thread; `run` and `probe` block.

    Args:
        loader: What `LoaderSource.of` takes.
        step: Called with every batch inside the trial, to pace it like a training step; None takes batches as fast
            as they come.
        samples_per_batch: Samples in every batch, where counting them would be wrong.
        on_event: Called with a dict for every phase, window and memory reading of a running trial.
        fresh: Start an interpreter for every trial, which takes 1 to 2 s, instead of forking one that has imported
            torch and the loader. Chosen by itself when loading the user's code starts threads.

    Raises:
        SourceError: If the loader cannot be found or shipped.
    """

    def __init__(
        self,
        loader: Any,
        *,
        step: Callable[[Any], Any] | None = None,
        samples_per_batch: int | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        fresh: bool = False,
    ) -> None:
        self.source = LoaderSource.of(loader)
        self._step, self._samples, self._on_event = step, samples_per_batch, on_event
        self._server_words = ["fresh"] if fresh else []
        self._warden: subprocess.Popen[bytes] | None = None
        self._report: Any = None
        self._buffer = b""
        self._directory = Path()
        self._marker = uuid.uuid4().hex
        self._running, self._starting = threading.Lock(), threading.RLock()
        self._counter = 0
        self._probe: Probe | None = None
        self._ran = False
        self._closed = False
        self.cores = machine.usable_cores()

    def __enter__(self) -> TrialServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self) -> Probe:
        """Looks at the loader once with 0 workers; later calls return the same record.

        Raises:
            ProbeError: If the loader fails there: the user's own error, with their own line.
            SourceError: If the trial process cannot load it, or what its factory returned cannot be measured.
            TrialServerError: If the trial process cannot be started.
        """
        with self._running:
            if self._probe is None:
                self._probe = self._ask_probe()
            return self._probe

    @property
    def current(self) -> LoaderSettings:
        """The settings that the loader has as it is, seen by the probe where only calling a factory tells."""
        return self.probe().current or self.source.current or LoaderSettings()

    def run(self, settings: LoaderSettings, plan: TrialPlan | None = None) -> TrialRun:
        """Runs one trial to its end and says what was seen; what the trial does never raises here."""
        plan = plan or TrialPlan()
        probe = self.probe()
        with self._running:
            limits = limits_of(plan, settings, probe, self.cores)
            asked = replace(plan, measure_edge=plan.measure_edge and probe.epoch_ends)
            task = self._task("measure", plan.seed) | {"settings": settings.as_dict(), "plan": asdict(asked)}
            if not task["reference"] or not os.path.exists(task["reference"]):
                task["reference"] = ""
            started, cold = time.time(), not self._ran
            verdict = self._command(task, limits, settings)
            self._ran = True
            return make_run(
                settings,
                verdict,
                limits,
                cores=self.cores,
                started_at=started,
                cold=cold,
                epoch_samples=probe.epoch_samples,
            )

    def ask(self, kind: str, settings: LoaderSettings, plan: TrialPlan | None = None, **details: Any) -> dict[str, Any]:
        """Has another task of `worker.TASKS` done in a process of its own, and returns the warden's summary.

        Args:
            kind: Name of the task.
            settings: What the loader is built with.
            plan: Deadline, silence and memory limit.
            details: Handed to the task under these names.
        """
        plan = plan or TrialPlan()
        probe = self.probe()
        with self._running:
            limits = limits_of(plan, settings, probe, self.cores)
            task = self._task(kind, plan.seed) | {"settings": settings.as_dict(), "plan": asdict(plan)} | details
            return self._command(task, limits, settings)

    def cancel(self) -> None:
        """Ends the trial that is running, if any; its record says so. Returns at once."""
        with contextlib.suppress(TrialServerError):
            self._send({"op": "cancel"})

    def close(self) -> None:
        """Ends everything that was started; returns when it is gone."""
        with self._starting:
            self._closed = True
            warden, self._warden = self._warden, None
            if warden is None:
                return
            assert warden.stdin is not None
            with contextlib.suppress(OSError):
                warden.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                warden.wait(timeout=20)
            self._bury(warden)

    def _bury(self, warden: subprocess.Popen[bytes]) -> None:
        """After the warden: nothing that carries the marker lives, and the private directory is gone."""
        if warden.poll() is None:
            warden.kill()
            warden.wait()
        os.close(self._report)
        if warden.returncode != 0:
            _kill_marked(self._marker)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> None:
        """Starts the warden and ships the loader; nothing happens when that has been done and it is alive."""
        with self._starting:
            if self._closed:
                raise TrialServerError("this TrialServer is closed; make a new one")
            if self._warden is not None and self._warden.poll() is None:
                return
            if self._warden is not None:
                self._bury(self._warden)
                self._warden = None
            self._directory = Path(tempfile.mkdtemp(prefix="workbench-"))
            try:
                self._launch()
            except BaseException:
                if self._warden is None:
                    shutil.rmtree(self._directory, ignore_errors=True)
                raise
        answer = self._talk({"op": "start", "seconds": SERVER_SECONDS}, ("ready", "failed", "lost"))
        if answer["kind"] != "ready":
            self._drop()
            raise _why_not_started(answer, self.source)

    def _launch(self) -> None:
        ship = self._directory / "loader.pkl"
        with open(ship, "wb") as file:
            shipping.ship(self.source, self._step, file)
        read, write = os.pipe()
        config = {
            "server_argv": [sys.executable, "-u", "-m", "workbench.measure.server", str(ship), *self._server_words],
            "server_env": {MARKER: self._marker},
            "directory": str(self._directory),
            "report_fd": write,
            "cores": self.cores,
            "cwd": os.getcwd(),
        }
        root = str(Path(__file__).parents[2])
        code = f"import sys; sys.path.insert(0, {root!r}); from workbench.measure.warden import main; main(sys.argv[1])"
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, json.dumps(config)],
            stdin=subprocess.PIPE,
            pass_fds=[write],
            start_new_session=True,
        )
        os.close(write)
        self._report, self._buffer = read, b""

    def _drop(self) -> None:
        with self._starting:
            warden, self._warden = self._warden, None
            if warden is not None:
                assert warden.stdin is not None
                warden.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    warden.wait(timeout=20)
                self._bury(warden)

    def _ask_probe(self) -> Probe:
        limits = limits_of(TrialPlan(), LoaderSettings(), None, self.cores)
        verdict = self._command(self._task("probe", 0), limits, LoaderSettings())
        if verdict.get("done"):
            return probe_from_json(verdict["done"])
        status, reason = judge(LoaderSettings(), verdict, limits)
        if verdict.get("partial"):
            found = probe_from_json(verdict["partial"])
            return replace(found, notes=(*found.notes, f"with 0 workers, after {verdict['batches']} batches: {reason}"))
        error = verdict.get("error") or {}
        if error.get("type") == "SourceError":  # said by the source itself, in whole sentences
            raise SourceError(error["message"])
        raise ProbeError(
            f"the loader does not work with 0 workers, so there is nothing to tune yet: {reason}",
            error_type=error.get("type", status),
            traceback_text=error.get("traceback", ""),
        )

    def _task(self, kind: str, seed: int) -> dict[str, Any]:
        self._start()
        return {
            "kind": kind,
            "seed": seed,
            "use_step": self._step is not None,
            "samples_per_batch": self._samples,
            "batch_size_hint": self._probe.samples_per_batch if self._probe else None,
            "reference": str(self._directory / "reference.json"),
            "temporary": str(self._directory / "t"),
        }

    def _command(self, task: dict[str, Any], limits: dict[str, Any], settings: LoaderSettings) -> dict[str, Any]:
        self._counter += 1
        try:
            return self._talk(
                {"op": "run", "id": self._counter, "task": task, "limits": limits}, ("verdict",), settings=settings
            )
        except KeyboardInterrupt:
            self.cancel()
            self._talk(None, ("verdict",))
            raise
        except TrialServerError:
            self._drop()
            return {"ended": "server lost", "phase": "start", "output": ""}

    def _talk(
        self, message: dict[str, Any] | None, kinds: tuple[str, ...], settings: LoaderSettings | None = None
    ) -> dict[str, Any]:
        """Sends a command and returns the first answer of one of these kinds; what comes before it are events."""
        if message is not None:
            self._send(message)
        with selectors.DefaultSelector() as selector:
            selector.register(self._report, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._buffer.partition(b"\n")
                if newline:
                    self._buffer = rest
                    answer = json.loads(line)
                    if answer["kind"] in kinds:
                        return answer
                    if self._on_event is not None:
                        self._on_event(answer | {"settings": settings})
                    continue
                selector.select()
                data = os.read(self._report, 1 << 16)
                if not data:
                    raise TrialServerError("the process that watches trials has ended; run again to start a new one")
                self._buffer += data

    def _send(self, message: dict[str, Any]) -> None:
        warden = self._warden
        if warden is None or warden.stdin is None:
            raise TrialServerError("no trial server is running")
        try:
            warden.stdin.write((json.dumps(message) + "\n").encode())
            warden.stdin.flush()
        except (OSError, ValueError):
            raise TrialServerError("the process that watches trials has ended; run again to start a new one") from None


def measure(
    loader: Any,
    settings: LoaderSettings | None = None,
    *,
    step: Callable[[Any], Any] | None = None,
    starts: int = 5,
    measure_seconds: float = 1.0,
    memory_limit: int | str | None = None,
    samples_per_batch: int | None = None,
) -> TrialResult:
    """Measures one settings: its rate with a 95 % interval, times, and memory.

    Args:
        loader: A DataLoader, a factory, or the name of one (see `LoaderSource.of`).
        settings: What to measure; None measures the loader as it is.
        step: Called with every batch, to pace the trial like a training step.
        starts: How often the loader is started afresh; the interval rests on the spread between starts.
        measure_seconds: Least seconds of steady state in each start.
        memory_limit: Ceiling such as "8GiB", at which a run is stopped.
        samples_per_batch: Samples in every batch, where counting them would be wrong.

    Returns:
        The result; its `status` says whether the numbers can be used.

    Raises:
        ProbeError: If the loader fails with 0 workers.
        SourceError: If it cannot be found or shipped.
    """
    limit = machine.parse_bytes(memory_limit) if memory_limit is not None else None
    runs: list[TrialRun] = []
    with TrialServer(loader, step=step, samples_per_batch=samples_per_batch) as server:
        chosen = settings or server.current
        for start in range(max(1, starts)):
            first = start == 0
            plan = TrialPlan(measure_seconds=measure_seconds, memory_limit_bytes=limit, seed=start,
                             check_data=first, measure_growth=first, measure_edge=first, fill_queue=first)  # fmt: skip
            runs.append(server.run(chosen, plan))
            if runs[-1].status != "ok":
                break
    return TrialResult(chosen, tuple(runs), None, server.cores)


def _why_not_started(answer: dict[str, Any], source: LoaderSource) -> Exception:
    output = (answer.get("output") or "").strip().splitlines()
    if answer["kind"] == "failed":
        text = f"{answer['error_type']}: {answer['message']}"
        error = SourceError(f"{source.name} cannot be loaded in the process that runs trials: {text}")
        error.__cause__ = RuntimeError(answer["traceback"])
        return error
    last = f"; it printed last: {output[-1]}" if output else ""
    why = answer.get("why") or f"exit code {answer.get('exit_code')}"
    return TrialServerError(f"the process that runs trials did not start ({why}) while loading {source.name}{last}")


def _kill_marked(marker: str) -> None:
    """Kills every process that carries the marker in its environment: what a warden that was killed left behind."""
    needle = f"{MARKER}={marker}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), 9)
