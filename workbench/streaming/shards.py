"""What a stream reads: shards with sample counts that can be read from any row, on disk or in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from workbench.errors import LayoutError, SourceError
from workbench.layouts.reader import ShardedReader, open_dataset
from workbench.layouts.tokens import BIN_HEADER_BYTES, TOKENS_FIELD, TokenShard

_OPEN_ARRAYS = 16
_DATA_BEGINS_AT = {"npy": 128, "bin": BIN_HEADER_BYTES}
"""Bytes before the ids, by container. NumPy pads a header to whole blocks of 64 bytes, and that of a flat array takes
two, whatever its length (``numpy.lib.format``)."""


@runtime_checkable
class Shards(Protocol):
    """Shards to stream over; all of it must be cheap to pickle and must open files only when it reads."""

    counts: Sequence[int]
    """Samples in each shard, known without opening one."""

    def read(self, shard: int, start: int) -> Iterator[Any]:
        """Samples of one shard in order, from row ``start`` on."""

    def fingerprint(self) -> str:
        """Equal for equal shards in equal order, in every process."""


@runtime_checkable
class GatheringShards(Shards, Protocol):
    """Shards that give many rows at once, for batches without a loop over samples."""

    def gather(self, shard: int, rows: slice | np.ndarray) -> Any:
        """Rows of one shard as one array or tensor, shape ``[rows, ...]``."""


class ListShards:
    """Shards in memory: any sequence of sequences (lists, ranges, arrays, tensors).

    Args:
        shards: The shards.
        name: Part of the fingerprint, beside the counts: change it when the content changes.
    """

    def __init__(self, shards: Iterable[Sequence[Any]], name: str = "") -> None:
        self.shards = list(shards)
        self.name = name
        self.counts = [len(shard) for shard in self.shards]

    def read(self, shard: int, start: int) -> Iterator[Any]:
        """Samples of one shard from row ``start`` on."""
        held = self.shards[shard]
        return (held[row] for row in range(start, len(held)))

    def fingerprint(self) -> str:
        """Digest of the name and the counts."""
        return digest("list", self.name, *map(str, self.counts))


class ReaderShards:
    """The shards of an opened data set of any layout.

    Args:
        reader: What ``open_dataset`` gave.
    """

    def __init__(self, reader: ShardedReader) -> None:
        self.reader = reader
        self.counts = [shard.samples for shard in reader.shards]

    def read(self, shard: int, start: int) -> Iterator[Any]:
        """Samples of one shard from row ``start`` on."""
        return self.reader.read_shard(shard, start)

    def will_need(self, shard: int) -> None:
        """Begin to fetch a shard that lies elsewhere; the one after the shard that is read now."""
        self.reader.will_need(shard)

    def fingerprint(self) -> str:
        """Digest of the manifest."""
        return self.reader.fingerprint()


class TokenBlocks:
    """Token shards as blocks of ``length + 1`` ids: ``length`` inputs and, shifted by one, ``length`` labels.

    Blocks follow each other across documents without overlap; the ids at a shard's end that fill no block are left
    out (at most ``length`` a shard; ``tokens_left_out`` says how many in all). A sample is the tensor of a block,
    shape ``[length + 1]``, int64; a batch has shape ``[batch, length + 1]``.

    A manifest tells how many ids each shard holds, and no shard is opened before one of its blocks is wanted. A folder
    without one has the header of every shard read at once.

    Args:
        paths: A data set of layout ``tokens`` (its path or what ``open_dataset`` gave), or arrays of ids.
        length: Inputs in a sample.

    Raises:
        LayoutError: The data set is not of layout ``tokens``, or ``length`` is below 1.
    """

    def __init__(self, paths: str | Path | ShardedReader | Sequence[np.ndarray], length: int) -> None:
        if length < 1:
            raise LayoutError(f"length={length} holds no token: use 1 or more.")
        self.length = length
        self._reader: ShardedReader | None = None
        self._arrays: dict[int, np.ndarray] = {}
        if isinstance(paths, (str, Path, ShardedReader)):
            self._reader = open_dataset(paths, "tokens") if isinstance(paths, (str, Path)) else paths
            if self._reader.layout != "tokens":
                raise LayoutError(f"{self._reader!r} is no token data set: convert it with layout 'tokens' first.")
            self._ids = [self._count(shard) for shard in range(len(self._reader.shards))]
            self._digest = self._reader.fingerprint()
        else:
            self._arrays = {number: np.asarray(ids).reshape(-1) for number, ids in enumerate(paths)}
            self._ids = [len(ids) for ids in self._arrays.values()]
            self._digest = digest("arrays", *map(str, self._ids))
        self.counts = [count // (length + 1) for count in self._ids]
        self.tokens_left_out = sum(count % (length + 1) for count in self._ids)

    def read(self, shard: int, start: int) -> Iterator[torch.Tensor]:
        """Blocks of one shard from number ``start`` on."""
        for row in range(start, self.counts[shard]):
            yield self.gather(shard, slice(row, row + 1))[0]

    def gather(self, shard: int, rows: slice | np.ndarray) -> torch.Tensor:
        """Blocks of one shard, shape ``[rows, length + 1]``, int64."""
        step = self.length + 1
        tokens = self._tokens(shard)
        if isinstance(rows, slice):
            block = tokens[rows.start * step : rows.stop * step].astype(np.int64)
            return torch.from_numpy(block).view(-1, step)
        held = tokens[: self.counts[shard] * step].reshape(-1, step)
        return torch.from_numpy(held.take(rows, axis=0).astype(np.int64))

    def fingerprint(self) -> str:
        """Digest of the manifest."""
        return self._digest

    def will_need(self, shard: int) -> None:
        """Begin to fetch a shard that lies elsewhere; the one after the shard that is read now."""
        if self._reader is not None:
            self._reader.will_need(shard)

    def _tokens(self, shard: int) -> np.ndarray:
        ids = self._arrays.get(shard)
        if ids is None:
            ids = np.asarray(self._opened(shard).tokens)
            if len(ids) != self._ids[shard]:
                name = self._reader.shards[shard].name
                raise LayoutError(
                    f"Shard {name} holds {len(ids):,} ids, and its size in the manifest means {self._ids[shard]:,}: "
                    "verify the data set."
                )
            if len(self._arrays) >= _OPEN_ARRAYS:
                self._arrays.pop(next(iter(self._arrays)))
            self._arrays[shard] = ids
        return ids

    def _count(self, shard: int) -> int:
        """Ids in a shard: by its size where a manifest says what they are stored as, else by its header."""
        facts, file = self._reader.manifest.facts, self._reader.shards[shard].files[0]
        before = _DATA_BEGINS_AT.get(facts.get("container"))
        if before is None or "dtype" not in facts:
            return len(self._opened(shard).tokens)
        return max(0, file.bytes - before) // np.dtype(facts["dtype"]).itemsize

    def _opened(self, shard: int) -> TokenShard:
        opened = self._reader.open_shard(shard)
        if not hasattr(opened, TOKENS_FIELD):
            raise LayoutError(f"Shard {self._reader.shards[shard].name} holds no flat ids: convert it to 'tokens'.")
        return opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if self._reader is None else {**self.__dict__, "_arrays": {}}


def as_shards(shards: Any) -> Shards:
    """What a stream can read, made of what people have.

    Args:
        shards: Something with ``counts``, ``read`` and ``fingerprint``; an opened data set; the path of one; or a
            sequence of sequences in memory.

    Raises:
        SourceError: It is none of these.
    """
    if isinstance(shards, Shards):
        return shards
    if isinstance(shards, ShardedReader):
        return ReaderShards(shards)
    if isinstance(shards, (str, Path)):
        return ReaderShards(open_dataset(shards))
    if isinstance(shards, Sequence) and all(hasattr(s, "__len__") and hasattr(s, "__getitem__") for s in shards):
        if any(isinstance(shard, (str, bytes)) for shard in shards):
            raise SourceError(
                f"Shards {list(islice(shards, 2))!r} are names of files: pass the data set's folder, or what "
                "open_dataset() gives for it."
            )
        return ListShards(shards)
    raise SourceError(
        f"{type(shards).__name__} is nothing to stream over: pass a data set's path, what open_dataset() gives, "
        "a list of sequences, or an object with counts, read(shard, start) and fingerprint()."
    )


def digest(*parts: str) -> str:
    """Hex digest of ``parts``, 128 bits."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
