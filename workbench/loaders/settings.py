"""LoaderSettings: one frozen combination of the knobs that a DataLoader is rebuilt with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from workbench.errors import SettingsError

DEFAULT_PREFETCH_FACTOR = 2  # what DataLoader uses when workers are on and nothing is said
START_METHODS = ("fork", "spawn", "forkserver")


@dataclass(frozen=True)
class LoaderSettings:
    """One combination of knobs; equal combinations compare equal.

    What means nothing at 0 workers (`prefetch_factor`, `persistent_workers`, `multiprocessing_context`, `in_order`)
    is put to one value there, so that settings a DataLoader could not tell apart are one settings here.

    Attributes:
        num_workers: Worker processes; 0 loads in the training process.
        prefetch_factor: Batches each worker keeps ready (batches, not samples); None at 0 workers.
        pin_memory: Copy batches into page-locked memory, for faster and overlapping copies to an accelerator.
        persistent_workers: Keep workers alive between epochs.
        batch_on_worker: Let the worker's dataset yield whole batches (`batch_size=None`).
        multiprocessing_context: "fork", "spawn" or "forkserver"; None keeps what the loader has.
        in_order: False lets a batch that is ready pass one that is not.
        batch_size: Samples a batch; None keeps what the loader has. Changing it changes training.

    Raises:
        SettingsError: If a value is one that no DataLoader accepts.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_on_worker: bool = False
    multiprocessing_context: str | None = None
    in_order: bool = True
    batch_size: int | None = None
