"""A bounded folder of files fetched from elsewhere: whole or not there, shared by processes, kept over restarts."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from workbench.errors import LayoutError
from workbench.layouts.protocol import FileEntry
from workbench.layouts.publishing import TEMPORARY_SUFFIX, publishing
from workbench.machine import format_bytes

OPENED_AGAIN = 8
"""Times that a file is fetched anew because another process, making room, removed it before it was opened."""

_LOCKS = ".locks"
_LOCK_FILES = 64
_ROOM_LOCK = "room"
_FILES_COUNTED_EACH_TIME = 1000
"""Up to this many files, they are counted before each fetch; above, once in as many fetches as there are thousands."""
_ORPHAN_SECONDS = 3600.0
"""A temporary file that nobody has written to for an hour belongs to a process that was killed."""


class FileCache:
    """Files of remote data sets under one folder.

    A file gets its name only when it is complete and on disk, so that a reader never meets a part of one; what was
    used longest ago makes room, and files that are on their way take theirs from the start. A file that is removed
    while it is mapped stays readable for whoever maps it.

    Args:
        directory: Where files lie.
        limit_bytes: How much they may take together.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes
        self._fetches_to_count = 0
        self._total = 0

    def fetch(self, folder: str, entry: FileEntry, write: Callable[[BinaryIO], None]) -> Path:
        """The local path of ``entry``; ``write`` is called to get it where it is not there yet.

        Only one process gets a file; others wait for it.

        Args:
            folder: Sub-folder of the data set, one for each content.
            entry: The file, with its size.
            write: Writes the whole content, and raises where it cannot.

        Raises:
            LayoutError: The file is larger than the cache may be, came with another size, or finds no room on disk.
        """
        path = self.directory / folder / entry.path
        if self._use(path, entry.bytes):
            return path
        if entry.bytes > self.limit_bytes:
            raise LayoutError(
                f"{entry.path} has {format_bytes(entry.bytes)} and the cache holds {format_bytes(self.limit_bytes)}: "
                "raise cache_bytes, or write smaller shards."
            )
        with self._disk_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone(_lock_of(f"{folder}/{entry.path}")):
                if not self._use(path, entry.bytes):
                    self._get(path, entry, write)
        return path

    def content(self, folder: str, entry: FileEntry, write: Callable[[BinaryIO], None]) -> bytes:
        """All bytes of ``entry``, fetched again where another process removes the file before it is read.

        Raises:
            LayoutError: As for ``fetch``, or the file disappears each time.
        """
        for _ in range(OPENED_AGAIN):
            path = self.fetch(folder, entry, write)
            with contextlib.suppress(FileNotFoundError):
                return path.read_bytes()
        raise self.too_small(entry)

    def too_small(self, entry: FileEntry) -> LayoutError:
        """What to tell about a file that others remove as often as it is fetched."""
        return LayoutError(
            f"{entry.path} was removed {OPENED_AGAIN} times before it could be opened, to make room for others in "
            f"{self.directory} (at most {format_bytes(self.limit_bytes)}): raise cache_bytes."
        )

    def _get(self, path: Path, entry: FileEntry, write: Callable[[BinaryIO], None]) -> None:
        with publishing(path) as file:
            with self._alone(_ROOM_LOCK):
                self._make_room(entry.bytes)
                file.truncate(entry.bytes)
            write(file)
            if file.tell() != entry.bytes:
                raise LayoutError(f"{entry.path} came with {file.tell():,} of {entry.bytes:,} bytes: try again.")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LayoutError(
                f"{self.directory} cannot keep fetched files ({error.strerror or error}): free space there, or name "
                "another folder with cache_directory or WORKBENCH_CACHE."
            ) from error

    def bytes(self) -> int:
        """Bytes of all files in it."""
        return sum(size for _, size, _ in self._files())

    def _use(self, path: Path, size: int) -> bool:
        try:
            if path.stat().st_size != size:
                return False
            os.utime(path)
        except OSError:
            return False
        return True

    def _make_room(self, wanted: int) -> None:
        """Remove files until ``wanted`` bytes fit. A folder of very many files is not counted for each one fetched."""
        self._fetches_to_count -= 1
        self._total += wanted
        if self._fetches_to_count > 0 and self._total <= self.limit_bytes:
            return
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total + wanted <= self.limit_bytes:
                break
            if _is_temporary(path.name):
                continue
            path.unlink(missing_ok=True)
            total -= size
        self._total = total + wanted
        self._fetches_to_count = len(files) // _FILES_COUNTED_EACH_TIME

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of every file, also of those on their way; orphans of those are removed."""
        for folder, folders, names in os.walk(self.directory):
            folders[:] = [name for name in folders if name != _LOCKS]
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:
                    continue
                if _is_temporary(name) and time.time() - status.st_mtime > _ORPHAN_SECONDS:
                    path.unlink(missing_ok=True)
                    continue
                yield status.st_mtime, status.st_size, path

    @contextmanager
    def _alone(self, lock: str) -> Iterator[None]:
        """Hold a lock of this name, among all processes and threads."""
        locks = self.directory / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        with open(locks / lock, "a") as handle:
            try:
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX)
            except ImportError:
                pass
            yield


def _lock_of(name: str) -> str:
    """The lock that a file falls to; some files share one."""
    return str(zlib.crc32(name.encode("utf-8")) % _LOCK_FILES)


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)
