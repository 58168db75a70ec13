"""Which layouts there are, and which one a folder is in."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from workbench.errors import LayoutError
from workbench.layouts.files import FilesLayout
from workbench.layouts.parquet import ParquetLayout
from workbench.layouts.protocol import Layout
from workbench.layouts.tar import TarLayout
from workbench.layouts.tokens import TokensLayout

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (FilesLayout(), TarLayout(), ParquetLayout(), TokensLayout())
}

SUFFIXES = {".tar": "tar", ".parquet": "parquet", ".npy": "tokens", ".bin": "tokens"}
"""A file's last suffix -> the layout that it is a shard of."""

PARTIAL_SUFFIX = ".partial"
"""Ends the name of the folder in which a conversion builds ``DST`` until it is whole."""

_LOOKED_AT = 10_000
_BESIDE = ("", ".index", ".idx", ".json", ".md", ".txt", ".yaml", ".yml")
"""Suffixes of what is kept beside shards without being data."""


def detect_layout(root: Path) -> str:
    """Layout of a folder without a manifest, or of one shard file.

    A folder counts as shards when every visible file in it (indexes and texts aside) is a shard of one kind; any
    other folder with files is ``files``, such as photographs with a ``labels.npy``, or arrays that each have a text of
    the same name.

    Raises:
        LayoutError: There is nothing there, a conversion has not finished, or shards of several kinds are mixed.
    """
    if root.is_file():
        if root.suffix in SUFFIXES:
            return SUFFIXES[root.suffix]
        raise LayoutError(f"{root} is no shard: pass a folder, or a file ending in {', '.join(SUFFIXES)}.")
    if not root.is_dir():
        partial = root.with_name(root.name + PARTIAL_SUFFIX)
        hint = f"its conversion has not finished ({partial} is there): run it again" if partial.is_dir() else "check it"
        raise LayoutError(f"{root} does not exist: {hint}.")
    visible = [path for path in islice(root.iterdir(), _LOOKED_AT) if not path.name.startswith(".") and path.is_file()]
    kinds = {SUFFIXES[path.suffix] for path in visible if path.suffix in SUFFIXES}
    beside = [path for path in visible if path.suffix not in SUFFIXES]
    named_alike = {path.stem for path in beside} & {
        path.stem for path in visible if SUFFIXES.get(path.suffix) == "tokens"
    }
    if named_alike or any(path.suffix not in _BESIDE for path in beside):
        return "files"
    if len(kinds) > 1:
        raise LayoutError(f"{root} holds shards of {' and '.join(sorted(kinds))}: say which with layout=.")
    return kinds.pop() if kinds else "files"
