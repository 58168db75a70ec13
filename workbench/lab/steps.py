"""A training step of known cost on a device that works while the host goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.lab.answers import DEVICE_QUEUE
from workbench.lab.faults import StepFaults, faults_of
from workbench.lab.work import burn


class Resident(NamedTuple):
    """A batch that is on the device from the monotonic second `ready_at` on."""

    batch: Any
    ready_at: float


class LabStep:
    """Call it with a batch; the batch itself is not looked at.

    The device takes up to four batches ahead and finishes one every `device_seconds`; a host that is further ahead
    waits, as it does before a full queue of kernels. A batch that is not there yet is copied first: beside the
    device's work, or, from pageable memory, after it and while the host waits.
    """

    def __init__(self, faults: StepFaults) -> None:
        self.faults = faults
        self._free_at = 0.0  # monotonic seconds at which the device will have finished all it was given
        self._copied_at = 0.0  # and all copies

    def __call__(self, batch: Any = None) -> None:
        faults = self.faults
        if self.to_device is not None and not isinstance(batch, Resident):
            batch = self.to_device(batch)
        burn(faults.launch_seconds)
        ready_at = batch.ready_at if isinstance(batch, Resident) else 0.0
        self._free_at = max(time.monotonic(), self._free_at, ready_at) + faults.device_seconds
        ahead = 0 if faults.synchronise else DEVICE_QUEUE
        _sleep_until(self._free_at - ahead * faults.device_seconds)

    @property
    def to_device(self) -> Callable[[Any], Resident] | None:
        """What copies a batch to the device; None where copying costs nothing."""
        return self._copy if self.faults.copy_seconds else None

    def synchronize(self) -> None:
        """Waits until the device has finished all it was given, as `torch.accelerator.synchronize` does."""
        _sleep_until(max(self._free_at, self._copied_at))

    def without(self, *names: str) -> LabStep:
        """The same step with some faults switched off."""
        return LabStep(self.faults.without(*names))

    def _copy(self, batch: Any) -> Resident:
        faults = self.faults
        before = self._free_at if faults.pageable else 0.0
        self._copied_at = max(time.monotonic(), self._copied_at, before) + faults.copy_seconds
        ahead = 0 if faults.pageable else DEVICE_QUEUE
        _sleep_until(self._copied_at - ahead * faults.copy_seconds)
        return Resident(batch, self._copied_at)

    def __getstate__(self) -> dict[str, Any]:
        return {"faults": self.faults, "_free_at": 0.0, "_copied_at": 0.0}  # a device stays where it is


def step(**switches: Any) -> LabStep:
    """A step with the costs and faults of `StepFaults` given as keyword arguments.

    Raises:
        SettingsError: If a name is no fault, or a strength is none.
    """
    return LabStep(faults_of(StepFaults, switches))


def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
