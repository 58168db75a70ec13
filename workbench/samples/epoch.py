"""An epoch of any length over a few real items, the same whoever loads it, and the DataLoader around it."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from workbench.errors import SamplesError
from workbench.samples import data_directory


@dataclass(frozen=True)
class Epoch:
    """Which item each index of an epoch visits.

    Indices 0 to items-1 visit every item once in a shuffled order, the next round visits them again in another order:

        index  0 1 2 | 3 4 5 | 6 ...       items = 3
        item   1 2 0 | 2 1 0 | 0 ...

    Attributes:
        items: Real items there are.
        samples: Length of the epoch.
        seed: Another seed, another order and other crops.
    """

    items: int
    samples: int
    seed: int = 0

    def visit(self, index: int) -> tuple[int, random.Random]:
        """The item at `index`, and the source of randomness for its crop, which no other index shares.

        Raises:
            IndexError: If the epoch has no such index.
        """
        if not 0 <= index < self.samples:
            raise IndexError(f"index {index} is outside an epoch of {self.samples} samples")
        round_number, position = divmod(index, self.items)
        order = random.Random(f"{self.seed} round {round_number}")  # text seeds do not depend on PYTHONHASHSEED
        step = order.randrange(self.items) | 1
        while math.gcd(step, self.items) > 1:  # position * step + start is a permutation when step shares no factor
            step += 2
        return (position * step + order.randrange(self.items)) % self.items, random.Random(f"{self.seed} at {index}")


def epoch(items: int, samples_per_epoch: int | None, at_least: int, seed: int, what: str) -> Epoch:
    """An `Epoch` over `items`: as long as asked, else once through them or `at_least`, whichever is longer.

    Raises:
        SamplesError: If there are no items, or the length is below 1.
    """
    if items < 1:
        raise SamplesError(f"no {what}: pass data= a folder made by workbench.samples.grow, or like data_samples")
    length = max(items, at_least) if samples_per_epoch is None else samples_per_epoch
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise SamplesError(f"samples_per_epoch={length!r} must be a whole number of at least 1")
    return Epoch(items, length, seed)


def folder_of(data: str | Path | None) -> Path:
    """`data` as a folder that exists, or the sample data."""
    folder = data_directory() if data is None else Path(data).expanduser().resolve()
    if not folder.is_dir():
        raise SamplesError(
            f"data={str(data)!r} is not a folder: pass one made by workbench.samples.grow, or leave it out"
        )
    return folder


def require(module: str) -> None:
    """Raises `SamplesError`, which says what to install, if an optional package is missing; imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise SamplesError(f"this sample needs the package {module}: pip install 'loader-workbench[samples]'")


def data_loader(
    dataset: Dataset,
    batch_size: int | None,
    num_workers: int,
    prefetch_factor: int | None,
    pin_memory: bool,
    persistent_workers: bool,
    multiprocessing_context: str | None,
    in_order: bool,
    collate_fn: Callable[[list], Any] | None = None,
) -> DataLoader:
    """A plain DataLoader; `in_order` is passed only where it says something, since torch < 2.6 does not know it."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        multiprocessing_context=multiprocessing_context,
        collate_fn=collate_fn,
        **({} if in_order else {"in_order": False}),
    )
