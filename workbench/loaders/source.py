"""LoaderSource: how the user's real loader is built again under other settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from workbench.errors import SourceError
from workbench.loaders.address import Address, address_of, dataset_named, imported, signature_from_file
from workbench.loaders.factory import (
    REQUIRED,
    FactorySignature,
    arguments_for,
    default_settings,
    settings_after_call,
    signature_of,
    turned,
    unheard,
)
from workbench.loaders.fingerprint import fingerprint_of
from workbench.loaders.returned import (
    ONLY_WITH_WORKERS,
    WHY_FIXED,
    Returned,
    can_be_set,
    is_dataloader,
    is_dataset,
    is_map_style,
    returned,
    shown,
)
from workbench.loaders.settings import KNOBS, STEP_KNOBS, LoaderSettings


class LoaderSource:
    """The user's loader as something that can be built again; made by `LoaderSource.of`.

    Cheap to make: nothing is iterated, copied or imported. Pickled by cloudpickle it carries the loader or factory
    itself, or only the text where one was given.

    Attributes:
        name: What to call it, for instance "DataLoader(Photos)" or "train.py:make_loader".
        kind: "loader" for a DataLoader instance, "factory" for a callable or a text that names one.
    """

    def __init__(self, name: str, kind: Literal["loader", "factory"], target: Any, address: Address | None) -> None:
        self.name = name
        self.kind = kind
        self._target = target
        self._address = address
        self._signature: FactorySignature | None = None
        self._returned: Returned | None = None  # by the last call
        self._said: dict[str, Any] = {}  # in the last call
        self._must_turn: tuple[str, ...] = ()

    @classmethod
    def of(cls, loader: Any) -> LoaderSource:
        """The source of whatever the user handed over.

        Args:
            loader: A `DataLoader` or an instance of a subclass; a callable that returns one, or that takes knobs as
                keyword arguments and returns any iterable of batches; "package.module:name" or "path/to/file.py:name"
                of either; "sample:photos"; or a LoaderSource, which is returned as it is.

        Raises:
            SourceError: If it is none of these, cannot be found, asks for arguments that are no knobs, or is a
                DataLoader that could not be iterated.
        """
        if isinstance(loader, LoaderSource):
            return loader
        if isinstance(loader, str):
            address = address_of(loader)
            source = cls(loader, "factory", None, address)
            source._signature = signature_from_file(address)
            return source
        if is_dataloader(loader):
            source = cls(f"{type(loader).__name__}({type(loader.dataset).__name__})", "loader", loader, None)
            _ = source.current
            return source
        if is_dataset(loader) or not callable(loader):
            raise SourceError(_not_a_loader(loader))
        source = cls(_callable_name(loader), "factory", loader, None)
        source._signature = signature_of(loader, source.name)
        return source

    @property
    def current(self) -> LoaderSettings | None:
        """The user's present settings: the instance's own, or the factory's defaults; None when those do not tell.

        Knobs that a factory does not name are taken for PyTorch's defaults; `current_when_called` looks.
        """
        self._settle()
        if self.kind == "factory":
            return default_settings(self._factory_signature())
        from workbench.loaders.rebuild import current_settings

        return current_settings(self._resolved())

    def current_when_called(self) -> LoaderSettings | None:
        """As `current`, read off the DataLoader that a factory returns when nothing is said; runs the user's code.

        A factory that takes every knob is not called, nor one that cannot be called without arguments, nor a second
        time where the last `build` said nothing but its defaults.
        """
        told = self.current
        if self.kind == "loader":
            return told
        signature = self._factory_signature()
        if signature.takes_all or REQUIRED in signature.defaults.values():
            return told
        found = self._returned
        if found is None or any(signature.defaults[name] != value for name, value in self._said.items()):
            try:
                found = returned(self._resolved()())
            except Exception:  # the user's own, of a call that nothing else depends on
                return told
        return told if found.settings is None else settings_after_call(signature, found.settings)

    def own_with_workers(self) -> dict[str, Any]:
        """What a factory gives its DataLoader as soon as there are workers, of what it cannot be told; runs its code.

        `persistent_workers=num_workers > 0` is such a thing: without workers nothing shows it. Only what differs from
        PyTorch's defaults; empty for a factory that does not name `num_workers`, or cannot be called with it alone.
        """
        if self.kind == "loader":
            return {}
        signature = self._factory_signature()
        if signature.takes_all or not signature.names("num_workers"):
            return {}
        try:
            made = returned(self._resolved()(**arguments_for(signature, LoaderSettings(1), self.name)))
        except Exception:  # the user's own, of a call that nothing else depends on
            return {}
        own, plain = (made.settings or LoaderSettings(1)).as_dict(), LoaderSettings(1).as_dict()
        return {k: own[k] for k in ONLY_WITH_WORKERS if not signature.accepts(k) and own[k] != plain[k]}

    def accepts(self, knob: str) -> bool:
        """Whether the knob can be turned.

        A DataLoader takes all but `layout`; `batch_size` only if it has one of its own, and `batch_on_worker` only if
        it forms batches from samples. A factory takes what its signature names, and the DataLoader that it returns the
        rest. Before it was called it is believed to return one; afterwards (see `as_seen`) what it returned decides.
        No loader takes what is the training step's (`STEP_KNOBS`).
        """
        if knob not in KNOBS or knob in STEP_KNOBS:
            return False
        self._settle()
        if self.kind == "loader":
            return can_be_set(self._resolved(), knob)
        if self._factory_signature().accepts(knob):
            return True
        return knob != "layout" if self._returned is None else knob not in self._returned.fixed

    def why_fixed(self, knob: str) -> str:
        """Why a knob that is not accepted cannot be turned, and the way out: words that follow "cannot be tried: "."""
        seen, why = self._returned, f"cannot change it: {WHY_FIXED.get(knob, 'it has no such knob')}"
        if self.kind == "loader":
            return f"{self.name} {why}; hand over a function that takes {knob} and returns the loader"
        if seen is None:
            return f"{self.name} names no parameter {knob}; let it take that keyword argument"
        if not seen.shown:
            return f"the DataLoader that {self.name} returned {why}; let it take a keyword argument {knob}"
        return f"{_not_a_dataloader(self.name, seen.shown)}, and names no parameter {knob}; {_WAYS_OUT}"

    @property
    def seen(self) -> Returned | None:
        """What the factory returned when it was last called here; None before, and for a DataLoader."""
        return self._returned

    def as_seen(self, what: str, fixed: Iterable[str]) -> LoaderSource:
        """The same source, knowing what another process saw its factory return: `shown` and `fixed` of that."""
        twin = self._twin()
        if self.kind == "factory":
            twin._returned = Returned(what, tuple(fixed))
        return twin

    def to_turn(self, knobs: Iterable[str]) -> LoaderSource:
        """The same source, which refuses to build where one of these knobs could not be turned.

        So that a factory of something else than DataLoaders is told at its first call, and not after a look at data.
        """
        twin = self._twin()
        twin._must_turn = tuple(knobs)
        return twin

    def build(self, settings: LoaderSettings) -> Iterable[Any]:
        """A new iterable of batches under these settings.

        A DataLoader is rebuilt with nothing but the knobs changed; the one handed over is left alone. A factory is
        called with the knobs it names, which it decides itself; the others are set on the DataLoader it returns.

        Raises:
            SourceError: If the settings cannot be applied to this loader, or the factory returns no iterable.
            Exception: Whatever the user's factory raises.
        """
        target = self._resolved()
        if self.kind == "loader":
            return _with_knobs(target, settings)
        signature = self._factory_signature()
        self._said = arguments_for(signature, settings, self.name)
        loader = target(**self._said)
        if is_map_style(loader):
            raise SourceError(f"{_not_a_dataloader(self.name, shown(loader))}; let it return DataLoader(...) over it")
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise SourceError(f"{self.name} returned {shown(loader)}, no iterable of batches; let it return the loader")
        return self._finished(loader, settings, signature)

    def resolve(self) -> None:
        """Import what a text names; does nothing for loaders and callables.

        Raises:
            SourceError: If the import fails, or what is found is neither a DataLoader nor callable.
        """
        self._resolved()

    def describe(self) -> str:
        """One line about the source."""
        self._settle()
        if self.kind == "loader":
            from workbench.loaders.rebuild import loader_line

            return loader_line(self._resolved())
        known = [knob for knob in KNOBS if self._factory_signature().accepts(knob)]
        return f"factory {self.name}, which takes {', '.join(known)}" if known else f"factory {self.name}"

    def fingerprint(self) -> str:
        """A short hash of the definition, equal in every process as long as the loader is the same.

        It covers classes, code, plain attributes and sampler of a DataLoader; the code and defaults of a factory; the
        file that a text names. It does not cover the knobs, nor the data.
        """
        if self._address is not None:
            return fingerprint_of(self._address)
        if self.kind == "factory":
            return fingerprint_of(self._target)
        from workbench.loaders.rebuild import portable

        return fingerprint_of(portable(self._target))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self._address is not None:
            state["_target"] = None
        elif self.kind == "loader":
            from workbench.loaders.rebuild import portable

            state["_target"] = portable(self._target)
        return state

    def __repr__(self) -> str:
        return f"LoaderSource({self.name!r}, kind={self.kind!r})"

    def _twin(self) -> LoaderSource:
        """One with the same attributes; `copy` would leave out what is not to travel."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def _resolved(self) -> Any:
        if self._target is None and self._address is not None:
            target = imported(self._address)
            if is_dataloader(target):
                self.kind = "loader"
            elif is_dataset(target):
                raise SourceError(dataset_named(self.name, shown(target)))
            elif not callable(target):
                raise SourceError(f"{self.name!r} is {shown(target)}; it must name a callable or a DataLoader")
            self._target = target
        return self._target

    def _settle(self) -> None:
        """Import what a text names if its syntax did not tell whether it is a factory."""
        if self._address is not None and self._signature is None:
            self._resolved()

    def _factory_signature(self) -> FactorySignature:
        if self._signature is None:
            self._signature = signature_of(self._resolved(), self.name)
        return self._signature

    def _finished(self, loader: Any, settings: LoaderSettings, signature: FactorySignature) -> Any:
        """The factory's loader with the knobs that the factory could not be told."""
        seen = self._returned = returned(loader)
        extra = unheard(signature, settings)
        if seen.settings is None:
            refused = dict.fromkeys(knob for knob in self._must_turn if not signature.accepts(knob))
            refused |= turned(settings, extra)
            if refused:
                raise SourceError(_cannot_be_applied(self.name, seen.shown, refused))
            return loader
        wanted = seen.settings.replaced(**extra)
        return loader if wanted == seen.settings else _with_knobs(loader, wanted)


