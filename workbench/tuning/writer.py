"""Who writes a sweep: a process told apart from a later one with the same number."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_alive(writer: Mapping[str, Any]) -> bool:
    """Whether that very process still runs on this host; a process of another host is taken for gone."""
    if writer.get("host") != socket.gethostname():
        return False
    pid = writer.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return writer.get("born") in (None, _born(pid))


def _born(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot: a number used again for another process is told apart."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
