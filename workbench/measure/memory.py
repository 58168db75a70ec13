"""Memory, processor time and threads of a process tree, read from /proc by a process outside that tree.

Standard library only: the warden imports this before anything else exists.

What a tree costs is not the sum of its RSS (a shared page counts once a process) nor of its PSS alone: with the
`file_descriptor` sharing strategy a finished batch is unmapped once it is sent and, until it is received, its pages
belong to no address space, only to an open descriptor. `TreeCost` adds those. A trial forked from the trial server
shares pages with it; see `exact_cost` for how they are counted once and only where the trial still uses them. Pages of
files are shared with programs that have nothing to do with it, such as those of libtorch with the notebook's kernel:
`file_bytes` counts them whole, as they would be if the tree ran alone.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from workbench import machine

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SHM_DIRECTORY = "/dev/shm"
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing/resource_tracker", b"torch_shm_manager")
_MAPPED_FILE = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) +(/.*)\n"
    r"(?:[A-Z].*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB\n(?:[A-Z].*\n)*?Anonymous: +(\d+) kB",
    re.MULTILINE,
)
_NAMELESS_SHARED_MEMORY = ("/memfd:", "/dev/zero", "/SYSV")
_TORCH_SHM_NAME = re.compile(r"^torch_(\d+)_")


@dataclass(frozen=True)
class TreeCost:
    """One exact reading of a process tree, in bytes.

    Attributes:
        cost_bytes: PSS that the tree would have if it ran alone, with shared memory replaced by the larger of what is
            mapped and what is held open, since a batch on its way between two processes is held open but mapped by
            neither.
        anonymous_bytes: Proportional share of anonymous pages.
        main_anonymous_bytes: Of these, those of the first process: the one that a training loop would run in.
        file_bytes: File-backed pages (page cache, reclaimable), each counted once.
        shared_bytes: Shared memory: mapped share, or bytes held open where that is more.
        shm_bytes: Bytes of shared-memory files that the tree holds open or has named.
        rss_bytes: Sum of resident set sizes, which counts a shared page once a process.
        descriptors: Most open descriptors of any one process.
    """

    cost_bytes: int
    anonymous_bytes: int
    main_anonymous_bytes: int
    file_bytes: int
    shared_bytes: int
    shm_bytes: int
    rss_bytes: int
    descriptors: int


@dataclass(frozen=True)
class Reading:
    """One cheap reading of a tree.

    Attributes:
        at_seconds: CLOCK_MONOTONIC of the reading.
        rss_bytes: Sum of resident set sizes.
        threads: Threads alive in the tree.
        cpu_seconds: Processor seconds by (process, thread) of the threads alive now.
        reaped_seconds: By process, those of its children that have ended and were waited for, and of theirs.
        busy_seconds: Processor seconds that the whole machine has been busy since boot, steal included.
        pids: Processes of the tree, the root first.
    """

    at_seconds: float
    rss_bytes: int
    threads: int
    cpu_seconds: dict[tuple[int, int], float]
    reaped_seconds: dict[int, float]
    busy_seconds: float
    pids: tuple[int, ...]


def children(pid: int) -> list[int]:
    """Direct children of a process, over all of its threads; empty when it is gone."""
    found: list[int] = []
    for task in _names(f"/proc/{pid}/task"):
        found += map(int, _text(f"/proc/{pid}/task/{task}/children").split())
    return found


def tree(root: int) -> list[int]:
    """The process and all of its descendants, parents before children."""
    found = [root]
    for pid in found:
        found += children(pid)
    return found


def read(pids: list[int]) -> Reading:
    """RSS, threads and processor time of these processes: about 0.1 ms a process, no page tables walked."""
    rss = threads = 0
    cpu: dict[tuple[int, int], float] = {}
    reaped: dict[int, float] = {}
    for pid in pids:
        fields = _text(f"/proc/{pid}/statm").split()
        rss += int(fields[1]) * PAGE_BYTES if len(fields) > 1 else 0
        tasks = _names(f"/proc/{pid}/task")
        threads += len(tasks)
        for task in tasks:
            spent = _text(f"/proc/{pid}/task/{task}/schedstat").split()
            cpu[pid, int(task)] = int(spent[0]) * 1e-9 if spent else 0.0
        after_name = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        reaped[pid] = sum(map(int, after_name[13:15])) / TICKS_PER_SECOND
    return Reading(time.monotonic(), rss, threads, cpu, reaped, busy_seconds(_text("/proc/stat")), tuple(pids))


def ended_seconds(before: Reading, after: Reading) -> float:
    """Processor seconds that processes which ended between two readings had used beyond what `before` saw of them.

    Workers of short epochs come and go between two readings: what each used is in the times of its parent, once that
    has waited for it (`cutime`, `cstime`; proc(5)). In steps of 10 ms.
    """
    waited_for = sum(after.reaped_seconds.values()) - sum(before.reaped_seconds.values())
    gone = set(before.pids) - {pid for pid, _ in after.cpu_seconds}
    seen = sum(seconds for (pid, _), seconds in before.cpu_seconds.items() if pid in gone)
    return max(0.0, waited_for - seen)


def busy_seconds(stat_text: str) -> float:
    """Busy processor seconds since boot from the text of /proc/stat: all columns but idle, iowait and guests."""
    columns = [int(v) for v in stat_text.split("\n", 1)[0].split()[1:9]]
    columns += [0] * (8 - len(columns))
    user, nice, system, _idle, _iowait, irq, softirq, steal = columns
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def exact_cost(pids: list[int], server: int | None = None) -> TreeCost:
    """What the tree costs, from the kernel's page tables: 5 to 30 ms a process, so never inside a timed window.

    Args:
        pids: Processes of the trial.
        server: The process that the trial was forked from, if any. An anonymous page that the trial shares with it
            would, in a program of the user's own, exist once: the server's share of such pages is added. Pages that
            only the server still maps (the trial has written its own copies, or never needed them) are left out.
    """
    anonymous = main_anonymous = mapped = rss = 0
    for pid in pids:
        rollup = parse_rollup(_text(f"/proc/{pid}/smaps_rollup"))
        main_anonymous = rollup.get("Pss_Anon", 0) if pid == pids[0] else main_anonymous
        anonymous += rollup.get("Pss_Anon", 0)
        mapped += rollup.get("Pss_Shmem", 0)
        rss += rollup.get("Rss", 0)
    if server is not None:
        rollup = parse_rollup(_text(f"/proc/{server}/smaps_rollup"))
        anonymous += max(0, rollup.get("Pss_Anon", 0) - rollup.get("Private_Dirty", 0))
    files = file_bytes(_text(f"/proc/{pid}/smaps") for pid in pids)
    held, descriptors = held_shared_memory(pids)
    shared = max(mapped, held)
    return TreeCost(
        cost_bytes=anonymous + files + shared,
        anonymous_bytes=anonymous,
        main_anonymous_bytes=main_anonymous,
        file_bytes=files,
        shared_bytes=shared,
        shm_bytes=held,
        rss_bytes=rss,
        descriptors=descriptors,
    )


def file_bytes(texts: Iterable[str]) -> int:
    """Resident bytes of files that a tree maps, each page counted once, from its texts of /proc/PID/smaps.

    Two figures of a mapping are at most the truth: its summed PSS, which falls short where programs outside the tree
    map the same pages, and the largest resident set of any one process, which falls short where each process has other
    pages (a memory-mapped dataset). The larger is taken. Pages of tmpfs are shared memory and left out.
    """
    shares: dict[tuple[str, ...], int] = defaultdict(int)
    largest: dict[tuple[str, ...], int] = defaultdict(int)
    for text in texts:
        for offset, device, inode, path, rss, pss, anonymous in _MAPPED_FILE.findall(text):
            if device in _tmpfs_devices() or path.startswith(_NAMELESS_SHARED_MEMORY):
                continue
            mapping, copied = (device, inode, offset), int(anonymous)  # pages written to are anonymous by now
            shares[mapping] += max(0, int(pss) - copied)
            largest[mapping] = max(largest[mapping], int(rss) - copied)
    return 1024 * sum(max(share, largest[mapping]) for mapping, share in shares.items())


@cache
def _tmpfs_devices() -> frozenset[str]:
    """Devices of mounted tmpfs as smaps writes them, "00:1a"."""
    found = set()
    for line in _text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] in ("tmpfs", "devtmpfs"):
            major, minor = map(int, before.split()[2].split(":"))
            found.add(f"{major:02x}:{minor:02x}")
    return frozenset(found)


def parse_rollup(text: str) -> dict[str, int]:
    """Bytes by field name from the text of /proc/PID/smaps_rollup; empty for a process that is gone."""
    found = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            found[name] = int(number[0]) * 1024
    return found


def held_shared_memory(pids: list[int]) -> tuple[int, int]:
    """Bytes of /dev/shm files that these processes hold open or have named, and the most descriptors of any one.

    Files are counted once by inode. Names cover the `file_system` sharing strategy, which keeps no descriptor.
    """
    sizes: dict[int, int] = {}
    most = 0
    for pid in pids:
        descriptors = _names(f"/proc/{pid}/fd")
        most = max(most, len(descriptors))
        for descriptor in descriptors:
            path = f"/proc/{pid}/fd/{descriptor}"
            try:
                if os.readlink(path).startswith(SHM_DIRECTORY + "/"):
                    status = os.stat(path)
                    sizes[status.st_ino] = status.st_blocks * 512
            except OSError:
                continue
    for name in torch_shm_names(set(pids)):
        try:
            status = os.stat(f"{SHM_DIRECTORY}/{name}")
        except OSError:
            continue
        sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values()), most


def torch_shm_names(pids: set[int]) -> list[str]:
    """Names in /dev/shm that torch gave to tensors shared by one of these processes."""
    found = []
    for name in _names(SHM_DIRECTORY):
        match = _TORCH_SHM_NAME.match(name)
        if match and int(match.group(1)) in pids:
            found.append(name)
    return found


def high_water_bytes(pids: list[int], mapped_bytes: int = 0) -> int:
    """Sum over processes of how far each one's peak RSS lies above its RSS now: memory that came and went.

    Args:
        pids: Processes.
        mapped_bytes: Shared memory that any one of them may have mapped meanwhile; it is counted elsewhere.
    """
    total = 0
    for pid in pids:
        fields = dict(line.split(":", 1) for line in _text(f"/proc/{pid}/status").splitlines() if line.startswith("Vm"))
        if "VmHWM" in fields and "VmRSS" in fields:
            above = (int(fields["VmHWM"].split()[0]) - int(fields["VmRSS"].split()[0])) * 1024
            total += max(0, above - mapped_bytes)
    return total


def reset_high_water(pids: list[int]) -> None:
    """Makes each process's peak RSS start again from its RSS now (`clear_refs`, see proc(5))."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue


def available_bytes(root: str | Path = "/") -> int | None:
    """Memory that can still be taken: the machine's, or what the tightest cgroup leaves, whichever is less."""
    return machine.memory_available_bytes(root)


def is_helper(pid: int) -> bool:
    """Whether this is one of the processes that remove shared-memory names after everyone else has gone."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _HELPERS)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
