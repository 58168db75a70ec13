"""What a loader factory returned: which knobs can still be set on it, and what to call it where it is no DataLoader."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from workbench.loaders.settings import KNOBS, STEP_KNOBS, LoaderSettings

LOADER_KNOBS = tuple(knob for knob in KNOBS if knob not in STEP_KNOBS)
ONLY_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "in_order")
WHY_FIXED = {
    "layout": "its dataset is made already",
    "batch_size": "something else than a batch size forms its batches",
    "batch_on_worker": "it forms no batches that a worker could form",
}


@dataclass(frozen=True)
class Returned:
    """What a call of a factory gave.

    Attributes:
        shown: What it is, with its article: "a list", "a Dataset (Photos)"; empty for a DataLoader.
        fixed: Knobs that cannot be set on it afterwards.
        settings: Those that a DataLoader was made with; None for anything else.
    """

    shown: str
    fixed: tuple[str, ...]
    settings: LoaderSettings | None = None


def returned(value: Any) -> Returned:
    """What `value`, returned by a factory, is and takes.

    Raises:
        SourceError: If it is a DataLoader that could not be iterated.
    """
    if not is_dataloader(value):
        return Returned(shown(value), LOADER_KNOBS)
    from workbench.loaders.rebuild import current_settings

    return Returned("", tuple(knob for knob in LOADER_KNOBS if not can_be_set(value, knob)), current_settings(value))


def can_be_set(loader: Any, knob: str) -> bool:
    """Whether the knob can be set on this DataLoader."""
    from workbench.loaders import batching, rebuild

    if knob == "batch_size":
        return rebuild.batch_size_is_free(loader)
    return batching.can_batch_on_worker(loader) if knob == "batch_on_worker" else knob != "layout"


def is_dataloader(candidate: Any) -> bool:
    """Whether it is a torch DataLoader, told without importing torch."""
    return not isinstance(candidate, type) and _is_a("DataLoader", candidate)


def is_dataset(candidate: Any) -> bool:
    """Whether it is a torch Dataset or a class of them, told without importing torch."""
    return _is_a("Dataset", candidate)


def is_map_style(candidate: Any) -> bool:
    """Whether it is a torch Dataset that is indexed, and cannot stand for its batches in any way."""
    return _is_a("Dataset", candidate) and not _is_a("IterableDataset", candidate)


def shown(value: Any) -> str:
    """What a value is in a sentence, with its article: "None", "7", "a list", "a Dataset (Photos)"."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, type):
        return f"the {'Dataset ' if is_dataset(value) else ''}class {value.__name__}"
    name = type(value).__name__
    if is_dataset(value):
        return f"{'a Dataset' if is_map_style(value) else 'an IterableDataset'} ({name})"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _is_a(kind: str, candidate: Any) -> bool:
    module = sys.modules.get("torch.utils.data")
    wanted = getattr(module, kind, None)
    if wanted is None:
        return False
    return issubclass(candidate, wanted) if isinstance(candidate, type) else isinstance(candidate, wanted)
