"""Storage that is far away: a folder whose every read waits for a round trip and for its bytes to pass a line."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from workbench.errors import SettingsError


class SlowStorage:
    """Reads below a folder, or of another store, as if they came over a network; made by `slow_storage`.

    It has the one method that `workbench.layouts.open_remote(url, store=...)` asks for, needs no rights of
    an administrator, and can be pickled, forked and spawned. Requests of several threads wait for their round trips at
    the same time, and share the line. Each process has a line of its own.

    Args:
        behind: The folder, or an object with `read(path, start, stop)`.
        round_trip_seconds: What each request waits before its first byte; a store behind answers within that time, so
            that the longer of the two counts and not their sum.
        bytes_per_second: Bandwidth of the line; None is unlimited.
    """

    def __init__(self, behind: Any, round_trip_seconds: float, bytes_per_second: float | None) -> None:
        self.behind = behind
        self.round_trip_seconds = round_trip_seconds
        self.bytes_per_second = bytes_per_second
        self._line = threading.Lock()
        self._free_at = 0.0
        self.requests = 0

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """Bytes `start` to `stop - 1` of `path`, late; None reads to the end.

        Raises:
            FileNotFoundError: There is no such file.
        """
        asked = time.monotonic()
        content = self._content(path, start, stop)
        time.sleep(max(0.0, asked + self.round_trip_seconds - time.monotonic()))
        ready = self._through_the_line(len(content))
        time.sleep(max(0.0, ready - time.monotonic()))
        return content

    def _content(self, path: str, start: int, stop: int | None) -> bytes:
        if hasattr(self.behind, "read"):
            return self.behind.read(path, start, stop)
        with open(Path(self.behind) / path, "rb") as file:
            file.seek(start)
            return file.read() if stop is None else file.read(max(0, stop - start))

    def _through_the_line(self, size: int) -> float:
        """When the last byte is here: each read takes the line for its bytes, after those that came before it."""
        with self._line:
            self.requests += 1
            if self.bytes_per_second is None:
                return 0.0
            self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_second
            return self._free_at

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_line"} | {"_free_at": 0.0, "requests": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _line=threading.Lock())


def slow_storage(
    behind: Any, *, round_trip_seconds: float = 0.020, bytes_per_second: float | None = None
) -> SlowStorage:
    """A folder or store that answers like one at a distance.

        far = lab.slow_storage("shards/", round_trip_seconds=0.020, bytes_per_second=100e6)
        data = layouts.open_remote("far://shards", store=far)

    Args:
        behind: The folder, or an object with `read(path, start, stop)`.
        round_trip_seconds: What each request waits; 20 ms is an object store in the next region.
        bytes_per_second: Bandwidth that the requests of a process share; None is unlimited.

    Raises:
        SettingsError: The folder is not there, or a number makes no sense.
    """
    if not hasattr(behind, "read") and not os.path.isdir(behind):
        raise SettingsError(f"{behind!r} is no folder and no store: give a folder that is there.")
    if round_trip_seconds < 0:
        raise SettingsError(f"round_trip_seconds={round_trip_seconds!r} is below zero: give for instance 0.020.")
    if bytes_per_second is not None and bytes_per_second <= 0:
        raise SettingsError(f"bytes_per_second={bytes_per_second!r} lets nothing through: give a rate, or None.")
    return SlowStorage(behind, round_trip_seconds, bytes_per_second)
