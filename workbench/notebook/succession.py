"""Which of several panels for the same thing stands: the newest, whose cell was run last."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import ipywidgets as W

MOVED = "This panel went on in a cell that was run later."

Panel = TypeVar("Panel")


class Newest(Generic[Panel]):
    """The newest panel of each name, none of which is kept alive by this."""

    def __init__(self) -> None:
        self._panels: dict[str, weakref.ref[Panel]] = {}

    def take_place(self, name: str, panel: Panel) -> Panel | None:
        """Makes `panel` the newest of that name; gives the one before it, if it still lives."""
        older = self._panels.get(name)
        self._panels[name] = weakref.ref(panel)
        return older() if older is not None else None

    def besides(self, panel: Panel) -> list[Panel]:
        """The newest of all other names that still live."""
        return [other for ref in self._panels.values() if (other := ref()) is not None and other is not panel]


def moved() -> W.HTML:
    """What stays of a panel whose place another one has taken."""
    return W.HTML(f'<p class="wb-note">{MOVED}</p>')
