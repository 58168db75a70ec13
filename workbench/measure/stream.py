"""Batches of a loader over as many epochs as a trial needs, with the time of each arrival."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, MutableSequence
from typing import Any

FULL_QUEUE_SECONDS = 2.0
"""How long the queue is given to fill."""
LOOKED_AT_EVERY_SECONDS = 0.01
"""How often it is looked at meanwhile."""


class EmptyLoaderError(Exception):
    """The loader yields nothing."""


class Stream:
    """An endless run of batches, epoch after epoch.

    Args:
        loader: Iterable of batches.
        count: Says how many samples a batch holds.
        step: Called with each batch before the next is asked for, or None.
        progress: Its item 0 is set to the number of batches taken; seen from outside, that is the sign of life.
    """

    def __init__(
        self, loader: Iterable[Any], count: Callable[[Any], int], step: Any, progress: MutableSequence[int]
    ) -> None:
        self.loader, self.count, self._step, self._progress = loader, count, step, progress
        self.iterator: Any = None
        self.batches = 0
        self.samples = 0
        self.worker_batches = 0
        self.worker_samples = 0
        self.epochs_ended = 0
        self.in_epoch = 0
        self._epoch_batches = _length(loader)
        self.edges: list[float] = []
        self.arrived = time.perf_counter()
        self._epochs_before = [
            (sampler, sampler.epoch)
            for sampler in _told_epochs(loader)
            if isinstance(getattr(sampler, "epoch", None), int)
        ]

    def start(self) -> tuple[float, Any]:
        """Makes the iterator and takes the first batch; returns the seconds that took, and the batch."""
        begun = time.perf_counter()
        self.iterator = iter(self.loader)
        batch = next(self.iterator)
        self.arrived = time.perf_counter()
        self.batches = self.worker_batches = self.in_epoch = 1
        self.samples = self.worker_samples = self.count(batch)
        self._progress[0] = 1
        if self._step is not None:
            self._step(batch)
        return self.arrived - begun, batch

    def take(self) -> tuple[float, bool]:
        """Takes a batch, starting the next epoch where this one has ended; returns its arrival and whether it did."""
        ended = False
        try:
            batch = next(self.iterator)
        except StopIteration:
            batch, ended = self._next_epoch(), True
        arrived = self.arrived = time.perf_counter()
        self.batches += 1
        self.in_epoch += 1
        self._progress[0] = self.batches
        samples = self.count(batch)
        self.samples += samples
        self.worker_batches += 1
        self.worker_samples += samples
        if self._step is not None:
            self._step(batch)
        return arrived, ended

    def _next_epoch(self) -> Any:
        self.epochs_ended += 1
        self._epoch_batches, self.in_epoch = self.in_epoch, 0
        _advance_epoch(self.loader, self.epochs_ended)
        if not hasattr(self.loader, "__next__"):
            if getattr(self.loader, "num_workers", 0) and not getattr(self.loader, "persistent_workers", False):
                self.worker_batches = self.worker_samples = 0
            self.iterator = None  # workers of the old epoch end before those of the next begin, as in a for loop
        self.iterator = iter(self.loader)
        try:
            batch = next(self.iterator)
        except StopIteration:
            raise EmptyLoaderError("an epoch after the first gave no batch") from None
        self.edges.append(time.perf_counter() - self.arrived)
        return batch

    @property
    def epoch_batches(self) -> int | None:
        """Batches of an epoch, as the loader tells or the last one had; None where that is not known, or not true."""
        told = self._epoch_batches
        return None if told is None or told < self.in_epoch else told

    @property
    def left(self) -> int | None:
        """Batches to come in this epoch; None where its length is not known."""
        return None if self.epoch_batches is None else self.epoch_batches - self.in_epoch

    def banked(self) -> int | None:
        """Batches that are finished and not taken; None where the iterator is not torch's with workers.

        They wait in the queue of the workers, behind the thread that pins, or for one that is due before them.
        """
        queued = self._queued()
        return None if queued is None else queued + self.held_back()

    def held_back(self) -> int:
        """Batches that this process has been handed and that wait for one that is due before them."""
        return sum(len(task) > 1 for task in getattr(self.iterator, "_task_info", {}).values())

    def is_full(self) -> bool | None:
        """Whether everything that workers were asked for is finished; None as for `banked`."""
        queued = self._queued()
        return None if queued is None else queued >= self.iterator._tasks_outstanding

    def fill_queue(self, batches: int, rate: float) -> None:
        """Waits until the queue is full; for as long as that should take where nobody can look.

        Args:
            batches: What it holds when full.
            rate: Batches per second of the workers.
        """
        begun, full = time.perf_counter(), self.is_full()
        if full is None:
            time.sleep(min(FULL_QUEUE_SECONDS, batches / max(rate, 1e-3)))
        while full is False and time.perf_counter() - begun < FULL_QUEUE_SECONDS:
            full = self.is_full()  # before the sleep: the last batch is then on its way into shared memory
            time.sleep(LOOKED_AT_EVERY_SECONDS)

    def _queued(self) -> int | None:
        """Batches in the queue of the workers and behind the thread that pins."""
        iterator = self.iterator
        try:
            queues = {id(each): each for each in (iterator._worker_result_queue, iterator._data_queue)}
            return sum(each.qsize() for each in queues.values())
        except (AttributeError, NotImplementedError):  # macOS cannot count what is in a queue between processes
            return None

    def is_running_out(self, in_flight: int, workers: int) -> bool:
        """Whether nothing more is asked of the workers, and what they finished before would be counted as done now.

        While batches wait, the training process sets the pace, and it does so alone as soon as the workers have nothing
        left to do. Where none wait, the workers set it, each until its last batch.

        Args:
            in_flight: Batches that are asked for ahead.
            workers: Batches come in rounds of this many.
        """
        if self.left is None or self.left >= in_flight:
            return False
        banked = self.banked() if self.left >= workers else None
        return banked is None or banked > workers

    def end_epoch_early(self) -> float | None:
        """Lets the epoch end after the batches in flight, starts the next, and returns the seconds of that edge.

        None where the iterator offers no way to stop handing out indices.
        """
        if not hasattr(self.iterator, "_sampler_iter"):
            return None
        edges = len(self.edges)
        self.iterator._sampler_iter = iter(())
        while len(self.edges) == edges:
            self.take()
        return self.edges[-1]

    def shut_down(self) -> None:
        """Ends the workers and gives samplers the epoch they had; afterwards the stream is over."""
        iterator, self.iterator = self.iterator, None
        for owner in (iterator, self.loader):
            stop = getattr(owner, "_shutdown_workers", None)
            if callable(stop):
                stop()
        with contextlib.suppress(AttributeError):
            self.loader._iterator = None  # a persistent iterator would keep itself alive
        del iterator, owner
        for sampler, epoch in self._epochs_before:
            sampler.set_epoch(epoch)


def why_empty(loader: Any) -> str:
    size = None
    with contextlib.suppress(Exception):
        size = len(loader.dataset)
    if size is None:
        return "the loader yields no batch at all: give one that does"
    why = f"the loader yields no batch: its dataset holds {size} samples"
    if size and getattr(loader, "drop_last", False):
        drops = "drop_last=True drops the only batch, which is not full"
        return f"{why} and {drops}; take a smaller batch_size or drop_last=False"
    return f"{why}; give it some" if not size else f"{why} and its sampler takes none; give it one that does"


def _length(loader: Any) -> int | None:
    """Batches of an epoch, as the loader tells; a stream's first epoch tells them itself, and torch warns of more than
    it was asked for."""
    from torch.utils.data import IterableDataset

    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    with contextlib.suppress(Exception):  # whatever a loader's own __len__ raises
        return len(loader)
    return None


def _advance_epoch(loader: Any, epoch: int) -> None:
    """Calls `set_epoch` on the loader's samplers as a training loop would; a sampler that refuses is left alone."""
    for sampler in _told_epochs(loader):
        sampler.set_epoch(epoch)


def _told_epochs(loader: Any) -> list[Any]:
    """The loader's samplers that want to know the epoch's number."""
    samplers = (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    return [sampler for sampler in samplers if callable(getattr(sampler, "set_epoch", None))]
