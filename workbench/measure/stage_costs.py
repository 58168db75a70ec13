"""Costs of the stages of a loader as records: read back from JSON, and of several stretches made one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """What one stage costs for a batch, in one loading process.

    Attributes:
        name: "fetch", "collate", "hand-over", or a transform's own name.
        wall_seconds: From its begin to its end.
        cpu_seconds: CPU of the thread that did it.
        starved_seconds: Of the wall time, how long it could have run but no core was free; None where not known.
    """

    name: str
    wall_seconds: float
    cpu_seconds: float
    starved_seconds: float | None = None

    @property
    def waiting_seconds(self) -> float:
        """What is neither CPU nor want of a core: waiting for storage, a lock or a network."""
        return max(0.0, self.wall_seconds - self.cpu_seconds - (self.starved_seconds or 0.0))


@dataclass(frozen=True)
class StageCosts:
    """Where a batch's time goes, on average over the batches that were timed. All seconds are a batch's.

    Attributes:
        fetch: Getting the samples, transforms left out.
        transforms: Each transform that was found, in the order of the pipeline; time in none is in `fetch`.
        collate: The loader's `collate_fn`.
        hand_over: Pickling and copying into shared memory on the worker's side; None without workers.
        worker_seconds_per_batch: Time for which one loading process is busy with a batch, hand-over left out, since a
            thread of its own does it.
        worker_cpu_seconds_per_batch: CPU that a loading process takes for a batch, hand-over and threads included.
        other_threads_cpu_seconds: Of that, CPU of threads that the process started itself.
        worker_busy_fraction: Share of the time for which workers form batches, 0 to 1; None without workers.
        main_seconds_per_batch: CPU of the main thread in `next()` for a batch.
        queue_wait_seconds: What is left of `next()`: waiting until a batch is there.
        next_seconds: Wall time of `next()`.
        pin_seconds: Time to pin a batch, in the pin thread; None when nothing is pinned.
        transfer_seconds: Time for which copying a batch to the device keeps the host; None where nothing is copied.
        step_seconds: Time of the step on the host; None where the loader runs alone.
        bytes_per_batch: Bytes of tensors and arrays.
        pickled_bytes_per_batch: Bytes that went through the pipe; None without workers.
        tensors_per_batch: Tensors, each handed over on its own.
        samples_per_batch: Mean number of samples.
        batches: Batches that the main process took while timing.
        batches_detailed: Batches on which the detailed clocks ran.
        seconds: Time for which it was measured.
        samples_per_second: Rate meanwhile.
        worker_batches: Batches that each loading process formed meanwhile.
        threads_per_worker: Most threads of a loading process that were seen; None when not known.
        batch_walls: Seconds that recent batches took in their worker, less those without a core; for their spread.
        first_batch_seconds: The longest first batch of any loading process.
    """

    fetch: Stage
    transforms: tuple[Stage, ...]
    collate: Stage
    hand_over: Stage | None
    worker_seconds_per_batch: float
    worker_cpu_seconds_per_batch: float
    other_threads_cpu_seconds: float
    worker_busy_fraction: float | None
    main_seconds_per_batch: float
    queue_wait_seconds: float
    next_seconds: float
    pin_seconds: float | None
    bytes_per_batch: int
    pickled_bytes_per_batch: float | None
    tensors_per_batch: int
    samples_per_batch: float
    batches: int
    batches_detailed: int
    seconds: float
    samples_per_second: float
    worker_batches: tuple[int, ...] = ()
    threads_per_worker: int | None = None
    batch_walls: tuple[float, ...] = ()
    first_batch_seconds: float | None = None
    transfer_seconds: float | None = None
    step_seconds: float | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those of a loading process, in order."""
        return (self.fetch, *self.transforms, self.collate, *((self.hand_over,) if self.hand_over else ()))

    @property
    def waiting_seconds_per_batch(self) -> float:
        """Waiting in fetch, transforms and collate together."""
        return sum(stage.waiting_seconds for stage in (self.fetch, *self.transforms, self.collate))

    @property
    def starved_seconds_per_batch(self) -> float:
        """Time in which a loading process could have run but had no core."""
        return sum(stage.starved_seconds or 0.0 for stage in (self.fetch, *self.transforms, self.collate))


def costs_from_json(data: Mapping[str, Any] | None) -> StageCosts | None:
    """The costs that `dataclasses.asdict` made, read back equal; None for None."""
    if data is None:
        return None
    stage = {name: Stage(**data[name]) for name in ("fetch", "collate")}
    hand_over = Stage(**data["hand_over"]) if data["hand_over"] else None
    lists = {name: tuple(data[name]) for name in ("worker_batches", "batch_walls")}
    transforms = tuple(Stage(**item) for item in data["transforms"])
    return StageCosts(**{**data, **stage, **lists, "hand_over": hand_over, "transforms": transforms})


def merged(costs: Sequence[StageCosts]) -> StageCosts | None:
    """Costs of several stretches as one, weighted by their batches; None when there are none."""
    if not costs:
        return None
    total = sum(part.batches for part in costs)

    def mean(name: str) -> Any:
        known = [(getattr(part, name), part.batches) for part in costs if getattr(part, name) is not None]
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None

    def stage(name: str, pick: Callable[[StageCosts], Stage | None]) -> Stage | None:
        known = [(part.batches, pick(part)) for part in costs]
        if not any(found for _, found in known):
            return None
        parts = ("wall_seconds", "cpu_seconds", "starved_seconds")
        return Stage(name, *(sum((getattr(f, p) or 0.0) * n for n, f in known if f) / total for p in parts))

    names = dict.fromkeys(transform.name for part in costs for transform in part.transforms)
    named = [stage(n, lambda part, n=n: next((t for t in part.transforms if t.name == n), None)) for n in names]
    workers = max(len(part.worker_batches) for part in costs)
    shares = [[*part.worker_batches, *[0] * (workers - len(part.worker_batches))] for part in costs]
    single = {name: mean(name) for name in _MEANS}
    whole = {name: round(single[name]) for name in ("bytes_per_batch", "tensors_per_batch")}
    return StageCosts(
        fetch=stage("fetch", lambda part: part.fetch),
        transforms=tuple(found for found in named if found),
        collate=stage("collate", lambda part: part.collate),
        hand_over=stage("hand-over", lambda part: part.hand_over),
        **single | whole,
        batches=total,
        batches_detailed=sum(part.batches_detailed for part in costs),
        seconds=sum(part.seconds for part in costs),
        worker_batches=tuple(sum(column) for column in zip(*shares, strict=True)),
        threads_per_worker=max((part.threads_per_worker or 0 for part in costs), default=0) or None,
        batch_walls=tuple(wall for part in costs for wall in part.batch_walls),
        first_batch_seconds=max((part.first_batch_seconds or 0.0 for part in costs), default=None),
    )


_MEANS = ("worker_seconds_per_batch", "worker_cpu_seconds_per_batch", "other_threads_cpu_seconds",
          "worker_busy_fraction", "main_seconds_per_batch", "queue_wait_seconds", "next_seconds", "pin_seconds",
          "transfer_seconds", "step_seconds",
          "bytes_per_batch", "pickled_bytes_per_batch", "tensors_per_batch", "samples_per_batch",
          "samples_per_second")  # fmt: skip
