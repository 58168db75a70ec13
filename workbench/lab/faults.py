"""The switches: frozen records of what is wrong with a loader or a step, and how much."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from workbench.errors import SettingsError

SPLITS = ("shards", "none", "floor")
PARTNERS = (  # a fault, and what it needs
    ("tail_every", "tail_seconds"),
    ("tail_seconds", "tail_every"),
    ("cold_directory", "cold_seconds"),
    ("cold_seconds", "cold_directory"),
    ("storage_bytes", "storage_bytes_per_second"),
    ("storage_bytes_per_second", "storage_bytes"),
    ("threads", "decode_cpu_seconds"),
)


@dataclass(frozen=True)
class LoaderFaults:
    """What is wrong with a loader; every default is off.

    Attributes:
        decode_cpu_seconds: CPU burned for a sample, in Python, by the process that loads it.
        storage_seconds: Wait for a sample, as for a request to a store; takes no CPU.
        storage_bytes: Bytes of a request, for `storage_bytes_per_second`.
        storage_bytes_per_second: Bandwidth that all workers of a loader share; None is unlimited.
        collate_cpu_seconds: CPU burned in `collate_fn` for each sample of a batch.
        objects: Small Python objects that each sample sends along, pickled.
        tensors: Small tensors that each batch sends along.
        shards: Read as a stream of this many shards, dealt out to workers whole; None keeps random access.
        largest_shard: Share of the samples that the first shard holds; None is an equal share.
        split: How workers share a stream: "shards", "none" (each yields everything), or "floor" (each takes
            length // workers samples, and the rest is lost).
        leak_bytes: Kept for ever for each sample, by the process that loads it.
        tail_every: Every n-th sample waits `tail_seconds` longer; 0 is none.
        tail_seconds: See `tail_every`.
        first_item_seconds: Wait before the first sample of each process.
        threads: Threads that share the decoding of each sample; 0 is none beside the process's own.
        cold_directory: Folder made by `cold_files`; a sample reads the file of its number.
        cold_seconds: Wait for a sample whose file is not in the page cache.
        corrupt_every: In a worker, every n-th sample is replaced by the next one; 0 is none.
        pageable: Batches stay in pageable memory whatever `pin_memory` says. A real accelerator alone shows it, in the
            trace of a run; the lab's own device has `StepFaults.pageable`.

    Raises:
        SettingsError: If a strength is negative, not a number, or lacks its partner.
    """

    decode_cpu_seconds: float = 0.0
    storage_seconds: float = 0.0
    storage_bytes: int = 0
    storage_bytes_per_second: float | None = None
    collate_cpu_seconds: float = 0.0
    objects: int = 0
    tensors: int = 0
    shards: int | None = None
    largest_shard: float | None = None
    split: str = "shards"
    leak_bytes: int = 0
    tail_every: int = 0
    tail_seconds: float = 0.0
    first_item_seconds: float = 0.0
    threads: int = 0
    cold_directory: str | None = None
    cold_seconds: float = 0.0
    corrupt_every: int = 0
    pageable: bool = False

    def __post_init__(self) -> None:
        _check_strengths(self)
        if self.split not in SPLITS:
            raise SettingsError(f"split={self.split!r} is no way to split: choose one of {', '.join(SPLITS)}")
        if self.largest_shard is not None and not (0 < self.largest_shard < 1 and (self.shards or 0) > 1):
            raise SettingsError(
                f"largest_shard={self.largest_shard!r} is a share between 0 and 1, and needs shards=2 or more"
            )
        for one, other in PARTNERS:
            if bool(getattr(self, one)) and not getattr(self, other):
                raise SettingsError(f"{one} does nothing without {other}: give both")
        if self.corrupt_every and self.is_stream:
            raise SettingsError("corrupt_every works on random access: leave out shards and split")

    @property
    def is_stream(self) -> bool:
        """Whether the loader has no random access."""
        return self.shards is not None or self.split != "shards"

    @property
    def transfer_seconds(self) -> float:
        """Seconds for which a request has the shared bandwidth to itself."""
        return self.storage_bytes / self.storage_bytes_per_second if self.storage_bytes_per_second else 0.0

    def without(self, *names: str) -> LoaderFaults:
        """These faults with some switched off."""
        return replace(self, **{name: _default(self, name) for name in names})

    def named(self) -> dict[str, Any]:
        """The faults that are switched on, with their strengths."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


@dataclass(frozen=True)
class StepFaults:
    """What a training step costs, and whether it waits for the device.

    Attributes:
        device_seconds: Time a batch takes on the device, which works while the host goes on.
        launch_seconds: CPU that the host burns for a batch; all of the step where there is no device.
        synchronise: Whether the step waits for the device, as `loss.item()` does.
        copy_seconds: Time in which a batch is copied to the device, beside its work.
        pageable: Whether batches come from pageable memory: the copy then waits for what the device was given before,
            and the host for the copy.

    Raises:
        SettingsError: If a strength is negative or not a number, or `pageable` has nothing to copy.
    """

    device_seconds: float = 0.0
    launch_seconds: float = 0.0
    synchronise: bool = False
    copy_seconds: float = 0.0
    pageable: bool = False

    def __post_init__(self) -> None:
        _check_strengths(self)
        if self.pageable and not self.copy_seconds:
            raise SettingsError("pageable does nothing without copy_seconds: give both")

    def without(self, *names: str) -> StepFaults:
        """This step with some faults switched off."""
        return replace(self, **{name: _default(self, name) for name in names})


def faults_of(record: type, switches: dict[str, Any]) -> Any:
    """A record of faults from keyword arguments; SettingsError names the one that is no switch."""
    names = [field.name for field in fields(record)]
    if unknown := sorted(set(switches) - set(names)):
        raise SettingsError(f"{unknown[0]!r} is no fault: choose from {', '.join(names)}")
    return record(**switches)


def _check_strengths(record: Any) -> None:
    for field in fields(record):
        value, kind = getattr(record, field.name), str(field.type)
        if (value is None and "None" in kind) or kind.startswith("str"):
            continue
        if kind == "bool":
            if not isinstance(value, bool):
                raise SettingsError(f"{field.name}={value!r} must be True or False")
            continue
        number = isinstance(value, (int, float) if kind.startswith("float") else int) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf or (value == 0 and "None" in kind):
            way_out = "None for off" if "None" in kind else "0 for off"
            raise SettingsError(f"{field.name}={value!r} is no strength: give a {kind.split()[0]} above 0, {way_out}")


def _default(record: Any, name: str) -> Any:
    for field in fields(record):
        if field.name == name and field.default is not MISSING:
            return field.default
    raise SettingsError(f"{name!r} is no fault: choose from {', '.join(field.name for field in fields(record))}")
