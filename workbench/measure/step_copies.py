"""How a training step is told whether to copy batches without waiting: through its parameter `non_blocking`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from workbench.errors import SettingsError

Step = Callable[..., Any]
DEVICE_METHODS = ("synchronize", "to_device")
"""What a step may have that drives a device which torch does not know: to wait for it, to copy a batch to it."""


def takes_non_blocking(step: Step | None) -> bool:
    """Whether the step names a parameter `non_blocking`; `**kw` does not count, since it may go anywhere.

    A step that is only found by name in the trial says so through an attribute `takes_non_blocking`.
    """
    told = getattr(step, "takes_non_blocking", None)
    if step is None or told is not None:
        return bool(told)
    try:
        parameter = inspect.signature(step).parameters.get("non_blocking")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def why_not_of_a_batch(step: Step) -> str:
    """Why the step cannot be called with a batch and nothing else, with the way out; empty where it can."""
    told = getattr(step, "why_not_of_a_batch", None)
    if told is not None:
        return told
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return ""
    for more in ({}, {"non_blocking": True}):
        try:
            signature.bind(object(), **more)
            return ""
        except TypeError:
            continue
    asks = [name for name, one in signature.parameters.items() if one.default is one.empty and one.kind not in _REST]
    return not_of_a_batch(getattr(step, "__qualname__", type(step).__name__), asks)


def not_of_a_batch(name: str, asks: Sequence[str]) -> str:
    """That a step asks for these parameters, and how to make it one of a batch."""
    if not asks:
        return f"the step {name} takes no batch: let its first parameter be the batch"
    return (
        f"the step {name} asks for {', '.join(asks)}, and a step is called with one batch: give the others defaults, "
        f"or write a function of one batch that calls {name}"
    )


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def why_not_told(step: Step | None, non_blocking: bool) -> str:
    """Why this step cannot be told, with the way out; empty where it can."""
    if takes_non_blocking(step):
        return ""
    if step is None:
        return (
            f"non_blocking={non_blocking} cannot be tried: it says how the training step copies a batch to its device, "
            "and there is no step; give step= a function such as step(batch, non_blocking=False), or leave "
            "non_blocking out."
        )
    name = getattr(step, "text", None) or getattr(step, "__qualname__", type(step).__name__)
    return (
        f"non_blocking={non_blocking} cannot be tried: the step {name} names no parameter non_blocking; let it take "
        "one and hand it on to batch.to(device, non_blocking=non_blocking), or leave non_blocking out."
    )


def step_under(step: Step | None, non_blocking: bool | None) -> Step | None:
    """The step as these settings call it; the step itself where `non_blocking` is None.

    Raises:
        SettingsError: If the step cannot be told.
    """
    if non_blocking is None:
        return step
    if why := why_not_told(step, non_blocking):
        raise SettingsError(why)
    assert step is not None
    told = functools.partial(step, non_blocking=non_blocking)
    for name in DEVICE_METHODS:
        if hasattr(step, name):
            setattr(told, name, getattr(step, name))
    return told
