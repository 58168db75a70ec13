"""Files of a data set, mapped read-only into memory."""

from __future__ import annotations

import mmap
from pathlib import Path

from workbench.errors import LayoutError


def map_file(path: Path, expected_bytes: int | None = None) -> mmap.mmap | bytes:
    """The whole file as a read-only map (``b""`` for an empty file, which cannot be mapped).

    Args:
        path: The file.
        expected_bytes: Its size in the manifest; None accepts any.

    Raises:
        LayoutError: It is missing, or its size is not the expected one (it was cut or replaced).
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if expected_bytes is not None and size != expected_bytes:
                raise LayoutError(
                    f"{path} has {size:,} bytes and the manifest says {expected_bytes:,}: "
                    "it was cut or replaced; run `workbench verify` on the data set."
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError as error:
        raise LayoutError(f"{path} is listed and missing: restore it, or convert the data set again.") from error
