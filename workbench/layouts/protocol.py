"""What every layout promises: shards that open lazily, read from any row, and are written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

Sample = dict[str, Any]
"""Field name -> value (bytes, str, number, list, dict or numpy array); the name is under ``KEY`` where it has one."""

KEY = "__key__"
"""The field that holds a sample's name, as in WebDataset."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a data set.

    Attributes:
        path: Relative to the data set's root, with ``/`` between parts.
        bytes: Size on disk.
        checksum: Hex digest of the content under the manifest's hash, or None where nobody has hashed it.
    """

    path: str
    bytes: int
    checksum: str | None = None


@dataclass(frozen=True)
class Shard:
    """One shard: the unit that a worker takes, a converter writes and a kill can lose.

    Attributes:
        name: Unique within the data set, e.g. ``shard-00003.tar``.
        samples: How many samples it holds.
        files: The files that it consists of, the main one first, then indexes beside it.
    """

    name: str
    samples: int
    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(entry.bytes for entry in self.files)


@dataclass(frozen=True)
class WrittenShard:
    """What a writer says about the shard it has just finished.

    Attributes:
        shard: The shard with the checksums of its files.
        fields: Facts for the manifest, per stored field name: kind, dtype, shape (None for an axis that varies).
        facts: Facts about the shard that the layout states, e.g. row-group size or largest token id.
    """

    shard: Shard
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class OpenShard(Protocol):
    """One shard, opened in this process."""

    def __len__(self) -> int: ...

    def sample(self, row: int) -> Sample:
        """The sample at ``row`` (0 to ``len - 1``), read without scanning those before it."""

    def samples(self, start: int = 0) -> Iterator[Sample]:
        """Every sample from ``start`` on, in order, read in large pieces."""

    def sample_bytes(self) -> np.ndarray:
        """Bytes of each sample, int64, shape ``[samples]``; a mean where the format does not tell."""

    def names(self) -> list[str] | None:
        """Name of each sample, or None where samples have none of their own."""


class Layout(Protocol):
    """One way to lay samples out on disk. Implementations hold no state."""

    name: str

    def find_shards(self, root: Path) -> tuple[tuple[Shard, ...], dict[str, Any]]:
        """Shards of a folder that has no manifest, unhashed, and the fields found in them."""

    def open_shard(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> OpenShard:
        """Open one shard for reading; memory-mapped wherever the format allows it."""

    def write_shard(self, root: Path, name: str, samples: Iterable[Sample], options: Any) -> WrittenShard:
        """Write one shard under ``root``: temporary names first, renamed when whole and flushed."""

    def finish(
        self, root: Path, written: Sequence[WrittenShard], options: Any
    ) -> tuple[tuple[WrittenShard, ...], dict[str, Any]]:
        """Make all shards agree once they are written; returns them and the facts of the whole data set."""
