"""Whole batches formed on the worker, with automatic batching off (`batch_size=None`).

Who draws which samples stays exactly as in the loader it is made from:

    map-style    The batch_sampler becomes the sampler. It runs once, in the main process, draws the random numbers it
                 always drew, and hands each list of indices to one worker, whose dataset answers with that batch. Order
                 and content are those of automatic batching for every sampler, seed and number of workers; a stream
                 that repeated the sampler in every worker could promise that only for samplers without randomness.
    iterable     Each worker's copy of the dataset is cut into batches by an iterable around it. What a worker yields,
                 and with `drop_last` what it leaves over, is what the dataset itself decided from `get_worker_info`.

The collate function stays the loader's own and runs on the worker. Both wrappers read and set attributes of the user's
dataset as if they were the dataset, because `worker_init_fn` reaches it through `get_worker_info().dataset`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, IterDataPipe, MapDataPipe, Sampler

from workbench.errors import SourceError
from workbench.loaders.rebuild import assign, live_parts, portable


def can_batch_on_worker(loader: DataLoader) -> bool:
    """Whether the loader forms batches from samples in a way that a worker's dataset could take over.

    Not so when it has no automatic batching, when its class runs an iterator of its own, and for datapipes, whose
    graph torch shards and seeds by walking through it.
    """
    datapipe = isinstance(loader.dataset, IterDataPipe | MapDataPipe)
    return loader.batch_sampler is not None and not datapipe and not live_parts(loader)


def whole_batches(loader: DataLoader) -> DataLoader:
    """The same loader with `batch_size=None` and whole batches coming from the workers' dataset.

    Batches, their order, workers' seeds and use of random numbers are those of `loader`, which is left as it is. The
    state of a StatefulDataLoader passes through to the user's dataset, iterator and sampler.

    Raises:
        SourceError: If `can_batch_on_worker` says no.
    """
    if not can_batch_on_worker(loader):
        raise SourceError(
            f"batch_on_worker=True cannot be applied to this {type(loader).__name__}: it has no automatic batching to "
            "move, is made of datapipes, or iterates by itself; leave batch_on_worker at False, or hand over a factory "
            "that takes batch_on_worker"
        )
    twin = portable(loader)
    changed: dict[str, Any] = {"batch_size": None, "drop_last": False, "batch_sampler": None}
    if isinstance(loader.dataset, IterableDataset):
        size = loader.batch_size
        assert size is not None  # an iterable dataset takes no batch_sampler
        kind = StatefulBatchStream if is_stateful(loader.dataset) else BatchStream
        changed["dataset"] = kind(loader.dataset, size, loader.drop_last)
    else:
        changed["dataset"] = (StatefulBatches if is_stateful(loader.dataset) else Batches)(loader.dataset)
        kind = StatefulIndexBatches if is_stateful(loader.batch_sampler) else IndexBatches
        changed["sampler"] = kind(loader.batch_sampler, loader.sampler)
    assign(twin, changed)
    return twin


def is_stateful(candidate: Any) -> bool:
    """Whether it keeps a state that StatefulDataLoader saves and loads."""
    return callable(getattr(candidate, "state_dict", None)) and callable(getattr(candidate, "load_state_dict", None))


class _AsUserDataset:
    """Passes every attribute but its own on to the user's dataset, reading and writing."""

    OWN: tuple[str, ...] = ("user_dataset",)

    def __getattr__(self, name: str) -> Any:
        if name in self.OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.user_dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.user_dataset, name, value)


class Batches(_AsUserDataset, Dataset):
    """A map-style dataset whose items are lists of samples: `self[[3, 1, 2]]` is samples 3, 1 and 2."""

    def __init__(self, dataset: Any) -> None:
        self.user_dataset = dataset

    def __getitem__(self, indices: Any) -> Any:
        fetch_all = getattr(self.user_dataset, "__getitems__", None)
        return fetch_all(indices) if fetch_all else [self.user_dataset[index] for index in indices]

    def __len__(self) -> int:
        return len(self.user_dataset)


