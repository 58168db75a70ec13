"""A training step of known cost on a device that works while the host goes on."""

from __future__ import annotations

import time
from typing import Any

from workbench.lab.answers import DEVICE_QUEUE
from workbench.lab.faults import StepFaults, faults_of
from workbench.lab.work import burn


class LabStep:
    """Call it with a batch; the batch itself is not looked at.

    The device takes up to four batches ahead and finishes one every `device_seconds`; a host that is further ahead
    waits, as it does before a full queue of kernels.
    """

    def __init__(self, faults: StepFaults) -> None:
        self.faults = faults
        self._free_at = 0.0  # monotonic seconds at which the device will have finished all it was given

    def __call__(self, batch: Any = None) -> None:
        faults = self.faults
        burn(faults.launch_seconds)
        self._free_at = max(time.monotonic(), self._free_at) + faults.device_seconds
        ahead = 0 if faults.synchronise else DEVICE_QUEUE
        _sleep_until(self._free_at - ahead * faults.device_seconds)

    def synchronize(self) -> None:
        """Waits until the device has finished all it was given, as `torch.accelerator.synchronize` does."""
        _sleep_until(self._free_at)

    def without(self, *names: str) -> LabStep:
        """The same step with some faults switched off."""
        return LabStep(self.faults.without(*names))

    def __getstate__(self) -> dict[str, Any]:
        return {"faults": self.faults, "_free_at": 0.0}  # a device is not carried over to another process


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
