"""How a loader factory is called: which knobs its signature names, and with which values it may be called."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import SettingsError, SourceError
from workbench.loaders.returned import LOADER_KNOBS
from workbench.loaders.settings import NOT_FOR_DATALOADER, STEP_KNOBS, LoaderSettings

REQUIRED = inspect.Parameter.empty
KEPT_WHERE_NONE = ("batch_size", "layout", "worker_threads", "sharing_strategy")  # None keeps what the factory has


class Unknown:
    """A default that cannot be told without running the user's code."""


@dataclass(frozen=True)
class FactorySignature:
    """What a factory can be called with.

    Attributes:
        defaults: Default of every parameter that can be passed by name; `REQUIRED` or `Unknown` where there is none.
        takes_all: Whether it also takes names it does not list (`**kw`).
        unfillable: Parameters that must be given but are no knobs.
    """

    defaults: Mapping[str, Any]
    takes_all: bool = False
    unfillable: tuple[str, ...] = ()

    def names(self, knob: str) -> bool:
        """Whether the factory lists the knob among its parameters."""
        return knob in self.defaults

    def accepts(self, knob: str) -> bool:
        """Whether the factory can be called with the knob.

        What is no argument of DataLoader (`NOT_FOR_DATALOADER`) is not taken by `**kw`; what is the step's, never.
        """
        return knob not in STEP_KNOBS and (self.names(knob) or (self.takes_all and knob not in NOT_FOR_DATALOADER))


def signature_of(factory: Callable, name: str) -> FactorySignature:
    """The signature of a callable.

    Raises:
        SourceError: If it cannot be read, or asks for something that is no knob.
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (ValueError, TypeError):
        raise SourceError(
            f"the signature of {name} cannot be read; wrap it in a function that names its knobs"
        ) from None
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in by_name if p.default is REQUIRED and p.name not in LOADER_KNOBS]
    missing += [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is REQUIRED]
    return _checked(
        FactorySignature(
            {p.name: p.default for p in by_name},
            any(p.kind is p.VAR_KEYWORD for p in parameters),
            tuple(missing),
        ),
        name,
    )


def signature_from_syntax(function: ast.FunctionDef, name: str) -> FactorySignature:
    """The signature of a function definition that has not been executed; as `signature_of`."""
    spec = function.args
    listed = [a.arg for a in spec.posonlyargs + spec.args]
    defaults: dict[str, Any] = dict.fromkeys(listed, REQUIRED)
    defaults |= dict(zip(reversed(listed), map(_literal, reversed(spec.defaults)), strict=False))
    defaults |= {
        a.arg: REQUIRED if d is None else _literal(d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    }
    positional = {a.arg for a in spec.posonlyargs}
    missing = [n for n, d in defaults.items() if d is REQUIRED and (n not in LOADER_KNOBS or n in positional)]
    by_name = {n: d for n, d in defaults.items() if n not in positional}
    return _checked(FactorySignature(by_name, spec.kwarg is not None, tuple(missing)), name)


def arguments_for(signature: FactorySignature, settings: LoaderSettings, name: str) -> dict[str, Any]:
    """Keyword arguments with which the factory builds a loader under `settings`.

    A knob that the factory lists is always said, so that a default of its own (`prefetch_factor=4`) cannot meet a
    number of workers it does not go with; what means nothing for these settings is said as None or False.

    Raises:
        SourceError: If the factory asks for one of `KEPT_WHERE_NONE` and the settings have none.
    """
    spoken = settings.loader_kwargs()
    arguments = {knob: value for knob, value in spoken.items() if signature.takes_all or signature.names(knob)}
    for knob, value in settings.as_dict().items():
        if not signature.names(knob) or knob in STEP_KNOBS:
            continue
        default = signature.defaults[knob]
        if value is None and knob in KEPT_WHERE_NONE:
            if default is REQUIRED:
                raise SourceError(f"{name} asks for {knob} and the settings have none; give {knob} a default")
        elif value is None and knob == "multiprocessing_context" and settings.num_workers and default is not REQUIRED:
            continue  # None keeps what the factory has
        else:
            arguments[knob] = value
    return arguments


def unheard(signature: FactorySignature, settings: LoaderSettings) -> dict[str, Any]:
    """What the factory cannot be told and is to be set on the DataLoader it returns.

    A knob that the signature does not name is set whatever its value, as on a DataLoader that is handed over: what a
    settings says is what runs. A None that keeps what the loader has is left out.
    """
    return {
        knob: value
        for knob, value in settings.as_dict().items()
        if knob in LOADER_KNOBS
        and not signature.accepts(knob)
        and not (value is None and knob in (*KEPT_WHERE_NONE, "multiprocessing_context"))
    }


def turned(settings: LoaderSettings, knobs: Iterable[str]) -> dict[str, Any]:
    """Those of the knobs that the settings turn away from what any iterable of batches does by itself."""
    neutral = LoaderSettings(num_workers=settings.num_workers).as_dict() | {"num_workers": 0}
    return {knob: getattr(settings, knob) for knob in knobs if getattr(settings, knob) != neutral[knob]}


def default_settings(signature: FactorySignature) -> LoaderSettings | None:
    """The settings that a call without arguments means; None when the signature does not tell the workers."""
    defaults = {k: v for k, v in signature.defaults.items() if k in LOADER_KNOBS and k != "batch_size"}
    if not isinstance(defaults.get("layout", ""), str) and defaults["layout"] is not REQUIRED:
        del defaults["layout"]  # the factory's own object, or not told: None keeps it
    if "num_workers" not in defaults or any(v is REQUIRED or v is Unknown for v in defaults.values()):
        return None
    try:
        return LoaderSettings(**defaults)
    except SettingsError:
        return None


def settings_after_call(signature: FactorySignature, found: LoaderSettings) -> LoaderSettings:
    """The settings that a call without arguments means, where it gave a DataLoader with the knobs `found`.

    What no DataLoader tells (`NOT_FOR_DATALOADER`) is what the signature says of it.
    """
    said = {knob: signature.defaults[knob] for knob in NOT_FOR_DATALOADER if signature.names(knob)}
    return found.replaced(**{knob: value for knob, value in said.items() if isinstance(value, bool | int | str)})


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return Unknown


def _checked(signature: FactorySignature, name: str) -> FactorySignature:
    if signature.unfillable:
        listed = ", ".join(signature.unfillable)
        raise SourceError(
            f"{name} cannot be called with knobs alone: it also asks for {listed}; give that a default, or hand over "
            f"functools.partial(..., {signature.unfillable[0]}=...)"
        )
    return signature
