"""LoaderSource: how the user's real loader is built again under other settings."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Literal

from workbench.errors import SourceError
from workbench.loaders.address import Address, address_of, imported, signature_from_file
from workbench.loaders.factory import FactorySignature, arguments_for, default_settings, signature_of, unheard
from workbench.loaders.fingerprint import fingerprint_of
from workbench.loaders.settings import KNOBS, STEP_KNOBS, LoaderSettings

APPLIED_AFTERWARDS = ("batch_on_worker", "worker_threads", "sharing_strategy")  # to what a factory returns


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

    @classmethod
    def of(cls, loader: Any) -> LoaderSource:
        """The source of whatever the user handed over.

        Args:
            loader: A `DataLoader` or an instance of a subclass; a callable that takes knobs as keyword arguments and
                returns an iterable of batches; "package.module:callable"; "path/to/file.py:callable";
                "sample:photos"; or a LoaderSource, which is returned as it is.

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
        if not callable(loader):
            raise SourceError(_not_a_loader(loader))
        source = cls(_callable_name(loader), "factory", loader, None)
        source._signature = signature_of(loader, source.name)
        return source

    @property
    def current(self) -> LoaderSettings | None:
        """The user's present settings: the instance's own, or the factory's defaults; None when those do not tell."""
        self._settle()
        if self.kind == "factory":
            return default_settings(self._factory_signature())
        from workbench.loaders.rebuild import current_settings

        return current_settings(self._resolved())

    def accepts(self, knob: str) -> bool:
        """Whether the knob can be turned.

        A DataLoader takes all but `layout`; `batch_size` only if it has one of its own, and `batch_on_worker` only if
        it forms batches from samples. A factory takes what its signature names; `batch_on_worker`, `worker_threads`
        and `sharing_strategy` can also be applied to the DataLoader that it returns. No loader takes what is the
        training step's (`STEP_KNOBS`).
        """
        if knob not in KNOBS or knob in STEP_KNOBS:
            return False
        self._settle()
        if self.kind == "factory":
            return self._factory_signature().accepts(knob) or knob in APPLIED_AFTERWARDS
        from workbench.loaders import batching, rebuild

        loader = self._resolved()
        if knob == "layout":
            return False
        if knob == "batch_size":
            return rebuild.batch_size_is_free(loader)
        return batching.can_batch_on_worker(loader) if knob == "batch_on_worker" else True

    def build(self, settings: LoaderSettings) -> Iterable[Any]:
        """A new iterable of batches under these settings.

        A DataLoader is rebuilt with nothing but the knobs changed; the one handed over is left alone. A factory is
        called with the knobs it names; turned knobs that it does not name are set on the DataLoader it returns.

        Raises:
            SourceError: If the settings cannot be applied to this loader, or the factory returns no iterable.
            Exception: Whatever the user's factory raises.
        """
        target = self._resolved()
        if self.kind == "loader":
            return _with_knobs(target, settings)
        signature = self._factory_signature()
        loader = target(**arguments_for(signature, settings, self.name))
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise SourceError(
                f"{self.name} returned {_shown(loader)}, no iterable of batches; let it return the loader"
            )
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
        return f"factory {self.name}, which takes {', '.join(known) if known else 'none of the knobs'}"

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

    def _resolved(self) -> Any:
        if self._target is None and self._address is not None:
            target = imported(self._address)
            if is_dataloader(target):
                self.kind = "loader"
            elif not callable(target):
                raise SourceError(f"{self.name!r} is {_shown(target)}; it must name a callable or a DataLoader")
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
        extra = unheard(signature, settings)
        if settings.batch_on_worker and not signature.names("batch_on_worker"):
            extra["batch_on_worker"] = True
        if not is_dataloader(loader):
            refused = {k: v for k, v in extra.items() if v or k != "num_workers"}
            if refused:
                said = ", ".join(f"{k}={v!r}" for k, v in refused.items())
                raise SourceError(
                    f"{said} cannot be applied: {self.name} does not name {'it' if len(refused) == 1 else 'them'} and "
                    f"returns {_shown(loader)}, which is no DataLoader; add the parameter to the factory"
                )
            return loader
        from workbench.loaders.rebuild import current_settings

        own = current_settings(loader)
        wanted = own.replaced(**extra)
        return loader if wanted == own else _with_knobs(loader, wanted)


def is_dataloader(candidate: Any) -> bool:
    """Whether it is a torch DataLoader, told without importing torch."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(candidate, module.DataLoader)


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
    inner = next((k for k, v in getattr(candidate, "__dict__", {}).items() if is_dataloader(v)), None)
    if inner is not None:
        way_out = f"hand over its DataLoader (.{inner}), or a function that takes the knobs and returns the wrapper"
    else:
        way_out = "hand over a DataLoader, a function that takes knobs such as num_workers and returns one, or its name"
    return f"{_shown(candidate)} cannot be rebuilt under other settings; {way_out}"


def _shown(value: Any) -> str:
    text = repr(value) if value is None or isinstance(value, bool | int | float | str) else ""
    return text or f"an object of {type(value).__module__}.{type(value).__qualname__}"
