"""The table of trials, and one trial looked at closely, chosen in a list or by a click on its point."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as W

from workbench.notebook import formatting, tables
from workbench.notebook.controls import button
from workbench.notebook.evidence import stages_of, trial_details
from workbench.notebook.palette import STATUS_WORDS

MOST_ROWS = 100
NOBODY = -1  # no trial is chosen; None would leave the list blank
NONE_CHOSEN = "Choose a trial here, or click a point in a chart, to see its starts, windows and memory."


class Inspector:
    """Table and details.

    Args:
        selected: Called with the key of the trial that is chosen, or None.
        look: Called when the stages of the chosen trial are to be measured.
    """

    def __init__(self, selected: Callable[[int | None], None], look: Callable[[Any], None]) -> None:
        self._results: Any = None
        self._told = selected
        self._quiet = False
        self._table = W.HTML()
        self._picker = W.Dropdown(
            options=[("none", NOBODY)], description="Trial", layout=W.Layout(width="100%", max_width="640px")
        )
        self._picker.style.description_width = "auto"
        self._picker.observe(self._picked, "value")
        self._details = W.HTML(f'<p class="wb-note">{NONE_CHOSEN}</p>')
        self._look = button("Where its time goes", "measure the stages of a batch under these settings", look)
        self._said = W.HTML()
        asking = W.Box([self._look, self._said], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        asking.add_class("wb-buttons")
        self._asking = asking
        self.widget = W.VBox([self._table, self._picker, self._details, asking])
        self.show(None)

    @property
    def key(self) -> int | None:
        """Position of the chosen trial in the sweep, or None."""
        return self._picker.value if self._picker.value != NOBODY else None

    @property
    def trial(self) -> Any:
        """The chosen trial, or None."""
        if self.key is None or self._results is None or self.key >= len(self._results.trials):
            return None
        return self._results.trials[self.key]

    def show(self, results: Any) -> None:
        """Shows the trials of `results`, keeping the choice."""
        self._results = results
        rows = tables.ordered(results) if results is not None else []
        options = [("none", NOBODY), *((_option(trial), key) for key, trial in rows)]
        if options != list(self._picker.options):
            kept = self._picker.value if any(key == self._picker.value for _, key in options) else NOBODY
            self._quiet = True
            self._picker.options = options
            self._picker.value = kept
            self._quiet = False
        self._draw()

    def choose(self, key: int | None) -> None:
        """Chooses a trial by its key."""
        wanted = NOBODY if key is None else key
        if any(known == wanted for _, known in self._picker.options):
            self._picker.value = wanted

    def say(self, words: str) -> None:
        """Says beside the button how the measuring of stages goes."""
        self._said.value = f'<span role="status" class="wb-note">{escape(words)}</span>' if words else ""

    def _picked(self, _: dict[str, Any]) -> None:
        if not self._quiet:
            self.say("")
            self._draw()
            self._told(self.key)

    def _draw(self) -> None:
        trial = self.trial
        can_look = trial is not None and trial.status == "ok" and stages_of(trial) is None
        self._asking.layout.display = None if can_look else "none"
        if self._results is None or not self._results.trials:
            self._table.value = self._details.value = ""
            self._picker.layout.display = "none"
            return
        self._picker.layout.display = None
        measured = sum(trial.status == "ok" for trial in self._results.trials)
        caption = (
            f"{formatting.count(measured, 'settings', 'settings')} measured. ± is a 95 % interval over separate starts."
        )
        table = tables.html_table(self._results, caption=caption, limit=MOST_ROWS, selected=self.key)
        self._table.value = f'<div class="wb-scroll" tabindex="0" role="region" aria-label="Trials">{table}</div>'
        self._details.value = trial_details(trial) if trial is not None else f'<p class="wb-note">{NONE_CHOSEN}</p>'


def _option(trial: Any) -> str:
    estimate = trial.estimate
    if trial.status != "ok" or estimate is None:
        return f"{trial.settings.describe()}: {STATUS_WORDS[trial.status]}"
    return f"{trial.settings.describe()}: {formatting.rate(estimate.samples_per_second, estimate.low, estimate.high)}"
