"""Measure before you rewrite: isolated trials, memory, statistics, stages, diagnosis and traces.

The room bears the name of its main function, so the module itself can be called: `workbench.measure(loader, settings)`
is `workbench.measure.trial.measure`, however and whenever the room was imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    """A module that is also its main function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One `TrialResult`; the arguments are those of `workbench.measure.trial.measure`."""
        from workbench.measure.trial import measure

        return measure(*args, **kwargs)

    @property
    def __signature__(self):
        import inspect

        from workbench.measure.trial import measure

        return inspect.signature(measure)


sys.modules[__name__].__class__ = _CallableRoom
