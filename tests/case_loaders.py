"""Small loaders that each bring one kind of trouble that people report, and one factory that stands for any of them."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

CHOICE = "WORKBENCH_TEST_LOADER"  # names the file that holds the name of the loader to build
SET_UP_SECONDS = 0.3


def chosen(
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    **more: Any,
) -> Any:
    """The loader whose name, or whose file, stands in the file that `CHOICE` names; built in a trial's own process.

    One trial server thus serves them all. The probe's looks are shortened there: these loaders are known.
    """
    from workbench.measure import probing

    probing.EPOCH_SECONDS, probing.REFERENCE_SECONDS, probing.REFERENCE_SECONDS_BY_INDEX = 0.25, 0.2, 0.2
    name = Path(os.environ[CHOICE]).read_text()
    make = module_of(Path(name)).make_loader if name.endswith(".py") else globals()[name]
    return make(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        **more,
    )


def module_of(path: Path) -> ModuleType:
    """The module in that file, under its stem."""
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[path.stem]


class Numbers(Dataset):
    """Sample i is the number i."""

    length = 400

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index))


def mine(numbers: Iterator[int]) -> Iterator[int]:
    """This worker's share, dealt out in turn."""
    info = get_worker_info()
    return itertools.islice(numbers, info.id if info else 0, None, info.num_workers if info else 1)


# -- memory --


class Hoard(IterableDataset):
    """Endless; keeps each sample of 256 KiB that it gave."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in itertools.count():
            self.kept.append(torch.full((65_536,), float(number)))
            yield self.kept[-1]


def hoard(**knobs: Any) -> DataLoader:
    return DataLoader(Hoard(), batch_size=4, **knobs)


class Spikes(Numbers):
    """One sample needs 300 MiB for a moment, long after the first batch."""

    length = 4000

    def __getitem__(self, index: int) -> Any:
        if index == 203:
            bytearray(b"x") * (300 << 20)
        return super().__getitem__(index)


def spikes(**knobs: Any) -> DataLoader:
    return DataLoader(Spikes(), batch_size=4, **knobs)


class OneTable(Dataset):
    """64 MiB in one tensor, of which a sample is a sum."""

    def __init__(self) -> None:
        self.table = torch.ones(2048, 8192)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.table[index].sum()


def one_table(**knobs: Any) -> DataLoader:
    return DataLoader(OneTable(), batch_size=32, **knobs)


class Confetti(Numbers):
    """Each sample is six tensors of a few bytes."""

    length = 160

    def __getitem__(self, index: int) -> Any:
        return {name: torch.zeros(width) for width, name in enumerate("abcdef", 1)}


def confetti(**knobs: Any) -> DataLoader:
    return DataLoader(Confetti(), batch_size=16, collate_fn=list, **knobs)


# -- hangs and deaths --


LOCK = threading.Lock()


class NeedsLock(Numbers):
    """Stands for a library with a mutex of its own."""

    def __getitem__(self, index: int) -> Any:
        with LOCK:
            return super().__getitem__(index)


def needs_lock(**knobs: Any) -> DataLoader:
    """With workers, a thread that has the lock most of the time is running when they are forked."""
    if knobs.get("num_workers") and knobs.get("multiprocessing_context") == "fork":
        started = threading.Event()
        threading.Thread(target=_hold, args=(started,), daemon=True).start()
        started.wait()
    return DataLoader(NeedsLock(), batch_size=8, **knobs)


def _hold(started: threading.Event) -> None:
    while True:
        with LOCK:
            started.set()
            time.sleep(0.5)


class Blocks(Numbers):
    """Sample 41 never comes."""

    def __getitem__(self, index: int) -> Any:
        if index == 41:
            time.sleep(10_000)
        return super().__getitem__(index)


def blocks(**knobs: Any) -> DataLoader:
    return DataLoader(Blocks(), batch_size=4, **knobs)


class StorageError(Exception):
    """Its constructor takes no message."""

    def __init__(self, bucket: str, *, tries: int) -> None:
        super().__init__(f"{bucket} did not answer {tries} times")


class Unreachable(Numbers):
    """Sample 30 is in a bucket that does not answer."""

    def __getitem__(self, index: int) -> Any:
        if index == 30:
            raise StorageError("bucket-12", tries=3)
        return super().__getitem__(index)


def unreachable(**knobs: Any) -> DataLoader:
    return DataLoader(Unreachable(), batch_size=8, **knobs)


class Longer(Numbers):
    """From sample 21 on, samples are longer, which the default collate_fn cannot stack."""

    length = 64

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(16 if index < 21 else 24)


def longer(**knobs: Any) -> DataLoader:
    return DataLoader(Longer(), batch_size=8, **knobs)


# -- fetching --


class OnlyBatches(Numbers):
    """Is asked for whole batches, never for a sample."""

    length = 1000

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a sample was fetched by itself")

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(0.002)
        return [torch.tensor(float(index)) for index in indices]


def only_batches(**knobs: Any) -> DataLoader:
    return DataLoader(OnlyBatches(), batch_size=50, **knobs)


def small_table(**knobs: Any) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(2048.0).view(512, 4), torch.arange(512)), batch_size=32, **knobs)


# -- batches --


class Growing(BatchSampler):
    """Batches of 3, 8, 13 samples in turn; 30 of them."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for number in range(30):
            size = (3, 8, 13)[number % 3]
            yield list(range(start, start + size))
            start += size

    def __len__(self) -> int:
        return 30


