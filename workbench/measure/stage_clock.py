"""Clocks inside the processes that load: what a batch costs in fetch, transforms, collate and hand-over.

Nothing of the user's is replaced where others could see it. A loader's `worker_init_fn` is followed by ours, which
puts clocks around the fetcher's `fetch` and around pickling in that worker alone, and, for the few batches that are
timed in detail, around the transforms of the worker's own copy of the dataset. The dataset keeps its class, its
attributes and `__getitems__`.

What they count goes to one row a worker in a small file that the trial process maps too, so reading it stops nobody.
"""

from __future__ import annotations

import array
import json
import math
import mmap
import multiprocessing
import multiprocessing.queues
import os
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.measure.transforms import Clocks, TimedCall

OVERHEAD_SHARE = 0.005
"""Detailed clocks run on so few batches that they take this share of a worker's time; promised is 2 % for everything.
Their cost is reckoned from looks in a row, and from how much longer a timed batch takes than others."""
PLAIN_WEIGHT = 0.1
"""Of a batch in the running mean of batches that are not timed in detail."""
SELDOM = 2000
"""Every so many batches at the latest, one is timed in detail: a batch of 30 microseconds with 50 calls of transforms
takes ten times as long in detail, and 0.3 s hold 10,000 of them."""
SHORTEST_SECONDS = 2e-5
"""No batch is taken to be shorter, when the clocks took most of its time."""
MOST_TRANSFORMS = 24
LOOKS_A_BATCH = 6
"""Looks at the clocks that a detailed batch takes beside those of its transforms: four, and reading a few totals."""
LONG_SECONDS = 1e-3
"""Batches above this are asked every time how long they had no core, which takes 2.5 microseconds in all."""
SLOW_TIMES = 2.0
"""Shorter ones are asked when they take this many times their mean: a core that is taken away is gone for longer."""
CALIBRATIONS, CALLS = 3, 10
"""Rounds, and calls of nothing in each, by which the clocks learn what they take themselves: 0.2 ms in all."""
RING = 512
"""Times of the last batches that each worker keeps, less what they had no core for: a slow sample in 400 shows in
batches of 16 within 25."""
FIELDS = ("batches", "busy_seconds", "detailed", "fetch_wall", "fetch_cpu", "fetch_starved", "collate_wall",
          "collate_cpu", "collate_starved", "handed", "hand_wall", "hand_cpu", "hand_bytes", "process_cpu",
          "thread_cpu", "first_seconds", "starts", "threads")  # fmt: skip
COLUMN = {name: number for number, name in enumerate(FIELDS)}
BATCHES, BUSY_SECONDS = COLUMN["batches"], COLUMN["busy_seconds"]
TRANSFORM_FIELDS = 3  # wall, CPU, starved
WIDTH = len(FIELDS) + MOST_TRANSFORMS * TRANSFORM_FIELDS + RING


class Moment(NamedTuple):
    """Clocks of one thread: wall, its CPU time, and the time for which it could have run but had no core."""

    wall: float
    cpu: float
    starved: float


