"""What the clocks inside the workers cost: `python tests/benchmarks/stages.py [--json]`.

The same DataLoader is run bare and with clocks, in turn, in one process, for samples from tiny to ordinary, each with
three transforms. Compared is CPU time, which other programs do not lengthen. Promised is less than 2 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import MethodType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from workbench.measure.stage_clock import start_clocks

TURNS = 121
SECONDS = 0.05
ROUNDS_OF_A_SAMPLE = {"tiny, 20 µs": 40, "small, 100 µs": 200, "ordinary, 1 ms": 2000}


class Work(Dataset):
    """Samples that take a number of rounds of arithmetic in each of three transforms."""

    def __init__(self, rounds: int) -> None:
        self.transform = [self._part] * 3
        self.rounds = rounds
        vars(self)  # CPython 3.11 keeps attributes elsewhere until this is asked for; both kinds should be alike

    def _part(self, value: int) -> int:
        for _ in range(self.rounds):
            value = value * 31 % 1_000_003
        return value

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> int:
        for transform in self.transform:
            index = transform(index)
        return index


def cpu_of(batches: Any, count: int) -> float:
    """CPU seconds that this many batches take."""
    begun = time.thread_time()
    for _ in range(count):
        next(batches)
    return time.thread_time() - begun


def overhead(rounds: int, folder: str) -> float:
    """Share by which the clocks lengthen a batch, as the median over turns."""
    bare_fetch, bare, clocked = _MapDatasetFetcher.fetch, Work(rounds), Work(rounds)
    loaders = {"bare": iter(DataLoader(bare, batch_size=16)), "clocked": iter(DataLoader(clocked, batch_size=16))}
    start_clocks(f"{folder}/{rounds}", 0, 0, clocked)
    fetcher = loaders["clocked"]._dataset_fetcher
    fetcher.fetch = MethodType(_MapDatasetFetcher.fetch, fetcher)  # on this one alone; the class gets its own back
    _MapDatasetFetcher.fetch = bare_fetch
    count = max(2, int(SECONDS / max(cpu_of(loaders["bare"], 5) / 5, 1e-6)))
    cpu_of(loaders["clocked"], count)
    ratios = []
    for turn in range(TURNS):
        order = ("bare", "clocked") if turn % 2 else ("clocked", "bare")
        spent = {kind: cpu_of(loaders[kind], count) for kind in order}
        ratios.append(spent["clocked"] / spent["bare"] - 1)
    return median(ratios)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: overhead(rounds, folder) for name, rounds in ROUNDS_OF_A_SAMPLE.items()}
    if arguments.json:
        print(json.dumps(found))
        return
    for name, share in found.items():
        print(f"{name:<16} {share:+.2%}")


if __name__ == "__main__":
    main()