def growing(**knobs: Any) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(240.0)), batch_sampler=Growing(), **knobs)


class Ready(IterableDataset):
    """Twenty batches of 24 samples, formed by the dataset."""

    def __iter__(self) -> Iterator[Any]:
        for number in mine(iter(range(20))):
            yield torch.full((24, 3), float(number)), torch.full((24,), number)


def ready(**knobs: Any) -> DataLoader:
    return DataLoader(Ready(), batch_size=None, **knobs)


class Fields(dict):
    """A dict whose constructor takes rows."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(ids=torch.tensor(rows), mask=torch.ones(len(rows), 7))


def fields(**knobs: Any) -> DataLoader:
    return DataLoader(list(range(200)), batch_size=10, collate_fn=Fields, **knobs)


def with_lambda(**knobs: Any) -> DataLoader:
    half = 0.5
    return DataLoader(list(range(120)), batch_size=6, collate_fn=lambda rows: torch.tensor(rows) * half, **knobs)


# -- streams and epochs --


class Shards(IterableDataset):
    """Two shards of 80; a worker takes whole shards."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for shard in mine(iter((range(80), range(80, 160)))):
            yield from map(torch.tensor, shard)


def shards(**knobs: Any) -> DataLoader:
    return DataLoader(Shards(), batch_size=8, **knobs)


class Copied(IterableDataset):
    """Every worker gives everything."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, range(120))


def copied(**knobs: Any) -> DataLoader:
    return DataLoader(Copied(), batch_size=8, **knobs)


class Endless(IterableDataset):
    """No end and no length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, mine(itertools.count()))


def endless(**knobs: Any) -> DataLoader:
    return DataLoader(Endless(), batch_size=12, **knobs)


class Reshuffled(IterableDataset):
    """The order follows the epoch's number."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(96))
        random.Random(self.epoch).shuffle(order)
        return mine(iter(order))


def reshuffled(**knobs: Any) -> DataLoader:
    return DataLoader(Reshuffled(), batch_size=8, **knobs)


class Few(Numbers):
    """Three batches."""

    length = 48


def few(**knobs: Any) -> DataLoader:
    return DataLoader(Few(), batch_size=16, **knobs)


class SetsUp(Numbers):
    """A process that fetches for the first time opens an index."""

    length, index = 2000, None

    def __getitem__(self, index: int) -> Any:
        if self.index is None:
            time.sleep(SET_UP_SECONDS)
            self.index = True
        return super().__getitem__(index)


class Keeps(Numbers):
    """Keeps what it has read; reading takes 2 ms."""

    length = 200

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            time.sleep(0.002)
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


class Reads(Numbers):
    """Reading takes 2 ms, every time."""

    length = 200

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)


def reads(**knobs: Any) -> DataLoader:
    return DataLoader(Reads(), batch_size=1, **knobs)


def keeps(**knobs: Any) -> DataLoader:
    return DataLoader(Keeps(), batch_size=1, **knobs)


def sets_up(**knobs: Any) -> DataLoader:
    return DataLoader(SetsUp(), batch_size=10, **knobs)


def one_rank(**knobs: Any) -> DataLoader:
    data = TensorDataset(torch.arange(100))
    return DataLoader(data, batch_size=5, sampler=DistributedSampler(data, num_replicas=3, rank=1, seed=3), **knobs)


# -- workers --


class OwnGenerator(Numbers):
    """Holds a generator, of which every worker gets the same copy."""

    length = 120

    def __init__(self) -> None:
        self.random = random.Random(7)

    def __getitem__(self, index: int) -> Any:
        return index, torch.tensor(self.random.random())


def own_generator(**knobs: Any) -> DataLoader:
    return DataLoader(OwnGenerator(), batch_size=5, **knobs)


class Product(Numbers):
    """Multiplies matrices."""

    def __getitem__(self, index: int) -> Any:
        return (torch.full((200, 200), float(index)) @ torch.ones(200, 200))[0, :4].clone()


def six_threads(worker: int) -> None:
    torch.set_num_threads(6)


def threaded(**knobs: Any) -> DataLoader:
    return DataLoader(Product(), batch_size=4, worker_init_fn=six_threads, **knobs)


class Chatty(Numbers):
    """Prints 2 kB and warns with every sample."""

    def __getitem__(self, index: int) -> Any:
        print("reading", index, "." * 1990)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("an old codec is in use", RuntimeWarning, stacklevel=1)
        return super().__getitem__(index)


def chatty(**knobs: Any) -> DataLoader:
    return DataLoader(Chatty(), batch_size=10, **knobs)


class Strict:
    """A factory that takes only what DataLoader takes; what it was called with is in `calls`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int | None, bool, Any]] = []

    def __call__(
        self,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: str | None = None,
    ) -> DataLoader:
        self.calls.append((num_workers, prefetch_factor, persistent_workers, multiprocessing_context))
        return DataLoader(
            Numbers(),
            batch_size=10,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
        )
