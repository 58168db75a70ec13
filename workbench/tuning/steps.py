"""A training step given by name: found when the sweep is made, imported only where a trial runs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from workbench.errors import SettingsError
from workbench.loaders.address import Address, address_of, definitions_of, imported
from workbench.measure.step_copies import DEVICE_METHODS, takes_non_blocking


class NamedStep:
    """A step such as "train.py:step"; called with a batch, it imports the function once and calls it.

    Args:
        text: "path/to/file.py:function" or "package.module:function".

    Raises:
        SourceError: If there is no such file, module or name.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._address: Address = address_of(text)
        self._function: Callable[..., Any] | None = None

    def __call__(self, batch: Any, **told: Any) -> Any:
        """Calls the function that the text names."""
        return self._imported()(batch, **told)

    @property
    def takes_non_blocking(self) -> bool:
        """Whether the function names a parameter `non_blocking`; True where only importing it would tell."""
        if self._function is not None:
            return takes_non_blocking(self._function)
        defined = definitions_of(self._address)
        if not isinstance(defined, ast.FunctionDef) or defined.decorator_list:
            return True
        return any(a.arg == "non_blocking" for a in (*defined.args.args, *defined.args.kwonlyargs))

    def _imported(self) -> Callable[..., Any]:
        if self._function is None:
            self._function = imported(self._address)
        return self._function

    def __getattr__(self, name: str) -> Any:
        """What the named object has to wait for a device and to copy to it (see `wb.diagnose`); importing it tells."""
        if name not in DEVICE_METHODS:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self._imported(), name)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_function": None}


def step_of(step: Callable[[Any], Any] | str | None) -> Callable[[Any], Any] | None:
    """The step to call with every batch; a text becomes a `NamedStep`.

    Raises:
        SettingsError: If it is neither callable nor a text.
        SourceError: If the text names nothing that exists.
    """
    if isinstance(step, str):
        return NamedStep(step)
    if step is None or callable(step):
        return step
    raise SettingsError(f"step={step!r} cannot be called; give a function of one batch, or 'file.py:function'.")


def step_name(step: Callable[[Any], Any] | None) -> str:
    """What to call a step in texts; empty without one."""
    if step is None:
        return ""
    return step.text if isinstance(step, NamedStep) else getattr(step, "__qualname__", type(step).__name__)
