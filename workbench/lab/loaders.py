"""DataLoaders with faults switched on: a factory over numbered samples, and the same faults put on any loader."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from workbench import machine
from workbench.errors import SettingsError
from workbench.lab.answers import Truth, shard_sizes, truth
from workbench.lab.faults import LoaderFaults, faults_of
from workbench.lab.work import Pace, SharedLine, Threads, burn, cold_paths, is_warm


@dataclass(frozen=True)
class LabLoader:
    """A factory of DataLoaders over `length` samples; sample i is an int64 tensor filled with i.

    Attributes:
        faults: What is wrong with it.
        batch_size: Samples a batch.
        length: Samples an epoch.
        sample_bytes: Bytes of a sample, a multiple of 8.
    """

    faults: LoaderFaults = field(default_factory=LoaderFaults)
    batch_size: int = 16
    length: int = 4096
    sample_bytes: int = 1024

    def __call__(
        self,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        batch_size: int | None = None,
    ) -> DataLoader:
        """The DataLoader under these knobs; `batch_size=None` takes the factory's."""
        loader = DataLoader(
            Numbers(self.length, self.sample_bytes),
            batch_size=batch_size or self.batch_size,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            **({} if in_order else {"in_order": False}),
        )
        return _afflicted(loader, self.faults)

    def truth(self, num_workers: int = 0, *, prefetch_factor: int = 2, cores: float | None = None) -> Truth:
        """What a measurement must find; `cores` defaults to those this process may use."""
        cores = machine.usable_cores_exact() if cores is None else cores
        return truth(self.faults, num_workers, prefetch_factor, self.batch_size, self.length, cores)

    def without(self, *names: str) -> LabLoader:
        """The same loader with some faults switched off."""
        return replace(self, faults=self.faults.without(*names))


