"""A DataLoader instance under other knobs: everything else, down to the identity of every object, stays.

The instance is copied attribute by attribute instead of being constructed anew, so that nothing a subclass or a user
put on it is lost, no constructor runs twice, and no random number is drawn. The exception are subclasses that start
an iterator or keep another DataLoader inside their constructor: a copy would go on serving from the old one, so these
are constructed again and then compared with the original.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from workbench.errors import SettingsError, SourceError
from workbench.loaders.settings import NOT_FOR_DATALOADER, LoaderSettings
from workbench.loaders.workers import worker_knobs

NOT_OF_THE_CONSTRUCTOR = (*NOT_FOR_DATALOADER, "batch_size")
KEPT_ARGUMENTS = ("dataset", "collate_fn", "timeout", "worker_init_fn", "generator", "snapshot_every_n_steps")
FRESH_STATE = {"_iterator": None, "_IterableDataset_len_called": None}
FRESH_STATE_OF_STATEFUL = {"next_iter_state": None, "_initial_iter_for_state_dict": False}  # torchdata 0.11


def current_settings(loader: DataLoader) -> LoaderSettings:
    """The knobs that the loader was made with; `batch_size` stays None, which means the loader's own.

    Raises:
        SourceError: If the loader has a value with which it cannot be iterated.
    """
    try:
        return LoaderSettings(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
            pin_memory=bool(loader.pin_memory),
            persistent_workers=bool(loader.persistent_workers),
            multiprocessing_context=loader.multiprocessing_context,
            in_order=bool(getattr(loader, "in_order", True)),
            **worker_knobs(loader),
        )
    except SettingsError as error:
        raise SourceError(f"the {type(loader).__name__} handed over cannot be iterated: {error}") from None


def rebuilt(loader: DataLoader, settings: LoaderSettings) -> DataLoader:
    """The same loader with the knobs of `settings`; `batch_on_worker` and what a worker is told are not looked at here.

    The dataset, samplers, collate function, generator and every other attribute are the same objects. The loader
    handed over is not iterated, and keeps its workers and its state. A loaded `state_dict` is not taken along: its
    form depends on the number of workers. At 0 workers a `timeout` is dropped, which DataLoader refuses there.

    Raises:
        SourceError: If the settings name a layout or change a batch size that this loader does not have, or the
            loader's class keeps live parts that its constructor cannot be made to repeat.
    """
    settings.loader_kwargs()  # refuses what the installed torch cannot do
    if settings.layout is not None:
        raise SourceError(
            f"layout={settings.layout!r} cannot be set on a {type(loader).__name__}, whose dataset is made already; "
            "hand over a factory with a keyword argument layout"
        )
    if live_parts(loader):
        return _constructed(loader, settings)
    twin = portable(loader)
    values: dict[str, Any] = {
        "num_workers": settings.num_workers,
        "prefetch_factor": settings.prefetch_factor,
        "pin_memory": settings.pin_memory,
        "persistent_workers": settings.persistent_workers,
        "multiprocessing_context": _context(loader, settings),
        "timeout": loader.timeout if settings.num_workers else 0,
        "pin_memory_device": "",  # deprecated; the current accelerator is used
    }
    if hasattr(loader, "in_order"):
        values["in_order"] = settings.in_order
    if settings.batch_size not in (None, loader.batch_size):
        values |= {"batch_size": settings.batch_size, "batch_sampler": _resized(loader, settings.batch_size)}
    assign(twin, values)
    return twin


class LivePart:
    """Stands, in a copy, for an iterator that the original's constructor started."""


def portable(loader: DataLoader) -> DataLoader:
    """A copy of the loader with `LivePart` for iterators, which hold processes and cannot be pickled."""
    twin = object.__new__(type(loader))
    values = {k: LivePart() if isinstance(v, _BaseDataLoaderIter) else v for k, v in _attributes(loader)}
    fresh = {**FRESH_STATE, **{k: v for k, v in FRESH_STATE_OF_STATEFUL.items() if hasattr(loader, k)}}
    assign(twin, values | fresh)
    return twin


def assign(loader: DataLoader, values: dict[str, Any]) -> None:
    """Set attributes in the order given, also those that DataLoader protects once it is initialised."""
    for name, value in values.items():
        object.__setattr__(loader, name, value)


def live_parts(loader: DataLoader) -> tuple[str, ...]:
    """Names of attributes of the loader that a copy would share in a harmful way: iterators and inner loaders."""
    kinds = (_BaseDataLoaderIter, DataLoader, LivePart)
    return tuple(name for name, value in _attributes(loader) if isinstance(value, kinds) and name != "_iterator")


