"""A user's error as text that crosses process borders: type, message, their own line, worker, exit codes."""

from __future__ import annotations

import os
import re
import time
import traceback
from typing import Any

from workbench.measure.stream import EmptyLoaderError

EXIT_CODE_SECONDS = 1.0
"""How long a dying worker is given to show its exit code."""
_WRAPPED = re.compile(r"^Caught (\S+) in DataLoader worker process (\d+)\.", re.MULTILINE)
_NOT_THE_USERS = (
    f"{os.sep}torch{os.sep}",
    f"{os.sep}torchdata{os.sep}",
    f"{os.sep}workbench{os.sep}",
    os.path.dirname(os.__file__),
    "<frozen",
)


def describe_error(error: BaseException, workers: list[Any]) -> dict[str, Any]:
    """The user's error as text: type, message, own line, worker, and exit codes of workers that died.

    torch rebuilds a worker's exception from its message where it can and wraps it where it cannot; either way the
    original type and traceback stand in the text, and are taken from there.
    """
    text = "".join(traceback.format_exception(error))
    name, message, worker = type(error).__name__, str(error), None
    wrapped = _WRAPPED.search(str(error))
    if wrapped:
        name, worker = wrapped.group(1), int(wrapped.group(2))
        text = str(error).split("Original ", 1)[-1]
        message = _last_message(text, name)
    return {
        "type": name,
        "message": message[:2000],
        "traceback": text[-20_000:],
        "line": _own_line(text),
        "position": getattr(error, "loader_position", ""),
        "worker": worker,
        "exit_codes": _exit_codes(workers),
        "empty": isinstance(error, EmptyLoaderError),
    }


def _last_message(text: str, name: str) -> str:
    """What stands after the exception's name on the line where a traceback ends, with the lines that follow."""
    found = re.findall(rf"^(?:[\w.<>]+\.)?{re.escape(name)}(?:: (.*))?$", text, re.MULTILINE)
    return found[-1] if found else text.strip().rsplit("\n", 1)[-1]


def _own_line(text: str) -> str:
    """The innermost line of a traceback that is neither torch's, Python's nor this package's: the user's own."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    own = [frame for frame in frames if not any(part in frame[0] for part in _NOT_THE_USERS)]
    return "{}:{} in {}".format(*own[-1]) if own else ""


def _exit_codes(workers: list[Any]) -> dict[str, int]:
    """Exit codes of loader workers that have died, by worker number; waits a moment for one that is dying."""
    deadline = time.monotonic() + EXIT_CODE_SECONDS
    while workers:
        codes = {str(i): w.exitcode for i, w in enumerate(workers) if w.exitcode not in (None, 0)}
        if codes or time.monotonic() > deadline:
            return codes
        time.sleep(0.01)
    return {}
