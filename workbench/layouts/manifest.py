"""The manifest: which files make up a data set, what is in them, and how they were made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import ManifestError
from workbench.layouts.protocol import FileEntry, Shard
from workbench.layouts.publishing import publishing

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = "loader-workbench manifest"
MANIFEST_VERSION = 1
HASH_NAME = "blake2b-128"
"""In every Python, so that a manifest can be checked anywhere, and about 1 GB/s a core: as fast as most disks."""
_DIGEST_BYTES = 16
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Manifest:
    """What a data set consists of.

    Attributes:
        layout: ``files``, ``tar``, ``parquet`` or ``tokens``.
        shards: Every shard, in the order that gives samples their index.
        fields: Per stored field: ``field`` (name in a sample), ``kind``, and ``dtype`` and ``shape`` where known.
        facts: What the layout states of itself, e.g. ``dtype`` and ``vocab_size`` of token shards.
        made: How it was made: source, options, transform. Not part of the digest.
    """

    layout: str
    shards: tuple[Shard, ...]
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all files, the manifest itself left out."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file, in shard order."""
        return tuple(entry for shard in self.shards for entry in shard.files)

    def digest(self) -> str:
        """Hex digest of everything that decides what a reader sees (not of how it was made)."""
        content = {key: value for key, value in to_document(self).items() if key != "made"}
        return hashlib.blake2b(_canonical(content), digest_size=_DIGEST_BYTES).hexdigest()


def to_document(manifest: Manifest) -> dict[str, Any]:
    """The manifest as plain JSON values, keys in a fixed order."""
    return {
        "format": MANIFEST_FORMAT,
        "version": MANIFEST_VERSION,
        "layout": manifest.layout,
        "hash": HASH_NAME,
        "samples": manifest.samples,
        "bytes": manifest.bytes,
        "fields": {name: dict(manifest.fields[name]) for name in sorted(manifest.fields)},
        "facts": {name: manifest.facts[name] for name in sorted(manifest.facts)},
        "made": dict(manifest.made),
        "shards": [shard_to_document(shard) for shard in manifest.shards],
    }


def shard_to_document(shard: Shard) -> dict[str, Any]:
    """One shard as plain JSON values."""
    files = [{"path": f.path, "bytes": f.bytes, "checksum": f.checksum} for f in shard.files]
    return {"name": shard.name, "samples": shard.samples, "files": files}


def shard_from_document(document: Mapping[str, Any]) -> Shard:
    """The shard that ``shard_to_document`` wrote.

    Raises:
        KeyError, TypeError, ValueError: The document is not one.
    """
    files = tuple(FileEntry(str(f["path"]), int(f["bytes"]), f["checksum"]) for f in document["files"])
    return Shard(str(document["name"]), int(document["samples"]), files)


def write_manifest(root: Path, manifest: Manifest) -> Path:
    """Write ``manifest.json`` under ``root`` (by rename) and return its path."""
    text = json.dumps(to_document(manifest), indent=1, ensure_ascii=False, sort_keys=False) + "\n"
    path = Path(root) / MANIFEST_NAME
    with publishing(path) as file:
        file.write(text.encode("utf-8"))
    return path


def read_manifest(root: Path) -> Manifest | None:
    """The manifest of the data set at ``root``, or None where there is none.

    Raises:
        ManifestError: It is not JSON, not a manifest, from a newer version, or names files outside ``root``.
    """
    path = Path(root) / MANIFEST_NAME
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ManifestError(f"{path} is not JSON ({error}): write it again with `workbench manifest`.") from error
    if not isinstance(document, dict) or document.get("format") != MANIFEST_FORMAT:
        return None
    return parse_manifest(document, path)


def parse_manifest(document: Mapping[str, Any], path: Path) -> Manifest:
    """The manifest in ``document``; ``path`` is only for messages.

    Raises:
        ManifestError: As for ``read_manifest``.
    """
    if document.get("version") != MANIFEST_VERSION:
        raise ManifestError(
            f"{path} has version {document.get('version')!r} and this workbench reads version {MANIFEST_VERSION}: "
            "update loader-workbench, or write the manifest again."
        )
    try:
        shards = tuple(shard_from_document(shard) for shard in document["shards"])
        manifest = Manifest(
            str(document["layout"]), shards, document["fields"], document.get("facts", {}), document.get("made", {})
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{path} is damaged ({error!r}): write it again with `workbench manifest`.") from error
    for entry in manifest.files:
        if entry.path.startswith("/") or ".." in entry.path.split("/"):
            raise ManifestError(
                f"{path} names {entry.path!r}, which lies outside the data set: do not trust this file."
            )
    return manifest


def hash_file(path: Path) -> tuple[int, str]:
    """Size in bytes and hex digest of one file, read in pieces of 4 MiB."""
    digest, size = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(_READ_BYTES)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
    return size, digest.hexdigest()


def file_entry(root: Path, path: Path) -> FileEntry:
    """The entry of a file under ``root``, with its checksum."""
    return FileEntry(path.relative_to(root).as_posix(), *hash_file(path))


def digest_of(value: Any) -> str:
    """Hex digest of a JSON value, the same in every process."""
    return hashlib.blake2b(_canonical(value), digest_size=_DIGEST_BYTES).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
