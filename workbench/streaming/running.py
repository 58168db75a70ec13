"""Whether a pass is under way: a state that is loaded then would be ignored in silence."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from workbench.errors import ResumeError


class Running:
    """Remembers the pass that was begun last, without keeping it alive; copies remember none."""

    def __init__(self) -> None:
        self._pass: weakref.ref[GeneratorType[Any, None, None]] | None = None

    def begin(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Remember ``samples``, a generator, and return it."""
        self._pass = weakref.ref(samples)
        return samples

    def refuse(self) -> None:
        """Do nothing unless a pass is under way.

        Raises:
            ResumeError: One is.
        """
        samples = self._pass() if self._pass is not None else None
        if samples is not None and samples.gi_frame is not None:
            raise ResumeError(
                "The stream is already being iterated, and that pass would go on where it is: call load_state_dict() "
                "before iter(), or drop the iterator first."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"_pass": None}