class Starvation:
    """Seconds for which the calling thread waited for a core, from the scheduler; 0 where Linux does not say."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def __call__(self) -> float:
        return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9 if self._file >= 0 else 0.0


class Rows:
    """The shared numbers of all workers, one row each: float64 [workers, WIDTH] in a file."""

    def __init__(self, path: str, workers: int) -> None:
        self.workers = max(1, workers)
        size = self.workers * WIDTH * 8
        with open(path, "r+b" if os.path.exists(path) else "w+b") as file:
            file.truncate(size)
            self.values = memoryview(mmap.mmap(file.fileno(), size)).cast("d")

    def snapshot(self) -> list[array.array]:
        """A copy of every row, now."""
        return [array.array("d", self.values[n * WIDTH : (n + 1) * WIDTH]) for n in range(self.workers)]


class WorkerClock:
    """What one loading process measures of itself; it writes to its row as it goes."""

    def __init__(self, path: str, worker: int, workers: int) -> None:
        rows = Rows(path, workers)
        self._row = rows.values[worker * WIDTH : (worker + 1) * WIDTH]
        self._row[COLUMN["starts"]] += 1
        self._seen = self._due = 0
        self._batches, self._busy = int(self._row[BATCHES]), self._row[BUSY_SECONDS]
        self._plain = 0.0
        self._random = random.Random(worker)  # its own: the user's generators are left as they are
        self._starved = Starvation()
        self._long, self._starved_then = False, 0.0
        self._process_cpu, self._thread_cpu = time.process_time(), time.thread_time()
        self.transforms: Clocks | None = None
        self._calls = 0
        self._look: float | None = None
        self._inside = self._around = Moment(0.0, 0.0, 0.0)  # a clocked call of nothing: as its clocks see it, and all

    # -- around the loader's own functions --

    def fetch(self, original: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        """Forms one batch with the fetcher's own method, timed."""
        self._seen += 1
        if self._long:
            self._starved_then = self._starved()
        begun = time.perf_counter()
        in_detail = self._seen > self._due
        batch = self._fetch_in_detail(original, fetcher, index) if in_detail else original(fetcher, index)
        seconds = time.perf_counter() - begun
        own = seconds
        if self._long or seconds > SLOW_TIMES * self._plain:
            starved, then = self._starved(), self._starved_then
            own, self._starved_then = max(0.0, seconds - (starved - then)), starved
        if not in_detail:
            self._plain += PLAIN_WEIGHT * (own - self._plain) if self._plain else own
        self._keep(seconds, own)
        self._long = seconds > LONG_SECONDS
        return batch

    def _keep(self, seconds: float, own: float) -> None:
        row, number = self._row, self._batches
        row[WIDTH - RING + number % RING] = own
        self._batches, self._busy = number + 1, self._busy + seconds
        row[BUSY_SECONDS] = self._busy
        row[BATCHES] = number + 1
        if self._seen == 1:
            row[COLUMN["first_seconds"]] = seconds

    def _fetch_in_detail(self, original: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        collate = fetcher.collate_fn
        spent = [0.0, 0.0, 0.0]

        def timed_collate(samples: Any) -> Any:
            before = self._now()
            try:
                return collate(samples)
            finally:
                spent[:] = [b - a for a, b in zip(before, self._now(), strict=True)]

        before = self._now()
        fetcher.collate_fn, self._calls = timed_collate, 0
        if self.transforms is not None:
            self.transforms.on()
        try:
            batch = original(fetcher, index)
        finally:
            fetcher.collate_fn = collate
            if self.transforms is not None:
                self.transforms.off()
        whole = [b - a for a, b in zip(before, self._now(), strict=True)]
        own = [self._calls * part for part in self._around]  # what the transforms' clocks took
        self._add("fetch", *(max(0.0, w - s - o) for w, s, o in zip(whole, spent, own, strict=True)))
        self._add("collate", *spent)
        self._row[COLUMN["detailed"]] += 1
        self._absolute()
        self._plan_next(whole[0] - whole[2])
        return batch

    def _plan_next(self, seconds: float) -> None:
        """Skips so many batches that the clocks stay within `OVERHEAD_SHARE`, a random number so as to hit no beat.

        Args:
            seconds: What the batch took, less what it had no core for, which would hide the clocks' own time.
        """
        cost = self._look_seconds() * (LOOKS_A_BATCH + 2 * self._calls)
        if self._plain:
            self._plain = min(self._plain, seconds)  # in detail a batch takes no less: one slow batch is forgotten
            cost = max(cost, seconds - self._plain)
        every = math.ceil(cost / (OVERHEAD_SHARE * max(seconds - cost, self._plain, SHORTEST_SECONDS)))
        every = min(every, SELDOM)
        self._due = self._seen + (self._random.randrange(2 * every - 1) if every > 1 else 0)

    def transform(self, number: int, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls one of the transforms, timed; what the clocks themselves take in that is left out."""
        self._calls += 1
        before = self._now()
        try:
            return function(*args, **kwargs)
        finally:
            at = len(FIELDS) + number * TRANSFORM_FIELDS
            for part, (begun, ended, own) in enumerate(zip(before, self._now(), self._inside, strict=True)):
                self._row[at + part] += ended - begun - own

    def calibrate(self) -> None:
        """Finds what a clocked call takes: as its own clocks see it, and in all. The least of a few rounds."""
        row, self._row = self._row, array.array("d", bytes(8 * WIDTH))
        nothing, seen, whole = TimedCall(_nothing, 0, self.transform), [], []
        for _ in range(CALIBRATIONS):
            self._row[len(FIELDS)] = 0.0
            begun = time.perf_counter()
            for _ in range(CALLS):
                nothing(None)
            whole.append((time.perf_counter() - begun) / CALLS)
            seen.append(self._row[len(FIELDS)] / CALLS)
        self._row, self._calls = row, 0
        inside, around = min(seen), min(whole)
        self._inside, self._around = Moment(inside, inside, 0.0), Moment(around, around, 0.0)

    def dumps(self, pickler: Any, message: Any) -> Any:
        """Pickles what goes to the main process, timed; runs in the queue's own thread."""
        wall, cpu = time.perf_counter(), time.thread_time()
        data = pickler.dumps(message)
        row = self._row
        row[COLUMN["hand_wall"]] += time.perf_counter() - wall
        row[COLUMN["hand_cpu"]] += time.thread_time() - cpu
        row[COLUMN["hand_bytes"]] += len(data)
        row[COLUMN["handed"]] += 1
        return data

    # -- inside --

    def _now(self) -> Moment:
        return Moment(time.perf_counter(), time.thread_time(), self._starved())

    def _add(self, stage: str, wall: float, cpu: float, starved: float) -> None:
        self._row[COLUMN[f"{stage}_wall"]] += wall
        self._row[COLUMN[f"{stage}_cpu"]] += cpu
        self._row[COLUMN[f"{stage}_starved"]] += starved

    def _absolute(self) -> None:
        """CPU of the whole process and of this thread: what is neither this nor pickling is threads of its own."""
        process, thread = time.process_time(), time.thread_time()
        self._row[COLUMN["process_cpu"]] += process - self._process_cpu
        self._row[COLUMN["thread_cpu"]] += thread - self._thread_cpu
        self._process_cpu, self._thread_cpu = process, thread
        if self._row[COLUMN["threads"]] == 0 or self._random.random() < 0.02:
            self._row[COLUMN["threads"]] = _thread_count()

    def _look_seconds(self) -> float:
        """Seconds that one look at the clocks takes, measured once in this process."""
        if self._look is None:
            begun = time.perf_counter()
            for _ in range(LOOKS_A_BATCH):
                self._now()
            self._look = (time.perf_counter() - begun) / LOOKS_A_BATCH
        return self._look


class StageInit:
    """A `worker_init_fn` that runs the user's own and then starts the clocks; picklable for spawned workers."""

    def __init__(self, own: Callable[[int], None] | None, path: str, workers: int) -> None:
        self.own, self.path, self.workers = own, path, workers

    def __call__(self, worker: int) -> None:
        if self.own is not None:
            self.own(worker)
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        start_clocks(self.path, worker, self.workers, info.dataset if info is not None else None)


def start_clocks(path: str, worker: int, workers: int, dataset: Any) -> WorkerClock:
    """Puts clocks around fetching, transforms and pickling in this process, from now on."""
    from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

    clock = WorkerClock(path, worker, workers)
    for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
        original = getattr(kind.fetch, "_unclocked", kind.fetch)
        kind.fetch = _clocked(clock, original)
    if multiprocessing.parent_process() is not None:
        queues = multiprocessing.queues
        pickler = queues._ForkingPickler
        queues._ForkingPickler = _ClockedPickler(clock, getattr(pickler, "pickler", pickler))
    clock.transforms = Clocks(dataset, clock.transform, MOST_TRANSFORMS)
    if clock.transforms.names:
        clock.calibrate()
    if worker == 0:
        draft = f"{path}.names.{os.getpid()}"
        with open(draft, "w") as file:
            json.dump(clock.transforms.names, file)
        os.replace(draft, f"{path}.names")
    return clock


def transform_names(path: str) -> list[str]:
    """Names of the transforms that were found, in the order of their columns."""
    try:
        with open(f"{path}.names") as file:
            return json.load(file)
    except FileNotFoundError:
        return []


class _ClockedPickler:
    """Stands in for multiprocessing's ForkingPickler in a worker's queues."""

    def __init__(self, clock: WorkerClock, pickler: Any) -> None:
        self.pickler, self._clock = pickler, clock
        self.loads = pickler.loads

    def dumps(self, message: Any, *args: Any) -> Any:
        return self._clock.dumps(self.pickler, message)


def _clocked(clock: WorkerClock, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        return clock.fetch(original, self, possibly_batched_index)

    fetch._unclocked = original
    return fetch


def _nothing(value: Any) -> Any:
    return value


def _thread_count() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0
