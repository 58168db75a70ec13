"""A training step from its parts: a callable, or a (model, loss, optimiser) triple."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from workbench.errors import SettingsError
from workbench.measure.step_copies import why_not_of_a_batch


def step_of(step: Any) -> Callable[[Any], Any]:
    """`step` itself when it takes a batch; for a (model, loss, optimiser) triple, the step that trains on them.

    Raises:
        SettingsError: If it is neither, or a function that asks for more than a batch.
    """
    if callable(step) and not isinstance(step, tuple | list):
        if why := why_not_of_a_batch(step):
            raise SettingsError(why)
        return step
    if isinstance(step, tuple | list) and len(step) == 3:
        model, loss, optimiser = step
        if isinstance(model, torch.nn.Module) and callable(loss) and hasattr(optimiser, "zero_grad"):
            return TrainingStep(model, loss, optimiser)
    raise SettingsError(
        f"step={step!r:.80} is no training step: give a function that takes a batch, or (model, loss, optimiser)"
    )


class TrainingStep:
    """One step of supervised training on batches of (inputs, targets), as a pair or under two names.

    It travels to another process with its model and optimiser on the CPU, and goes back to their device there; the
    caller's own model is not touched.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[[Any, Any], Any], optimiser: Any) -> None:
        self.model, self.loss, self.optimiser = model, loss, optimiser
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._at_home = True

    def __call__(self, batch: Any, non_blocking: bool = True) -> None:
        if not self._at_home:
            self._go_home()
        inputs, targets = _pair(batch)
        inputs, targets = (part.to(self.device, non_blocking=non_blocking) for part in (inputs, targets))
        self.optimiser.zero_grad(set_to_none=True)
        self.loss(self.model(inputs), targets).backward()
        self.optimiser.step()

    def _go_home(self) -> None:
        self.model.to(self.device)
        for state in self.optimiser.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    state[name] = value.to(self.device)
        self._at_home = True

    def __getstate__(self) -> dict[str, Any]:
        if self.device.type == "cpu":
            return self.__dict__
        model, optimiser = copy.deepcopy((self.model, self.optimiser))  # together: its parameters are the model's
        model.to("cpu")
        for state in optimiser.state.values():
            state.update({n: v.cpu() for n, v in state.items() if isinstance(v, torch.Tensor)})
        return self.__dict__ | {"model": model, "optimiser": optimiser, "_at_home": False}


def _pair(batch: Any) -> tuple[Any, Any]:
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, tuple | list) and len(parts) == 2:
        return parts[0], parts[1]
    raise SettingsError(
        f"a (model, loss, optimiser) step takes batches of (inputs, targets), and this is a {type(batch).__name__}; "
        "give a function of the batch instead"
    )


def move(value: Any, device: torch.device) -> Any:
    """The batch with every tensor on `device`, copied without blocking where it is pinned; containers are rebuilt."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if hasattr(value, "to") and callable(value.to):
        return value.to(device)
    if isinstance(value, Mapping):
        moved = {key: move(part, device) for key, part in value.items()}
        return moved if type(value) is dict else _rebuilt(value, moved)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(part, device) for part in value))
    if isinstance(value, list | tuple):
        return type(value)([move(part, device) for part in value])
    return value


def _rebuilt(value: Mapping, moved: dict[Any, Any]) -> Any:
    """The same kind of mapping with moved parts: a shallow copy that is written to, or a dict where that is refused."""
    try:
        twin = copy.copy(value)
        twin.update(moved)
        return twin
    except (AttributeError, TypeError):
        return moved
