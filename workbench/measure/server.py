"""The trial server: a fresh interpreter that imports torch and the user's loader once, then forks a child per trial.

It never runs a torch operation on several threads, starts no accelerator and no thread: a parallel operation in a
process forked after one in its parent hangs for ever. Where loading the user's code starts threads all the same, it
says so and does not fork: then it runs one trial itself, and the warden starts a new server for the next.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
from typing import Any

from workbench.measure.processes import die_with_parent

SOCKET_FD = 3
MESSAGE_BYTES = 1 << 20
ADOPTED_SECONDS = 5.0


def serve(ship: str, *, fresh: bool) -> None:
    """Loads what was shipped, says whether that worked, and runs trials until the warden is gone.

    Args:
        ship: Path of what was shipped.
        fresh: Run one trial in this very process instead of forking.
    """
    warden = os.getppid()
    die_with_parent(warden)
    channel = socket.socket(fileno=SOCKET_FD)
    channel.set_inheritable(False)
    import torch  # here, so that importing this module in a spawned worker costs nothing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _import_numpy()
    before = _thread_count()
    try:
        source, step = _load(ship)
    except BaseException as error:  # the user's module may raise anything, SystemExit included
        channel.send(json.dumps(_failure(error)).encode()[: MESSAGE_BYTES // 2])
        return
    forks = not fresh and _thread_count() <= before
    channel.send(json.dumps({"kind": "ready", "forks": forks}).encode())
    while True:
        data, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
        if not data:
            return
        if not forks or _fork_twice():
            channel.close()
            _become_trial(json.loads(data), fds, warden, threads, source, step)
        for fd in fds:
            os.close(fd)


def _load(ship: str) -> tuple[Any, Any]:
    from workbench.loaders import shipping

    with open(ship, "rb") as file:
        source, step = shipping.load(file)
    source.resolve()
    shipping.install_by_value_pickling()
    gc.collect()  # else it is chance whether each trial, and each new worker in it, begins with a whole pass
    return source, step


def _import_numpy() -> None:
    """Imports numpy now, since its math library may start threads that are not the user's doing."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        return


def _failure(error: BaseException) -> dict[str, Any]:
    return {
        "kind": "failed",
        "error_type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error))[-20_000:],
    }


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1


def _fork_twice() -> bool:
    """Forks a child whose parent ends at once, so that the warden adopts it; True in that child."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return False
    if os.fork():
        os._exit(0)
    return True


def _become_trial(task: dict[str, Any], fds: list[int], warden: int, threads: int, source: Any, step: Any) -> None:
    """Runs one trial in this process and ends it; never returns."""
    code = 1
    try:
        report, control, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        if os.getpgrp() != os.getpid():
            os.setsid()
        deadline = time.monotonic() + ADOPTED_SECONDS
        while os.getppid() != warden and time.monotonic() < deadline:
            time.sleep(0.0005)
        die_with_parent(warden)
        import torch

        torch.set_num_threads(threads)
        from workbench.measure import worker
        from workbench.measure.channel import Channel

        code = worker.run(task, Channel(report, control), source, step)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], fresh="fresh" in sys.argv[2:])
