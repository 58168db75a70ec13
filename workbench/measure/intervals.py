"""Lengths of unions and overlaps of time intervals: pure functions over sorted, disjoint spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spans:
    """Disjoint intervals in ascending order.

    Attributes:
        starts: Shape (n,), float64.
        ends: Shape (n,), float64, each after its start and not after the next start.
    """

    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def union(cls, starts: Sequence[float] | np.ndarray, ends: Sequence[float] | np.ndarray) -> Spans:
        """The union of any intervals, overlapping, nested and unordered ones included; empty ones are dropped."""
        first, last = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
        filled = last > first
        first, last = first[filled], last[filled]
        if not len(first):
            return NOTHING
        order = np.argsort(first, kind="stable")
        first, reach = first[order], np.maximum.accumulate(last[order])
        opens = np.concatenate(([True], first[1:] > reach[:-1]))
        closes = np.concatenate((opens[1:], [True]))
        return cls(first[opens], reach[closes])

    @classmethod
    def join(cls, parts: Iterable[Spans]) -> Spans:
        """The union of several."""
        kept = [NOTHING, *parts]
        return cls.union(np.concatenate([p.starts for p in kept]), np.concatenate([p.ends for p in kept]))

    @property
    def length(self) -> float:
        """Total length."""
        return float((self.ends - self.starts).sum())

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, window: Spans) -> Spans:
        """The part that lies in `window`."""
        edges = np.concatenate((self.starts, self.ends, window.starts, window.ends))
        steps = np.concatenate((np.ones(len(self)), -np.ones(len(self)), np.ones(len(window)), -np.ones(len(window))))
        order = np.argsort(edges, kind="stable")
        edges, depth = edges[order], np.cumsum(steps[order])
        both = np.flatnonzero(depth[:-1] >= 2) if len(edges) else np.zeros(0, dtype=int)
        return Spans.union(edges[both], edges[both + 1])

    def gaps(self, window: Spans) -> Spans:
        """The part of `window` that is not covered."""
        if not len(window):
            return NOTHING
        low, high = window.starts[0], window.ends[-1]
        inside = self.within(Spans(np.array([low]), np.array([high])))
        outside = Spans.union(np.concatenate(([low], inside.ends)), np.concatenate((inside.starts, [high])))
        return outside.within(window)

    def lengths_in(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Covered length in each of any intervals, shape (len(starts),)."""
        if not len(self):
            return np.zeros(len(starts))
        edges = np.stack((self.starts, self.ends), axis=1).ravel()
        sizes = np.stack((np.zeros(len(self)), self.ends - self.starts), axis=1).ravel()
        covered = np.cumsum(sizes)
        return np.interp(ends, edges, covered) - np.interp(starts, edges, covered)


NOTHING = Spans(np.zeros(0), np.zeros(0))
