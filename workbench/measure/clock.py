"""Warm-up and windows of one start: when a rate may be read off a loader that banks batches ahead."""

from __future__ import annotations

import array
import math
import time
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.channel import Channel
from workbench.measure.stream import Stream

ROUNDS_PER_WINDOW = 4
"""Rounds of `num_workers` batches that a window holds at least, so that one batch more or less moves it little."""
EPOCHS_BEFORE_WHOLE = 2
"""Epochs that may end before any window is complete; then whole epochs are measured, restarts included."""


class Clock:
    """Warm-up and windows of one start."""

    def __init__(self, stream: Stream, settings: LoaderSettings, plan: dict[str, Any], channel: Channel) -> None:
        self._stream, self._plan, self._channel = stream, plan, channel
        self._round = max(1, settings.num_workers)
        self._queue = settings.batches_in_flight
        self._arrivals = array.array("d")  # 8 bytes a batch: a list would look like the loader growing
        self.mode = "steady"
        self.waited_seconds = 0.0
        self._paused_seconds = 0.0
        self._rate = 0.0
        self._held_back = 0

    def warm_up(self) -> None:
        """Discards the queue and one round, at least `warmup_seconds`, at most `max_measure_seconds`.

        The queue must have been used up once before the clock starts: what was finished before is not work done
        during a window. A loader so slow that this would take longer than the measurement itself is cut short after
        one round: it cannot have banked anything, since each of its batches was waited for.
        """
        begun = time.perf_counter()
        self._discard(begun, self._queue)
        first = self._stream.batches
        while time.perf_counter() - begun < self._plan["warmup_seconds"]:
            self._stream.take()
        spent = time.perf_counter() - begun
        self._rate = max(self._stream.batches - first, 1) / max(spent, 1e-6)

    def _discard(self, begun: float, banked: int) -> None:
        self._take_round()
        self._use_up(begun, banked)

    def _take_round(self) -> None:
        for _ in range(self._round):
            self._stream.take()

    def _use_up(self, begun: float, banked: int) -> None:
        for _ in range(banked):
            if time.perf_counter() - begun > self._plan["max_measure_seconds"]:
                return
            self._stream.take()

    def drain(self) -> None:
        """Uses up what was banked while nothing was timed: the queue, or what a loader with a queue of its own made."""
        banked = math.ceil(self._paused_seconds * self._rate)
        self._discard(time.perf_counter(), max(self._queue, banked))

    def first_round(self) -> None:
        """Takes a batch from every worker: from here on, growth is not start-up any more."""
        self._channel.send(phase="warm-up")
        self._take_round()

    def fill_queue(self) -> None:
        """Waits until the queue is full, where the loader's memory has its peak."""
        begun = time.perf_counter()
        self._stream.fill_queue(self._queue, self._rate)
        self.waited_seconds += time.perf_counter() - begun

    def read_memory(self) -> None:
        """Has the warden read memory exactly while nothing is timed."""
        begun = time.perf_counter()
        stream = self._stream
        taken = {"samples": stream.worker_samples, "batches": stream.worker_batches, "workers": self._round}
        self._channel.send(memory=taken)
        self._channel.wait_for_go()
        self._paused_seconds = time.perf_counter() - begun
        self.waited_seconds += self._paused_seconds

    def measure(self) -> None:
        """Takes windows one after another without a pause until the warden says that they suffice."""
        self._channel.send(phase="measure")
        stream = self._stream
        ended_before, taken_before, complete = stream.epochs_ended, stream.batches, 0
        begun = time.perf_counter()
        opened = self._open()
        while not self._channel.stopped() and not (complete and self._out_of_time(begun)):
            window = self._whole_epochs(opened) if self.mode == "epochs" else self._window(opened)
            if window is not None:
                complete += 1
                opened += window[1]
                self._channel.send(window=window)
            elif complete == 0 and stream.epochs_ended - ended_before >= EPOCHS_BEFORE_WHOLE:
                self._end_epoch()
                self.mode, opened = "epochs", stream.arrived
            else:
                opened = self._open()
        self._rate = (stream.batches - taken_before) / max(time.perf_counter() - begun, 1e-6)

    def _out_of_time(self, begun: float) -> bool:
        return time.perf_counter() - begun > 2 * self._plan["max_measure_seconds"]

    def _open(self) -> float:
        """Takes batches until a window may open, and returns the arrival of the last of them."""
        stream = self._stream
        if stream.is_running_out(self._queue, self._round):
            self._end_epoch()
        if stream.epochs_ended and stream.in_epoch <= self._round + self._queue:
            self._begin_epoch()
        opened = stream.take()[0]
        self._held_back = stream.held_back()
        return opened

    def _begin_epoch(self) -> None:
        """Uses up what early workers banked while the others started.

        It cannot be more than the queue holds. Where an epoch has no room for so many batches, a window and the queue
        at its end, what waits is counted instead.
        """
        begun, stream, banked = time.perf_counter(), self._stream, self._queue
        self._take_round()
        if stream.left is not None and stream.left < 2 * self._queue + ROUNDS_PER_WINDOW * self._round:
            counted = stream.banked()
            banked = self._queue if counted is None else min(counted, self._queue)
        self._use_up(begun, banked)

    def _end_epoch(self) -> None:
        """Takes what is left of the epoch and the first batch of the next."""
        stream = self._stream
        while stream.in_epoch > 1 and stream.left is not None:
            stream.take()

    def _window(self, opened: float) -> tuple[float, float, int, int] | None:
        """A stretch of whole rounds from the last arrival; None when the epoch ran out inside it.

        What it counts is what was handed over in it, in whole rounds as well. A batch that is late holds others back,
        which then come all at once: a stretch of one second over four workers of eight batches each, of which one is
        late by half a second now and then, takes up to twice as many batches as were handed over in it, or none. Less
        than a round is held back in every round, as the workers happen to finish.
        """
        stream, least, rounds = self._stream, self._plan["window_seconds"], self._round
        samples, batches = stream.samples, 0
        arrivals = []
        while True:
            arrived, ended = stream.take()
            if ended or stream.is_running_out(self._queue, rounds):
                return None
            batches += 1
            arrivals.append(arrived)
            whole = batches % rounds == 0
            if whole and arrived - opened >= least and (batches >= ROUNDS_PER_WINDOW * rounds or self._long(opened)):
                more = stream.held_back() - self._held_back
                handed = batches + rounds * round(more / rounds) if abs(more) >= rounds else batches
                if handed > 0:
                    break
        self._keep(opened, arrivals)
        self._held_back += handed - batches
        return opened, arrived - opened, handed, round((stream.samples - samples) * handed / batches)

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
