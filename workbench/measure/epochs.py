"""Whether an epoch number set on the dataset reaches the workers: two epochs' order of data compared.

A dataset that reshuffles by `set_epoch` keeps the number in an attribute. Workers that start anew with every epoch copy
it; workers that stay alive (`persistent_workers`) keep their first copy, and every epoch silently repeats the first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.arrivals import Tap, seed_everything
from workbench.measure.digests import leaf_digests

EPOCH_BATCHES = 64  # batches of each epoch whose order is compared
NESTING = 4  # wrappers (Subset and the like) looked through for a dataset with `set_epoch`

Order = list[dict[str, bytes]]


def owner_of_set_epoch(loader: Any) -> Any:
    """The loader's dataset, or one that it wraps, that has `set_epoch`; None when there is none."""
    owner = getattr(loader, "dataset", None)
    for _ in range(NESTING):
        if owner is None or callable(getattr(owner, "set_epoch", None)):
            return owner
        owner = getattr(owner, "dataset", None)
    return None


def epoch_paths(loader: Any, seconds: float) -> tuple[str, ...]:
    """Leaves of the batch whose sequence comes back for the same epoch number and is another for the next one.

    Args:
        loader: Built with 0 workers.
        seconds: Time for each of three looks, from its first batch.
    """
    owner = owner_of_set_epoch(loader)
    if owner is None:
        return ()
    orders = []
    with _epoch_restored(owner):
        for seed, epoch in enumerate((0, 1, 0)):
            seed_everything(seed)
            with Tap(loader) as tap:
                orders.append(_order(tap, owner, epoch, seconds))
    again = [path for path in (orders[0][0] if orders[0] else ()) if _equal(orders[0], orders[2], path)]
    return tuple(sorted(path for path in again if not _equal(orders[0], orders[1], path)))


def frozen_epoch(tap: Tap, loader: Any, settings: LoaderSettings, paths: tuple[str, ...], seconds: float) -> str:
    """A sentence that says so when two epochs are equal although `paths` should differ; else empty.

    Args:
        tap: On the loader whose workers are alive.
        loader: Built for `settings`.
        settings: Only persistent workers that deliver in order are looked at.
        paths: What `epoch_paths` found at 0 workers.
        seconds: Time for each of two looks, from its first batch.
    """
    owner = owner_of_set_epoch(loader)
    if not (paths and owner is not None and settings.num_workers and settings.persistent_workers and settings.in_order):
        return ""
    with _epoch_restored(owner):
        orders = [_order(tap, owner, epoch, seconds) for epoch in (0, 1)]
    if not all(orders) or not all(_equal(*orders, path) for path in paths):
        return ""
    return (
        "every epoch repeats the first: set_epoch() changes the data at num_workers=0 but does not reach workers that "
        "stay alive; turn persistent_workers off, or keep the epoch number in shared memory"
    )


def _order(tap: Tap, owner: Any, epoch: int, seconds: float) -> Order:
    owner.set_epoch(epoch)
    order: Order = []
    deadline = None
    for arrival in tap.epoch():
        deadline = deadline or time.monotonic() + seconds
        order.append(leaf_digests(arrival.batch))
        if len(order) >= EPOCH_BATCHES or time.monotonic() > deadline:
            break
    return order


def _equal(one: Order, two: Order, path: str) -> bool:
    pairs = list(zip(one, two, strict=False))
    return bool(pairs) and all(a.get(path) == b.get(path) for a, b in pairs)


@contextlib.contextmanager
def _epoch_restored(owner: Any) -> Iterator[None]:
    before = getattr(owner, "epoch", getattr(owner, "_epoch", None))
    try:
        yield
    finally:
        if isinstance(before, int):
            owner.set_epoch(before)
