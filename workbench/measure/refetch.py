"""Fetches again, in the main process, what workers delivered, and tells corrupted data from random augmentation."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from workbench.measure.arrivals import is_map_style, seed_everything
from workbench.measure.digests import SHAPE, leaf_digests, structure
from workbench.measure.right_stream import Finding

RARE_AUGMENTATION = 0.01  # chance, at most, that what is called corruption is augmentation that fires rarely
REPEATED_SHARE = 0.5  # of the positions at which two workers' random values must agree to call them copies
REPEATED_MIN = 3  # batches a worker must have delivered for that


@dataclass(frozen=True)
class Delivered:
    """One batch that arrived: what was asked for, who made it, and its digests by leaf."""

    index: Any
    task: int | None
    worker: int | None
    structure: str
    leaves: dict[str, bytes]


@dataclass(frozen=True)
class _Fetched:
    structure: str
    leaves: dict[str, bytes]


def compare_with_main_process(
    loader: Any, delivered: list[Delivered], seconds: float, rebuild_zero: Callable[[], Any] | None
) -> Finding:
    """Whether batches that workers delivered equal the same samples fetched here; call it when the workers are gone.

    Every batch is fetched twice under different seeds, once as the main process and once as a worker would see itself.
    A leaf on which two fetches ever disagree is random, and only its shape is compared; a shape that disagrees is
    random too. What is left must equal the worker's. Batches are taken in order of arrival until `seconds` are over.
    """
    try:
        with _one_thread():
            return _Comparison(loader, delivered, rebuild_zero).run(time.monotonic() + seconds, seconds)
    except Exception as error:  # user code in another process than it ran in: its failure here is no fault of the data
        text = f"contents were not compared: fetching them in the main process failed ({type(error).__name__}: {error})"
        return Finding(notes=(text,))


def repeated_randomness(delivered: list[Delivered]) -> bool:
    """Whether two workers delivered the same sequence of some leaf that varies within each of them.

    Datasets that own a generator hand a copy of it to every worker, so that batch k of one worker holds the same
    random numbers as batch k of the next.
    """
    sequences: dict[str, dict[int, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for batch in delivered:
        for path, digest in batch.leaves.items():
            if batch.worker is not None and not path.endswith(SHAPE):
                sequences[path][batch.worker].append(digest)
    return any(_copies(list(by_worker.values())) for by_worker in sequences.values())


def _copies(sequences: list[list[bytes]]) -> bool:
    varied = [s for s in sequences if len(s) >= REPEATED_MIN and len(set(s)) > REPEATED_SHARE * len(s)]
    for place, one in enumerate(varied):
        for two in varied[place + 1 :]:
            common = min(len(one), len(two))
            if sum(a == b for a, b in zip(one, two, strict=False)) > REPEATED_SHARE * common:
                return True
    return False


class _Comparison:
    """Two or more fetches of each batch, and which leaves they show to be random."""

    def __init__(self, loader: Any, delivered: list[Delivered], rebuild_zero: Callable[[], Any] | None) -> None:
        self._loader, self._delivered, self._rebuild_zero = loader, delivered, rebuild_zero
        self._kept: list[tuple[Delivered, _Fetched]] = []
        self._random: set[str] = set()
        self._seed = 0

    def run(self, deadline: float, extra_seconds: float) -> Finding:
        for batch in self._delivered:
            one, two = self._fetch(batch.index), self._fetch(batch.index, as_worker=True)
            if one.structure == two.structure != batch.structure:
                return Finding(
                    f"batch type changes: {one.structure} at num_workers=0, {batch.structure} with these settings"
                )
            self._note_random(one, two)
            self._kept.append((batch, one))
            if time.monotonic() > deadline:
                break
        if not self._suspects():
            return Finding(notes=self._all_random())
        return self._confirm(deadline + extra_seconds)

    def _confirm(self, deadline: float) -> Finding:
        """Fetches suspects again until augmentation that fires rarely cannot explain that the worker stands alone.

        Were the worker's batch one more draw from the same random transform, it would be the odd one of k + 1 with
        chance 1 / (k + 1), and that in each of n suspects: (k + 1) ** -n.
        """
        fetches = 2
        while suspects := self._suspects():
            if (fetches + 1) ** -len(suspects) <= RARE_AUGMENTATION:
                return self._wrong(suspects)
            for batch, first in suspects:
                self._note_random(first, self._fetch(batch.index))
            fetches += 1
            if time.monotonic() > deadline:
                text = f"{len(suspects)} of {len(self._kept)} batches differ from num_workers=0"
                return Finding(notes=(f"{text}: too few to tell corruption from augmentation that fires rarely",))
        return Finding(notes=self._all_random())

    def _wrong(self, suspects: list[tuple[Delivered, _Fetched]]) -> Finding:
        paths = sorted(
            {path.removesuffix(SHAPE) or "the batch" for batch, one in suspects for path in self._odd(batch, one)}
        )
        where = f"{'leaf' if len(paths) == 1 else 'leaves'} {', '.join(paths)}"
        batch, first = suspects[0]
        if self._differs_by_build(batch, first):
            text = f"{where} of a batch is not the same when the loader is built again: not compared"
            return Finding(notes=(text,))
        return Finding(
            f"data differs from num_workers=0: {len(suspects)} of {len(self._kept)} batches, in {where}; "
            "open the file lazily in each worker, not before the workers start"
        )

    def _differs_by_build(self, batch: Delivered, first: _Fetched) -> bool:
        zero = self._rebuild_zero() if self._rebuild_zero is not None else None
        if not is_map_style(zero) or zero.dataset is self._loader.dataset or zero.batch_sampler is None:
            return False
        again = _describe(_fetcher(zero).fetch(batch.index))
        return any(again.leaves.get(path) != first.leaves.get(path) for path in self._odd(batch, first))

    def _suspects(self) -> list[tuple[Delivered, _Fetched]]:
        return [(batch, one) for batch, one in self._kept if self._odd(batch, one)]

    def _odd(self, batch: Delivered, one: _Fetched) -> set[str]:
        paths = (batch.leaves.keys() | one.leaves.keys()) - self._random
        return {path for path in paths if batch.leaves.get(path) != one.leaves.get(path)}

    def _note_random(self, one: _Fetched, two: _Fetched) -> None:
        paths = one.leaves.keys() | two.leaves.keys()
        self._random |= {path for path in paths if one.leaves.get(path) != two.leaves.get(path)}

    def _all_random(self) -> tuple[str, ...]:
        values = {path for _, one in self._kept for path in one.leaves if not path.endswith(SHAPE)}
        if values and values <= self._random:
            return ("every part of a batch is random: only types and shapes were compared with num_workers=0",)
        return ()

    def _fetch(self, index: Any, as_worker: bool = False) -> _Fetched:
        self._seed += 1
        seed_everything(self._seed)
        if not as_worker:
            return _describe(_fetcher(self._loader).fetch(index))
        try:
            with _worker_info(self._loader, self._seed):
                return _describe(_fetcher(self._loader).fetch(index))
        except Exception:
            return self._fetch(index)  # code that expects more of a worker than its number


def _describe(batch: Any) -> _Fetched:
    return _Fetched(structure(batch), leaf_digests(batch))


def _fetcher(loader: Any) -> _MapDatasetFetcher:
    """What a worker itself fetches with, so that `__getitems__` and `collate_fn` are used exactly as there."""
    return _MapDatasetFetcher(loader.dataset, loader.batch_sampler is not None, loader.collate_fn, loader.drop_last)


@contextlib.contextmanager
def _worker_info(loader: Any, seed: int) -> Iterator[None]:
    """Lets `get_worker_info()` answer as in a worker, so that a transform seeded from it shows itself as random."""
    before = torch_worker._worker_info
    workers = max(1, loader.num_workers)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=0, num_workers=workers, seed=seed, dataset=loader.dataset)
    try:
        yield
    finally:
        torch_worker._worker_info = before


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread, as workers have: the last bits of a sum depend on how many add it up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
