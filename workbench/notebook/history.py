"""The diagnoses of a panel so far, and which of them stands beside the present one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ipywidgets as W

NOBODY = -1  # nothing is chosen; None would leave the list blank
MOST_KEPT = 20


class History:
    """A list to choose from; the latest is chosen by itself unless another one was, by hand.

    Args:
        changed: Called when another one is chosen by hand.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._kept: list[tuple[str, Any]] = []
        self._changed, self._quiet, self._pinned = changed, False, False
        self._picker = W.Dropdown(
            options=[("nothing", NOBODY)],
            value=NOBODY,
            description="Compare with",
            layout=W.Layout(width="100%", max_width="640px"),
        )
        self._picker.style.description_width = "auto"
        self._picker.observe(self._picked, "value")
        self.widget = W.VBox([self._picker], layout=W.Layout(display="none", margin="8px 0 0"))

    @property
    def chosen(self) -> Any:
        """The one to compare with, or None."""
        return self._kept[self._picker.value][1] if self._picker.value != NOBODY else None

    def add(self, found: Any, choose: bool = False) -> None:
        """Keeps a diagnosis, and chooses it unless another one was chosen by hand.

        Args:
            found: The diagnosis; None keeps nothing.
            choose: Choose it all the same; with None, choose nothing.
        """
        place = next((place for place, (_, kept) in enumerate(self._kept) if kept is found), None)
        if found is not None and place is None:
            self._kept = [*self._kept, (_label(found), found)][-MOST_KEPT:]
            place = len(self._kept) - 1
        if choose or (found is not None and not self._pinned):
            self._pinned = choose and found is not None
            self._offer(NOBODY if place is None else place)
        else:
            self._offer(self._picker.value)

    def forget(self, found: Any) -> None:
        """Keeps a diagnosis no longer; what was chosen otherwise stays chosen."""
        chosen = self.chosen
        self._kept = [(label, kept) for label, kept in self._kept if kept is not found]
        self._offer(next((place for place, (_, kept) in enumerate(self._kept) if kept is chosen), len(self._kept) - 1))

    def take_over(self, other: History, last: Any) -> None:
        """Takes what another panel kept, and what it found last."""
        self._kept = list(other._kept)
        self.add(last if last is not None else (self._kept[-1][1] if self._kept else None))

    def _offer(self, value: int) -> None:
        self._quiet = True
        self._picker.options = [("nothing", NOBODY), *((label, place) for place, (label, _) in enumerate(self._kept))]
        self._picker.value = value
        self._quiet = False
        self.widget.layout.display = None if self._kept else "none"

    def _picked(self, _: dict[str, Any]) -> None:
        if not self._quiet:
            self._pinned = True
            self._changed()


def _label(found: Any) -> str:
    cause = f", {found.cause}" if found.cause else ""
    return f"{time.strftime('%H:%M:%S')}: {found.bound}{cause}; {found.settings.describe()}"
