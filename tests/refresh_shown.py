"""Runs what the README and the lessons show, on this machine, and stores the fresh output in them.

    python tests/refresh_shown.py [README.md] [notebooks/04_tune_the_knobs.ipynb ...] [--anyway]

Without names, all of them. It refuses to run while other programs use the cores, since what is shown should be what a
reader on a quiet machine sees.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from workbench import machine
from workbench.cli.demo import picture
from workbench.tuning.results import Results, load_results

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
PICTURE = REPOSITORY / "notebooks" / "images" / "throughput.svg"
QUIET_LOAD = 0.5  # processes that want a core, on average over the last minute
HANGS_AFTER_SECONDS = 900


def refresh_readme() -> None:
    """Runs the first Python block, and puts its output, its chart and its conditions below it."""
    text = README.read_text(encoding="utf-8")
    snippet = re.search(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", snippet]
        done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
        results = load_results(Path(folder) / "sweeps.db")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(results), encoding="utf-8")
    text = re.sub(r"(?ms)^```text\n.*?^```", lambda _: f"```text\n{done.stdout.rstrip()}\n```", text, count=1)
    text = re.sub(r"(?m)^\*Measured on .*$", lambda _: _conditions(results), text, count=1)
    README.write_text(text, encoding="utf-8")


def refresh_notebook(path: Path) -> None:
    """Runs a lesson from a clean kernel in a folder of its own, and stores it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=HANGS_AFTER_SECONDS, resources={"metadata": {"path": folder}}).execute()
    notebook.metadata.pop("widgets", None)  # live widgets mean nothing without their kernel
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)


def _conditions(results: Results) -> str:
    facts = results.machine
    day = time.strftime("%Y-%m-%d", time.gmtime(results.created))
    return (
        f"*Measured on {facts['cpu']} with {facts['usable_cores']:g} usable cores, Python {facts['python']} and torch "
        f"{facts['torch']}, {day}: {len(results.trials)} settings, {results.starts} starts.*"
    )


def main() -> None:
    """Refreshes what was named, or everything."""
    parser = argparse.ArgumentParser(description="Run what README and lessons show, and store the fresh output.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    if load > QUIET_LOAD and not arguments.anyway:
        parser.error(f"the load of this machine is {load:.1f}, more than {QUIET_LOAD}: wait until it is quiet")
    for path in arguments.paths or [README, *sorted((REPOSITORY / "notebooks").glob("*.ipynb"))]:
        started = time.monotonic()
        refresh_readme() if path.name == README.name else refresh_notebook(path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s on {machine.usable_cores()} cores")


if __name__ == "__main__":
    main()
