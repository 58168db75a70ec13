"""The order of an epoch: shards shuffled, rows shuffled inside windows, the same in every process and version."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.streaming.spans import Spans

ORDER_VERSION = 1
"""Part of a state's identity: raised whenever the same seed would give another order."""


@dataclass(frozen=True)
class Segment:
    """Rows of one shard that follow each other in an epoch's order.

    Attributes:
        shard: Number of the shard.
        begin: First row of the window that the rows come from.
        end: Row after the last of that window.
        rows: The rows to hand out, in order, as offsets from ``begin``; None means all of them, as they lie.
    """

    shard: int
    begin: int
    end: int
    rows: np.ndarray | None

    def __len__(self) -> int:
        return self.end - self.begin if self.rows is None else len(self.rows)


@dataclass(frozen=True)
class EpochOrder:
    """Every sample of one epoch in one sequence, position 0 to ``total - 1``.

    A position maps to a row without reading anything: shards come in an order drawn from (seed, epoch), and the rows
    of each shard are shuffled inside windows of ``window`` rows that begin anew with each shard. A window never spans
    two shards, so that a resume in the middle of one opens one shard.

    Attributes:
        seed: Seed of the stream.
        epoch: Number of the epoch.
        window: Rows shuffled together; 1 or less keeps rows as they lie.
        shards: Shard numbers in the order of this epoch; empty shards are left out.
        ends: Position after the last sample of each, in the same order.
    """

    seed: int
    epoch: int
    window: int
    shards: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, counts: Sequence[int], seed: int, epoch: int, *, shuffle: bool, window: int) -> EpochOrder:
        """The order of ``epoch`` over shards with ``counts`` samples.

        Args:
            counts: Samples in each shard.
            seed: Seed of the stream.
            epoch: Number of the epoch; another epoch, another order.
            shuffle: False keeps shards and rows as they lie.
            window: Rows shuffled together within a shard.
        """
        numbers = shuffled(len(counts), seed, epoch) if shuffle else np.arange(len(counts))
        sizes = np.asarray(counts, dtype=np.int64).reshape(-1)[numbers]
        held = sizes > 0
        ends = np.cumsum(sizes[held])
        return cls(seed, epoch, window if shuffle else 1, tuple(numbers[held].tolist()), tuple(ends.tolist()))

    @property
    def total(self) -> int:
        """Samples in the epoch."""
        return self.ends[-1] if self.ends else 0

    def segments(self, path: Spans) -> Iterator[Segment]:
        """What to read for the positions of ``path``, in order, window by window."""
        for begin, end in path:
            at = bisect_right(self.ends, begin)
            while begin < end:
                first = self.ends[at - 1] if at else 0
                stop = min(end, self.ends[at])
                yield from self._of_shard(self.shards[at], self.ends[at] - first, begin - first, stop - first)
                begin, at = stop, at + 1

    def shards_along(self, path: Spans) -> Iterator[int]:
        """The shards that ``path`` leads through, in order; one that it enters again from itself counts once."""
        last = None
        for begin, end in path:
            first = bisect_right(self.ends, begin)
            for at in range(first, bisect_left(self.ends, end, first) + 1):
                if at != last:
                    yield self.shards[at]
                last = at

    def _of_shard(self, shard: int, count: int, low: int, high: int) -> Iterator[Segment]:
        if self.window <= 1:
            yield Segment(shard, low, high, None)
            return
        for begin in range(low - low % self.window, high, self.window):
            end = min(begin + self.window, count)
            rows = shuffled(end - begin, self.seed, self.epoch, shard, begin)
            yield Segment(shard, begin, end, rows[max(low - begin, 0) : high - begin])


def shuffled(count: int, *seeds: int) -> np.ndarray:
    """A permutation of ``0 .. count - 1`` drawn from ``seeds``, shape ``[count]``, int64.

    Sorts by a 64-bit hash of (seeds, number): NumPy states no stable order for its generators across versions
    (NEP 19), and a state must mean the same after an upgrade. The hash is the finaliser of SplitMix64 (Steele, Lea
    and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    key = 0
    for seed in seeds:
        key = _mixed_number(key + seed + _GAMMA)
    return np.argsort(_mixed(_steps(count) + np.uint64(key)))  # all differ: _mixed is one to one


_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 0xFFFFFFFFFFFFFFFF


@lru_cache(maxsize=16)
def _steps(count: int) -> np.ndarray:
    """What the generator's counter is raised by, for each of ``count`` numbers, shape ``[count]``, uint64."""
    steps = np.uint64(_GAMMA) * np.arange(1, count + 1, dtype=np.uint64)
    steps.flags.writeable = False
    return steps


def _mixed(values: np.ndarray) -> np.ndarray:
    """The hash of every value, in place."""
    shifted = values >> np.uint64(30)
    for factor, shift in ((_FIRST, 27), (_SECOND, 31)):
        values ^= shifted
        values *= np.uint64(factor)
        np.right_shift(values, np.uint64(shift), out=shifted)
    values ^= shifted
    return values


def _mixed_number(value: int) -> int:
    """The same for one number; NumPy's scalars take ten times as long as Python's integers."""
    value &= _MASK
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)
