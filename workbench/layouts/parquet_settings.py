"""How large a row group should be for the way it will be read, and what that costs each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import LayoutError

if TYPE_CHECKING:
    from workbench.layouts.sharded import ShardedReader

ROW_GROUP_BYTES = {"sequential": 32 << 20, "random": 512 << 10}
"""Access pattern -> target bytes of a row group.

Read in order, a group is decoded once for all its rows, so it may be large; each worker holds one, which is why it is
not larger. Read by index, a whole group is decoded for one row: at about 1 GB/s, 512 KiB take half a millisecond.
"""

RANDOM_READ_LIMIT = 100
"""Bytes decoded for each byte wanted, above which access by index is called unfit. One sample in a group of 100 rows
still decodes in the time of a network round trip; 10,000 rows (apache/arrow issue 43387) do not."""


@dataclass(frozen=True)
class ParquetOptions:
    """How Parquet shards are written.

    Attributes:
        access: ``sequential`` or ``random``: how they will be read.
        row_group_bytes: Target size of a row group before compression; None follows ``access``.
        row_group_rows: Exact rows of a group; None goes by bytes.
        compression: A codec of Parquet for every column; None compresses text and numbers with zstd and leaves bytes,
            which are mostly images and audio that do not shrink.
        schema: ``pyarrow.Schema``; None takes it from the first row group.
    """

    access: str = "sequential"
    row_group_bytes: int | None = None
    row_group_rows: int | None = None
    compression: str | None = None
    schema: Any = None

    def __post_init__(self) -> None:
        if self.access not in ROW_GROUP_BYTES:
            raise LayoutError(
                f"access={self.access!r} is no way of reading: use {' or '.join(sorted(ROW_GROUP_BYTES))}."
            )
        for name in ("row_group_bytes", "row_group_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LayoutError(f"{name}={value} holds nothing: give a number from 1, or None to follow access.")

    @property
    def target_bytes(self) -> int:
        """Bytes at which a row group is closed."""
        return self.row_group_bytes or ROW_GROUP_BYTES[self.access]


@dataclass(frozen=True)
class RowGroupAdvice:
    """Whether a data set's row groups suit the way it is read.

    Attributes:
        access: The way of reading that was asked about.
        group_rows: Mean rows of a group.
        group_bytes: Mean bytes of a group, before compression.
        bytes_per_sample: Mean bytes decoded to get one sample in that way.
        amplification: ``bytes_per_sample`` over the bytes of a sample.
        fits: Whether that is acceptable.
        text: The same for a person, with what to do.
    """

    access: str
    group_rows: float
    group_bytes: float
    bytes_per_sample: float
    amplification: float
    fits: bool
    text: str


def advise_row_groups(reader: ShardedReader, access: str) -> RowGroupAdvice:
    """What each sample of a Parquet data set costs when it is read in the way ``access``.

    A random sample lies in a group with a chance that grows with its rows, so the mean cost is weighted by rows.

    Raises:
        LayoutError: The data set is not Parquet or holds nothing, or ``access`` is unknown.
    """
    if reader.layout != "parquet" or len(reader) == 0:
        raise LayoutError(f"{reader!r} has no row groups: pass a Parquet data set that holds samples.")
    opened = [reader.open_shard(k) for k in range(len(reader.shards))]
    groups = [pair for shard in opened for pair in zip(shard.group_rows, shard.group_bytes, strict=True)]  # type: ignore[attr-defined]
    rows, size = sum(r for r, _ in groups), sum(b for _, b in groups)
    own = size / rows
    options = ParquetOptions(access=access)
    cost = own if access == "sequential" else sum(r * b for r, b in groups) / rows
    amplification = cost / own if own else 1.0
    fits = access == "sequential" or amplification <= RANDOM_READ_LIMIT or cost <= options.target_bytes
    return RowGroupAdvice(
        access,
        rows / len(groups),
        size / len(groups),
        cost,
        amplification,
        fits,
        _advice_text(rows / len(groups), cost, amplification, access, fits),
    )


def _advice_text(group_rows: float, cost: float, amplification: float, access: str, fits: bool) -> str:
    facts = (
        f"Row groups of {group_rows:,.0f} rows: reading in {access} order decodes {cost / 1e6:.3g} MB for each sample, "
        f"{amplification:,.0f} times what it needs"
    )
    if fits:
        return facts + ": fine."
    return facts + ": convert with access='random' for smaller groups, or read shards in order and shuffle in a buffer."
