"""Samples of shards, read along the segments of an order: one by one, or in batches that the shards gather."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from workbench.errors import ResumeError
from workbench.streaming.order import Segment
from workbench.streaming.shards import GatheringShards, Shards


def read_along(shards: Shards, segments: Iterable[Segment], transform: Callable[[Any], Any] | None) -> Iterator[Any]:
    """The samples one by one, transformed where there is a transform; a window that is shuffled is held meanwhile.

    Raises:
        ResumeError: A shard holds fewer samples than its count says.
    """
    transform = transform or _unchanged
    shard, row, reader = -1, -1, iter(())
    for segment in segments:
        if (shard, row) != (segment.shard, segment.begin):
            reader = iter(shards.read(segment.shard, segment.begin))
        shard, row = segment.shard, segment.end
        if segment.rows is None:
            for _ in range(len(segment)):
                yield transform(_next_of(reader, shard, row))
        else:
            held = [_next_of(reader, shard, row) for _ in range(segment.end - segment.begin)]
            for at in segment.rows.tolist():
                yield transform(held[at])


def gathered_along(shards: GatheringShards, segments: Iterable[Segment], batch_size: int) -> Iterator[tuple[Any, int]]:
    """Batches of ``batch_size`` samples, each with how many it holds: the last one may hold fewer."""
    pieces, held = [], 0
    for segment in segments:
        rows = None if segment.rows is None else segment.rows + segment.begin
        at, count = 0, len(segment)
        while at < count:
            take = min(batch_size - held, count - at)
            first = segment.begin + at
            piece = slice(first, first + take) if rows is None else rows[at : at + take]
            pieces.append(shards.gather(segment.shard, piece))
            at, held = at + take, held + take
            if held == batch_size:
                yield _joined(pieces), held
                pieces, held = [], 0
    if pieces:
        yield _joined(pieces), held


def _next_of(reader: Iterator[Any], shard: int, end: int) -> Any:
    for sample in reader:
        return sample
    raise ResumeError(f"Shard {shard} ended before row {end}: it holds fewer samples than its count says; verify it.")


def _joined(pieces: list[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces) if isinstance(pieces[0], torch.Tensor) else np.concatenate(pieces)


def _unchanged(sample: Any) -> Any:
    return sample
