"""The folder beside the target in which a conversion is built, remembered and, once whole, renamed to its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.errors import ConversionError
from workbench.layouts.files import CONVERSION_NOTES
from workbench.layouts.manifest import MANIFEST_NAME, Manifest, read_manifest, write_manifest
from workbench.layouts.pieces import Done
from workbench.layouts.publishing import TEMPORARY_SUFFIX, publishing
from workbench.layouts.registry import PARTIAL_SUFFIX
from workbench.layouts.spool import SPOOL_PREFIX

REPLACED_SUFFIX = ".replaced"
LOCK_SUFFIX = ".lock"
"""The lock lies beside the folder and not in it, so that it also guards the moment when the folder gets its name."""


class Staging:
    """``DST.partial``: shards that are finished, and under ``.conversion`` what a second run needs to know.

    Args:
        destination: Folder that will hold the data set.
        job: Digest of everything that decides the result.
    """

    def __init__(self, destination: Path, job: str) -> None:
        self.destination = destination
        self.root = destination.with_name(destination.name + PARTIAL_SUFFIX)
        self.notes = self.root / CONVERSION_NOTES
        self._lock_path = destination.with_name(f".{destination.name}{LOCK_SUFFIX}")
        self._job = job
        self._lock: Any = None

    def take(self) -> None:
        """Keep other conversions into the same target out, until ``leave``.

        Raises:
            ConversionError: One is at work there.
        """
        if self._lock is None:
            self._lock = _locked(self._lock_path, self.root)

    def finished(self) -> Manifest | None:
        """The manifest of a run that was killed just before it gave the folder its name, or None."""
        if not self.root.is_dir() or self.notes.is_dir():
            return None
        manifest = read_manifest(self.root)
        return manifest if manifest is not None and manifest.made.get("job") == self._job else None

    def enter(self, description: dict[str, Any], *, overwrite: bool) -> None:
        """Take the folder: make it, or go on with what a run of the same job left in it.

        Raises:
            ConversionError: Another process converts there, or a different conversion was left unfinished.
        """
        self.take()
        if overwrite and self._foreign():
            shutil.rmtree(self.root)
        if self.root.exists() and not self.notes.is_dir() and any(self.root.iterdir()):
            raise ConversionError(f"{self.root} was not left by a conversion: move it away, or choose another target.")
        self.notes.mkdir(parents=True, exist_ok=True)
        left = self._read(self.notes / "job.json")
        if left is not None and left.get("job") != self._job:
            changed = sorted(name for name in description if left.get("description", {}).get(name) != description[name])
            raise ConversionError(
                f"{self.root} was left by a conversion with another {' and '.join(changed) or 'source'}: "
                "delete that folder, or pass overwrite=True to start anew."
            )
        self.tidy()
        self._write(self.notes / "job.json", {"job": self._job, "description": description})

    def tidy(self) -> None:
        """Remove what a process that was stopped was just writing."""
        for pattern in (f".*{TEMPORARY_SUFFIX}", f"{SPOOL_PREFIX}*"):
            for stray in self.root.rglob(pattern):
                stray.unlink(missing_ok=True)

    def done(self) -> dict[int, Done]:
        """Shards that an earlier run finished, by number; one whose files are not whole does not count."""
        found = {}
        for path in sorted(self.notes.glob("done-*.json")):
            document = self._read(path)
            try:
                record = Done.from_document(document or {})
            except (KeyError, TypeError, ValueError):
                continue
            if all(_size(self.root / entry.path) == entry.bytes for entry in record.written.shard.files):
                found[record.piece.number] = record
        return found

    def record(self, done: Done) -> None:
        """Remember that a shard is finished."""
        self._write(self.notes / f"done-{done.piece.number:05d}.json", done.to_document())
        if done.piece.spool:
            Path(done.piece.spool).unlink(missing_ok=True)

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Forget shards that no longer belong to the data set, and remove their files."""
        wanted = set(numbers)
        for number, done in self.done().items():
            if number not in wanted:
                for entry in done.written.shard.files:
                    (self.root / entry.path).unlink(missing_ok=True)
                (self.notes / f"done-{number:05d}.json").unlink()

    def publish(self, manifest: Manifest) -> None:
        """Remove what no longer belongs to it, write the manifest last, then give the folder its name."""
        self._drop_all_but({entry.path for entry in manifest.files})
        write_manifest(self.root, manifest)
        shutil.rmtree(self.notes)
        self.rename()

    def rename(self) -> None:
        """Give the finished folder its name; a data set that is replaced disappears only then."""
        _sync_folder(self.root)
        replaced = self.destination.with_name(self.destination.name + REPLACED_SUFFIX)
        if (self.destination / MANIFEST_NAME).exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(self.destination, replaced)
        os.rename(self.root, self.destination)
        _sync_folder(self.destination.parent)
        shutil.rmtree(replaced, ignore_errors=True)

    def leave(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """Remove everything that was built."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _drop_all_but(self, wanted: set[str]) -> None:
        """Files of a shard that an earlier run was stopped in, and that would not be written again as they were."""
        for folder, folders, names in os.walk(self.root):
            if Path(folder) == self.root and CONVERSION_NOTES in folders:
                folders.remove(CONVERSION_NOTES)
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.root).as_posix() not in wanted:
                    path.unlink()

    def _foreign(self) -> bool:
        left = self._read(self.notes / "job.json")
        return self.root.is_dir() and (left is None or left.get("job") != self._job) and self._ours()

    def _ours(self) -> bool:
        return self.notes.is_dir() or (self.root / MANIFEST_NAME).is_file() or not any(self.root.iterdir())

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    @staticmethod
    def _write(path: Path, document: dict[str, Any]) -> None:
        with publishing(path) as file:
            file.write(json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _locked(path: Path, root: Path) -> Any:
    """The lock file, held. Whoever releases it removes it first, so that the one that was got may be no longer it."""
    try:
        import fcntl
    except ImportError:
        return open(path, "a")
    while True:
        handle = open(path, "a")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise ConversionError(f"Another process is converting into {root}: wait for it, or stop it.") from error
        if _inode(path) == os.fstat(handle.fileno()).st_ino:
            return handle
        handle.close()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _sync_folder(path: Path) -> None:
    """A rename is on disk only once its folder is; systems that cannot flush folders do it themselves."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