class StatefulBatches(Batches):
    """Batches of a dataset that keeps a state."""

    def state_dict(self) -> Any:
        """State of the user's dataset."""
        return self.user_dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Put the user's dataset into a state."""
        self.user_dataset.load_state_dict(state)


class IndexBatches(Sampler):
    """A batch sampler as the sampler of whole batches; its attributes and those of the sampler in it stay reachable.

    Attributes:
        batch_sampler: The loader's own.
        sampler: The sampler of single indices that the loader had, which `set_epoch` reaches too.
    """

    def __init__(self, batch_sampler: Any, sampler: Any) -> None:
        self.batch_sampler = batch_sampler
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batch_sampler)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def set_epoch(self, epoch: int) -> None:
        """Tell the epoch to whichever of the two samplers listens."""
        for listener in (self.batch_sampler, self.sampler):
            if hasattr(listener, "set_epoch"):
                listener.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        own = ("batch_sampler", "sampler", "state_dict", "load_state_dict")  # a state is the iterator's business
        if name in own or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        holder = self.batch_sampler if hasattr(self.batch_sampler, name) else self.sampler
        return getattr(holder, name)


class StatefulIndexBatches(IndexBatches):
    """Index batches of a batch sampler that keeps a state."""

    def state_dict(self) -> Any:
        """State of the batch sampler."""
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Put the batch sampler into a state."""
        self.batch_sampler.load_state_dict(state)


class BatchStream(_AsUserDataset, IterableDataset):
    """An iterable dataset cut into lists of samples, in whichever process it is iterated.

    Its iterator takes no sample before it is asked for the batch, so that a state saved after a batch is the state
    after that batch's last sample.
    """

    OWN = ("user_dataset", "_batch_length", "_drops_last", "_iterates_itself")

    def __init__(self, dataset: Any, batch_size: int, drop_last: bool) -> None:
        self.user_dataset = dataset
        self._batch_length = batch_size
        self._drops_last = drop_last
        self._iterates_itself = False

    def __iter__(self) -> BatchIterator:
        samples = iter(self.user_dataset)
        self._iterates_itself = samples is self.user_dataset
        kind = StatefulBatchIterator if is_stateful(samples) else BatchIterator
        return kind(samples, self._batch_length, self._drops_last)

    def __len__(self) -> int:
        samples, size = len(self.user_dataset), self._batch_length
        return samples // size if self._drops_last else -(-samples // size)


class StatefulBatchStream(BatchStream):
    """A stream whose dataset keeps a state."""

    def state_dict(self) -> Any:
        """State of the user's dataset; None while the dataset is its own iterator, which then carries the state."""
        return None if self._iterates_itself else self.user_dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Put the user's dataset into a state."""
        self.user_dataset.load_state_dict(state)


class BatchIterator(Iterator):
    """Lists of `batch_size` samples; the last may be shorter, or is left out with `drop_last`."""

    def __init__(self, samples: Iterator[Any], batch_size: int, drop_last: bool) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.ended = False

    def __next__(self) -> list[Any]:
        if self.ended:
            raise StopIteration
        batch: list[Any] = []
        try:
            while len(batch) < self.batch_size:
                batch.append(next(self.samples))  # islice would call iter() again, where many datasets start over
        except StopIteration:
            self.ended = True
        if not batch or (self.ended and self.drop_last):
            raise StopIteration
        return batch


class StatefulBatchIterator(BatchIterator):
    """Batches of an iterator that keeps a state."""

    def state_dict(self) -> Any:
        """State of the user's iterator, and whether it has ended."""
        return {"samples": self.samples.state_dict(), "ended": self.ended}

    def load_state_dict(self, state: Any) -> None:
        """Put the user's iterator into a state."""
        self.samples.load_state_dict(state["samples"])
        self.ended = state["ended"]
