"""Token shards: one flat array of ids per shard (``.npy`` or headered ``.bin``), document borders beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.manifest import file_entry
from workbench.layouts.names import numbered_key
from workbench.layouts.protocol import KEY, FileEntry, Sample, Shard, WrittenShard
from workbench.layouts.publishing import publishing

TOKENS_FIELD = "tokens"
DTYPES = ("uint16", "uint32", "uint64")
"""Narrowest first. 8 bits are left out: no loader in use reads them, and no vocabulary in use fits."""

BIN_MAGIC = b"WBTOKENS"
BIN_HEADER_BYTES = 1024
"""A multiple of every page-friendly item size, so that ``numpy.memmap(path, dtype, offset=1024)`` is aligned."""
_BIN_HEADER = struct.Struct("<8sII16sQQqq")
_BIN_VERSION = 1
_UNKNOWN = -1
BORDERS_SUFFIX = ".borders"


@dataclass(frozen=True)
class TokenOptions:
    """How token shards are written.

    Attributes:
        container: ``npy`` or ``bin``.
        dtype: One of ``DTYPES``; None follows ``vocab_size``, or else the largest id.
        vocab_size: Ids must lie below it; None checks nothing.
        eos: Id that ends a document, for the header; None where there is none.
        field: The field of a sample that holds its ids.
    """

    container: str = "npy"
    dtype: str | None = None
    vocab_size: int | None = None
    eos: int | None = None
    field: str = TOKENS_FIELD

    def __post_init__(self) -> None:
        if self.container not in ("npy", "bin"):
            raise LayoutError(f"container={self.container!r} is no container of tokens: use 'npy' or 'bin'.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise LayoutError(f"dtype={self.dtype!r} does not hold token ids: use one of {', '.join(DTYPES)}, or None.")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise LayoutError(f"vocab_size={self.vocab_size} leaves no id: give the number of ids of the tokenizer.")


def narrowest_dtype(largest_id: int) -> str:
    """The narrowest of ``DTYPES`` that holds ids from 0 to ``largest_id``."""
    return next(name for name in DTYPES if largest_id <= np.iinfo(name).max)


@dataclass(frozen=True)
class BinHeader:
    """The first 1,024 bytes of a ``.bin`` shard, little-endian: magic ``WBTOKENS``, version, header size, dtype, ..."""

    dtype: str
    tokens: int
    documents: int
    vocab_size: int | None
    eos: int | None

    def pack(self) -> bytes:
        """The header as ``BIN_HEADER_BYTES`` bytes."""
        packed = _BIN_HEADER.pack(
            BIN_MAGIC,
            _BIN_VERSION,
            BIN_HEADER_BYTES,
            self.dtype.encode("ascii"),
            self.tokens,
            self.documents,
            _UNKNOWN if self.vocab_size is None else self.vocab_size,
            _UNKNOWN if self.eos is None else self.eos,
        )
        return packed.ljust(BIN_HEADER_BYTES, b"\0")


def read_bin_header(path: Path) -> BinHeader:
    """The header of a ``.bin`` shard.

    Raises:
        LayoutError: It is shorter than a header, or not a shard written by this package.
    """
    with open(path, "rb") as file:
        raw = file.read(BIN_HEADER_BYTES)
    if len(raw) < BIN_HEADER_BYTES or not raw.startswith(BIN_MAGIC):
        raise LayoutError(
            f"{path} does not start with {BIN_MAGIC.decode()}: a .bin without a header does not say its dtype; "
            "load it with numpy.memmap(dtype=...) and convert that array."
        )
    _, version, header_bytes, dtype, tokens, documents, vocab_size, eos = _BIN_HEADER.unpack_from(raw)
    name = dtype.rstrip(b"\0").decode("ascii", "replace")
    if version != _BIN_VERSION or header_bytes != BIN_HEADER_BYTES or name not in DTYPES:
        raise LayoutError(
            f"{path} has header version {version}, dtype {name!r}: written by a newer workbench, or damaged."
        )
    return BinHeader(name, tokens, documents, *(None if v == _UNKNOWN else v for v in (vocab_size, eos)))


class TokenShard:
    """One shard of tokens, memory-mapped.

    Attributes:
        tokens: The flat ids, shape ``[tokens]``, read-only.
        borders: Where documents begin and end in it, shape ``[documents + 1]``, int64.
    """

    def __init__(self, root: Path, shard: Shard) -> None:
        path = root / shard.files[0].path
        self.tokens = map_tokens(path)
        beside = [entry for entry in shard.files[1:] if entry.path.endswith(BORDERS_SUFFIX + ".npy")]
        self.borders = (
            np.load(root / beside[0].path, mmap_mode="r") if beside else np.array([0, len(self.tokens)], dtype=np.int64)
        )
        self._name = Path(shard.name).stem

    def __len__(self) -> int:
        return len(self.borders) - 1

    def sample(self, row: int) -> Sample:
        if not 0 <= row < len(self):
            raise IndexError(f"Document {row} was asked for and {self._name} holds {len(self)}.")
        begin, end = int(self.borders[row]), int(self.borders[row + 1])
        return {KEY: numbered_key(self._name, row), TOKENS_FIELD: np.array(self.tokens[begin:end])}

    def samples(self, start: int = 0) -> Iterator[Sample]:
        borders = self.borders[start:].tolist()
        for row, (begin, end) in enumerate(pairwise(borders), start):
            yield {KEY: numbered_key(self._name, row), TOKENS_FIELD: np.array(self.tokens[begin:end])}

    def sample_bytes(self) -> np.ndarray:
        return np.diff(self.borders).astype(np.int64) * self.tokens.dtype.itemsize

    def names(self) -> None:
        return None

    def blocks(self, length: int, start: int = 0, stride: int | None = None) -> Iterator[np.ndarray]:
        """Read-only views of ``length`` ids each, across documents, from block ``start`` on; the rest is left out.

        Args:
            length: Ids in a block.
            start: First block.
            stride: Ids from one block's begin to the next; None means ``length``.
        """
        tokens, step = np.asarray(self.tokens), stride or length
        for begin in range(start * step, len(tokens) - length + 1, step):
            yield tokens[begin : begin + length]


def map_tokens(path: Path) -> np.ndarray:
    """The flat ids of one ``.npy`` or headered ``.bin`` shard, memory-mapped read-only.

    Raises:
        LayoutError: The file is cut short, not an array, or has no header.
    """
    try:
        if path.suffix == ".bin":
            header = read_bin_header(path)
            if header.tokens == 0:
                return np.empty(0, header.dtype)
            return np.memmap(path, header.dtype, mode="r", offset=BIN_HEADER_BYTES, shape=(header.tokens,))
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(
            f"{path} cannot be mapped as token ids ({error}): it is missing, cut short or no .npy."
        ) from error
    if tokens.dtype.kind not in "ui":
        raise LayoutError(f"{path} holds {tokens.dtype}, not integer ids: convert it first.")
    return tokens.reshape(-1)


class TokensLayout:
    """Flat ids a shard, memory-mapped: next to no cost for each sample."""

    name = "tokens"

    def find_shards(self, root: Path) -> tuple[tuple[Shard, ...], dict[str, Any]]:
        return tuple(self._found(root, path) for path in token_files(root)), {}

    def open_shard(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> TokenShard:
        return TokenShard(root, shard)

    def write_shard(
        self, root: Path, name: str, samples: Iterable[Sample], options: TokenOptions | None = None
    ) -> WrittenShard:
        options = options or TokenOptions()
        ids, borders = _gather(samples, options)
        largest = int(ids.max()) if len(ids) else 0
        dtype = options.dtype or narrowest_dtype(largest if options.vocab_size is None else options.vocab_size - 1)
        path = root / f"{name}.{options.container}"
        files = write_tokens(root, path, ids.astype(dtype), borders, options)
        shard = Shard(path.name, len(borders) - 1, files)
        fields = {TOKENS_FIELD: {"field": TOKENS_FIELD, "kind": "tokens", "dtype": dtype, "shape": [None]}}
        return WrittenShard(shard, fields, {"largest_id": largest, "tokens": len(ids), "dtype": dtype})

    def finish(
        self, root: Path, written: Sequence[WrittenShard], options: TokenOptions | None = None
    ) -> tuple[tuple[WrittenShard, ...], dict[str, Any]]:
        """Give every shard the widest dtype that any of them needs."""
        options = options or TokenOptions()
        widest = max((w.facts["dtype"] for w in written), key=DTYPES.index, default=DTYPES[0])
        agreed = tuple(w if w.facts["dtype"] == widest else _widened(root, w, widest, options) for w in written)
        facts = {
            "dtype": widest,
            "largest_id": max((w.facts["largest_id"] for w in written), default=0),
            "tokens": sum(w.facts["tokens"] for w in written),
            "vocab_size": options.vocab_size,
            "eos": options.eos,
            "container": options.container,
        }
        return agreed, facts

    @staticmethod
    def _found(root: Path, path: Path) -> Shard:
        base = root if root.is_dir() else root.parent
        beside = borders_path(path)
        files = [FileEntry(path.relative_to(base).as_posix(), path.stat().st_size)]
        documents = 1
        if beside.is_file():
            documents = len(np.load(beside, mmap_mode="r")) - 1
            files.append(FileEntry(beside.relative_to(base).as_posix(), beside.stat().st_size))
        return Shard(path.name, documents, tuple(files))


def write_tokens(
    root: Path, path: Path, ids: np.ndarray, borders: np.ndarray, options: TokenOptions
) -> tuple[FileEntry, ...]:
    """Write one shard's ids (dtype as given) and its borders; return their entries."""
    with publishing(borders_path(path)) as file:
        _write_npy(file, borders)
    with publishing(path) as file:
        if options.container == "bin":
            header = BinHeader(ids.dtype.name, len(ids), len(borders) - 1, options.vocab_size, options.eos)
            file.write(header.pack())
            _write_data(file, ids)
        else:
            _write_npy(file, ids)
    return file_entry(root, path), file_entry(root, borders_path(path))


