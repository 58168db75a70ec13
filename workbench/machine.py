"""Cores, memory, shared memory and accelerator that this process may really use, and sizes as people write them."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import SettingsError

# A group without a limit shows "max" (v2), -1 (v1 quota) or 2^63 less a page (v1 memory); no machine has 2^60 bytes.
NO_LIMIT_BYTES = 2**60
# DataLoader copies batches to page-locked memory for every accelerator except this one (torch 2.13, dataloader.py).
DOES_NOT_PIN = frozenset({"mps"})
# Total memory changes by some pages from one boot to the next; less than this is the same machine.
SAME_MEMORY_FRACTION = 0.02
NOT_INSTALLED = "not installed"

_BYTES_IN = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", start=1):
    _BYTES_IN |= {_prefix: 1000**_power, f"{_prefix}B": 1000**_power, f"{_prefix}IB": 1024**_power}
_SECONDS_IN = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = r"(\d+\.?\d*|\.\d+)"


class SharedMemory(NamedTuple):
    """Size of the file system that batches travel through on their way from worker to main process."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Accelerator:
    """The device that training would run on.

    Attributes:
        kind: "cuda" (ROCm too), "xpu", "mps", ...; None where there is none.
        name: What the vendor calls it; None when it cannot be known without starting the device.
        count: Devices of this kind that the process sees.
        pins: Whether `pin_memory=True` does anything here.
    """

    kind: str | None = None
    name: str | None = None
    count: int = 0
    pins: bool = False


# -- cores and memory --


def usable_cores(root: str | Path = "/") -> int:
    """Cores this process can keep busy: the smaller of its affinity and its cgroup CPU quota, rounded up, at least 1.

    Args:
        root: Where the file system, or a single cgroup folder, is read; a test puts its own files there.
    """
    return max(1, math.ceil(usable_cores_exact(root)))


def usable_cores_exact(root: str | Path = "/") -> float:
    """As `usable_cores`, with the fraction that a quota such as 150 ms in every 100 ms allows (1.5)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(affinity), *_cpu_quotas(Path(root))])


def memory_limit_bytes(root: str | Path = "/") -> int | None:
    """Most memory this process and its children may use: the smaller of cgroup limit and machine; None if unknown."""
    root = Path(root)
    return min(
        (limit for limit in (_total_memory(root), *(g.limit for g in _memory_groups(root))) if limit), default=None
    )


def memory_available_bytes(root: str | Path = "/") -> int | None:
    """Memory that can be taken now without swapping or reaching a cgroup limit; None if unknown.

    Page cache (`active_file` and `inactive_file`), which the kernel gives back when asked, counts as free, as it does
    in `MemAvailable`.
    """
    root = Path(root)
    free = [group.limit - group.used for group in _memory_groups(root) if group.used is not None]
    machine = _meminfo(root, "MemAvailable")
    return max(0, min([*free, *([] if machine is None else [machine])])) if free or machine is not None else None


def shared_memory_bytes(path: str | Path = "/dev/shm") -> SharedMemory | None:
    """Size and free space of the shared-memory file system; None where the platform has none."""
    try:
        stat = os.statvfs(path)
    except (OSError, AttributeError):
        return None
    return SharedMemory(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


# -- accelerator and fingerprint --


def accelerator() -> Accelerator:
    """The accelerator torch would use, found without starting it; imports torch on the first call.

    Starting a device here would break it in every process forked later, so its name is read from the driver.
    """
    import torch

    if hasattr(torch, "accelerator"):
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        kind = getattr(device, "type", None)
    else:  # torch < 2.6
        backends = {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.backends.mps}
        kind = next((kind for kind, backend in backends.items() if backend.is_available()), None)
    if kind in (None, "cpu"):
        return Accelerator()
    return Accelerator(kind, _device_name(kind), _device_count(torch, kind), kind not in DOES_NOT_PIN)


def fingerprint() -> dict[str, str | int | float | None]:
    """What must be equal before two measurements may be compared; None is unknown. Imports torch."""
    device = accelerator()
    return {
        "cpu": _cpu_model(),
        "usable_cores": usable_cores_exact(),
        "memory_bytes": memory_limit_bytes(),
        "accelerator": f"{device.count} x {device.name or device.kind}" if device.kind else "none",
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torchdata": _version("torchdata"),
    }


def fingerprint_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One phrase for each known fact that differs, such as "torch was 2.12.0, is 2.13.0"; empty if comparable.

    A fact that either side does not know is passed over, and so is memory that differs by less than 2 %.
    """
    phrases = []
    for key, old in before.items():
        new = now.get(key)
        if old is None or new is None or old == new:
            continue
        if key.endswith("_bytes"):
            if abs(new - old) <= SAME_MEMORY_FRACTION * max(old, new):
                continue
            old, new = format_bytes(old), format_bytes(new)
        phrases.append(f"{key.removesuffix('_bytes').replace('_', ' ')} was {old}, is {new}")
    return phrases


