"""Write a file under a temporary name, and give it its own name only when it is whole and on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
_BUFFER_BYTES = 1 << 20


@contextmanager
def publishing(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write; on leaving, it is flushed to disk and renamed to ``path``, or removed after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb", buffering=_BUFFER_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
