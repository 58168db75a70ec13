"""Choosing an earlier sweep of the store to compare with, and what changed since, in words and as a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as W

from workbench.errors import StoreError
from workbench.notebook.comparison import compare, comparison_html, when
from workbench.tuning.results import Results, load_results
from workbench.tuning.store import SweepRecord, SweepStore

MOST_OFFERED = 30  # sweeps, latest first; older ones are reached with `load_results`
NOTHING = ("nothing", "")


class Comparer:
    """A list of earlier sweeps, and the words.

    Args:
        store: File with the sweeps.
        fingerprint: Of the loader; sweeps of others are offered with a word on whose they are.
        chosen: Called with the earlier sweep that is chosen, or None.
    """

    def __init__(self, store: Path, fingerprint: str, chosen: Callable[[Results | None], None]) -> None:
        self._store, self._fingerprint, self._told = store, fingerprint, chosen
        self._results: Results | None = None
        self._quiet = False
        self.earlier: Results | None = None
        self._picker = W.Dropdown(
            options=[NOTHING], description="Compare with", layout=W.Layout(width="100%", max_width="640px")
        )
        self._picker.style.description_width = "auto"
        self._picker.observe(self._picked, "value")
        self._words = W.HTML()
        self.widget = W.VBox([self._picker, self._words], layout=W.Layout(display="none"))

    def show(self, results: Results | None, live: bool) -> None:
        """Compares `results` with what is chosen; the list follows the store, though not while a sweep runs."""
        self._results = results
        if not live:
            self._offer()
        self._draw()

    def choose(self, name: str | None) -> None:
        """Chooses an earlier sweep by its name.

        Raises:
            StoreError: If the store cannot be read, or has no such sweep.
        """
        self.earlier = load_results(self._store, name) if name is not None else None
        self._draw()
        self._told(self.earlier)

    def _picked(self, change: dict[str, Any]) -> None:
        if not self._quiet:
            self.choose(change["new"] or None)

    def _offer(self) -> None:
        mine = self._results.name if self._results is not None else ""
        source = getattr(self._results, "source", "")
        options = [NOTHING, *_earlier_sweeps(self._store, mine, source, self._fingerprint)]
        self.widget.layout.display = None if len(options) > 1 and self._results is not None else "none"
        if options == list(self._picker.options):
            return
        kept = self._picker.value if any(name == self._picker.value for _, name in options) else ""
        self._quiet = True
        self._picker.options = options
        self._picker.value = kept
        self._quiet = False
        if not kept:
            self.earlier = None

    def _draw(self) -> None:
        if self.earlier is None or self._results is None or not self._results.trials:
            self._words.value = ""
        else:
            self._words.value = comparison_html(compare(self._results, self.earlier))


def _earlier_sweeps(store: Path, mine: str, source: str, fingerprint: str) -> list[tuple[str, str]]:
    """(label, name) of the store's latest sweeps other than `mine`."""
    if not store.exists():
        return []
    try:
        with SweepStore(store, read_only=True) as opened:
            names = [name for name in opened.names() if name != mine][:MOST_OFFERED]
            records = [opened.sweep(name) for name in names]
    except StoreError:  # the panel says so when it opens the store itself
        return []
    return [(f"{one.name}, {when(one.created)}{_whose(one, source, fingerprint)}", one.name) for one in records]


def _whose(record: SweepRecord, source: str, fingerprint: str) -> str:
    if record.source != source:
        return f": {record.source}"
    return "" if record.fingerprint == fingerprint else ": another loader, described alike"
