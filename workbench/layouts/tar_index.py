"""Where every sample of a tar shard begins: built once, saved beside the shard, mapped when it is read."""

from __future__ import annotations

import json
import os
import struct
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.mapping import map_file
from workbench.layouts.names import checked_key, split_member, unescape_key
from workbench.layouts.publishing import publishing

INDEX_SUFFIX = ".index"
_MAGIC = b"WBTARIDX"
_VERSION = 1
_PREFIX = struct.Struct("<8sII")


@dataclass(frozen=True)
class TarIndex:
    """Offsets of one tar shard.

    Attributes:
        tar_bytes: Size of the shard that it describes.
        tar_mtime_ns: The shard's time of change, or None where the manifest vouches for the shard.
        suffixes: Every field that occurs.
        firsts: First member of each sample, shape ``[samples + 1]``, int64.
        members: Offset, size and suffix number of each member, shape ``[members, 3]``, int64.
        key_ends: Where each sample's name ends in ``keys``, shape ``[samples + 1]``, int64, beginning with 0.
        keys: All names, UTF-8, one after the other.
    """

    tar_bytes: int
    tar_mtime_ns: int | None
    suffixes: tuple[str, ...]
    firsts: np.ndarray
    members: np.ndarray
    key_ends: np.ndarray
    keys: bytes | memoryview

    @property
    def samples(self) -> int:
        """How many samples the shard holds."""
        return len(self.firsts) - 1

    def names(self) -> list[str]:
        """Names of all samples."""
        text, ends = bytes(self.keys), self.key_ends.tolist()
        return [text[a:b].decode("utf-8") for a, b in pairwise(ends)]


Member = tuple[str, int, int]
"""Suffix, offset and size of one member's content."""


def index_of(samples: Iterable[tuple[str, list[Member]]], tar_bytes: int, tar_mtime_ns: int | None) -> TarIndex:
    """The index of samples given as (name, members)."""
    suffixes: dict[str, int] = {}
    firsts, members, key_ends, keys = [0], [], [0], []
    for key, parts in samples:
        members.extend((offset, size, suffixes.setdefault(suffix, len(suffixes))) for suffix, offset, size in parts)
        firsts.append(len(members))
        keys.append(key.encode("utf-8"))
        key_ends.append(key_ends[-1] + len(keys[-1]))
    return TarIndex(
        tar_bytes,
        tar_mtime_ns,
        tuple(suffixes),
        np.array(firsts, np.int64),
        np.array(members, np.int64).reshape(-1, 3),
        np.array(key_ends, np.int64),
        b"".join(keys),
    )


def save_index(path: Path, index: TarIndex) -> None:
    """Write ``index`` to ``path`` by rename: prefix, JSON header padded to 8 bytes, then the arrays and the names."""
    header = json.dumps(
        {
            "tar_bytes": index.tar_bytes,
            "tar_mtime_ns": index.tar_mtime_ns,
            "suffixes": index.suffixes,
            "samples": index.samples,
            "members": len(index.members),
            "key_bytes": len(index.keys),
        }
    ).encode("utf-8")
    header = header.ljust(-(-(len(header) + _PREFIX.size) // 8) * 8 - _PREFIX.size)
    with publishing(path) as file:
        file.write(_PREFIX.pack(_MAGIC, _VERSION, len(header)))
        file.write(header)
        for array in (index.firsts, index.members, index.key_ends):
            file.write(array.tobytes())
        file.write(index.keys)


def load_index(path: Path) -> TarIndex | None:
    """The index saved at ``path``, its arrays mapped; None where it is missing, cut short or of another version."""
    try:
        content = memoryview(map_file(path))
    except (LayoutError, OSError):
        return None
    try:
        magic, version, header_bytes = _PREFIX.unpack_from(content)
        if magic != _MAGIC or version != _VERSION:
            return None
        header = json.loads(bytes(content[_PREFIX.size : _PREFIX.size + header_bytes]))
        return _mapped(content[_PREFIX.size + header_bytes :], header)
    except (struct.error, ValueError, KeyError, TypeError):
        return None


def read_index(tar: Path) -> TarIndex:
    """The index of the shard ``tar``: the saved one if it still fits, else a new one, saved if the folder allows.

    Raises:
        LayoutError: The shard is missing, cut short or no plain tar.
    """
    try:
        status = tar.stat()
    except FileNotFoundError as error:
        raise LayoutError(f"{tar} is listed and missing: restore it, or convert the data set again.") from error
    saved = load_index(index_path(tar))
    if saved is not None and saved.tar_bytes == status.st_size and saved.tar_mtime_ns in (None, status.st_mtime_ns):
        return saved
    built = index_of(scan_tar(tar), status.st_size, status.st_mtime_ns)
    if os.access(tar.parent, os.W_OK):
        save_index(index_path(tar), built)
    return built


def index_path(tar: Path) -> Path:
    """Where the index of a shard lies."""
    return tar.with_name(tar.name + INDEX_SUFFIX)


def scan_tar(tar: Path) -> list[tuple[str, list[Member]]]:
    """Samples of a tar written by anyone: neighbouring files with one name, as WebDataset groups them.

    Raises:
        LayoutError: It is cut short, compressed, or a member's name is absolute or leads out of the folder.
    """
    samples: list[tuple[str, list[Member]]] = []
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                if not member.isreg() or member.sparse is not None:
                    continue
                name, suffix = split_member(member.name.removeprefix("./"))
                key = checked_key(unescape_key(name))
                _append(samples, key, (suffix, member.offset_data, member.size), tar)
    except (tarfile.TarError, EOFError) as error:
        raise LayoutError(f"{tar} cannot be read as a plain tar ({error}): it is cut short or compressed.") from error
    return samples


def _append(samples: list[tuple[str, list[Member]]], key: str, member: Member, tar: Path) -> None:
    if not samples or samples[-1][0] != key:
        samples.append((key, []))
    parts = samples[-1][1]
    if any(member[0] == suffix for suffix, _, _ in parts):
        raise LayoutError(f"{tar} holds {key}.{member[0]} twice in a row: one would hide the other; write it again.")
    parts.append(member)


def _mapped(body: memoryview, header: dict[str, Any]) -> TarIndex:
    samples, members, key_bytes = header["samples"], header["members"], header["key_bytes"]
    counts = (samples + 1, members * 3, samples + 1)
    if len(body) != 8 * sum(counts) + key_bytes:
        raise ValueError("cut short")
    arrays, position = [], 0
    for count in counts:
        arrays.append(np.frombuffer(body, np.int64, count, position))
        position += 8 * count
    firsts, flat, key_ends = arrays
    return TarIndex(
        header["tar_bytes"],
        header["tar_mtime_ns"],
        tuple(header["suffixes"]),
        firsts,
        flat.reshape(-1, 3),
        key_ends,
        body[position:],
    )
