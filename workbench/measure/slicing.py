"""Whether a dataset that is asked item by item could give a whole batch at once: one slice timed against its items."""

from __future__ import annotations

import time
from typing import Any

from workbench.loaders.counting import count_samples, count_tensors
from workbench.measure.arrivals import is_map_style

CHEAP_ITEM_SECONDS = 1e-3
"""Above it, what an item costs is its own work (decoding, reading), which no slice takes away."""
WORTH_OFFERING = 3.0
"""Times that a slice must be faster than its items."""
LEAST_ITEMS, MOST_ITEMS = 4, 256
LOOKS = 3


def batched_fetch_note(loader: Any) -> str:
    """A sentence that offers `__getitems__` where one slice of the dataset is far cheaper than its items; else empty.

    Asked only of a map-style dataset that has no `__getitems__`, forms batches of known size, and whose items are
    cheap; a dataset that takes no slice, or gives something else for it, is left alone.

    Args:
        loader: Built with 0 workers.
    """
    size = getattr(loader, "batch_size", None)
    if not is_map_style(loader) or not isinstance(size, int) or hasattr(loader.dataset, "__getitems__"):
        return ""
    try:
        return _compared(loader.dataset, min(size, len(loader.dataset), MOST_ITEMS))
    except Exception:  # the user's dataset was asked for what it may not know
        return ""


def _compared(dataset: Any, items: int) -> str:
    if items < LEAST_ITEMS:
        return ""
    begun = time.perf_counter()
    dataset[0]
    if time.perf_counter() - begun > CHEAP_ITEM_SECONDS:
        return ""
    one_by_one = min(_seconds(lambda: [dataset[i] for i in range(items)]) for _ in range(LOOKS))
    together = dataset[:items]
    stacked = 0 < count_tensors(together) < items
    if not stacked or count_samples(together, items).samples != items:
        return ""
    at_once = min(_seconds(lambda: dataset[:items]) for _ in range(LOOKS))
    if one_by_one < WORTH_OFFERING * at_once:
        return ""
    return (
        f"batched fetch: {items} items one by one take {one_by_one * 1e3:.2g} ms, one slice of them "
        f"{at_once * 1e3:.2g} ms; give the dataset __getitems__(indices), which DataLoader then calls once a batch"
    )


def _seconds(call: Any) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
