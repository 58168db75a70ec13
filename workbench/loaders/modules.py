"""Modules that are objects of a class of their own, such as `torch.classes` and `torch.ops`: pickled by their name.

cloudpickle sends the modules that a function's names may mean, an attribute `self.classes` beside `torch` among them,
and knows only plain ones.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import cloudpickle


class ModulePickler(cloudpickle.CloudPickler):
    """CloudPickler that takes such modules as well."""

    def reducer_override(self, obj: Any) -> Any:
        """As in CloudPickler, which has no answer for a module of another class."""
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:
            path = _path(obj)
            if path is not None:
                return module_at, path
        return super().reducer_override(obj)


def module_at(name: str, attributes: tuple[str, ...]) -> Any:
    """The module of this name, or what its attributes lead to."""
    found = importlib.import_module(name)
    for attribute in attributes:
        found = getattr(found, attribute)
    return found


def _path(module: types.ModuleType) -> tuple[str, tuple[str, ...]] | None:
    """An imported module and attributes that lead to this one; None when none do."""
    parts = module.__name__.split(".")
    for end in range(len(parts), 0, -1):
        name, attributes = ".".join(parts[:end]), tuple(parts[end:])
        if name in sys.modules:
            try:
                return (name, attributes) if module_at(name, attributes) is module else None
            except AttributeError:
                return None
    return None