def loader_line(loader: DataLoader) -> str:
    """One line about a loader: classes, samples where known, and how batches are formed."""
    parts = [f"{type(loader).__name__} over {type(loader.dataset).__name__}"]
    if not isinstance(loader.dataset, IterableDataset):
        try:
            parts.append(f"{len(loader.dataset):,} samples")
        except Exception:  # the user's own __len__, which may do anything
            parts.append("length unknown")
    if loader.batch_size is not None:
        parts.append(f"batch size {loader.batch_size}")
    else:
        parts.append("its batch_sampler forms batches" if loader.batch_sampler is not None else "no automatic batching")
    return ", ".join([*parts, current_settings(loader).describe()])


def batch_size_is_free(loader: DataLoader) -> bool:
    """Whether the loader forms batches of one number of samples, which could be another number."""
    return loader.batch_size is not None and (live_parts(loader) != () or _plain_batches(loader))


def _attributes(loader: DataLoader) -> Iterator[tuple[str, Any]]:
    yield from vars(loader).items()
    for cls in type(loader).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{cls.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            if name not in ("__dict__", "__weakref__") and hasattr(loader, name):
                yield name, getattr(loader, name)


def _context(loader: DataLoader, settings: LoaderSettings) -> Any:
    if settings.num_workers == 0:
        return None
    return settings.multiprocessing_context or loader.multiprocessing_context


def _plain_batches(loader: DataLoader) -> bool:
    made_by_loader = type(loader.batch_sampler)
    return made_by_loader.__name__ == "BatchSampler" and issubclass(made_by_loader, BatchSampler)


def _resized(loader: DataLoader, batch_size: int) -> BatchSampler:
    if loader.batch_size is None:
        why = "its batch_sampler forms the batches" if loader.batch_sampler is not None else "its dataset forms them"
        raise SourceError(
            f"batch_size={batch_size} cannot be set on this {type(loader).__name__}: {why}; "
            "hand over a factory that takes batch_size"
        )
    if not _plain_batches(loader):
        raise SourceError(
            f"batch_size={batch_size} cannot be set: the loader's batch_sampler was replaced by a "
            f"{type(loader.batch_sampler).__name__}; hand over a factory that takes batch_size"
        )
    return type(loader.batch_sampler)(loader.sampler, batch_size, loader.drop_last)


def _constructed(loader: DataLoader, settings: LoaderSettings) -> DataLoader:
    """The loader made anew by its own constructor, from the arguments that its attributes tell."""
    cls, parts = type(loader), ", ".join(live_parts(loader))
    known = _constructor_arguments(loader, settings)
    parameters = inspect.signature(cls).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    own = {p.name: getattr(loader, p.name) for p in parameters if p.name not in known and hasattr(loader, p.name)}
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    arguments = {k: v for k, v in (own | known).items() if k in named or (takes_all and k in known)}
    way_out = "hand over a function that takes the knobs and returns the loader"
    random_state = torch.get_rng_state()
    try:
        made = cls(**arguments)
    except Exception as error:
        raise SourceError(
            f"{cls.__name__} keeps live parts ({parts}) and its constructor could not be repeated "
            f"({type(error).__name__}: {error}); {way_out}"
        ) from error
    finally:
        torch.set_rng_state(random_state)
    differing = _differences(loader, made, settings)
    if differing:
        raise SourceError(f"{cls.__name__}, constructed again, differs in {', '.join(differing)}; {way_out}")
    return made


def _constructor_arguments(loader: DataLoader, settings: LoaderSettings) -> dict[str, Any]:
    arguments = {name: getattr(loader, name) for name in KEPT_ARGUMENTS if hasattr(loader, name)}
    arguments |= settings.loader_kwargs()
    if settings.num_workers == 0:
        arguments["timeout"] = 0
    elif (context := _context(loader, settings)) is not None:
        arguments["multiprocessing_context"] = context
    if loader.batch_size is not None:
        arguments["batch_size"] = settings.batch_size or loader.batch_size
        arguments["drop_last"] = loader.drop_last
    elif loader.batch_sampler is not None:
        return arguments | {"batch_sampler": loader.batch_sampler}
    else:
        arguments["batch_size"] = None
    if not isinstance(loader.dataset, IterableDataset):
        arguments["sampler"] = loader.sampler
    return arguments


def _differences(loader: DataLoader, made: DataLoader, settings: LoaderSettings) -> list[str]:
    names = ("dataset", "sampler", "collate_fn", "worker_init_fn", "generator")
    if isinstance(loader.dataset, IterableDataset):
        names = tuple(name for name in names if name != "sampler")
    differing = [name for name in names if not _same(getattr(loader, name), getattr(made, name))]
    wanted = settings.replaced(**{knob: getattr(LoaderSettings(), knob) for knob in NOT_OF_THE_CONSTRUCTOR})
    if wanted.multiprocessing_context is None:
        wanted = wanted.replaced(multiprocessing_context=current_settings(made).multiprocessing_context)
    found = current_settings(made)
    return differing + [
        k for k, v in wanted.as_dict().items() if k not in NOT_OF_THE_CONSTRUCTOR and getattr(found, k) != v
    ]


def _same(before: Any, after: Any) -> bool:
    return before is after or (type(before) is type(after) and not callable(before) and before == after)