def borders_path(path: Path) -> Path:
    """Where the document borders of a token shard lie."""
    return path.with_name(path.name + BORDERS_SUFFIX + ".npy")


def token_files(root: Path) -> list[Path]:
    """Token shards of a folder, by name (or the one file that ``root`` is)."""
    if root.is_file():
        return [root]
    found = [p for p in sorted(root.iterdir()) if p.suffix in (".npy", ".bin") and not p.name.startswith(".")]
    return [path for path in found if not path.name.endswith(BORDERS_SUFFIX + ".npy")]


def _write_npy(file: BinaryIO, array: np.ndarray) -> None:
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    _write_data(file, array)


def _write_data(file: BinaryIO, array: np.ndarray) -> None:
    """Through the file object: ``ndarray.tofile`` reports a full disk without its errno."""
    if array.size:
        file.write(memoryview(np.ascontiguousarray(array)).cast("B"))


def _widened(root: Path, written: WrittenShard, dtype: str, options: TokenOptions) -> WrittenShard:
    opened = TokenShard(root, written.shard)
    path = root / written.shard.files[0].path
    files = write_tokens(root, path, opened.tokens.astype(dtype), np.array(opened.borders), options)
    fields = {name: {**facts, "dtype": dtype} for name, facts in written.fields.items()}
    return WrittenShard(replace(written.shard, files=files), fields, {**written.facts, "dtype": dtype})


