"""A user's error as text that crosses process borders: type, message, their own line, worker, exit codes."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
import time
import traceback
from typing import Any

from workbench.loaders.cells import is_cell
from workbench.loaders.unpicklable import unsendable_part
from workbench.measure.stream import EmptyLoaderError

EXIT_CODE_SECONDS = 1.0
"""How long a dying worker is given to show its exit code."""
_WRAPPED = re.compile(r"^Caught (\S+) in DataLoader worker process (\d+)\.", re.MULTILINE)
_STANDARD = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(
    f"{folder}{os.sep}"
    for folder in {
        *(sysconfig.get_path(name) for name in ("purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
_LOADING = ("torch", "torchdata", "workbench")
"""Packages whose lines are never the user's own, wherever they are installed."""


def describe_error(error: BaseException, workers: list[Any], loader: Any = None) -> dict[str, Any]:
    """The user's error as text: type, message, own line, worker, and exit codes of workers that died.

    torch rebuilds a worker's exception from its message where it can and wraps it where it cannot; either way the
    original type and traceback stand in the text, and are taken from there.

    Args:
        error: What was raised.
        workers: The loader's worker processes.
        loader: Looked through for the part that cannot be pickled, where that is the error.
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
        "ended_workers": [place for place, worker in enumerate(workers) if worker.exitcode == 0],
        "empty": isinstance(error, EmptyLoaderError),
        "unsendable": unsendable_part(loader) if wrapped is None and "pickle" in text else "",
    }


def _last_message(text: str, name: str) -> str:
    """What stands after the exception's name on the line where a traceback ends, with the lines that follow."""
    found = re.findall(rf"^(?:[\w.<>]+\.)?{re.escape(name)}(?:: (.*))?$", text, re.MULTILINE)
    return found[-1] if found else text.strip().rsplit("\n", 1)[-1]


def _own_line(text: str) -> str:
    """The innermost line that the user wrote, as "train.py:12 in f", or "In[3], line 8, in f" for a notebook's cell.

    Where all lines are of installed packages, the innermost that is neither Python's own nor of what loads batches.
    """
    own = _own_frames(re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text))
    return _named(*own[-1]) if own else ""


def crash_line(output: str) -> str:
    """The innermost line that the user wrote in the trace that Python's faulthandler printed; empty where none is."""
    _, _, trace = output.rpartition("(most recent call first):\n")
    own = _own_frames(re.findall(r'^  File "([^"]+)", line (\d+) in (\S+)', trace, re.MULTILINE))
    return _named(*own[0]) if own else ""


def _own_frames(frames: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    loading = tuple(f"{os.path.dirname(file)}{os.sep}" for name in _LOADING if (file := _file_of(name)))
    others = [
        frame for frame in frames if not frame[0].startswith((*loading, "<frozen")) and not _is_standard(frame[0])
    ]
    return [frame for frame in others if not frame[0].startswith(_INSTALLED)] or others


def _named(file: str, line: str, function: str) -> str:
    return f"{file}, line {line}, in {function}" if is_cell(file) else f"{file}:{line} in {function}"


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _is_standard(file: str) -> bool:
    return file.startswith(_STANDARD) and not file.startswith(_INSTALLED)


def _exit_codes(workers: list[Any]) -> dict[str, int]:
    """Exit codes of loader workers that have died, by worker number; waits a moment for one that is dying."""
    deadline = time.monotonic() + EXIT_CODE_SECONDS
    while workers:
        codes = {str(i): w.exitcode for i, w in enumerate(workers) if w.exitcode not in (None, 0)}
        if codes or time.monotonic() > deadline:
            return codes
        time.sleep(0.01)
    return {}
