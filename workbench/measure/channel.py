"""How a trial speaks with its warden: JSON lines out, single bytes in, and a counter that is read from outside."""

from __future__ import annotations

import json
import mmap
import os
import select
from typing import Any

from workbench.measure.watch import PROGRESS_FILE


class Channel:
    """The trial's ends of the two pipes to its warden.

    Attributes:
        stream: The `Stream` that batches come from, once there is one.
    """

    def __init__(self, report: int, control: int) -> None:
        self._report, self._control = report, control
        self._stop = False
        self.stream: Any = None

    @property
    def workers(self) -> list[Any]:
        """The loader's worker processes of this epoch; their exit codes explain an error."""
        return list(getattr(getattr(self.stream, "iterator", None), "_workers", ()))

    def send(self, **message: Any) -> None:
        """Writes one JSON line."""
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self._report, data) :]

    def stopped(self) -> bool:
        """Whether the warden has said that enough is measured."""
        if not self._stop and select.select([self._control], [], [], 0)[0]:
            self._stop = b"s" in os.read(self._control, 64)
        return self._stop

    def wait_for_go(self) -> None:
        """Blocks until the warden has read memory."""
        while b"g" not in os.read(self._control, 64):
            pass


def progress_counter(task: dict[str, Any]) -> memoryview:
    """One 64-bit number in a file that the warden reads: batches taken so far."""
    path = os.path.join(task["temporary"], PROGRESS_FILE)
    with open(path, "wb+") as file:
        file.write(bytes(8))
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
