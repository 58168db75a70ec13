"""Loaders over real photographs, text, speech and tables, and more of each on disk when the sample is too small.

`photos`, `text`, `audio` and `tables` are factories: they take the DataLoader's knobs and `data=`, a folder, and return
a DataLoader that does the work of a real one. What a batch holds depends on the arguments and on `seed` alone, never on
the number of workers, and stays the same from epoch to epoch, so that the data of two settings can be compared.

The factories load on first use; this module imports neither torch nor what reads the files.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from workbench.errors import SamplesError

SAMPLES = {name: f"workbench.samples:{name}" for name in ("photos", "text", "audio", "tables")}
ENVIRONMENT_VARIABLE = "WORKBENCH_DATA_SAMPLES"

_ROOMS = {"photos": "images", "text": "documents", "audio": "speech", "tables": "flights", "grow": "growth"}

__all__ = ["SAMPLES", "audio", "data_directory", "grow", "photos", "tables", "text"]


def data_directory() -> Path:
    """The folder with the sample data: $WORKBENCH_DATA_SAMPLES, else `data_samples/` of the clone this package is in.

    Raises:
        SamplesError: If neither is there.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "data_samples"
    if not folder.is_dir():
        raise SamplesError(
            f"the sample data is not in {folder}: set {ENVIRONMENT_VARIABLE} to the folder data_samples of a clone, "
            "or install from the clone with 'pip install -e .'"
        )
    return folder


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
