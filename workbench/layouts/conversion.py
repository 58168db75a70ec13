"""Convert any source to any layout: in parallel, resumable, and published only when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.errors import ConversionError, LayoutError
from workbench.layouts.conversion_plan import indexed_plan, stream_plan
from workbench.layouts.conversion_run import Conversion, ConversionRun, Progress
from workbench.layouts.pieces import Job
from workbench.layouts.plan import DEFAULT_SHARD_BYTES
from workbench.layouts.probe import layout_options, probe_source
from workbench.layouts.protocol import Sample
from workbench.layouts.reader import ShardedReader
from workbench.layouts.sources import StreamSource, resolve_source


def convert(
    source: Any,
    destination: str | Path,
    layout: str = "tar",
    *,
    shard_bytes: int | str = DEFAULT_SHARD_BYTES,
    shards: int | None = None,
    world_size: int | None = None,
    num_workers: int | None = None,
    transform: Callable[[Sample], Sample | None] | None = None,
    on_error: str = "raise",
    duplicates: str = "refuse",
    processes: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Conversion:
    """Write the samples of ``source`` to ``destination`` in another layout.

    The data set is built in ``DESTINATION.partial`` and gets its name when it is whole, so that a run killed at any
    point leaves either a valid data set or none; the same call again writes only what is missing, and once it is
    finished it does nothing.

    Args:
        source: Folder or shard in any layout, JSON lines, a ``ShardedReader``, a map-style data set, an iterable of
            samples, or a function that returns one.
        destination: Folder that will hold the data set.
        layout: ``files``, ``tar``, ``parquet`` or ``tokens``.
        shard_bytes: Size to aim at for each shard, before compression.
        shards: Exact number of shards instead.
        world_size: Ranks that will read it; with ``num_workers``, the number of shards follows ``advise_shards``.
        num_workers: Loader workers of each rank.
        transform: Applied to each sample, e.g. ``resize_images(256)`` or ``tokenise("tokenizer.json")``; returning
            None drops the sample.
        on_error: ``raise``, or ``skip`` to leave out samples whose transform raises.
        duplicates: ``refuse`` two samples of one name, or ``number`` the later ones ``name~2``, ``name~3``; names that
            show only while the source is read (JSON lines, iterables) cannot be numbered.
        processes: How many write at once; None takes every usable core.
        progress: Called in this thread a few times a second.
        overwrite: Replace a data set, or an unfinished one, made by a different conversion.
        **options: Of the layout: see ``ParquetOptions`` and ``TokenOptions``.

    Raises:
        ConversionError: It cannot start or go on; nothing was published.
        LayoutError: A sample, a name or an option is not what the layout can hold.
    """
    _check_words(on_error, duplicates)
    if processes is not None and processes < 1:
        raise LayoutError(f"processes={processes} does no work: give a number from 1, or None for every usable core.")
    resolved = resolve_source(source)
    target = checked_target(Path(destination), _place(source))
    chosen = layout_options(layout, options, transform)
    skip = on_error == "skip"
    probe = probe_source(resolved, layout, chosen, transform, skip_failures=skip)
    job = Job(target, layout, probe.options, None, {}, False, False, transform, skip)
    if isinstance(resolved, StreamSource):
        counted = {"shards": shards, "world_size": world_size, "num_workers": num_workers}
        for name, value in counted.items():
            if value is not None:
                raise LayoutError(f"{name}={value} needs a source whose length is known: give shard_bytes instead.")
        plan = stream_plan(resolved, probe, job, shard_bytes)
    else:
        plan = indexed_plan(resolved, probe, job, shard_bytes, shards, (world_size, num_workers), duplicates)
    return ConversionRun(plan, target, processes, progress, overwrite).go()


def checked_target(destination: Path, source: Path | None) -> Path:
    """``destination``, absolute, with its parent made.

    Raises:
        ConversionError: It is the source or lies in it or around it, is a mount point, or cannot be made.
    """
    target = Path(os.path.abspath(destination))
    real = target.resolve()
    if source is not None and (source == real or source in real.parents or real in source.parents):
        raise ConversionError(f"{destination} and the source {source} lie in each other: choose a target beside it.")
    if os.path.ismount(target):
        raise ConversionError(f"{destination} is a mount point and cannot be renamed to: name a folder inside it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConversionError(f"{target.parent} cannot be made ({error.strerror}): choose another target.") from error
    if not os.access(target.parent, os.W_OK):
        raise ConversionError(f"{target.parent} cannot be written to: choose another target.")
    return target


def _place(source: Any) -> Path | None:
    if isinstance(source, ShardedReader):
        return source.root.resolve()
    local = isinstance(source, Path) or (isinstance(source, str) and "://" not in source)
    return Path(source).resolve() if local else None


def _check_words(on_error: str, duplicates: str) -> None:
    if on_error not in ("raise", "skip"):
        raise LayoutError(f"on_error={on_error!r}: use 'raise' or 'skip'.")
    if duplicates not in ("refuse", "number"):
        raise LayoutError(f"duplicates={duplicates!r}: use 'refuse' or 'number'.")
