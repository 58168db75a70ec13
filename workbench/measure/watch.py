"""What the warden knows about the one trial that it is watching: pipes, messages, windows, memory, exit codes.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from workbench.measure import memory
from workbench.measure.growth import Held, growth
from workbench.measure.output import Output
from workbench.measure.records import Memory, MemoryReading, Window
from workbench.measure.statistics import in_run_precision, used_windows

PROGRESS_FILE = "progress"
"""In the trial's temporary folder: the number of batches it has taken, 8 bytes in native order."""
STARTS_OF_SILENCE = 4.0
"""A silence is no hang before it lasts this many times what starting the loader took: an epoch may start it anew."""
CLUE_SILENCE_SECONDS = 3.0
"""Silence after which a trial is given up whose output already says why its next batch will never come."""
BATCHES_MAPPED = 2
"""Batches that one process has mapped at once at most: the one that it hands over or holds, and the next."""
SHM_EVERY_SECONDS = 0.5
"""How often descriptors are scanned for shared memory while the clock runs."""
MOST_READINGS = 48
"""Readings of memory over time that a run's record holds, beside the exact ones: what a small picture can show."""
BUSY_PATIENCE = 2.0
"""While other programs keep the cores busy, a run waits for quiet this many times its least length, no longer."""
BUSY_SHARE = 0.005
"""A thread that runs for more than this share of the time counts as busy."""