def _gather(samples: Iterable[Sample], options: TokenOptions) -> tuple[np.ndarray, np.ndarray]:
    pieces, ends = [], [0]
    for row, sample in enumerate(samples):
        ids = checked_ids(sample, row, options)
        pieces.append(ids)
        ends.append(ends[-1] + len(ids))
    flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint64)
    return flat, np.array(ends, dtype=np.int64)


def checked_ids(sample: Sample, row: int, options: TokenOptions) -> np.ndarray:
    """The ids of one sample, all known to fit.

    Raises:
        LayoutError: The field is missing, not a flat list of whole numbers, or an id is negative, outside the
            vocabulary, or too large for the dtype asked for; the first such id is named.
    """
    where = f"document {sample.get(KEY, row)!r}"
    if options.field not in sample:
        fields = ", ".join(sorted(set(sample) - {KEY})) or "none"
        raise LayoutError(
            f"Field {options.field!r} is missing in {where} (it has {fields}): name the field of ids, or tokenise."
        )
    try:
        ids = np.asarray(sample[options.field])
    except (ValueError, OverflowError) as error:
        raise LayoutError(f"Field {options.field!r} of {where} is no flat list of ids ({error}).") from error
    if ids.size == 0:
        return np.empty(0, np.uint16)
    if ids.dtype.kind not in "ui" or ids.ndim != 1:
        raise LayoutError(
            f"Field {options.field!r} of {where} is {ids.dtype} of {ids.ndim} dimensions: ids are a flat list."
        )
    _refuse_first(ids, ids < 0, where, "ids start at 0", "check the tokenizer")
    if options.vocab_size is not None:
        rule = f"vocab_size={options.vocab_size:,} allows 0 to {options.vocab_size - 1:,}"
        _refuse_first(
            ids, ids >= options.vocab_size, where, rule, "give the vocabulary of the tokenizer that made them"
        )
    if options.dtype is not None:
        limit = int(np.iinfo(options.dtype).max)
        rule = f"{options.dtype} holds 0 to {limit:,}"
        _refuse_first(
            ids, ids > limit, where, rule, f"use dtype='{narrowest_dtype(int(ids.max()))}', or None to choose"
        )
    return ids.astype(narrowest_dtype(int(ids.max())), copy=False)


def _refuse_first(ids: np.ndarray, bad: np.ndarray, where: str, rule: str, way_out: str) -> None:
    if bad.any():
        position = int(np.argmax(bad))
        raise LayoutError(f"Token id {int(ids[position])} at position {position} of {where}: {rule}; {way_out}.")
