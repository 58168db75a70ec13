"""`workbench lab`: JupyterLab on the lessons."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from workbench.errors import WorkbenchError

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def lab(arguments: argparse.Namespace) -> int:
    """Becomes JupyterLab, opened on the folder of lessons; returns only when it cannot be started.

    Raises:
        WorkbenchError: If there are no lessons beside this package, or JupyterLab is not installed.
    """
    if not NOTEBOOKS.is_dir():
        raise WorkbenchError(
            f"the lessons are not in {NOTEBOOKS}: they come with a clone of the repository; "
            "install from it with 'pip install -e .'"
        )
    if find_spec("jupyterlab") is None:
        raise WorkbenchError(f"JupyterLab is not installed for {sys.executable}: run 'pip install jupyterlab'")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(NOTEBOOKS), *arguments.other_options])
