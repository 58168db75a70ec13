"""``layout`` as a knob: a loader factory that reads the same samples from whichever copy it is told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import LayoutError
from workbench.layouts.comparison import PreparedLayout
from workbench.layouts.protocol import Sample
from workbench.layouts.reader import open_dataset
from workbench.layouts.remote import redacted

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def layout_loader(
    prepared: Sequence[PreparedLayout] | Mapping[str, str | Path],
    *,
    transform: Callable[[Sample], Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 32,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
) -> Callable[..., DataLoader]:
    """A loader factory for ``Sweep``, ``measure`` and the panel, with ``layout`` among its knobs::

        prepared = prepare_layouts("photos/", "prepared/", ("files", "tar", "parquet"))
        loader = layout_loader(prepared, transform=decode, batch_size=64)
        Sweep(loader, SearchSpace(layout=["files", "tar", "parquet"], num_workers=[0, 2, 4])).run()

    Every copy gives the same samples in the same order, so that a sweep can check that nothing but the speed changed.

    Args:
        prepared: What ``prepare_layouts`` returned, or names with folders, URLs or shards that ``open_dataset`` reads.
            The first one is the layout in use, against which the others are compared.
        transform: Applied to every sample; None leaves it as it is stored.
        collate_fn: Forms a batch; None takes DataLoader's own.
        batch_size: Samples a batch, unless the settings say another number.
        shuffle: Read in an order drawn from ``seed`` and not from front to back: shards are made for the latter.
        seed: Of that order, the same for every layout.
        drop_last: Leave out a last batch that is not full.

    Raises:
        LayoutError: There is no layout, or two have one name.
    """
    places = _places(prepared)
    return functools.partial(
        loader_of_layout,
        places=places,
        transform=transform,
        collate_fn=collate_fn,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        layout=next(iter(places)),
        batch_size=batch_size,
    )


def loader_of_layout(
    layout: str,
    *,
    places: Mapping[str, str],
    transform: Callable[[Sample], Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    batch_size: int = 32,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    multiprocessing_context: str | None = None,
) -> DataLoader:
    """A ``DataLoader`` over the copy that ``places`` has under ``layout``; what ``layout_loader`` fills in.

    Raises:
        LayoutError: There is no such copy, or it cannot be read.
    """
    import torch
    from torch.utils.data import DataLoader

    if layout not in places:
        raise LayoutError(f"layout={layout!r} was not prepared: there are {', '.join(places)}; prepare it first.")
    return DataLoader(
        open_dataset(places[layout], transform=transform),
        batch_size=batch_size,
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(seed) if shuffle else None,
        collate_fn=collate_fn,
        drop_last=drop_last,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        multiprocessing_context=multiprocessing_context,
    )


def _places(prepared: Sequence[PreparedLayout] | Mapping[str, str | Path]) -> dict[str, str]:
    if isinstance(prepared, Mapping):
        found = [(name, str(place)) for name, place in prepared.items()]
    else:
        found = [(one.layout, str(one.path)) for one in prepared]
    places = dict(found)
    if not places or len(places) < len(found):
        names = ", ".join(name for name, _ in found) or "none"
        raise LayoutError(f"layouts {names}: give one or more, each under a name of its own.")
    return _Places({name: place if "://" in place else str(Path(place).absolute()) for name, place in places.items()})


class _Places(dict[str, str]):
    """Places by layout; shown without what a URL may hold of a secret, since a factory is shown with its arguments."""

    def __repr__(self) -> str:
        return repr({name: redacted(place) if "://" in place else place for name, place in self.items()})
