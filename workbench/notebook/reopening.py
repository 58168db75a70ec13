"""What a panel finds when it is made: a sweep that still runs in this kernel, or its loader's last one in the store."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

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


def last_results(store: Path, name: str | None, fingerprint: str) -> tuple[Results | None, tuple[str, ...]]:
    """The latest sweep of this very loader, None when the store has none, and the names of those passed over.

    Args:
        store: The file.
        name: Only sweeps of this name, a number behind it aside; None takes any.
        fingerprint: Of the loader as it is defined now. A loader with the same description may be another one.

    Raises:
        StoreError: If the store is damaged, or from a newer version.
    """
    if not store.exists():
        return None, ()
    with SweepStore(store, read_only=True) as opened:
        mine = opened.names(fingerprint)
        if name is not None:
            mine = [one for one in mine if re.fullmatch(rf"{re.escape(name)}(-\d+)?", one)]
        others = tuple(one for one in opened.names() if one not in set(mine))
        if not mine:
            return None, others
        record = opened.sweep(mine[0])
        return results_of(record, opened.runs(record)), others


def told_of_others(store: Path, others: tuple[str, ...], name: str | None) -> str:
    """One sentence on sweeps that the store holds and the panel does not show; empty when there are none."""
    if not others:
        return ""
    named = f" with the name {name!r}" if name is not None else ""
    return (
        f"{store} holds {formatting.count(len(others), 'other sweep')} (latest: {others[0]}), none{named} of this "
        f"loader as it is defined now; wb.load_results({str(store)!r}, {others[0]!r}) shows it."
    )


def told(results: Any) -> str:
    """One sentence on where results that were found in the store come from."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(results.created))
    ending = ENDINGS.get(results.ending, results.ending)
    measured = sum(trial.status == "ok" for trial in results.trials)
    return (
        f"From the store: sweep {results.name} of {when} ({ending}), "
        f"{formatting.count(measured, 'settings', 'settings')} measured."
    )
