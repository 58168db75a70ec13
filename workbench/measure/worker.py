"""Inside the isolated process of one trial: start the loader, warm up, measure windows, epoch edge, data, shutdown.

Nothing here judges. What was seen goes to the warden as JSON lines; statistics and verdicts are made elsewhere.
"""

from __future__ import annotations

import array
import contextlib
import faulthandler
import json
import multiprocessing.process
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from workbench.loaders.counting import make_counter
from workbench.loaders.settings import LoaderSettings
from workbench.measure.failures import describe_error
from workbench.measure.processes import tie_future_forks
from workbench.measure.stream import EmptyLoaderError, Stream, progress_counter, why_empty

ROUNDS_PER_WINDOW = 4
"""Rounds of `num_workers` batches that a window holds at least, so that one batch more or less moves it little."""
FULL_QUEUE_SECONDS = 2.0
"""How long the queue is given to fill before memory is read."""
EPOCHS_BEFORE_WHOLE = 2
"""Epochs that may end before any window is complete; then whole epochs are measured, restarts included."""


class Channel:
    """The trial's ends of the two pipes to its warden."""

    def __init__(self, report: int, control: int) -> None:
        self._report, self._control = report, control
        self._stop = False

    def send(self, **message: Any) -> None:
        """Writes one JSON line."""
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self._report, data) :]

    def stopped(self) -> bool:
        """Whether the warden has said that enough is measured."""
        if not self._stop and select.select([self._control], [], [], 0)[0]:
            self._stop = b"s" in os.read(self._control, 64)
        return self._stop

    def wait_for_go(self) -> None:
        """Blocks until the warden has read memory."""
        while b"g" not in os.read(self._control, 64):
            pass