# -- sizes and times as people write them --


def parse_bytes(size: str | int | float) -> int:
    """Bytes in a size such as "8GiB" (binary), "500MB" or "500M" (decimal), or a plain number of bytes.

    Raises:
        SettingsError: If it is no size, or not more than 0.
    """
    match = re.fullmatch(_NUMBER + r"\s*([A-Za-z]*)", _text(size))
    unit = _BYTES_IN.get(match[2].upper()) if match else None
    amount = float(match[1]) * unit if unit else 0
    if not 1 <= amount < NO_LIMIT_BYTES:
        raise SettingsError(f"{size!r} is not a size; write bytes above 0, or a number with a unit: '8GiB', '500MB'")
    return size if isinstance(size, int) else round(amount)


def parse_seconds(time: str | int | float, name: str = "") -> float:
    """Seconds in a time such as "120s", "2m", "1h30m", "500ms", or a plain number of seconds.

    Args:
        time: The text or number.
        name: What it is the value of, for the error.

    Raises:
        SettingsError: If it is no time, or not more than 0.
    """
    text = _text(time)
    parts = re.findall(_NUMBER + r"\s*(ms|min|s|m|h)", text)
    whole = re.fullmatch(rf"(?:{_NUMBER}\s*(?:ms|min|s|m|h)\s*)+", text)
    seconds = sum(float(number) * _SECONDS_IN[unit] for number, unit in parts) if whole else 0.0
    if re.fullmatch(_NUMBER, text):
        seconds = float(text)
    if not 0 < seconds < math.inf:
        given = f"{name}={time!r}" if name else repr(time)
        raise SettingsError(f"{given} is not a time; write seconds above 0, or a number with a unit: '120s', '1h30m'")
    return seconds


def format_bytes(size: int | float | None) -> str:
    """A size for people, in decimal units with two or three digits: "1.2 GB"; "–" if unknown."""
    if size is None:
        return "–"
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(size) >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.1f} {units[0]}" if units[0] != "B" and abs(size) < 9.95 else f"{size:.0f} {units[0]}"


def _text(value: str | int | float) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    return value.strip() if isinstance(value, str) else format(value, "f" if isinstance(value, float) else "d")


# -- /proc and /sys --


class _MemoryGroup(NamedTuple):
    limit: int  # bytes
    used: int | None  # bytes, less page cache that can be given back


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _group_folders(root, "cpu"):
        quota, _, period = (_read(folder / "cpu.max") or "").partition(" ")  # v2
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        microseconds, every = _integer(quota), _integer(period) or 100_000  # the kernel's default period
        if microseconds and microseconds > 0 and every > 0:
            yield microseconds / every


def _memory_groups(root: Path) -> Iterator[_MemoryGroup]:
    for folder in _group_folders(root, "memory"):
        for limit_file, used_file, cache in (
            ("memory.max", "memory.current", "(?:in)?active_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_(?:in)?active_file"),
        ):
            limit = _integer(_read(folder / limit_file))
            if limit is None or not 0 < limit < NO_LIMIT_BYTES:
                continue
            used = _integer(_read(folder / used_file))
            spare = sum(map(int, re.findall(rf"^{cache} (\d+)$", _read(folder / "memory.stat") or "", re.MULTILINE)))
            yield _MemoryGroup(limit, None if used is None else max(0, used - spare))


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """The cgroup folders whose limits apply: this process's own and all above it, v2 and v1, nearest first.

    A container often sees its own group as the mount's top while `/proc/self/cgroup` names a path from outside;
    folders that do not exist are then passed over, and the top remains.
    """
    yield root
    mount = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "0::/").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            tops = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            tops = [mount / controllers, mount / controller]
        else:
            continue
        inner = Path(path.lstrip("/"))
        for top in tops:
            yield from (top / above for above in (inner, *inner.parents) if ".." not in above.parts)
    yield mount / controller


def _total_memory(root: Path) -> int | None:
    total = _meminfo(root, "MemTotal")
    if total is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total


def _meminfo(root: Path, field: str) -> int | None:
    text = _read(root / "proc/meminfo") or _read(Path("/proc/meminfo")) or ""
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _device_count(torch: Any, kind: str) -> int:
    module = getattr(torch, "accelerator", None) or getattr(torch, kind, None)
    try:
        return max(1, module.device_count())
    except Exception:  # a driver may refuse in many ways; one device is what is_available promised
        return 1


def _device_name(kind: str, root: Path = Path("/")) -> str | None:
    if kind == "mps":
        return _cpu_model()
    models = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
    for information in sorted(root.glob("proc/driver/nvidia/gpus/*/information")) if kind == "cuda" else ():
        if found := models.search(_read(information) or ""):
            return found[1].strip()
    return None


@functools.cache
def _cpu_model() -> str | None:
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return found[1].strip() if found else platform.processor() or None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED
