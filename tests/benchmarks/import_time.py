"""Seconds that `import workbench` and `workbench --help` take in a fresh interpreter, beside an empty interpreter.

Run it with `python tests/benchmarks/import_time.py`; the target is under 0.15 s for the import and 0.3 s for the help.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

STARTS = 15
COMMANDS = {
    "an empty interpreter": ["-c", "pass"],
    "import workbench": ["-c", "import workbench"],
    "workbench --help": ["-m", "workbench.cli", "--help"],
    "import torch": ["-c", "import torch"],
}


def seconds(arguments: list[str]) -> float:
    """Wall seconds of one fresh interpreter."""
    before = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - before


if __name__ == "__main__":
    for name, arguments in COMMANDS.items():
        starts = [seconds(arguments) for _ in range(STARTS if "torch" not in name else 3)]
        print(f"{name:24} median {statistics.median(starts):.3f} s, fastest {min(starts):.3f} s")