class Watch:
    """One trial under watch.

    Args:
        limits: `deadline_seconds`, `silence_seconds`, `memory_bytes` (None: no ceiling), `floor_bytes` (machine
            memory that must stay available), `batch_bytes`, `measure_seconds`, `max_measure_seconds`, `precision`,
            `least_batches`.
        cores: Cores that the trial may use.
        temporary: The trial's temporary folder.
    """

    def __init__(self, limits: dict[str, Any], cores: int, temporary: str) -> None:
        self._limits, self._cores = limits, cores
        self._progress = f"{temporary}/{PROGRESS_FILE}"
        with contextlib.suppress(OSError):
            os.unlink(self._progress)
        self._begun = self._heard = time.monotonic()
        self._buffer = b""
        self._readings: list[tuple[float, float]] = []  # (CLOCK_MONOTONIC, seconds others have used so far)
        self._own_seconds: list[tuple[float, float]] = []
        self._last: memory.Reading | None = None
        self._own = self._foreign = 0.0
        self._warden_spent = 0.0
        self._costs: list[tuple[Held | None, memory.TreeCost]] = []
        self._base: tuple[memory.TreeCost, int] | None = None
        self._peak_rss = self._peak_shm = self._peak_threads = self._peak_descriptors = self._peak_between = 0
        self._rss_since_cost = 0
        self._over_time: list[MemoryReading] = []
        self._shm_at = 0.0
        self._start_seconds, self._phase_at = 0.0, self._begun
        self._shm_now = 0
        self._busy_threads: list[int] = []
        self._sampling_seconds = self._sampled_seconds = 0.0
        self.pid: int | None = None
        self.windows: list[Window] = []
        self.output = Output()
        self.phase = "start"
        self.batches = 0
        self.done: dict[str, Any] | None = None
        self.partial: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.ended = ""
        self.exit_code: int | None = None
        self.ended_children: dict[int, int] = {}
        self.report_closed = False
        self.report_fd = self.output_fd = self._control_fd = -1

    @property
    def finished(self) -> bool:
        """Whether the trial itself has said that it is over."""
        return self.done is not None or self.error is not None

    def open_pipes(self) -> tuple[int, int, int]:
        """Makes the trial's pipes and returns its ends: report (write), control (read), output (write)."""
        self.report_fd, report = os.pipe()
        control, self._control_fd = os.pipe()
        self.output_fd, output = os.pipe()
        for fd in (self.report_fd, self.output_fd):
            os.set_blocking(fd, False)
        for fd in (report, output):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
        return report, control, output

    def close_pipes(self) -> None:
        """Closes the warden's ends."""
        for fd in (self.report_fd, self.output_fd, self._control_fd):
            if fd >= 0:
                os.close(fd)

    def tell(self, word: bytes) -> None:
        """Writes one byte to the trial: `g` go on, `s` enough measured."""
        with contextlib.suppress(OSError):
            os.write(self._control_fd, word)

    def take_messages(self) -> list[dict[str, Any]]:
        """Whole messages that have arrived; each is also taken into account here."""
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                data = os.read(self.report_fd, 1 << 16)
                self.report_closed |= not data
                if not data:
                    break
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
                self._note(messages[-1])
        return messages

    def _note(self, message: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        self.pid = message.get("hello", self.pid)
        if "phase" in message:
            if self.phase == "first batch":
                self._start_seconds = self._heard - self._phase_at
            self.phase, self._phase_at = message["phase"], self._heard
        self.partial = message.get("partial", self.partial)
        if "done" in message:
            self.done = message["done"]
        if "error" in message:
            self.error = message["error"]
        if self.finished and not self.ended:
            self.ended = "finished"

    def follow_progress(self) -> None:
        """Reads how many batches the trial has taken; a batch more is a sign of life."""
        with contextlib.suppress(OSError, ValueError):
            with open(self._progress, "rb") as file:
                batches = int.from_bytes(file.read(8), sys.byteorder)
            if batches != self.batches:
                self.batches, self._heard = batches, time.monotonic()

    def exited(self, pid: int, code: int) -> None:
        """Takes in that a process of the tree has ended."""
        if pid == self.pid:
            self.exit_code = code
            self.ended = self.ended or "exited"
        else:
            self.ended_children[pid] = code

    def overdue(self, now: float) -> str:
        """Why the trial must end now, or ""."""
        if now - self._begun > self._limits["deadline_seconds"]:
            return "deadline"
        silence = now - self._heard
        patience = self._limits["silence_seconds" if self.partial is None else "partial_silence_seconds"]
        if silence > max(patience, STARTS_OF_SILENCE * self._start_seconds):
            return "silence"
        if silence > CLUE_SILENCE_SECONDS and self.output.has_clue():
            return "silence"
        return ""

    def tick(self, pids: list[int], server: int | None, spent: float) -> None:
        """Follows the tree cheaply: RSS, processor time, threads, and the two memory limits."""
        self.follow_progress()
        reading = memory.read(pids)
        self._over_time.append(MemoryReading(reading.at_seconds, reading.rss_bytes))
        self._peak_rss = max(self._peak_rss, reading.rss_bytes)
        self._rss_since_cost = max(self._rss_since_cost, reading.rss_bytes)
        self._peak_threads = max(self._peak_threads, reading.threads)
        self._follow_processor(reading, spent)
        if reading.at_seconds - self._shm_at > SHM_EVERY_SECONDS:
            self._shm_now, descriptors = memory.held_shared_memory(pids)
            self._peak_shm = max(self._peak_shm, self._shm_now)
            self._peak_descriptors = max(self._peak_descriptors, descriptors)
            self._shm_at = reading.at_seconds
        self._guard(reading, pids, server)

    def _follow_processor(self, reading: memory.Reading, warden_seconds: float) -> None:
        if self._last is not None:
            before = self._last.cpu_seconds
            spent = {thread: max(0.0, now - before.get(thread, 0.0)) for thread, now in reading.cpu_seconds.items()}
            own = sum(spent.values()) + memory.ended_seconds(self._last, reading)
            self._own += own
            if self.phase == "measure":
                self._busy_threads.append(_busiest(spent, reading.at_seconds - self._last.at_seconds, self.pid))
            busy = reading.busy_seconds - self._last.busy_seconds
            watching = warden_seconds - self._warden_spent
            self._foreign += busy - own - watching
            if self.phase == "measure" and self._last.at_seconds >= self._phase_at:
                self._sampling_seconds += watching
                self._sampled_seconds += reading.at_seconds - self._last.at_seconds
        self._warden_spent = warden_seconds
        self._last = reading
        self._readings.append((reading.at_seconds, self._foreign))
        self._own_seconds.append((reading.at_seconds, self._own))

    def _guard(self, reading: memory.Reading, pids: list[int], server: int | None) -> None:
        available = memory.available_bytes()
        if available is not None and available < self._limits["floor_bytes"]:
            self.ended = self.ended or "machine memory"
        ceiling = self._limits["memory_bytes"]
        if ceiling is None:
            return
        if self._base is None:
            self._base = (memory.exact_cost(pids, server), reading.rss_bytes)
        cost, rss = self._base
        bound = cost.cost_bytes + max(0, reading.rss_bytes - rss) + max(0, self._shm_now - cost.shm_bytes)
        if bound > ceiling:
            exact = memory.exact_cost(pids, server)
            self._base = (exact, reading.rss_bytes)
            self._costs.append((None, exact))
            if exact.cost_bytes > ceiling:
                self.ended = self.ended or "memory"

    def read_exactly(self, pids: list[int], server: int | None, taken: dict[str, int]) -> memory.TreeCost:
        """An exact reading, at a moment when the trial waits for it.

        Args:
            pids: Processes of the trial, its main one first.
            server: The process it was forked from, if any.
            taken: `samples` and `batches` since the present workers started, and how many `workers` there are.
        """
        cost = memory.exact_cost(pids, server)
        # What came and went since the last exact reading, had it been private memory.
        swing = max(0, self._rss_since_cost - cost.rss_bytes) if self._base is not None or self._costs else 0
        spikes = memory.high_water_bytes(pids, BATCHES_MAPPED * self._limits["batch_bytes"])
        memory.reset_high_water(pids)
        self._peak_between = max(self._peak_between, cost.cost_bytes + max(swing, spikes))
        self._rss_since_cost = 0
        rounds = taken["batches"] / max(1, taken["workers"])
        held = Held(
            taken["samples"], rounds, cost.anonymous_bytes, cost.main_anonymous_bytes, cost.rss_bytes, len(pids)
        )
        self._costs.append((held, cost))
        self._over_time.append(MemoryReading(time.monotonic(), cost.rss_bytes, cost.cost_bytes))
        self._peak_threads = max(self._peak_threads, memory.read(pids).threads)
        self._base = (cost, cost.rss_bytes)
        self._peak_descriptors = max(self._peak_descriptors, cost.descriptors)
        self._peak_shm = max(self._peak_shm, cost.shm_bytes)
        self._peak_rss = max(self._peak_rss, cost.rss_bytes)
        ceiling = self._limits["memory_bytes"]
        if ceiling is not None and cost.cost_bytes > ceiling:
            self.ended = self.ended or "memory"
        return cost

    def add_window(self, values: list[float]) -> Window:
        """Keeps a window that the trial has reported, labelled with what others used meanwhile."""
        at, seconds, batches, samples = values
        window = Window(at, seconds, int(batches), int(samples), self._foreign_cores(at, at + seconds))
        self.windows.append(window)
        return window

    def enough(self) -> bool:
        """Whether the windows so far suffice: quiet for long enough and precise enough, or out of time."""
        limits, (used, busy) = self._limits, used_windows(self.windows, self._cores)
        seconds, batches = sum(w.seconds for w in used), sum(w.batches for w in used)
        if sum(w.seconds for w in self.windows) >= limits["max_measure_seconds"]:
            return True
        if batches < limits["least_batches"]:
            return False
        if busy:
            return seconds >= BUSY_PATIENCE * limits["measure_seconds"]
        if seconds < limits["measure_seconds"]:
            return False
        if limits["least_batches"] and min(seconds / limits["measure_seconds"], batches / limits["least_batches"]) >= 2:
            return True
        precision = in_run_precision(used)
        return precision is not None and precision <= limits["precision"]

    def _foreign_cores(self, begin: float, end: float) -> float | None:
        """Cores others used between two times, from the readings nearest to them."""
        if len(self._readings) < 2:
            return None
        first = max((r for r in self._readings if r[0] <= begin), default=self._readings[0])
        last = min((r for r in self._readings if r[0] >= end), default=self._readings[-1])
        if last[0] - first[0] < (end - begin) / 2:
            return None
        return max(0.0, (last[1] - first[1]) / (last[0] - first[0]))

    def _cores_used(self) -> float | None:
        if not self.windows:
            return None
        begin, end = self.windows[0].at_seconds, self.windows[-1].at_seconds + self.windows[-1].seconds
        inside = [r for r in self._own_seconds if begin <= r[0] <= end]
        if len(inside) < 2:
            return None
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def summary(self) -> dict[str, Any]:
        """Everything seen, as JSON-ready values."""
        self.follow_progress()
        labelled = [replace(w, foreign_cores=self._foreign_cores(w.at_seconds, w.at_seconds + w.seconds))
                    for w in self.windows]  # fmt: skip
        return {
            "ended": self.ended or "exited",
            "phase": self.phase,
            "batches": self.batches,
            "done": self.done,
            "partial": self.partial,
            "error": self.error,
            "exit_code": self.exit_code,
            "children": sorted(set(self.ended_children.values())),
            "windows": [asdict(w) for w in labelled],
            "memory": asdict(self._memory()),
            "memory_over_time": [asdict(reading) for reading in thinned(self._over_time)],
            "cpu_cores_used": self._cores_used(),
            "peak_threads": self._peak_threads or None,
            "busy_threads": _upper_quartile(self._busy_threads),
            "output": self.output.text(),
            "output_bytes": self.output.total,
            "available_bytes": memory.available_bytes(),
            "silent_seconds": time.monotonic() - self._heard,
        }

    def _memory(self) -> Memory:
        costs = [cost for _, cost in self._costs]
        peak = max([cost.cost_bytes for cost in costs] + [self._peak_between], default=0)
        last = costs[-1] if costs else None
        found = growth([held for held, _ in self._costs if held is not None], self._limits["batch_bytes"])
        return Memory(
            peak_pss_bytes=peak or None,
            peak_rss_bytes=self._peak_rss or None,
            peak_shm_bytes=self._peak_shm if costs or self._shm_at else None,
            anonymous_bytes=last.anonymous_bytes if last else None,
            file_bytes=last.file_bytes if last else None,
            shared_bytes=last.shared_bytes if last else None,
            growth_bytes_per_1000_samples=found.bytes_per_1000_samples if found else None,
            growth_samples=found.samples if found else None,
            growth_established=found.established if found else None,
            growth_in_workers=found.in_workers if found else None,
            growth_kind=found.kind if found else "",
            growth_pace_bytes_per_1000_samples=found.pace_bytes_per_1000_samples if found else None,
            growth_most_ahead_bytes=found.most_ahead_bytes if found else None,
            peak_descriptors=self._peak_descriptors or None,
            sampling_seconds=self._sampling_seconds,
            sampled_seconds=self._sampled_seconds,
        )


def thinned(readings: list[MemoryReading], most: int = MOST_READINGS) -> list[MemoryReading]:
    """About `most` readings: of each stretch of time the highest one, and every exact one."""
    if len(readings) <= most:
        return readings
    length = -(-len(readings) // most)
    kept = []
    for first in range(0, len(readings), length):
        stretch = readings[first : first + length]
        highest = max(stretch, key=lambda reading: reading.rss_bytes)
        kept += [reading for reading in stretch if reading is highest or reading.pss_bytes is not None]
    return kept


def _busiest(spent: dict[tuple[int, int], float], seconds: float, main: int | None) -> int:
    """Most threads of any one worker that ran for more than `BUSY_SHARE` of the time."""
    counts: dict[int, int] = {}
    for (pid, _), used in spent.items():
        if pid != main and used > BUSY_SHARE * seconds:
            counts[pid] = counts.get(pid, 0) + 1
    return max(counts.values(), default=0)


def _upper_quartile(values: list[int]) -> int | None:
    return sorted(values)[3 * len(values) // 4] if values else None
