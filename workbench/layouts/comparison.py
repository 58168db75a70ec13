"""The same samples in several layouts, with what each conversion cost: what the knob ``layout`` chooses from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import LayoutError
from workbench.layouts.conversion import convert
from workbench.layouts.conversion_run import Progress
from workbench.layouts.publishing import publishing
from workbench.layouts.registry import LAYOUTS

COSTS_NAME = "conversions.json"


@dataclass(frozen=True)
class PreparedLayout:
    """One layout of the samples.

    Attributes:
        layout: Its name, and the name of its folder.
        path: Where it lies; ``open_dataset(path)`` reads it.
        samples: How many samples it holds.
        bytes: Size on disk.
        digest: The manifest's digest.
        convert_seconds: What the conversion took when it was done; None where an interrupted run did a part of it.
    """

    layout: str
    path: Path
    samples: int
    bytes: int
    digest: str
    convert_seconds: float | None


def prepare_layouts(
    source: Any,
    directory: str | Path,
    layouts: Sequence[str] = ("files", "tar", "parquet"),
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str, Progress], None] | None = None,
    **conversion: Any,
) -> tuple[PreparedLayout, ...]:
    """Convert ``source`` into each layout under ``directory``; what is there already is left alone.

    A loader factory then takes the layout like any other knob::

        def make_loader(layout="files", num_workers=0):
            return DataLoader(open_dataset(f"prepared/{layout}"), num_workers=num_workers, ...)

    Args:
        source: As for ``convert``; a function rather than an iterator where it only comes one sample after the other.
        directory: Gets one folder a layout.
        layouts: Which ones.
        options: Options of single layouts, e.g. ``{"parquet": {"access": "random"}}``.
        progress: Called with the layout and how far it is.
        **conversion: Further arguments of ``convert``, such as ``transform``.

    Raises:
        LayoutError, ConversionError: As for ``convert``; layouts before the failed one are kept.
    """
    unknown = [name for name in layouts if name not in LAYOUTS]
    if unknown or not layouts:
        raise LayoutError(f"layouts={list(layouts)!r}: give one or more of {', '.join(sorted(LAYOUTS))}.")
    root = Path(directory)
    costs, prepared = _costs(root), []
    for name in layouts:
        told = None if progress is None else lambda state, name=name: progress(name, state)
        own = dict((options or {}).get(name, {}))
        done = convert(source, root / name, name, progress=told, **conversion, **own)
        digest = done.manifest.digest()
        if not done.shards_reused:
            costs[name] = {"digest": digest, "seconds": done.seconds}
            with publishing(root / COSTS_NAME) as file:
                file.write(json.dumps(costs, indent=1).encode())
        known = costs.get(name, {})
        seconds = known.get("seconds") if known.get("digest") == digest else None
        manifest = done.manifest
        prepared.append(PreparedLayout(name, root / name, manifest.samples, manifest.bytes, digest, seconds))
    return tuple(prepared)


def _costs(root: Path) -> dict[str, dict[str, Any]]:
    try:
        costs = json.loads((root / COSTS_NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return costs if isinstance(costs, dict) else {}
