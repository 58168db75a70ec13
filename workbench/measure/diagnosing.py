"""The task "diagnose" inside a trial: loader, step and both in turn, in short laps over the same few workers.

One start measures all of them, one after another and twice over, so that a machine that slows down slows all alike.
Between laps the queue is brought to where a training loop would have it: used up before the loader is timed, filled
again before the step is timed alone (so that no worker takes a core from it), and gone through once before both are.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from workbench.errors import TraceError
from workbench.loaders.counting import leaves
from workbench.measure.channel import Channel
from workbench.measure.stage_clock import Starvation
from workbench.measure.stage_reading import Lap, Tap
from workbench.measure.trace import read_trace
from workbench.measure.trace_recording import profile
from workbench.measure.training import move

CACHED_BATCHES = 4
CACHED_BYTES = 256 << 20
"""Batches kept for the step alone: few, since a device's memory belongs to the model."""
LAPS = 2
"""Laps of each kind in one start."""
LOOKS = 3
"""Steps on an idle device whose median is taken."""
ROUNDS = 2
PRESSURE = "/proc/pressure/memory"


def diagnose(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> dict[str, Any]:
    """Laps of each kind with their stage costs, one step on an idle device, and memory pressure, as a dict."""
    transfer, finish = accelerator_of(step)
    pressure = _memory_pressure_seconds()
    tap = Tap(task, source, channel)
    begun = time.perf_counter()
    run = _Run(tap, task, channel, step, transfer, finish)
    laps = [lap for _ in range(LAPS) for lap in run.cycle()]
    sync, copy = run.look_at_sync(), run.look_at_copy()
    after, seconds = _memory_pressure_seconds(), time.perf_counter() - begun
    channel.send(phase="shutdown")
    tap.close()
    return {
        "laps": laps,
        "sync": sync,
        "copy": copy,
        "first_batch_seconds": tap.first_seconds,
        "pinned_seconds": tap.pin.seconds_per_batch,
        "memory_pressure": None if pressure is None or after is None else (after - pressure) / seconds,
        "device_seen": finish is not None,
        "copies_pinned": run.pinned,
    }


class _Run:
    """The laps of one start."""

    def __init__(
        self,
        tap: Tap,
        task: dict[str, Any],
        channel: Channel,
        step: Any,
        transfer: Callable[[Any], Any] | None,
        finish: Callable[[], None] | None,
    ) -> None:
        self._tap, self._channel, self._finish = tap, channel, finish
        self._seconds, self._most = task["seconds"], task["plan"]["max_measure_seconds"]
        self._step = step
        self._transfer = transfer
        self._cached: list[tuple[Any, int]] = []
        self.pinned = _is_pinned(tap.batch)
        channel.send(phase="warm-up")
        tap.discard(self._most, self._keep)

    def _keep(self, batch: Any) -> None:
        room = CACHED_BYTES // max(1, self._tap.bytes)
        if len(self._cached) < max(1, min(CACHED_BATCHES, room)):
            samples = self._tap.samples_of(batch)
            self._cached.append((self._transfer(batch) if self._transfer else batch, samples))

    def cycle(self) -> Iterator[dict[str, Any]]:
        """One lap of each kind."""
        tap, transfer = self._tap, self._transfer
        self._channel.send(phase="measure")
        tap.discard(self._most)
        loader = self._timed("loader")
        yield loader
        if transfer is not None:
            yield self._timed("moved", transfer=transfer)
        tap.fill_queue(loader["lap"]["batches"] / loader["lap"]["seconds"])
        yield self._reported("step", self._step_alone(), None)
        tap.discard(self._most, self._use)
        yield self._timed("combined", step=self._step, transfer=transfer)

    def _use(self, batch: Any) -> None:
        self._step(self._transfer(batch) if self._transfer else batch)

    def _timed(self, kind: str, **use: Any) -> dict[str, Any]:
        self._channel.send(phase="measure", part=kind)
        before = self._tap.snapshot()
        finish = self._finish if use else None
        lap = self._tap.lap(self._seconds, rounds=ROUNDS, finish=finish, **use)
        costs = self._tap.costs(before, self._tap.snapshot(), lap)
        return self._reported(kind, lap, asdict(costs) if costs is not None else None)

    def _step_alone(self) -> Lap:
        self._channel.send(phase="measure", part="step")
        finish = self._finish or (lambda: None)
        starved = Starvation()
        self._step(self._cached[0][0])
        finish()
        samples = steps = 0
        waited = starved()
        begun = now = time.perf_counter()
        while now - begun < self._seconds or steps < ROUNDS * len(self._cached):
            batch, count = self._cached[steps % len(self._cached)]
            self._step(batch)
            steps, samples, now = steps + 1, samples + count, time.perf_counter()
        on_host = now - begun
        finish()
        seconds = time.perf_counter() - begun
        return Lap(begun, seconds, steps, samples, step_seconds=on_host, starved_seconds=starved() - waited)

    def _reported(self, kind: str, lap: Lap, costs: dict[str, Any] | None) -> dict[str, Any]:
        """Also told to the warden, which labels it with what other programs used meanwhile."""
        self._channel.send(window=(lap.at_seconds, lap.seconds, lap.batches, lap.samples))
        return {"kind": kind, "lap": asdict(lap), "costs": costs}

    def look_at_sync(self) -> dict[str, float] | None:
        """How long a step on an idle device keeps the host, and the device after it; None without a device."""
        if self._finish is None:
            return None
        starved, looks = Starvation(), []
        for _ in range(LOOKS):
            self._finish()
            cpu, without, begun = time.thread_time(), starved(), time.perf_counter()
            self._step(self._cached[0][0])
            returned = time.perf_counter()
            busy = time.thread_time() - cpu + starved() - without
            self._finish()
            looks.append((returned - begun, busy, time.perf_counter() - returned))
        host, busy, left = (sorted(part)[LOOKS // 2] for part in zip(*looks, strict=True))
        return {"host_seconds": host, "host_cpu_seconds": busy, "left_seconds": left,
                "wait_fraction": self._traced_waits()}  # fmt: skip

    def look_at_copy(self) -> dict[str, float] | None:
        """How long a copy to an idle device keeps the host, and takes in all; None where nothing is copied."""
        if self._transfer is None or self._finish is None:
            return None
        looks = []
        for _ in range(LOOKS):
            self._finish()
            begun = time.perf_counter()
            self._transfer(self._tap.batch)
            returned = time.perf_counter()
            self._finish()
            looks.append((returned - begun, time.perf_counter() - begun))
        host, whole = (sorted(part)[LOOKS // 2] for part in zip(*looks, strict=True))
        return {"host_seconds": host, "seconds": whole}

    def _traced_waits(self) -> float | None:
        """Share of a step in synchronising calls, from a trace: a host that waits for CUDA spins and uses CPU."""
        if not torch.cuda.is_available():
            return None
        batches = [batch for batch, _ in self._cached]
        with tempfile.TemporaryDirectory() as folder:
            try:
                return read_trace(profile(batches, self._step, os.path.join(folder, "step.json"))).sync_wait_fraction
            except TraceError:
                return None


def accelerator_of(step: Any) -> tuple[Callable[[Any], Any] | None, Callable[[], None] | None]:
    """What copies a batch to the device, and what waits for it; a step may bring its own, `to_device` the first."""
    own = getattr(step, "synchronize", None)
    if callable(own):
        return getattr(step, "to_device", None), own
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None, None
    return partial(move, device=accelerator.current_accelerator()), accelerator.synchronize


def _is_pinned(batch: Any) -> bool | None:
    tensors = [leaf for _, leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    if not tensors or not torch.cuda.is_available():
        return None
    return all(tensor.is_pinned() for tensor in tensors)


def _memory_pressure_seconds() -> float | None:
    """Seconds since boot in which some process waited for memory (Linux pressure stall information)."""
    try:
        with open(PRESSURE) as file:
            return int(file.readline().rpartition("total=")[2]) * 1e-6
    except (OSError, ValueError):
        return None