def run(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> int:
    """Does the task, reports what happens, and returns the exit code of this process."""
    channel.send(hello=os.getpid(), phase="build")
    _settle(task)
    workers: list[Any] = []
    try:
        if task["kind"] == "probe":
            from workbench.measure.probing import probe

            channel.send(done=probe(source, task, channel))
        else:
            channel.send(done=_measure(task, channel, source, step if task["use_step"] else None, workers))
        return 0
    except BaseException as error:  # whatever the user's code raises is a result
        _ignore_children()
        channel.send(error=describe_error(error, workers))
        return 1


def _settle(task: dict[str, Any]) -> None:
    """Makes this process ready: traces of crashes, workers tied to it, temporary files and seeds of its own."""
    import torch

    faulthandler.enable()
    tie_future_forks()
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    os.makedirs(task["temporary"], exist_ok=True)
    multiprocessing.process.current_process()._config["tempdir"] = task["temporary"]
    torch.manual_seed(task["seed"])
    random.seed(task["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(task["seed"] % 2**32)


def _ignore_children() -> None:
    """Takes off torch's SIGCHLD handler, which raises in whatever line the main thread happens to be."""
    while True:
        with contextlib.suppress(RuntimeError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return


def _measure(task: dict[str, Any], channel: Channel, source: Any, step: Any, workers: list[Any]) -> dict[str, Any]:
    settings = LoaderSettings.from_dict(task["settings"])
    plan = task["plan"]
    entered = time.perf_counter()
    loader = source.build(settings)
    done: dict[str, Any] = {"start_method": _start_method(loader, settings)}
    stream = Stream(loader, _counter_when_known(task), step, progress_counter(task))
    channel.send(phase="first batch")
    try:
        done["first_batch_seconds"], batch = stream.start()
    except StopIteration:
        raise EmptyLoaderError(why_empty(loader)) from None
    workers += getattr(stream.iterator, "_workers", [])
    if task["samples_per_batch"] is None:
        stream.count = make_counter(batch, task["batch_size_hint"])
        stream.samples = stream.count(batch)
    del batch
    watched = _Clock(stream, settings, plan, channel)
    watched.warm_up()
    if plan["measure_growth"]:
        watched.read_memory(go_on=True)
    watched.measure()
    watched.read_memory(go_on=False)
    if plan["measure_edge"]:
        channel.send(phase="epoch edge")
        edge = stream.edges or [stream.end_epoch_early()]
        done["epoch_edge_seconds"] = sorted(edge)[len(edge) // 2] if edge[0] is not None else None
    channel.send(phase="shutdown")
    begun = time.perf_counter()
    stream.shut_down()
    done["shutdown_seconds"] = time.perf_counter() - begun
    done |= watched.intervals()
    done["accounted_seconds"] = time.perf_counter() - entered - watched.waited_seconds
    done |= {"mode": watched.mode, "batches": stream.batches}
    if plan["check_data"] and task["reference"]:
        channel.send(phase="data check")
        begun = time.perf_counter()
        done["check"] = _check_data(task, settings, source)
        done["accounted_seconds"] += time.perf_counter() - begun
    return done


class _Clock:
    """Warm-up and windows of one start."""

    def __init__(self, stream: Stream, settings: LoaderSettings, plan: dict[str, Any], channel: Channel) -> None:
        self._stream, self._plan, self._channel = stream, plan, channel
        self._round = max(1, settings.num_workers)
        self._queue = settings.batches_in_flight
        self._arrivals = array.array("d")  # 8 bytes a batch: a list would look like the loader growing
        self.mode = "steady"
        self.waited_seconds = 0.0
        self._rate = 0.0

    def warm_up(self) -> None:
        """Discards the queue and one round, at least `warmup_seconds`, at most `max_measure_seconds`.

        The queue must have been used up once before the clock starts: what was finished before is not work done
        during a window. A loader so slow that this would take longer than the measurement itself is cut short after
        one round: it cannot have banked anything, since each of its batches was waited for.
        """
        self._channel.send(phase="warm-up")
        begun = time.perf_counter()
        self._discard(begun)
        first = self._stream.batches
        while time.perf_counter() - begun < self._plan["warmup_seconds"]:
            self._stream.take()
        spent = time.perf_counter() - begun
        self._rate = max(self._stream.batches - first, 1) / max(spent, 1e-6)

    def _discard(self, begun: float) -> None:
        for taken in range(self._queue + self._round):
            if taken >= self._round and time.perf_counter() - begun > self._plan["max_measure_seconds"]:
                return
            self._stream.take()

    def read_memory(self, *, go_on: bool) -> None:
        """Lets the queue fill and has the warden read memory while nothing is timed.

        Args:
            go_on: Whether windows follow; then what was banked meanwhile is discarded.
        """
        begun = time.perf_counter()
        time.sleep(min(FULL_QUEUE_SECONDS, self._queue / max(self._rate, 1e-3)) if self._queue else 0.0)
        self._channel.send(memory=True, samples=self._stream.samples)
        self._channel.wait_for_go()
        self.waited_seconds += time.perf_counter() - begun
        if go_on:
            self._discard(time.perf_counter())

    def measure(self) -> None:
        """Takes windows one after another without a pause until the warden says that they suffice."""
        self._channel.send(phase="measure")
        stream = self._stream
        ended_before, taken_before, complete = stream.epochs_ended, stream.batches, 0
        begun = time.perf_counter()
        opened, _ = stream.take()
        while not self._channel.stopped() and not (complete and self._out_of_time(begun)):
            window = self._whole_epochs(opened) if self.mode == "epochs" else self._window(opened)
            if window is not None:
                complete += 1
                opened += window[1]
                self._channel.send(window=window)
            elif complete == 0 and stream.epochs_ended - ended_before >= EPOCHS_BEFORE_WHOLE:
                self.mode, opened = "epochs", stream.arrived
            else:
                self._discard(time.perf_counter())
                opened, _ = stream.take()
        self._rate = (stream.batches - taken_before) / max(time.perf_counter() - begun, 1e-6)

    def _out_of_time(self, begun: float) -> bool:
        return time.perf_counter() - begun > 2 * self._plan["max_measure_seconds"]

    def _window(self, opened: float) -> tuple[float, float, int, int] | None:
        """A stretch of whole rounds from the last arrival; None when the epoch ended inside it."""
        stream, least, rounds = self._stream, self._plan["window_seconds"], self._round
        samples, batches = stream.samples, 0
        arrivals = []
        while True:
            arrived, ended = stream.take()
            if ended:
                return None
            batches += 1
            arrivals.append(arrived)
            whole = batches % rounds == 0
            if whole and arrived - opened >= least and (batches >= ROUNDS_PER_WINDOW * rounds or self._long(opened)):
                break
        self._keep(opened, arrivals)
        return opened, arrived - opened, batches, stream.samples - samples

    def _long(self, opened: float) -> bool:
        return time.perf_counter() - opened >= self._plan["max_measure_seconds"] / ROUNDS_PER_WINDOW

    def _whole_epochs(self, opened: float) -> tuple[float, float, int, int]:
        """Whole epochs, restarts included, from the first batch of one to the first batch of a later one."""
        stream = self._stream
        samples, batches, arrivals = stream.samples, stream.batches, []
        while True:
            arrived, ended = stream.take()
            arrivals.append(arrived)
            if ended and arrived - opened >= self._plan["window_seconds"]:
                break
        self._keep(opened, arrivals)
        return opened, arrived - opened, stream.batches - batches, stream.samples - samples

    def _keep(self, opened: float, arrivals: list[float]) -> None:
        previous = opened
        for arrived in arrivals:
            self._arrivals.append(arrived - previous)
            previous = arrived

    def intervals(self) -> dict[str, float | None]:
        """Median, 95th percentile and maximum of the seconds between batches."""
        ordered = sorted(self._arrivals)
        if not ordered:
            return {"batch_seconds_p50": None, "batch_seconds_p95": None, "batch_seconds_max": None}
        at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95)]
        return {"batch_seconds_p50": at[0], "batch_seconds_p95": at[1], "batch_seconds_max": ordered[-1]}


def _counter_when_known(task: dict[str, Any]) -> Callable[[Any], int]:
    samples = task["samples_per_batch"]
    return lambda batch: samples or 0


def _check_data(task: dict[str, Any], settings: LoaderSettings, source: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from workbench.measure.right_data import Reference, check

    with open(task["reference"]) as file:
        reference = Reference.from_json(json.load(file))
    zero = settings.replaced(num_workers=0, batch_on_worker=False, pin_memory=False)
    found = check(
        source.build(settings), settings, reference, task["plan"]["check_seconds"], lambda: source.build(zero)
    )
    return asdict(found)


def _start_method(loader: Any, settings: LoaderSettings) -> str:
    if not settings.num_workers:
        return ""
    context = getattr(loader, "multiprocessing_context", None)
    return context.get_start_method() if context is not None else multiprocessing.get_start_method()
