"""A DataLoader from one mapping of arguments and knobs, for configuration files that name one callable."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from workbench.loaders.batching import whole_batches
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.workers import share_by, with_worker_knobs


def tuned_loader(
    dataset: Any,
    *,
    batch_on_worker: bool = False,
    worker_threads: int | None = None,
    sharing_strategy: str | None = None,
    **arguments: Any,
) -> DataLoader:
    """A `DataLoader` with the knobs that DataLoader has no argument for.

    Args:
        dataset: What to load.
        batch_on_worker: As in `LoaderSettings`.
        worker_threads: As in `LoaderSettings`.
        sharing_strategy: As in `LoaderSettings`; set for this process too, and for all its loaders.
        **arguments: What `DataLoader` takes.

    Raises:
        SettingsError: If a knob has a value that it cannot have.
        SourceError: If `batch_on_worker` asks for what this loader does not have.
    """
    loader = DataLoader(dataset, **arguments)
    told = LoaderSettings(loader.num_workers, worker_threads=worker_threads, sharing_strategy=sharing_strategy)
    if told.sharing_strategy is not None:
        share_by(told.sharing_strategy)
    with_worker_knobs(loader, told)
    return whole_batches(loader) if batch_on_worker else loader
