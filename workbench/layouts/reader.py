"""Open a data set: one with a manifest, a folder of shards or files, one shard, or one at a URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.errors import LayoutError
from workbench.layouts.manifest import MANIFEST_NAME, Manifest, read_manifest
from workbench.layouts.protocol import Layout, Sample
from workbench.layouts.registry import LAYOUTS, detect_layout
from workbench.layouts.remote import open_remote
from workbench.layouts.sharded import ShardedReader

__all__ = ["ShardedReader", "open_dataset"]


def open_dataset(
    path: str | Path, layout: str | None = None, transform: Callable[[Sample], Any] | None = None
) -> ShardedReader:
    """Open the data set at ``path``: one that has a manifest, or a folder of tar, Parquet, token or plain files.

    Args:
        path: Folder of the data set, one shard file of a supported kind, or a URL (see ``open_remote``).
        layout: Which layout to read it as; None finds it out.
        transform: Applied to every sample that is read.

    Raises:
        LayoutError: There is nothing there, the conversion that makes it has not finished, or no layout fits.
    """
    if "://" in str(path):
        return open_remote(str(path), transform=transform)
    root = Path(path)
    manifest = read_manifest(root) if root.is_dir() else None
    if manifest is None:
        name = layout or detect_layout(root)
        shards, facts = LAYOUTS[_known(name, LAYOUTS)].find_shards(root)
        root = root if root.is_dir() else root.parent
        manifest = Manifest(name, shards, facts)
    elif layout not in (None, manifest.layout):
        raise LayoutError(f"{root / MANIFEST_NAME} says layout {manifest.layout!r}, and {layout!r} was asked for.")
    return ShardedReader(root, manifest, LAYOUTS[_known(manifest.layout, LAYOUTS)], transform)


def _known(name: str, layouts: dict[str, Layout]) -> str:
    if name not in layouts:
        raise LayoutError(f"{name!r} is no layout: use one of {', '.join(sorted(layouts))}.")
    return name
