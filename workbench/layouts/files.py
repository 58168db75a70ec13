"""One file a field in a tree of folders: how data arrives, and the layout to leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.codec import decode_fields, encode_sample, with_fields
from workbench.layouts.manifest import MANIFEST_NAME, file_entry
from workbench.layouts.names import checked_key, checked_suffixes, escape_key, unescape_key
from workbench.layouts.protocol import KEY, FileEntry, Sample, Shard, WrittenShard

SAMPLES_A_SHARD = 1000
"""Files have no shards of their own; readers and manifests take them in groups of this many samples."""

CONVERSION_NOTES = ".conversion"
"""Folder in which a conversion keeps its notes while it builds a data set."""

NO_SUFFIX_FIELD = "file"
"""Field of a file whose name has no dot."""


class FilesShard:
    """A group of samples, each of one or more files.

    Args:
        root: Folder of the data set.
        shard: The group.
        fields: What is known of each suffix.
        read: Reads the file at a path of the shard; None reads below ``root``.
    """

    def __init__(
        self,
        root: Path,
        shard: Shard,
        fields: Mapping[str, Mapping[str, Any]],
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        self._fields = fields
        self._read = read or (lambda path: read_file(root / path))
        grouped = groupby(shard.files, key=lambda entry: split_known(entry.path, fields)[0])
        samples = [(key, list(entries)) for key, entries in grouped]
        self._samples = [(key, [entry.path for entry in entries]) for key, entries in samples]
        self._sizes = [sum(entry.bytes for entry in entries) for _, entries in samples]
        if len(self._samples) != shard.samples:
            raise LayoutError(
                f"{shard.name} of {root} groups into {len(self._samples)} samples, not {shard.samples} as listed: "
                "write the manifest again."
            )

    def __len__(self) -> int:
        return len(self._samples)

    def sample(self, row: int) -> Sample:
        if not 0 <= row < len(self):
            raise IndexError(f"Row {row} was asked for and the shard holds {len(self)}.")
        key, paths = self._samples[row]
        found = {split_known(path, self._fields)[1]: self._read(path) for path in paths}
        return {KEY: key, **decode_fields(found, self._fields)}

    def samples(self, start: int = 0) -> Iterator[Sample]:
        for row in range(start, len(self)):
            yield self.sample(row)

    def sample_bytes(self) -> np.ndarray:
        return np.array(self._sizes, np.int64)

    def names(self) -> list[str]:
        return [key for key, _ in self._samples]


class FilesLayout:
    """Plain files. In a folder without a manifest, files whose paths differ only after the last dot are one sample."""

    name = "files"

    def find_shards(self, root: Path) -> tuple[tuple[Shard, ...], dict[str, Any]]:
        entries = sorted(walk_files(root), key=lambda entry: _split_last(entry.path))
        if not entries:
            raise LayoutError(f"{root} holds no files: check the folder.")
        suffixes = sorted({_split_last(entry.path)[1] for entry in entries})
        fields = {suffix: {"field": suffix or NO_SUFFIX_FIELD, "kind": "bytes"} for suffix in suffixes}
        samples = [list(group) for _, group in groupby(entries, key=lambda entry: _split_last(entry.path)[0])]
        groups = [samples[i : i + SAMPLES_A_SHARD] for i in range(0, len(samples), SAMPLES_A_SHARD)]
        return tuple(
            Shard(f"group-{number:05d}", len(group), tuple(entry for sample in group for entry in sample))
            for number, group in enumerate(groups)
        ), fields

    def open_shard(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> FilesShard:
        return FilesShard(root, shard, fields)

    def write_shard(self, root: Path, name: str, samples: Iterable[Sample], options: Any = None) -> WrittenShard:
        """Write the files of one group. They are not renamed one by one: the caller publishes the whole folder."""
        entries: list[FileEntry] = []
        fields: dict[str, dict[str, Any]] = {}
        count = 0
        for sample in samples:
            count += 1
            parts = encode_sample(sample)
            key = checked_key(sample[KEY])
            checked_suffixes(key, (suffix for suffix, _, _ in parts))
            for suffix, content, _ in parts:
                relative = _free_path(key, suffix)
                _write(root, relative, content, key)
                entries.append(file_entry(root, root / relative))
            fields = with_fields(fields, parts)
        return WrittenShard(Shard(name, count, tuple(entries)), fields)

    def finish(
        self, root: Path, written: Sequence[WrittenShard], options: Any
    ) -> tuple[tuple[WrittenShard, ...], dict[str, Any]]:
        return tuple(written), {}


def _free_path(key: str, suffix: str) -> PurePosixPath:
    path = PurePosixPath(f"{escape_key(key)}.{suffix}")
    if str(path) == MANIFEST_NAME or path.parts[0] == CONVERSION_NOTES:
        raise LayoutError(f"Sample {key!r} with field {suffix!r} would be {path}, which is taken: rename the sample.")
    return path


def _write(root: Path, relative: PurePosixPath, content: bytes | memoryview, key: str) -> None:
    try:
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_bytes(content)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise LayoutError(
            f"Sample {key!r} would be the file {relative}, and another needs a part of that path as a file or folder: "
            "rename one."
        ) from error


def walk_files(root: Path) -> Iterator[FileEntry]:
    """Every visible file under ``root``; hidden names, a manifest and links to folders are passed over.

    Raises:
        LayoutError: A name is not valid UTF-8.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or path == root / MANIFEST_NAME or not path.is_file():
                continue
            relative = path.relative_to(root).as_posix()
            checked_key(relative)
            yield FileEntry(relative, path.stat().st_size)


def split_known(path: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Name and suffix of a file, by the longest suffix that the data set is known to have."""
    last = path.rpartition("/")[2]
    pieces = last.split(".")
    for first in range(1, len(pieces)):
        suffix = ".".join(pieces[first:])
        if suffix in fields:
            return unescape_key(path[: -len(suffix) - 1]), suffix
    return unescape_key(path), ""


def read_file(path: Path) -> bytes:
    """All bytes of one file.

    Raises:
        LayoutError: It has gone.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise LayoutError(f"{path} is listed and missing: restore it, or write the manifest again.") from error


def _split_last(path: str) -> tuple[str, str]:
    folder, slash, last = path.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    return (unescape_key(folder + slash + stem), suffix) if dot and stem else (unescape_key(path), "")
