"""What a panel finds when it is made: a sweep that still runs in this kernel, or the last one in the store."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.notebook import formatting
from workbench.tuning.results import Results, results_of
from workbench.tuning.store import SweepStore
from workbench.tuning.sweep import Sweep, running_sweeps

SECONDS_TO_END = 5.0
ENDINGS = {
    "finished": "finished",
    "budget": "its time budget ended",
    "stopped": "it was stopped",
    "interrupted": "it was interrupted",
    "failed": "it ended with an error",
    "": "the kernel ended before it did",
}


def running_sweep(store: Path, name: str) -> Sweep | None:
    """The sweep of that name and store that this process is running, or None."""
    for sweep in running_sweeps():
        if sweep.store.absolute() == store.absolute() and (sweep.name or sweep.source.name) == name:
            return sweep
    return None


def ended(sweep: Sweep) -> None:
    """Stops a sweep and waits, but not for ever, until what it measured is in the store."""
    sweep.stop()
    with contextlib.suppress(Exception):  # what ended it was shown where it was started
        sweep.wait(SECONDS_TO_END)


def last_results(store: Path, name: str | None, source: str) -> Results | None:
    """The latest sweep of that name, or else of that source, or None when the store has none.

    Raises:
        StoreError: If the store is damaged, or from a newer version.
    """
    if not store.exists():
        return None
    with SweepStore(store, read_only=True) as opened:
        if name is not None:
            matching = [one for one in opened.names() if re.fullmatch(rf"{re.escape(name)}(-\d+)?", one)]
            if not matching:
                return None
            record = opened.sweep(matching[0])
        else:
            try:
                record = opened.sweep(source=source)
            except StoreError:
                return None
        return results_of(record, opened.runs(record))


def told(results: Any) -> str:
    """One sentence on where results that were found in the store come from."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(results.created))
    ending = ENDINGS.get(results.ending, results.ending)
    measured = sum(trial.status == "ok" for trial in results.trials)
    return (
        f"From the store: sweep {results.name} of {when} ({ending}), "
        f"{formatting.count(measured, 'settings', 'settings')} measured."
    )
