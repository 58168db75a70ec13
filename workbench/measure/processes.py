"""The few system calls that tie processes together so that none outlives the program that wanted it.

Standard library only. Linux; elsewhere the ties that the kernel does not offer are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

from workbench.measure.memory import SHM_DIRECTORY, is_helper, torch_shm_names, tree

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HELPER_GRACE_SECONDS = 3.0
"""How long processes that unlink shared-memory names may outlive those they clean up after; killing them at once
leaves 11 to 14 named semaphores for each trial with spawn or forkserver workers."""
KILL_DEADLINE_SECONDS = 10.0


def become_subreaper() -> None:
    """Makes orphans below this process its own children, so that "no child left" means "no descendant left"."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when `parent` dies; ends it now when that has happened already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(126)


def tie_future_forks() -> None:
    """Makes every process that this one forks from Python (loader workers are) die with the one that forked it."""
    forker = [0]

    def before() -> None:
        forker[0] = os.getpid()

    os.register_at_fork(before=before, after_in_child=lambda: die_with_parent(forker[0]))


def reap() -> dict[int, int]:
    """Exit codes by pid of all children that have ended, negative for a signal; never waits."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def kill_descendants(spare: frozenset[int] = frozenset()) -> dict[int, int]:
    """Kills all descendants of this subreaper but `spare`, until none is left, and returns their exit codes.

    Processes that unlink shared-memory names go last. What the dead had named there is unlinked.
    """
    begun = time.monotonic()
    ended: dict[int, int] = {}
    seen: set[int] = set()
    me = os.getpid()
    while True:
        ended |= reap()
        alive = [pid for pid in tree(me) if pid != me and pid not in spare]
        seen |= set(alive)
        waited = time.monotonic() - begun
        if not alive or waited > KILL_DEADLINE_SECONDS:
            break
        for pid in alive:
            if waited > HELPER_GRACE_SECONDS or not is_helper(pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    for name in torch_shm_names(seen):
        with contextlib.suppress(OSError):
            os.unlink(f"{SHM_DIRECTORY}/{name}")
    return ended


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
