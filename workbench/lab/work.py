"""Known amounts of CPU, waiting, shared bandwidth and cold reading."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workbench.errors import SettingsError

COLD_FILE_BYTES = 16_384
HASHED = bytes(1 << 16)
# A sleep ends 0.05 to 0.1 ms late, which the next one makes up for; a longer delay is the machine's, and stays.
MOST_MADE_UP_SECONDS = 0.001


def burn(cpu_seconds: float) -> None:
    """Keeps the thread's core busy, in Python, until the thread itself has used this much CPU."""
    end = time.thread_time() + cpu_seconds
    number = 1
    while time.thread_time() < end:
        for _ in range(100):  # some 10 microseconds
            number = number * 31 % 1_000_003


class Threads:
    """Threads that burn CPU side by side, in native code that lets the others run; right on average, as `Pace` is."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._pool = ThreadPoolExecutor(number)
        self._of_thread = threading.local()

    def burn(self, cpu_seconds: float) -> None:
        """Uses this much CPU in all, an equal part on each thread, and waits for the slowest."""
        for done in [self._pool.submit(self._burn, cpu_seconds / self._number) for _ in range(self._number)]:
            done.result()

    def _burn(self, cpu_seconds: float) -> None:
        """Burns this much, less what the thread has burned too much or spent on being called before."""
        end = getattr(self._of_thread, "end", None)
        now = time.thread_time()
        end = (now if end is None else max(end, now - MOST_MADE_UP_SECONDS)) + cpu_seconds
        while now < end:
            hashlib.sha256(HASHED)  # without the interpreter lock, some 50 microseconds
            now = time.thread_time()
        self._of_thread.end = end


class Pace:
    """Waits that are right on average: what one wait overslept, the next one sleeps less."""

    def __init__(self) -> None:
        self._overslept = 0.0

    def wait(self, seconds: float) -> None:
        """Sleeps `seconds`, less what earlier waits took too long."""
        if seconds <= 0:
            return
        begin = time.monotonic()
        time.sleep(max(0.0, seconds - self._overslept))
        late = time.monotonic() - begin - (seconds - self._overslept)
        self._overslept = min(late, MOST_MADE_UP_SECONDS)


class SharedLine:
    """A line that serves one request at a time, whichever process it comes from, and leaves no name and no file behind.

    When the line will be free stands in memory that the processes share; a lock on one byte of /dev/null, far from
    any other's, guards it and ends with the process that holds it.

    Args:
        number: Which byte; loaders with the same number share the lock.
        free_at: float64 tensor [1] in shared memory, monotonic seconds.
    """

    def __init__(self, number: int, free_at: Any) -> None:
        self._number = number
        self._free_at = free_at
        self._file = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def use(self, seconds: float) -> None:
        """Waits for the line, has it for `seconds`, and returns at their end."""
        self._lock(fcntl.F_WRLCK)
        try:
            end = max(time.monotonic(), self._free_at.item()) + seconds
            self._free_at.fill_(end)
        finally:
            self._lock(fcntl.F_UNLCK)
        time.sleep(max(0.0, end - time.monotonic()))

    def __del__(self) -> None:
        os.close(self._file)

    def _lock(self, kind: int) -> None:
        if hasattr(fcntl, "F_OFD_SETLKW"):
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", kind, os.SEEK_SET, self._number, 1, 0))
        else:
            fcntl.lockf(self._file, fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_UN, 1, self._number)


# -- files that can be made cold --


def cold_files(directory: str | Path, count: int) -> Path:
    """Makes `count` small files of random bytes for the cold-cache fault, none in the page cache; keeps those there."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = directory / f"{number:06d}.bin"
        if not path.exists():
            path.write_bytes(os.urandom(COLD_FILE_BYTES))
    chill(directory)
    return directory


def cold_paths(directory: str | Path) -> list[str]:
    """The files of `cold_files`, in order; SettingsError if there are none."""
    paths = sorted(str(path) for path in Path(directory).glob("*.bin"))
    if not paths:
        raise SettingsError(f"cold_directory={str(directory)!r} holds no files: make some with lab.cold_files")
    return paths


def chill(directory: str | Path) -> None:
    """Drops the files in `directory` from the page cache. A file system in memory, such as tmpfs, keeps them."""
    for path in cold_paths(directory):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)  # a page that is not yet written would stay
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def is_warm(path: str | Path) -> bool | None:
    """Whether a file's beginning is in the page cache, without bringing it there; None where that cannot be asked.

    Asks mincore, since a read with RWF_NOWAIT, though it returns at once, starts to read ahead (Linux 6).
    """
    try:
        mincore = ctypes.CDLL(None).mincore
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE + 1))()
            failed = mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), pages)
            del first  # or the map cannot close
    except (AttributeError, OSError, ValueError):
        return None
    return None if failed else bool(pages[0] & 1)
