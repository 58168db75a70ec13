"""A queueing model of a DataLoader: seconds a batch costs, and the rate and memory that follow. Pure functions.

    dataset -> worker 0..W-1 (busy `worker_seconds` a batch, on `cores` shared by all) -> queue -> main process -> step

Each station bounds the rate of all: W workers finish W batches in `worker_seconds`; the cores finish one in
`cpu_seconds / cores`; what all workers share, the main process and the step serve one batch at a time. The smallest
bound binds (bottleneck analysis of closed queueing networks: Denning and Buzen 1978, "The operational analysis of
queueing network models", section 5). Batches are handed over in order, so that a slow one holds up ready ones behind
it, and its workers wait once their part of the queue is full; where batches differ, that is played through.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from workbench.loaders.settings import LoaderSettings

# Where the rate is taken as bound by something, in the words of a report.
BOUND_WORDS = {
    "alone": "the training process, which loads every batch itself",
    "workers": "the workers: each is busy all the time and there are too few of them",
    "cores": "the cores: the workers already use all that this process may use",
    "storage": "something that all workers share, such as storage: more of them only wait for it",
    "hand-over": "handing batches over: the main process cannot take them in any faster",
    "order": "the order of batches: a slow one holds up ready ones behind it",
    "step": "the training step: batches are ready before it asks for them",
}
NEXT_WORDS = {
    "alone": "worker processes",
    "workers": "more workers",
    "cores": "less work a sample (resizing offline, a faster decoder), or more cores; more workers cannot help",
    "storage": "larger reads, shards instead of small files, or a cache; more workers cannot help",
    "hand-over": "fewer and larger tensors a batch, and no Python objects beside them; more workers cannot help",
    "order": "a larger prefetch_factor, or in_order=False where the order of batches may change",
    "step": "a faster training step; loading is not what limits it",
}
# Of bounds that lie close together, the one is named that more workers cannot move.
_NAMED_FIRST = ("step", "hand-over", "storage", "cores", "order", "workers", "alone")
AS_GOOD_AS_BINDING = 0.05
PLAYED_BATCHES = 600  # enough for a tail of one in a hundred to come up six times
PLAYED_ROUNDS = 500  # of one batch a worker, where batches differ without a tail
LEAST_SPREAD = 0.1  # below, waiting for each other costs workers less than 1 %
TAIL_TIMES = 3.0  # a longest batch this many times the usual one is a tail
TAIL_WORTH_PLAYING = 0.03  # share of all loading time that the tail must cost
BATCHES_BESIDE_THE_QUEUE = 2  # one being received, one held by the training loop


@dataclass(frozen=True)
class Costs:
    """What a batch costs, in seconds and bytes; None is unknown.

    Attributes:
        alone_seconds: A batch loaded in the training process.
        worker_seconds: A batch in a worker that has a core to itself, hand-over included.
        cpu_seconds: Core seconds of all processes for a batch, with workers.
        cores: Cores that the processes may use.
        shared_seconds: Seconds a batch takes of what all workers share; None where nothing shared was seen to bind.
        shared: What that is: "storage" or "hand-over".
        main_seconds: Seconds for which the main process is busy with taking a batch in; None is unknown.
        step_seconds: Seconds of the training step for a batch; 0 where batches are taken as fast as they come.
        tail_share: Share of batches that are slow ones.
        tail_times: How many times the usual batch a slow one takes.
        spread: Standard deviation of the logarithm of what batches cost, where there is no such tail.
        batch_bytes: Bytes of a batch.
        samples: Samples in a batch.
        base_bytes: Memory of everything but workers and queue.
        worker_bytes: Own memory of a worker.
    """

    alone_seconds: float | None = None
    worker_seconds: float | None = None
    cpu_seconds: float | None = None
    cores: float = 1.0
    shared_seconds: float | None = None
    shared: str = "storage"
    main_seconds: float | None = None
    step_seconds: float = 0.0
    tail_share: float = 0.0
    tail_times: float = 1.0
    spread: float = 0.0
    batch_bytes: int | None = None
    samples: float | None = None
    base_bytes: float | None = None
    worker_bytes: float | None = None

    def with_batch_size(self, samples: float) -> Costs:
        """The same loader with that many samples a batch, every cost in proportion to them."""
        if not self.samples:
            return self
        scale = samples / self.samples
        seconds = {
            name: None if getattr(self, name) is None else getattr(self, name) * scale
            for name in ("alone_seconds", "worker_seconds", "cpu_seconds", "shared_seconds", "main_seconds")
        }
        size = None if self.batch_bytes is None else round(self.batch_bytes * scale)
        return replace(self, **seconds, step_seconds=self.step_seconds * scale, batch_bytes=size, samples=samples)


def bounds(settings: LoaderSettings, costs: Costs) -> dict[str, float]:
    """The most batches per second that each station lets through; unknown stations are left out."""
    if settings.num_workers == 0:
        return {} if costs.alone_seconds is None else {"alone": _per_second(costs.alone_seconds + costs.step_seconds)}
    limits, depth = {}, settings.prefetch_factor or 1
    if costs.worker_seconds is not None:
        busy = _share_busy(settings.num_workers, depth, round(costs.spread, 2)) if settings.in_order else 1.0
        limits["workers"] = settings.num_workers * busy * _per_second(costs.worker_seconds)
    if costs.cpu_seconds is not None:
        limits["cores"] = costs.cores * _per_second(costs.cpu_seconds)
    if costs.shared_seconds is not None:
        limits[costs.shared] = _per_second(costs.shared_seconds)
    main = costs.main_seconds or 0.0
    if costs.step_seconds or main:
        name = "step" if costs.step_seconds >= main else "hand-over"
        limits[name] = min(limits.get(name, math.inf), _per_second(costs.step_seconds + main))
    if has_tail(costs) and settings.in_order and costs.worker_seconds:
        limits["order"] = _in_order(settings.num_workers, depth, costs)
    return limits


def rate(settings: LoaderSettings, costs: Costs) -> tuple[float, str] | None:
    """Batches per second and the name of what bounds them; None when nothing is known.

    >>> costs = Costs(worker_seconds=0.04, cpu_seconds=0.04, cores=2)
    >>> rate(LoaderSettings(num_workers=1), costs), rate(LoaderSettings(num_workers=4), costs)
    ((25.0, 'workers'), (50.0, 'cores'))
    """
    limits = {name: limit for name, limit in bounds(settings, costs).items() if math.isfinite(limit)}
    if not limits:
        return None
    lowest = min(limits.values())
    close = [name for name, limit in limits.items() if limit <= (1 + AS_GOOD_AS_BINDING) * lowest]
    return lowest, next(name for name in _NAMED_FIRST if name in close)


def memory_bytes(settings: LoaderSettings, costs: Costs) -> int | None:
    """Peak memory: base + workers x (own + prefetch x batch bytes), and the batches beside the queue."""
    if costs.base_bytes is None or (settings.num_workers and costs.worker_bytes is None):
        return None
    return round(costs.base_bytes + settings.num_workers * (costs.worker_bytes or 0.0) + queued_bytes(settings, costs))


def queued_bytes(settings: LoaderSettings, costs: Costs) -> int:
    """Bytes of batches between workers and training loop; 0 at 0 workers."""
    if not settings.num_workers:
        return 0
    return (settings.batches_in_flight + BATCHES_BESIDE_THE_QUEUE) * (costs.batch_bytes or 0)


def said_of(bound: str, limits: Mapping[str, float]) -> str:
    """What binds and what would help next, in short sentences; empty when that is unknown.

    Args:
        bound: A key of `BOUND_WORDS`, or empty.
        limits: Batches per second that each station would let through.
    """
    if not bound:
        return ""
    close = [
        name
        for name, limit in limits.items()
        if name not in (bound, "workers") and limit <= (1 + AS_GOOD_AS_BINDING) * limits[bound]
    ]
    also = f" Close behind: {'; '.join(BOUND_WORDS[name] for name in close)}." if close else ""
    return f"What binds: {BOUND_WORDS[bound]}.{also} What would help next: {NEXT_WORDS[bound]}."


def name_of(bound: str) -> str:
    """What binds, in two or three words; a key of `BOUND_WORDS`, or empty where that is unknown."""
    return re.split("[,:]", BOUND_WORDS[bound])[0] if bound else "nothing known"


def has_tail(costs: Costs) -> bool:
    """Whether slow batches cost enough to be played through."""
    lost = costs.tail_share * (costs.tail_times - 1)
    return costs.tail_times >= TAIL_TIMES and lost / (1 + lost) >= TAIL_WORTH_PLAYING


def _per_second(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf


def _in_order(workers: int, prefetch: int, costs: Costs) -> float:
    """Batches per second where a few take far longer than others."""
    assert costs.worker_seconds is not None
    usual = costs.worker_seconds / (1 + costs.tail_share * (costs.tail_times - 1))
    chance = random.Random(0)
    slow = [chance.random() < costs.tail_share for _ in range(PLAYED_BATCHES)]
    seconds = [usual * (costs.tail_times if each else 1.0) for each in slow]
    return PLAYED_BATCHES / _play(seconds, workers, prefetch, costs.step_seconds)


@lru_cache(maxsize=1024)
def _share_busy(workers: int, prefetch: int, spread: float) -> float:
    """Share of the time for which workers are not held up by each other, where what batches cost is lognormal."""
    if workers == 1 or spread < LEAST_SPREAD:
        return 1.0
    chance = random.Random(0)
    seconds = [chance.lognormvariate(0.0, spread) for _ in range(PLAYED_ROUNDS * workers)]
    return min(1.0, sum(seconds) / workers / _play(seconds, workers, prefetch))


def _play(seconds: Sequence[float], workers: int, prefetch: int, step_seconds: float = 0.0) -> float:
    """When the last of these batches is taken: batch b goes to worker b mod W, is asked for once batch
    b - W x prefetch is taken, and is taken after batch b - 1."""
    ahead = workers * prefetch
    free, taken = [0.0] * workers, [0.0] * len(seconds)
    for batch, long in enumerate(seconds):
        begin = max(free[batch % workers], taken[batch - ahead] if batch >= ahead else 0.0)
        free[batch % workers] = begin + long
        taken[batch] = max(begin + long, taken[batch - 1] if batch else 0.0) + step_seconds
    return taken[-1]
