"""Batches of samples of like length: as many as a budget of tokens holds, or by buckets whose borders are fixed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.errors import SettingsError
from workbench.streaming.batched import BatchedStream, Group, check_at_least_one
from workbench.streaming.order import shuffled

BUDGET_WINDOW = 1_024
BUCKET_WINDOW = 8_192
"""Samples after which every bucket is emptied: of 256 batches of 32, one a bucket is smaller than it could be."""


class BudgetStream(BatchedStream):
    """Whole batches of samples of variable length, for ``batch_size=None`` in the loader.

    ``window`` samples are read, sorted by length, and cut into batches whose padded size (samples times the longest)
    stays within ``token_budget``; the batches are handed out in a shuffled order that the window itself determines. A
    sample that is longer than the budget is a batch of its own: nothing is left out. Memory is one window.

    Args:
        source: Samples: an iterable data set that splits itself over workers (a ``ShardStream``), as in ``Windows``.
        token_budget: Most tokens in a batch, padding included.
        most_samples: Most samples in a batch; None leaves it to the budget.
        window: Samples sorted together: more waste less padding, and mix batches less by order of the source.
        length_of: Length of a sample, in tokens.
        collate: Makes a batch of a list of samples; None pads with ``padded``.

    Raises:
        SettingsError: A number is below 1.
    """

    def __init__(
        self,
        source: Iterable[Any],
        token_budget: int,
        *,
        most_samples: int | None = None,
        window: int = BUDGET_WINDOW,
        length_of: Callable[[Any], int] = len,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(source, window=window, length_of=length_of, collate=collate)
        check_at_least_one(token_budget=token_budget, most_samples=most_samples)
        self.token_budget, self.most_samples = token_budget, most_samples

    def groups(self, lengths: Iterator[int]) -> Iterator[Group]:
        """The batches of one window, once all of it is read."""
        window = list(lengths)
        batches = batches_within(window, self.token_budget, self.most_samples)
        return ((batches[number], None) for number in shuffled(len(batches), sum(window)).tolist())

    def batching(self) -> dict[str, Any]:
        """The settings that must be the same for a state to mean the same."""
        return {"token_budget": self.token_budget, "most_samples": self.most_samples, "window": self.window}


class BucketStream(BatchedStream):
    """Whole batches whose samples all fall into one bucket of lengths, for ``batch_size=None`` in the loader.

    Samples are dropped into buckets as they come, and a bucket that is full is handed out at once. Bucket ``k`` takes
    lengths above ``boundaries[k - 1]`` up to and including ``boundaries[k]``; one more bucket takes what is longer than
    the last. Every ``window`` samples, and at the end of a pass, what is left in the buckets is handed out as smaller
    batches, shortest bucket first, so that a resume reads at most ``window`` samples again and nothing is left out.
    Memory is one batch a bucket.

    Args:
        source: Samples: an iterable data set that splits itself over workers (a ``ShardStream``), as in ``Windows``.
        boundaries: Upper ends of the buckets, rising; ``quantile_boundaries`` finds them from lengths of a sample.
        batch_size: Samples in a full batch, one number for all buckets or one for each (the last one included); None
            takes as many as ``token_budget`` holds at the bucket's upper end.
        token_budget: Most tokens in a batch, padding included; where the one sample is longer, it is a batch alone.
        pad_to_boundary: Pad each batch to its bucket's upper end, so that there are as many shapes as buckets (what
            ``torch.compile`` wants), instead of to its longest sample. The last bucket is padded to its longest.
        window: Samples after which every bucket is emptied.
        length_of: Length of a sample, in tokens.
        collate: Makes a batch of a list of samples; None pads with ``padded``.

    Raises:
        SettingsError: Boundaries do not rise, both or neither of ``batch_size`` and ``token_budget`` are given, their
            number does not fit, or a number is below 1.
    """

    def __init__(
        self,
        source: Iterable[Any],
        boundaries: Sequence[int],
        *,
        batch_size: int | Sequence[int] | None = None,
        token_budget: int | None = None,
        pad_to_boundary: bool = False,
        window: int = BUCKET_WINDOW,
        length_of: Callable[[Any], int] = len,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(source, window=window, length_of=length_of, collate=collate)
        self.boundaries = _rising(boundaries)
        if (batch_size is None) == (token_budget is None):
            raise SettingsError(
                f"batch_size={batch_size!r} with token_budget={token_budget!r}: give one of them, it says when a "
                "bucket is full."
            )
        if pad_to_boundary and collate is not None:
            raise SettingsError("pad_to_boundary=True with a collate of your own: pad there, or leave collate out.")
        check_at_least_one(token_budget=token_budget)
        self.batch_size, self.token_budget, self.pad_to_boundary = batch_size, token_budget, pad_to_boundary
        self._sizes = self._batch_sizes()

    def groups(self, lengths: Iterator[int]) -> Iterator[Group]:
        """The batches of one window, in the order in which buckets fill."""
        buckets: list[list[int]] = [[] for _ in self._sizes]
        longest = 0
        for number, length in enumerate(lengths):
            at = bisect_left(self.boundaries, length)
            bucket = buckets[at]
            if at == len(self.boundaries):  # no upper end: its longest sample counts
                longest = max(longest, length) if bucket else length
                if bucket and self.token_budget is not None and (len(bucket) + 1) * longest > self.token_budget:
                    yield self._emptied(buckets, at)
                    bucket, longest = buckets[at], length
            bucket.append(number)
            if len(bucket) == self._sizes[at]:
                yield self._emptied(buckets, at)
        yield from (self._emptied(buckets, at) for at, bucket in enumerate(buckets) if bucket)

    def batching(self) -> dict[str, Any]:
        """The settings that must be the same for a state to mean the same."""
        sizes = ", ".join("any" if size is None else str(size) for size in self._sizes)
        return {
            "boundaries": ", ".join(map(str, self.boundaries)),
            "batch_sizes": sizes,
            "token_budget": self.token_budget,
            "window": self.window,
        }

    def _emptied(self, buckets: list[list[int]], at: int) -> Group:
        members, buckets[at] = buckets[at], []
        bounded = self.pad_to_boundary and at < len(self.boundaries)
        return members, self.boundaries[at] if bounded else None

    def _batch_sizes(self) -> tuple[int | None, ...]:
        """Samples in a full batch of each bucket; None where only their lengths tell."""
        if self.token_budget is not None:
            return (*(max(1, self.token_budget // end) for end in self.boundaries), None)
        count = len(self.boundaries) + 1
        sizes = (self.batch_size,) * count if isinstance(self.batch_size, int) else tuple(self.batch_size)
        if len(sizes) != count:
            raise SettingsError(
                f"batch_size={self.batch_size!r} for {count} buckets: give one number, or one for each bucket; the "
                f"last is for samples longer than {self.boundaries[-1]:,}."
            )
        for size in sizes:
            check_at_least_one(batch_size=size)
        return sizes


def quantile_boundaries(lengths: Iterable[int], buckets: int = 8) -> tuple[int, ...]:
    """Boundaries that put about as many of ``lengths`` into each bucket, for ``BucketStream``.

    Fewer than asked for where many lengths are the same. The last is the longest length seen, so that only samples
    longer than any of them go into the bucket without an upper end. A ``ShardStream`` gives lengths of its first
    thousand samples by ``map(len, stream.samples_at(0, ((0, 1_000),)))``, and begins no epoch by it.

    Args:
        lengths: Tokens in each sample of the sample.
        buckets: Buckets wanted.

    Returns:
        Upper ends, rising, each the length of a sample.

    Raises:
        SettingsError: There is no length, or ``buckets`` is below 1.
    """
    check_at_least_one(buckets=buckets)
    found = np.sort(np.fromiter(lengths, dtype=np.int64))
    if not found.size:
        raise SettingsError("No length was given: pass the lengths of some samples of your own.")
    ends = [int(found[-(-len(found) * number // buckets) - 1]) for number in range(1, buckets + 1)]
    return tuple(sorted({end for end in ends if end > 0})) or (1,)


@dataclass(frozen=True)
class PaddingReport:
    """How much of padded batches is padding.

    Attributes:
        batches: Batches.
        tokens: Tokens in them.
        positions: Tokens and padding.
    """

    batches: int
    tokens: int
    positions: int

    @property
    def padding(self) -> float | None:
        """Share of all positions that is padding; None without positions."""
        return 1 - self.tokens / self.positions if self.positions else None


def batches_within(lengths: Sequence[int], token_budget: int, most_samples: int | None = None) -> list[list[int]]:
    """Sample numbers in batches: sorted by length, cut where one more would exceed the budget.

    Args:
        lengths: Tokens in each sample.
        token_budget: Most positions in a batch: samples times the longest of them.
        most_samples: Most samples in a batch; None has no limit.
    """
    batches: list[list[int]] = []
    for sample in np.argsort(np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        last = batches[-1] if batches else []
        fits = (len(last) + 1) * lengths[sample] <= token_budget and len(last) != most_samples
        if last and fits:
            last.append(sample)
        else:
            batches.append([sample])
    return batches


def padding_report(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> PaddingReport:
    """What padding each batch to its longest sample costs."""
    positions = sum(len(batch) * max(lengths[sample] for sample in batch) for batch in batches)
    return PaddingReport(len(batches), sum(lengths[sample] for batch in batches for sample in batch), positions)


def _rising(boundaries: Sequence[int]) -> tuple[int, ...]:
    ends = tuple(int(end) if isinstance(end, np.integer) else end for end in boundaries)
    check_at_least_one(**{f"boundaries[{number}]": end for number, end in enumerate(ends)})
    if not ends or any(a >= b for a, b in pairwise(ends)):
        raise SettingsError(f"boundaries={list(ends)!r}: give upper ends of buckets that rise, such as 64, 128, 256.")
    return ends