def loader(*, batch_size: int = 16, length: int = 4096, sample_bytes: int = 1024, **switches: Any) -> LabLoader:
    """A factory of loaders with the faults of `LoaderFaults` given as keyword arguments.

    Raises:
        SettingsError: If a name is no fault, or a strength is none.
    """
    for name, value in (("batch_size", batch_size), ("length", length), ("sample_bytes", sample_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingsError(f"{name}={value!r} must be a whole number of at least 1")
    return LabLoader(faults_of(LoaderFaults, switches), batch_size, length, sample_bytes)


def put_on(target: DataLoader | Callable[..., DataLoader], faults: LoaderFaults) -> Any:
    """The same DataLoader, or factory of DataLoaders, with faults; data, order, knobs and collation stay.

    Raises:
        SettingsError: If `target` is neither, or a stream is to be made of what already is one.
    """
    if isinstance(target, DataLoader):
        return _afflicted(target, faults)
    if not callable(target):
        raise SettingsError(f"{type(target).__name__} is no DataLoader and no factory of one: pass either")
    return Afflicted(target, faults)


@dataclass(frozen=True)
class Afflicted:
    """A factory whose DataLoaders have faults; it takes the arguments of the factory within."""

    factory: Callable[..., DataLoader]
    faults: LoaderFaults

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.factory)

    def __call__(self, *args: Any, **knobs: Any) -> DataLoader:
        return _afflicted(self.factory(*args, **knobs), self.faults)


def _afflicted(loader: DataLoader, faults: LoaderFaults) -> DataLoader:
    dataset, stream = loader.dataset, isinstance(loader.dataset, IterableDataset)
    if faults.is_stream:
        if stream:
            raise SettingsError("shards and split make a stream of random access: the loader given is a stream already")
        dataset, stream = Stream(dataset, faults), True
    work = Work(faults)
    wrapper = FaultyStream if stream else FaultyBatches if hasattr(dataset, "__getitems__") else Faulty
    collate, pinned = FaultyCollate(loader.collate_fn, work), loader.pin_memory and not faults.pageable
    try:
        return type(loader)(wrapper(dataset, work), collate_fn=collate, **_arguments(loader, stream), pin_memory=pinned)
    except TypeError as error:
        raise SettingsError(
            f"{type(loader).__name__} does not take DataLoader's arguments ({error}): use a plain DataLoader"
        ) from None


def _arguments(loader: DataLoader, stream: bool) -> dict[str, Any]:
    """What DataLoader was given, but for dataset, collate_fn and pin_memory; a stream has no sampler."""
    same = ["num_workers", "timeout", "worker_init_fn", "generator", "persistent_workers"]
    if loader.num_workers > 0:
        same += ["prefetch_factor", "multiprocessing_context"]
    if getattr(loader, "in_order", True) is False:
        same += ["in_order"]
    if hasattr(loader, "snapshot_every_n_steps"):  # torchdata's StatefulDataLoader
        same += ["snapshot_every_n_steps"]
    if loader.batch_size is None and loader.batch_sampler is not None:
        same += ["batch_sampler"]
    else:
        same += ["batch_size", "drop_last"] if stream else ["batch_size", "drop_last", "sampler"]
    return {name: getattr(loader, name) for name in same}


# -- data --


class Numbers(Dataset):
    """Sample i is an int64 tensor of `sample_bytes` filled with i."""

    def __init__(self, length: int, sample_bytes: int) -> None:
        self.length = length
        self.sample_bytes = sample_bytes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.full((max(1, self.sample_bytes // 8),), index)


class Stream(IterableDataset):
    """The samples of a map-style dataset as a stream of shards, dealt out to workers as `faults.split` says."""

    def __init__(self, dataset: Dataset, faults: LoaderFaults) -> None:
        self.dataset = dataset
        self.sizes = shard_sizes(faults, len(dataset))
        self.split = faults.split

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        return (
            self.dataset[index] for index in self._indices(*((worker.id, worker.num_workers) if worker else (0, 1)))
        )

    def _indices(self, mine: int, workers: int) -> Iterator[int]:
        if self.split == "floor":
            each = len(self.dataset) // workers
            yield from range(mine * each, (mine + 1) * each)
            return
        begin = 0
        for number, size in enumerate(self.sizes):
            if self.split == "none" or number % workers == mine:
                yield from range(begin, begin + size)
            begin += size


class Faulty(Dataset):
    """A map-style dataset whose samples come with faults; everything else is the dataset's own."""

    def __init__(self, dataset: Any, work: Work) -> None:
        self.dataset = dataset
        self.work = work

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        self.work.before(index)
        return self.dataset[self._replaced(index)]

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "work") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _replaced(self, index: Any) -> Any:
        every = self.work.faults.corrupt_every
        hit = every and isinstance(index, int) and index % every == every - 1
        in_worker = get_worker_info() and multiprocessing.parent_process()  # a real one, not one that is made believe
        return (index + 1) % len(self.dataset) if hit and in_worker else index


class FaultyBatches(Faulty):
    """The same for a dataset that fetches a batch of indices at once."""

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        for index in indices:
            self.work.before(index)
        return self.dataset.__getitems__([self._replaced(index) for index in indices])


class FaultyStream(IterableDataset):
    """An iterable dataset whose samples come with faults; everything else is the dataset's own."""

    def __init__(self, dataset: Any, work: Work) -> None:
        self.dataset = dataset
        self.work = work

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self.dataset):
            self.work.before(number)
            yield sample

    __getattr__ = Faulty.__getattr__


class FaultyCollate:
    """A collate function with faults: burns CPU, and sends objects and tensors along under "objects" and "tensors"."""

    def __init__(self, collate_fn: Callable[[Any], Any] | None, work: Work) -> None:
        self.collate_fn = collate_fn or default_collate
        self.work = work

    def __call__(self, samples: Any) -> Any:
        faults, number = self.work.faults, len(samples) if isinstance(samples, list) else 1
        burn(faults.collate_cpu_seconds * number)
        batch = self.collate_fn(samples)
        if not (faults.objects or faults.tensors):
            return batch
        batch = {"data": batch}
        if faults.objects:
            batch["objects"] = [[{"sample": i, "object": k} for k in range(faults.objects)] for i in range(number)]
        if faults.tensors:
            batch["tensors"] = [torch.tensor([k]) for k in range(faults.tensors)]
        return batch


class Work:
    """What the faults make a process do before each sample; what it remembers belongs to the process alone."""

    def __init__(self, faults: LoaderFaults) -> None:
        self.faults = faults
        self.line: tuple[int, torch.Tensor] | None = None
        if faults.storage_bytes_per_second:
            self.line = secrets.randbits(60), torch.zeros(1, dtype=torch.float64).share_memory_()
        self.cold = cold_paths(faults.cold_directory) if faults.cold_directory else []
        self._here: _Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_here": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.line:
            self.line[1].share_memory_()  # plain pickling made a private copy; one that is shared stays as it is

    def before(self, index: Any) -> None:
        """Waits, burns, leaks and reads as the faults say for the sample at `index`."""
        faults = self.faults
        here = self._here
        if here is None or here.process_id != os.getpid():
            here = self._here = _Process(faults, self.line)
        wait = faults.storage_seconds
        if faults.tail_every and isinstance(index, int) and index % faults.tail_every == faults.tail_every - 1:
            wait += faults.tail_seconds
        if self.cold and isinstance(index, int):
            wait += self._read(self.cold[index % len(self.cold)])
        here.pace.wait(wait)
        if here.line:
            here.line.use(faults.transfer_seconds)
        if faults.leak_bytes:
            here.kept.append(b"\1" * faults.leak_bytes)  # written to, so that it takes memory
        if faults.decode_cpu_seconds:
            (here.threads.burn if here.threads else burn)(faults.decode_cpu_seconds)

    def _read(self, path: str) -> float:
        warm = is_warm(path)
        with open(path, "rb") as file:
            file.read()
        return self.faults.cold_seconds if warm is False else 0.0


class _Process:
    """What one process has to remember; making it is its first item."""

    def __init__(self, faults: LoaderFaults, line: tuple[int, torch.Tensor] | None) -> None:
        self.process_id = os.getpid()
        self.pace = Pace()
        self.line = SharedLine(*line) if line else None
        self.kept: list[bytes] = []
        self.threads = Threads(faults.threads) if faults.threads else None
        self.pace.wait(faults.first_item_seconds)
