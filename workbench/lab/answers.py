"""What a measurement of a lab loader must find, computed from its faults: pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.lab.faults import LoaderFaults, StepFaults

SAME_FRACTION = 0.1  # loader and step within 10 % of each other: neither bounds the other
DEVICE_QUEUE = 4  # batches that the lab's device takes before the host has to wait


@dataclass(frozen=True)
class Truth:
    """The right answers for one lab loader under one number of workers.

    Attributes:
        samples_per_second: Steady rate while every worker that has work is at work; None where only torch bounds it.
        warm_samples_per_second: The same once cold files have been read; equal without the cold-cache fault.
        bound: What bounds the rate: "workers", "cores", "bandwidth", "tail" (a slow sample ahead of ready ones) or
            "nothing".
        epoch_samples: Samples that an epoch really yields.
        epoch_seconds: Time of an epoch after start-up; None where the rate is.
        first_batch_seconds: The first batch takes at least this.
        active_workers: Workers that have samples to load; 0 without workers.
        idle_workers: Workers that have none.
        computing_threads: Threads of all processes that compute; more than cores is oversubscription.
        growth_bytes_per_1000_samples: Memory that the loading processes never give back.
        tensors_per_batch: Tensors that a batch holds.
        objects_per_batch: Python objects that a batch carries beside tensors.
        wrong_data: Whether samples are lost, repeated or corrupted, compared with no workers.
    """

    samples_per_second: float | None
    warm_samples_per_second: float | None
    bound: str
    epoch_samples: int
    epoch_seconds: float | None
    first_batch_seconds: float
    active_workers: int
    idle_workers: int
    computing_threads: int
    growth_bytes_per_1000_samples: int
    tensors_per_batch: int
    objects_per_batch: int
    wrong_data: bool

    @property
    def status(self) -> str:
        """The `status` that a trial must end with."""
        return "wrong_data" if self.wrong_data else "ok"


@dataclass(frozen=True)
class Combined:
    """The right answers for a lab loader and a lab step together.

    Attributes:
        loader_samples_per_second: Loader alone; None where only torch bounds it.
        step_samples_per_second: Step alone, on batches at hand; None for a step that costs nothing.
        combined_samples_per_second: Both; None where both are.
        input_wait_fraction: Share of the loop's time that the host spends getting batches: waiting or, without
            workers, loading, even while the device is at work.
        headroom: What perfect loading would gain: step alone over combined.
        bound: "input", "compute", "sync" (the step would be faster if it did not wait for the device), "balanced", or
            "transfer" (loader and step are both faster than the loop, which copies hold back).
    """

    loader_samples_per_second: float | None
    step_samples_per_second: float | None
    combined_samples_per_second: float | None
    input_wait_fraction: float
    headroom: float
    bound: str


def truth(
    faults: LoaderFaults, num_workers: int, prefetch_factor: int, batch_size: int, length: int, cores: float
) -> Truth:
    """The answers for a loader with `faults`.

    A worker takes CPU and waits for each sample, one after the other; workers overlap; CPU of all of them is bounded
    by `cores`, bytes of all of them by the bandwidth. What torch costs is left out.
    """
    dealt = _samples_of_workers(faults, num_workers, length)
    active = sum(count > 0 for count in dealt)
    rate, bound = _rate(faults, faults.cold_seconds, max(1, active), cores)
    warm, _ = _rate(faults, 0.0, max(1, active), cores)
    if faults.tail_every and num_workers and not faults.is_stream:
        behind = length / _in_order_seconds(faults, num_workers, prefetch_factor, batch_size, length)
        if behind < rate:
            rate, warm, bound = behind, behind, "tail"
    seconds = _epoch_seconds(faults, dealt, rate, bound)
    alone = not num_workers
    return Truth(
        samples_per_second=rate,
        warm_samples_per_second=warm,
        bound=bound,
        epoch_samples=sum(dealt),
        epoch_seconds=seconds,
        first_batch_seconds=faults.first_item_seconds + batch_size * (_sample_seconds(faults, 0.0) - _tail(faults)),
        active_workers=0 if alone else active,
        idle_workers=0 if alone else num_workers - active,
        computing_threads=max(1, num_workers) * max(1, faults.threads),
        growth_bytes_per_1000_samples=1000 * faults.leak_bytes,
        tensors_per_batch=1 + faults.tensors,
        objects_per_batch=batch_size * faults.objects,
        wrong_data=sum(dealt) != length or bool(num_workers and 0 < faults.corrupt_every <= length),
    )


def combined(loader: Truth, step: StepFaults, num_workers: int, batch_size: int) -> Combined:
    """The answers for a loop that loads a batch and steps on it, from those for the loader.

    With workers, batches are made while the step runs; without, only the device's part of a step that does not
    synchronise runs meanwhile. A busy step and busy workers are taken not to need the same core.
    """
    load = batch_size / loader.samples_per_second if loader.samples_per_second else 0.0
    host, device = step.launch_seconds, step.device_seconds
    alone = host + device if step.synchronise else max(host, device)
    fed = _cycle(0.0, step)
    together = max(load, fed) if num_workers else _cycle(load, step)
    waits = load if not num_workers else max(0.0, together - fed)
    return Combined(
        loader_samples_per_second=loader.samples_per_second,
        step_samples_per_second=batch_size / alone if alone else None,
        combined_samples_per_second=batch_size / together if together else None,
        input_wait_fraction=waits / together if together else 0.0,
        headroom=together / alone if alone else float("inf"),
        bound="transfer" if fed > (1 + SAME_FRACTION) * max(load, alone) else _bound(load, alone, max(host, device)),
    )


def shard_sizes(faults: LoaderFaults, length: int) -> list[int]:
    """Samples of each shard of a stream: the first as large as `largest_shard` says, the others equal but for one."""
    shards = faults.shards or 1
    first = [round(length * faults.largest_shard)] if faults.largest_shard else []
    others = shards - len(first)
    each, more = divmod(length - sum(first), others)
    return first + [each + (number < more) for number in range(others)]


def _cycle(load: float, step: StepFaults) -> float:
    """Seconds of a batch when the host loads it in `load`, hands it to the copy, launches, and waits if it must."""
    host, device, copy = step.launch_seconds, step.device_seconds, step.copy_seconds
    if step.pageable:
        return copy + host + (load + device if step.synchronise else max(load, device))
    return load + max(host, copy) + device if step.synchronise else max(load + host, device, copy)


def _bound(load: float, step: float, unsynchronised: float) -> str:
    if load > (1 + SAME_FRACTION) * step:
        return "input"
    if load >= (1 - SAME_FRACTION) * step:
        return "balanced"
    return "sync" if step > (1 + SAME_FRACTION) * unsynchronised else "compute"


def _samples_of_workers(faults: LoaderFaults, num_workers: int, length: int) -> list[int]:
    """Samples that each worker yields in an epoch; one entry without workers."""
    workers = max(1, num_workers)
    if faults.split == "none":
        return [length] * workers
    if faults.split == "floor":
        return [length // workers] * workers
    if faults.shards is None:
        return [length // workers + (number < length % workers) for number in range(workers)]
    sizes = shard_sizes(faults, length)
    return [sum(sizes[number::workers]) for number in range(workers)]


def _sample_seconds(faults: LoaderFaults, cold_seconds: float) -> float:
    """Time a process needs for a sample, on average, when it has cores enough."""
    cpu = faults.decode_cpu_seconds / max(1, faults.threads) + faults.collate_cpu_seconds
    return cpu + faults.storage_seconds + faults.transfer_seconds + cold_seconds + _tail(faults)


def _tail(faults: LoaderFaults) -> float:
    return faults.tail_seconds / faults.tail_every if faults.tail_every else 0.0


def _rate(faults: LoaderFaults, cold_seconds: float, active: int, cores: float) -> tuple[float | None, str]:
    seconds, cpu = _sample_seconds(faults, cold_seconds), faults.decode_cpu_seconds + faults.collate_cpu_seconds
    if not seconds:
        return None, "nothing"
    rates = {"workers": active / seconds}
    if cpu:
        rates["cores"] = cores / cpu
    if faults.transfer_seconds:
        rates["bandwidth"] = 1 / faults.transfer_seconds
    bound = min(rates, key=rates.__getitem__)
    return rates[bound], bound


def _epoch_seconds(faults: LoaderFaults, dealt: list[int], rate: float | None, bound: str) -> float | None:
    """Time until the last worker is done: while several are, at the common rate; a long shard's owner goes on alone."""
    if rate is None:
        return None
    together = sum(dealt) / rate
    return together if bound in ("tail", "bandwidth") else max(together, max(dealt) * _sample_seconds(faults, 0.0))


def _in_order_seconds(
    faults: LoaderFaults, num_workers: int, prefetch_factor: int, batch_size: int, length: int
) -> float:
    """Time of an epoch whose batches are handed over in order, as DataLoader does it.

    Batch b goes to worker b mod W, which begins it once it is free and the batch has been asked for; the main process
    asks for batch b + W * prefetch when it takes batch b.
    """
    ahead = num_workers * prefetch_factor
    even = _sample_seconds(faults, 0.0) - _tail(faults)
    free, taken = [0.0] * num_workers, []
    for batch, begin in enumerate(range(0, length, batch_size)):
        end = min(length, begin + batch_size)
        slow = end // faults.tail_every - begin // faults.tail_every
        asked = taken[batch - ahead] if batch >= ahead else 0.0
        worker = batch % num_workers
        free[worker] = max(free[worker], asked) + (end - begin) * even + slow * faults.tail_seconds
        taken.append(max(free[worker], taken[-1] if taken else 0.0))
    return taken[-1]
