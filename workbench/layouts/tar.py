"""Tar shards as WebDataset reads them, memory-mapped through a saved index of offsets."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.codec import decoder, encode_sample, with_fields
from workbench.layouts.manifest import file_entry
from workbench.layouts.mapping import map_file
from workbench.layouts.names import checked_key, checked_suffixes, escape_key
from workbench.layouts.protocol import KEY, FileEntry, Sample, Shard, WrittenShard
from workbench.layouts.publishing import publishing
from workbench.layouts.tar_index import TarIndex, index_of, index_path, read_index, save_index

_ROWS_AT_ONCE = 1024
"""Index rows turned into Python numbers together: few enough to start at once, enough to cost nothing a sample."""


class TarShard:
    """One tar shard: the file mapped, its index mapped, samples cut out by offset."""

    def __init__(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> None:
        main = shard.files[0]
        path = root / main.path
        self.index: TarIndex = read_index(path)
        self._map = map_file(path, main.bytes)
        self._parts = [_part(suffix, fields.get(suffix, {})) for suffix in self.index.suffixes]
        if self.index.samples != shard.samples:
            raise LayoutError(
                f"{path} holds {self.index.samples} samples and the manifest says {shard.samples}: "
                "run `workbench verify` on the data set."
            )

    def __len__(self) -> int:
        return self.index.samples

    def sample(self, row: int) -> Sample:
        if not 0 <= row < len(self):
            raise IndexError(f"Row {row} was asked for and the shard holds {len(self)}.")
        return next(self._rows(row, row + 1))

    def samples(self, start: int = 0) -> Iterator[Sample]:
        for first in range(start, len(self), _ROWS_AT_ONCE):
            yield from self._rows(first, min(first + _ROWS_AT_ONCE, len(self)))

    def sample_bytes(self) -> np.ndarray:
        ends = np.concatenate([[0], np.cumsum(self.index.members[:, 1])])[self.index.firsts]
        return np.diff(ends).astype(np.int64)

    def names(self) -> list[str]:
        return self.index.names()

    def _rows(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples of some rows. This loop is what reading a shard costs beside the copy, so it does little."""
        index, content, parts = self.index, self._map, self._parts
        firsts, ends = index.firsts[start : stop + 1], index.key_ends[start : stop + 1]
        members = index.members[firsts[0] : firsts[-1]]
        begins, stops = members[:, 0].tolist(), (members[:, 0] + members[:, 1]).tolist()
        kinds = [parts[number] for number in members[:, 2].tolist()]
        keys = bytes(index.keys[ends[0] : ends[-1]])
        member = 0
        for (key_at, key_end), last in zip(
            pairwise((ends - ends[0]).tolist()), (firsts[1:] - firsts[0]).tolist(), strict=True
        ):
            sample: Sample = {KEY: keys[key_at:key_end].decode("utf-8")}
            while member < last:
                field, decode = kinds[member]
                value = content[begins[member] : stops[member]]
                if field is None:
                    sample.update(json.loads(value))
                else:
                    sample[field] = value if decode is None else decode(value)
                member += 1
            yield sample


class TarLayout:
    """WebDataset's own format: members of one sample lie side by side and share the name before the first dot."""

    name = "tar"

    def find_shards(self, root: Path) -> tuple[tuple[Shard, ...], dict[str, Any]]:
        paths = [root] if root.is_file() else sorted(p for p in root.iterdir() if _is_shard(p))
        if not paths:
            raise LayoutError(f"{root} holds no .tar files: check the folder.")
        return tuple(_found(path) for path in paths), {}

    def open_shard(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> TarShard:
        return TarShard(root, shard, fields)

    def write_shard(self, root: Path, name: str, samples: Iterable[Sample], options: Any = None) -> WrittenShard:
        path = root / f"{name}.tar"
        entries: list[tuple[str, list[tuple[str, int, int]]]] = []
        fields: dict[str, dict[str, Any]] = {}
        with publishing(path) as file:
            writer = TarWriter(file)
            for sample in samples:
                parts = encode_sample(sample)
                key = checked_key(sample[KEY])
                checked_suffixes(key, (suffix for suffix, _, _ in parts))
                stem = escape_key(key)
                entries.append(
                    (key, [(s, writer.add(f"{stem}.{s}", content), len(content)) for s, content, _ in parts])
                )
                fields = with_fields(fields, parts)
            size = writer.finish()
        save_index(index_path(path), index_of(entries, size, None))
        files = (file_entry(root, path), file_entry(root, index_path(path)))
        return WrittenShard(Shard(path.name, len(entries), files), fields)

    def finish(
        self, root: Path, written: Sequence[WrittenShard], options: Any
    ) -> tuple[tuple[WrittenShard, ...], dict[str, Any]]:
        return tuple(written), {}


class TarWriter:
    """Members one after the other, with nothing in their headers that differs from run to run."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offset = 0

    def add(self, name: str, content: bytes | memoryview) -> int:
        """Append one file and return the offset of its content."""
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(content), 0o644, 0
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        self._file.write(header)
        self._file.write(content)
        self._file.write(b"\0" * (-len(content) % tarfile.BLOCKSIZE))
        begin = self._offset + len(header)
        self._offset = begin + len(content) + (-len(content) % tarfile.BLOCKSIZE)
        return begin

    def finish(self) -> int:
        """Append the end mark and return the size of the archive in bytes."""
        end = 2 * tarfile.BLOCKSIZE
        padding = end + (-(self._offset + end) % tarfile.RECORDSIZE)
        self._file.write(b"\0" * padding)
        self._offset += padding
        return self._offset


def _part(suffix: str, facts: Mapping[str, Any]) -> tuple[str | None, Callable[[bytes], Any] | None]:
    return facts.get("field", suffix), decoder(facts.get("kind", "bytes"))


def _is_shard(path: Path) -> bool:
    return path.suffix == ".tar" and path.is_file() and not path.name.startswith(".")


def _found(path: Path) -> Shard:
    return Shard(path.name, read_index(path).samples, (FileEntry(path.name, path.stat().st_size),))
