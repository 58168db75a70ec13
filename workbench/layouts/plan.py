"""How many shards, and where each begins: whole shards for every worker of every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from workbench.errors import LayoutError
from workbench.machine import format_bytes, parse_bytes

DEFAULT_SHARD_BYTES = 256_000_000
"""Within the 100 MB to 1 GB at which one request an archive costs little beside its bytes (tutorial, step 2)."""

COMFORTABLE_MULTIPLE = 4
"""Shards for each worker: with 4, a worker that is one shard behind is a quarter of an epoch behind, not all of it."""

SMALLEST_SHARD_BYTES = 16_000_000
"""Below this, opening a shard at 20 ms costs more than a tenth of reading it at 80 MB/s a stream."""


@dataclass(frozen=True)
class ShardAdvice:
    """How to cut a data set.

    Attributes:
        shards: Advised number of shards, a multiple of ``consumers``.
        shard_bytes: Mean bytes of each.
        consumers: Workers that read at the same time, over all ranks.
        shards_per_consumer: Whole shards that each gets in an epoch.
        comfortable: Whether that is at least ``COMFORTABLE_MULTIPLE``.
        text: The same for a person.
    """

    shards: int
    shard_bytes: float
    consumers: int
    shards_per_consumer: int
    comfortable: bool
    text: str


def advise_shards(
    total_bytes: int | str, world_size: int = 1, num_workers: int = 0, shard_bytes: int | str = DEFAULT_SHARD_BYTES
) -> ShardAdvice:
    """The number of shards at which no worker idles: a multiple of ``world_size * num_workers``, four a worker or more.

    Shards shrink below ``shard_bytes`` for that, but not below 16 MB: a small data set gets one shard a worker and a
    warning instead.

    Args:
        total_bytes: Size of the whole data set, as a number or like ``"40GB"``.
        world_size: Ranks that read it together.
        num_workers: Loader workers of each rank; 0 means the rank reads itself.
        shard_bytes: The size to aim at.

    Raises:
        LayoutError: A number is below what it can be.
    """
    total, target = parse_bytes(total_bytes), _positive_bytes(shard_bytes)
    if world_size < 1 or num_workers < 0:
        raise LayoutError(
            f"world_size={world_size}, num_workers={num_workers}: at least one rank, and no fewer than 0 workers."
        )
    consumers = world_size * max(1, num_workers)
    for_size = math.ceil(total / target / consumers)
    room_for = total // SMALLEST_SHARD_BYTES // consumers
    each = max(1, for_size, min(COMFORTABLE_MULTIPLE, room_for))
    shards, comfortable = each * consumers, each >= COMFORTABLE_MULTIPLE
    mean = total / shards
    text = (
        f"{shards} shards of about {format_bytes(mean)}: {each} whole shard{'s' if each > 1 else ''} for each of "
        f"{consumers} reader{'s' if consumers > 1 else ''} ({world_size} ranks x {max(1, num_workers)} workers)"
    )
    if not comfortable:
        text += (
            f"; fewer than {COMFORTABLE_MULTIPLE} each, so one slow shard holds its rank back: use fewer workers, "
            "or accept it, since smaller shards would cost more to open than to read"
        )
    return ShardAdvice(shards, mean, consumers, each, comfortable, text + ".")


def cut(sample_bytes: np.ndarray, shards: int) -> list[tuple[int, int]]:
    """Where each shard begins and ends, so that all are as equal in bytes as whole samples allow.

    Args:
        sample_bytes: Bytes of each sample, shape ``[samples]``.
        shards: How many are wanted; fewer come back only where there are fewer samples.
    """
    count = len(sample_bytes)
    shards = min(shards, count)
    if shards < 1:
        return []
    ends = np.cumsum(np.maximum(sample_bytes, 1), dtype=np.float64)
    marks = np.searchsorted(ends, ends[-1] * np.arange(1, shards) / shards, side="left") + 1
    borders = [0]
    for number, mark in enumerate(marks.tolist(), 1):
        borders.append(min(max(mark, borders[-1] + 1), count - (shards - number)))
    borders.append(count)
    return list(pairwise(borders))


def shards_for(total_bytes: float, shard_bytes: int | str, world_size: int | None, num_workers: int | None) -> int:
    """Number of shards by size, or by ``advise_shards`` where it is known who reads."""
    if world_size is not None or num_workers is not None:
        return advise_shards(max(1, int(total_bytes)), world_size or 1, num_workers or 0, shard_bytes).shards
    return max(1, math.ceil(total_bytes / _positive_bytes(shard_bytes)))


def _positive_bytes(size: int | str) -> int:
    parsed = parse_bytes(size)
    if parsed < 1:
        raise LayoutError(f"shard_bytes={size!r} holds nothing: give a size such as '256MB'.")
    return parsed
