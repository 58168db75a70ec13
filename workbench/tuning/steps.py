"""A training step given by name, found at once and imported only where a trial runs, or by the time that it takes."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import Any

from workbench import machine
from workbench.errors import SettingsError
from workbench.loaders.address import Address, address_of, definitions_of, imported
from workbench.measure.step_copies import DEVICE_METHODS, not_of_a_batch, takes_non_blocking, why_not_of_a_batch


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

    @property
    def why_not_of_a_batch(self) -> str:
        """Why the function cannot be called with one batch; empty where it can, or where only an import would tell."""
        defined = definitions_of(self._address)
        if not isinstance(defined, ast.FunctionDef) or defined.decorator_list:
            return ""
        spec = defined.args
        listed = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        asks = listed[: len(listed) - len(spec.defaults)]
        asks += [a.arg for a, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is None]
        takes_one = bool(listed or spec.vararg)
        if takes_one and not [name for name in asks if name not in (*listed[:1], "non_blocking")]:
            return ""
        return not_of_a_batch(self.text, asks)

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


class TimedStep:
    """A step that only takes its time, without a core: what is known of one that runs on a device.

    Args:
        seconds: How long it takes.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._behind = 0.0
        self.__qualname__ = f"a step of {seconds * 1e3:g} ms"

    def __call__(self, batch: Any) -> None:
        """Waits; what one wait overslept, the next one sleeps less."""
        begun = time.perf_counter()
        time.sleep(max(0.0, self.seconds - self._behind))
        self._behind = max(0.0, min(self.seconds, self._behind + time.perf_counter() - begun - self.seconds))


def step_of(step: Callable[[Any], Any] | str | None) -> Callable[[Any], Any] | None:
    """The step to call with every batch; a text becomes a `NamedStep`, or a `TimedStep` where it is a time: "40ms".

    Raises:
        SettingsError: If it is neither callable nor such a text, or asks for more than a batch.
        SourceError: If the text names nothing that exists.
    """
    if isinstance(step, str):
        step = NamedStep(step) if ":" in step else TimedStep(_seconds(step))
    if step is None or callable(step):
        if step is not None and (why := why_not_of_a_batch(step)):
            raise SettingsError(why)
        return step
    raise SettingsError(f"step={step!r} cannot be called; give a function of one batch, or 'file.py:function'.")


def step_name(step: Callable[[Any], Any] | None) -> str:
    """What to call a step in texts; empty without one."""
    if step is None:
        return ""
    return step.text if isinstance(step, NamedStep) else getattr(step, "__qualname__", type(step).__name__)


def _seconds(text: str) -> float:
    try:
        return machine.parse_seconds(text.replace(" ", ""))
    except SettingsError:
        raise SettingsError(
            f"step={text!r} is not a time such as 40ms, and names no function; write one of them: 'file.py:function'"
        ) from None
