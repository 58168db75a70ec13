"""What a process is told before it loads: how many threads it computes with, and how tensors reach other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from workbench.loaders.settings import LoaderSettings


class WorkerInit:
    """A `worker_init_fn` that runs the loader's own, then sets threads and sharing strategy of its worker.

    Picklable, if the loader's own is, for workers that are not forked: these know nothing of what was set in the
    process that starts them.

    Args:
        own: The loader's `worker_init_fn`, or None.
        worker_threads: As in `LoaderSettings`; None leaves the worker's.
        sharing_strategy: As in `LoaderSettings`; None leaves the worker's.
    """

    def __init__(
        self, own: Callable[[int], Any] | None, worker_threads: int | None = None, sharing_strategy: str | None = None
    ) -> None:
        self.own, self.worker_threads, self.sharing_strategy = own, worker_threads, sharing_strategy

    def __call__(self, worker_id: int) -> None:
        if self.own is not None:
            self.own(worker_id)
        if self.worker_threads is not None:
            compute_with(self.worker_threads)
        if self.sharing_strategy is not None:
            share_by(self.sharing_strategy)


def compute_with(threads: int) -> None:
    """Has torch, and OpenCV where it was imported, compute with so many threads in this process from now on.

    A library with a thread pool of its own, such as the BLAS that NumPy calls, keeps its number.
    """
    torch.set_num_threads(threads)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(threads)


def share_by(strategy: str) -> None:
    """Has this process, and workers that it forks, hand tensors to other processes by this strategy from now on."""
    torch.multiprocessing.set_sharing_strategy(strategy)


def worker_knobs(loader: DataLoader) -> dict[str, Any]:
    """The threads and the sharing strategy that a loader's `WorkerInit` sets, as knobs; nothing for other loaders."""
    init = loader.worker_init_fn
    if not isinstance(init, WorkerInit) or not loader.num_workers:
        return {}
    return {"worker_threads": init.worker_threads, "sharing_strategy": init.sharing_strategy}


def with_worker_knobs(loader: DataLoader, settings: LoaderSettings) -> DataLoader:
    """The loader itself, its `worker_init_fn` wrapped where `settings` say what a worker is told.

    What the settings leave open stays as the loader has it, also where an earlier `WorkerInit` said it.
    """
    if settings.worker_threads is None and settings.sharing_strategy is None:
        return loader
    own, before = loader.worker_init_fn, worker_knobs(loader)
    loader.worker_init_fn = WorkerInit(
        own.own if isinstance(own, WorkerInit) else own,
        settings.worker_threads or before.get("worker_threads"),
        settings.sharing_strategy or before.get("sharing_strategy"),
    )
    return loader
