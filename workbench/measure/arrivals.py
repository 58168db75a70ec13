"""Where batches come from: takes them from a built loader and says which indices and which worker each one had."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

CHILDREN_GRACE_SECONDS = 5.0  # what DataLoader itself gives a worker to end (MP_STATUS_CHECK_INTERVAL)
OWN_ITERATORS = ("torch", "torchdata")  # packages whose iterators hand over exactly what the fetcher made


@dataclass(frozen=True)
class Arrival:
    """One batch as a training loop would get it.

    Attributes:
        batch: What the loader yielded.
        index: What the sampler asked the worker for, or None when it was not seen.
        task: Position of that request in the epoch, or None.
        worker: Worker that made the batch, or None when it cannot be known.
    """

    batch: Any
    index: Any = None
    task: int | None = None
    worker: int | None = None


class Tap:
    """Draws epochs from one loader without changing what it yields, and ends its workers afterwards.

    Attributes:
        transparent: Whether the latest epoch's batches came straight from the DataLoader's own iterator; None
            before the first one.
        complete: Whether the latest epoch was drawn to its end.
        requests: What the sampler asked for in the latest epoch, oldest first.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Any = None
        self._children = set(multiprocessing.active_children())
        self._record = _record_sampler(loader)
        self.transparent: bool | None = None
        self.complete = False

    @property
    def requests(self) -> list[Any]:
        return self._record.lists if self._record is not None else []

    def epoch(self) -> Iterator[Arrival]:
        """Arrivals of one epoch, as long as the caller goes on asking."""
        self.complete = False
        self._iterator = iter(self._loader)
        self.transparent = _is_own(self._iterator)
        log = _TaskLog.attach(self._iterator)
        position = 0
        while True:
            try:
                batch = next(self._iterator)
            except StopIteration:
                self.complete = True
                return
            task, worker = log.last if log is not None else (position, None)
            yield Arrival(batch, self._request(task), task, worker)
            position += 1

    def close(self) -> None:
        """Ends every worker that this loader started, and waits until they are gone."""
        for iterator in (self._iterator, getattr(self._loader, "__dict__", {}).get("_iterator")):
            for name in ("_shutdown_workers", "close"):
                if callable(getattr(iterator, name, None)):
                    getattr(iterator, name)()
                    break
        self._iterator = None
        if getattr(self._loader, "__dict__", {}).get("_iterator") is not None:
            self._loader.__dict__["_iterator"] = None
        _end(set(multiprocessing.active_children()) - self._children)
        if self._record is not None:
            self._record.restore()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, task: int | None) -> Any:
        if task is None or not self.transparent or task >= len(self.requests):
            return None
        return self.requests[task]


class _SamplerRecord:
    """Stands in for a loader's sampler or batch sampler and keeps what it hands out."""

    def __init__(self, loader: DataLoader, name: str) -> None:
        self._loader, self._name = loader, name
        self._inner = loader.__dict__[name]
        self.lists: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self.lists = []
        return self._drain(iter(self._inner), self.lists)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_loader", "_name"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def restore(self) -> None:
        self._loader.__dict__[self._name] = self._inner

    @staticmethod
    def _drain(source: Iterator[Any], lists: list[Any]) -> Iterator[Any]:
        for request in source:
            lists.append(list(request) if isinstance(request, list) else request)
            yield request


class _TaskLog(dict):
    """A multi-process iterator's table of tasks that remembers the one taken out last.

    The iterators of torch 2.4 to 2.13 and of torchdata keep `task -> (worker, ...)` and take the entry out, by `pop`
    or `del`, right before they hand its batch over.
    """

    last: tuple[int | None, int | None] = (None, None)

    @classmethod
    def attach(cls, iterator: Any) -> _TaskLog | None:
        table = getattr(iterator, "_task_info", None)
        if type(table) is not dict or not _is_own(iterator):
            return None
        iterator._task_info = cls(table)
        return iterator._task_info

    def pop(self, task: int, *default: Any) -> Any:
        entry = super().pop(task, *default)
        self.last = (task, entry[0])
        return entry

    def __delitem__(self, task: int) -> None:
        self.last = (task, self[task][0])
        super().__delitem__(task)


def is_map_style(loader: Any) -> bool:
    """Whether the loader is a DataLoader over a dataset that is asked by index."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


@contextlib.contextmanager
def untouched_randomness(loader: Any = None) -> Iterator[None]:
    """Puts the global generators of random, numpy and torch, and the loader's own, back as they were."""
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    generator = getattr(loader, "generator", None)
    states = random.getstate(), numpy_random and numpy_random.get_state(), torch.get_rng_state()
    own = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        yield
    finally:
        random.setstate(states[0])
        if numpy_random:
            numpy_random.set_state(states[1])
        torch.set_rng_state(states[2])
        if own is not None:
            generator.set_state(own)


def seed_everything(seed: int) -> None:
    """Seeds the generators that transforms use in the main process; accelerators are left alone."""
    random.seed(seed)
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random:
        numpy_random.seed(seed)
    torch.default_generator.manual_seed(seed)


def _record_sampler(loader: Any) -> _SamplerRecord | None:
    if not is_map_style(loader):
        return None
    name = "batch_sampler" if loader.__dict__.get("batch_sampler") is not None else "sampler"
    if loader.__dict__.get(name) is None:
        return None
    record = _SamplerRecord(loader, name)
    loader.__dict__[name] = record  # DataLoader refuses a plain assignment after it is built
    return record


def _is_own(iterator: Any) -> bool:
    return isinstance(iterator, _BaseDataLoaderIter) and type(iterator).__module__.split(".")[0] in OWN_ITERATORS


def _end(children: set[multiprocessing.Process]) -> None:
    deadline = time.monotonic() + CHILDREN_GRACE_SECONDS
    for child in children:
        if not child.daemon:  # DataLoader's workers are daemons; a manager that a dataset started is not ours to end
            continue
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()