def _with_knobs(loader: Any, settings: LoaderSettings) -> Any:
    from workbench.loaders import batching, rebuild, workers

    twin = workers.with_worker_knobs(rebuild.rebuilt(loader, settings), settings)
    if settings.batch_on_worker and batching.can_batch_on_worker(loader):
        return batching.whole_batches(twin)
    return twin


def _callable_name(factory: Any) -> str:
    inner = getattr(factory, "func", factory)  # functools.partial
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    module = getattr(inner, "__module__", None)
    return name if module in (None, "__main__") else f"{module}.{name}"


def _not_a_loader(candidate: Any) -> str:
    if is_dataset(candidate):
        return (
            f"{shown(candidate)} is not a DataLoader; hand over DataLoader(...) over it, or a function that returns one"
        )
    inner = next((k for k, v in getattr(candidate, "__dict__", {}).items() if is_dataloader(v)), None)
    if inner is not None:
        way_out = f"hand over its DataLoader (.{inner}), or a function that takes the knobs and returns the wrapper"
    else:
        way_out = "hand over a DataLoader, a function that takes knobs such as num_workers and returns one, or its name"
    return f"{shown(candidate)} cannot be rebuilt under other settings; {way_out}"


_WAYS_OUT = "let it return a DataLoader, or take that keyword argument"


def _not_a_dataloader(name: str, what: str) -> str:
    return f"{name} returned {what}, not a DataLoader"


def _cannot_be_applied(name: str, what: str, knobs: dict[str, Any]) -> str:
    said = ", ".join(knob if value is None else f"{knob}={value!r}" for knob, value in knobs.items())
    return f"{said} cannot be applied: {_not_a_dataloader(name, what)}, and names no such parameter; {_WAYS_OUT}"
