"""A part of the panel that opens and closes with a button, which the keyboard reaches as it reaches any button."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

OPEN, CLOSED = "▾", "▸"


class Fold:
    """A button with a title, and what it shows or hides.

    Args:
        title: Words on the button.
        child: The widget under it.
        opened: Whether it is open at first.
    """

    def __init__(self, title: str, child: Any, opened: bool = False) -> None:
        self._title, self._child = title, W.VBox([child])
        self._child.add_class("wb-folded")
        self._button = W.Button(layout=W.Layout(width="100%", height="auto"))
        self._button.add_class("wb-fold")
        self._button.on_click(lambda _: self.open(not self.opened))
        self.widget = W.VBox([self._button, self._child])
        self.open(opened)

    @property
    def opened(self) -> bool:
        """Whether the child is shown."""
        return self._child.layout.display is None

    def open(self, opened: bool = True) -> None:
        """Opens or closes it."""
        self._child.layout.display = None if opened else "none"
        self._button.description = f"{OPEN if opened else CLOSED} {self._title}"
        self._button.tooltip = f"{'hide' if opened else 'show'}: {self._title}"
