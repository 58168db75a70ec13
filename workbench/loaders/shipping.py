"""Loaders on their way into other processes: by value into the trial process, and from there into spawned workers.

Into the trial process the loader goes through a file, so that the notebook's process never holds a second copy of it.
Classes and functions of `__main__` (a notebook cell, a script) travel by value, and are put on `__main__` again where
they arrive: batches and exceptions that come back from workers are pickled by reference and look for them there.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import site
import sys
import sysconfig
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import reduction
from typing import IO, Any, ClassVar

import cloudpickle

from workbench.errors import SourceError
from workbench.loaders import cells
from workbench.loaders.modules import ModulePickler
from workbench.loaders.unpicklable import CountingSink, culprit, pickle_problem, remember_main_file, why_not_by_value

__all__ = ["ShipReport", "install_by_value_pickling", "load", "pickle_problem", "publish", "ship"]

LARGE_BYTES = 64 * 2**20  # a loader above this size is searched for globals that came along
NAMED_BYTES = 2**20  # and those above this size are named


@dataclass(frozen=True)
class ShipReport:
    """What went into the file.

    Attributes:
        bytes: Size of everything that was written.
        globals_named: Globals of the notebook that functions and classes drag along, with their bytes, largest first;
            looked for only when the whole is large.
        notes: Sentences worth showing.
    """

    bytes: int
    globals_named: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


class ByValuePickler(ModulePickler):
    """CloudPickler that remembers which classes and functions of `__main__` it wrote by value, and where code is from.

    Attributes:
        cells: Lines of the notebook cells whose code was written, by the name of the cell.
    """

    def __init__(self, file: IO[bytes], protocol: int | None = None) -> None:
        super().__init__(file, protocol=protocol)
        self.by_value: dict[int, type | types.FunctionType] = {}
        self.cells: dict[str, list[str]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """As in CloudPickler; also notes functions and classes that are written by value.

        CloudPickler leaves out the file that code comes from, without which an error could not be shown with its line.
        """
        if isinstance(obj, types.CodeType):
            name = cells.origin(obj)
            if cells.is_cell(name):
                self.cells[name] = cells.lines_of(obj)
            return cells.with_origin, (name, *self.dispatch_table[types.CodeType](obj)[:2])
        reduced = super().reducer_override(obj)
        if (
            reduced is not NotImplemented
            and isinstance(obj, type | types.FunctionType)
            and not isinstance(reduced, str)
        ):
            self.by_value[id(obj)] = obj
        return reduced

    def named(self) -> list[type | types.FunctionType]:
        """Those that a reader could look up by module and name."""
        modules = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
        return [o for o in self.by_value.values() if o.__qualname__.isidentifier() and o.__module__ in modules]

    def dump_published(self, obj: Any) -> None:
        """Write `obj` so that reading it also puts its `__main__` names on the reader's `__main__`."""
        self.dump(_Published(obj, self))


class ProcessPickler(ByValuePickler):
    """ByValuePickler that also knows how tensors, locks and pipes go to a process that is being spawned."""

    dispatch_table: ClassVar = ChainMap(
        reduction.ForkingPickler._extra_reducers, cloudpickle.CloudPickler.dispatch_table
    )


def ship(source: Any, step: Callable | None, file: IO[bytes]) -> ShipReport:
    """Write a source and a step to an open binary file, for `load` in another process.

    Args:
        source: A LoaderSource.
        step: What the consumer does with a batch, or None.
        file: Open for writing in binary; keep it private, it holds the user's data.

    Raises:
        SourceError: If something cannot be pickled; names it, as "dataset.lock".
    """
    start = file.tell()
    pickle.dump(_environment(), file)
    only_here = _modules_only_here()
    with _by_value(only_here):
        pickler = ByValuePickler(file)
        try:
            pickler.dump_published((source, step))
        except Exception as error:
            raise _cannot_ship(source, step, error) from error
        pickle.dump(pickler.cells, file)
        written = file.tell() - start
        dragged = _dragged_globals(pickler) if written > LARGE_BYTES else ()
    used = sorted({o.__module__ for o in pickler.by_value.values()} & {m.__name__ for m in only_here})
    return ShipReport(written, dragged, tuple(_notes(written, dragged, used)))


def load(file: IO[bytes]) -> tuple[Any, Callable | None]:
    """The source and step that `ship` wrote; working directory and `sys.path` become those of the sender.

    Raises:
        SourceError: If it cannot be read here, for instance because a module cannot be imported.
    """
    _adopt(pickle.load(file))
    try:
        source, step = pickle.load(file)
        cells.show_lines(pickle.load(file))
    except Exception as error:
        raise SourceError(
            f"the loader could not be unpacked in the trial process ({type(error).__name__}: {error}); "
            "make sure that everything it uses can be imported from a .py file, or hand over a function that builds it"
        ) from error
    return source, step


def install_by_value_pickling() -> None:
    """Let workers started by "spawn" or "forkserver" take classes of `__main__`, local functions and lambdas.

    For the trial process only: it changes how this process pickles the processes that it starts (not its queues), so
    that a loader can be measured under a start method with which the user's own program could not run it as it is.
    `pickle_problem` tells whether that is so.
    """
    reduction.dump = _dump_process


def _dump_process(obj: Any, file: IO[bytes], protocol: int | None = None) -> None:
    ProcessPickler(file, protocol).dump_published(obj)


class _Published:
    """Pickles as (obj, the `__main__` names that were met while pickling obj); arrives as obj."""

    def __init__(self, obj: Any, pickler: ByValuePickler) -> None:
        self.parts = (obj, _Met(pickler))

    def __reduce__(self) -> tuple:
        return publish, self.parts


class _Met:
    """Stands for the names that a pickler has met by the time it comes to this object."""

    def __init__(self, pickler: ByValuePickler) -> None:
        self.pickler = pickler

    def __reduce__(self) -> tuple:
        return list, ([(o.__module__, o.__qualname__, o) for o in self.pickler.named()],)


def publish(obj: Any, names: list[tuple[str, str, Any]]) -> Any:
    """Make names importable in this process, and return `obj`.

    Args:
        obj: Passed through.
        names: Module, name and value of classes and functions that arrived by value. A module other than `__main__`
            that does not exist here is made, and goes on by value to further processes.
    """
    for module_name, name, value in names:
        module = sys.modules.get(module_name)
        if module is None:
            module = sys.modules[module_name] = types.ModuleType(module_name)
            cloudpickle.register_pickle_by_value(module)
        if module_name == "__main__" and getattr(module, name, value) is not value and name not in _published:
            module = _twin_of_main(module)
        if module_name != "__main__" and hasattr(module, name):
            continue
        setattr(module, name, value)
        _published.add(name)
    return obj


_published: set[str] = set()
_replaced: list[types.ModuleType] = []  # their functions go on using their own globals


def _twin_of_main(main: types.ModuleType) -> types.ModuleType:
    """A copy of this process's `__main__` put in its place, so that a name can change without its code noticing."""
    _replaced.append(main)
    twin = types.ModuleType("__main__")
    vars(twin).update(vars(main))
    sys.modules["__main__"] = twin
    return twin


def _environment() -> dict[str, Any]:
    """What the sender's process has that unpacking and running the loader may depend on."""
    environment: dict[str, Any] = {
        "cwd": os.getcwd(),
        "sys_path": [os.path.abspath(entry) for entry in sys.path],
        "main_file": getattr(sys.modules.get("__main__"), "__file__", None),
        "start_method": multiprocessing.get_start_method(allow_none=True),
    }
    torch = sys.modules.get("torch")
    if torch is not None and "torch.multiprocessing" in sys.modules:
        environment["sharing_strategy"] = torch.multiprocessing.get_sharing_strategy()
        environment["num_threads"] = torch.get_num_threads()
        environment["default_dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
    return environment


def _adopt(environment: dict[str, Any]) -> None:
    if os.path.isdir(environment["cwd"]):
        os.chdir(environment["cwd"])
    theirs = environment["sys_path"]
    sys.path[:] = theirs + [entry for entry in sys.path if entry not in theirs]
    importlib.invalidate_caches()
    remember_main_file(environment["main_file"])
    if environment["start_method"] is not None:
        multiprocessing.set_start_method(environment["start_method"], force=True)
    if "sharing_strategy" in environment:
        import torch

        torch.multiprocessing.set_sharing_strategy(environment["sharing_strategy"])
        torch.set_num_threads(environment["num_threads"])
        torch.set_default_dtype(getattr(torch, environment["default_dtype"]))


def _cannot_ship(source: Any, step: Callable | None, error: Exception) -> SourceError:
    found = culprit(source, "", why_not_by_value) or culprit(step, "step", why_not_by_value)
    path, _, reason = found or ("the loader", None, f"{type(error).__name__}: {error}")
    if path.startswith("'"):
        path = source.name + path
    return SourceError(
        f"{path} cannot be sent to a trial process ({reason}); open or create it in __getitem__, __iter__ or "
        "worker_init_fn, or hand over a function that builds the loader"
    )


def _dragged_globals(pickler: ByValuePickler) -> tuple[tuple[str, int], ...]:
    """Data among the globals that shipped functions mention, with its size; largest first."""
    found: dict[str, int] = {}
    for function in pickler.by_value.values():
        if not isinstance(function, types.FunctionType):
            continue
        for name in _mentioned(function.__code__):
            value = function.__globals__.get(name)
            if name not in found and not isinstance(value, types.ModuleType | types.FunctionType | type | None):
                found[name] = size_by_value(value)
    large = [(name, size) for name, size in found.items() if size >= NAMED_BYTES]
    return tuple(sorted(large, key=lambda pair: -pair[1]))


def size_by_value(value: Any) -> int:
    """Bytes that cloudpickle would write for the value; 0 when it cannot."""
    sink = CountingSink()
    try:
        cloudpickle.CloudPickler(sink).dump(value)
    except Exception:  # whatever the user's own __reduce__ raises
        return 0
    return sink.bytes


def _mentioned(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _mentioned(constant)


def _notes(written: int, dragged: tuple[tuple[str, int], ...], modules: list[str]) -> Iterator[str]:
    for name, size in dragged:
        yield (
            f"the notebook's global {name} ({size / 1e6:,.0f} MB) is sent along because a function or class mentions "
            "it; pass in only what is needed"
        )
    if written > LARGE_BYTES:
        yield (
            f"the loader takes {written / 1e6:,.0f} MB to send; a function that builds the dataset would be sent "
            "instead of the data"
        )
    for module in modules:
        yield f"module {module} exists only in this process; its code is sent along"


@contextmanager
def _by_value(modules: list[types.ModuleType]) -> Iterator[None]:
    """Let cloudpickle write these modules' classes and functions by value."""
    registered = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_only_here() -> list[types.ModuleType]:
    """Loaded modules of the user that a fresh interpreter would not find, or would find elsewhere."""
    installed = tuple({sysconfig.get_path(p) for p in ("stdlib", "platstdlib", "purelib", "platlib")})
    installed += (*site.getsitepackages(), site.getusersitepackages())
    only_here = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or name != getattr(module, "__name__", None):
            continue
        if name.partition(".")[0] in sys.stdlib_module_names or (file and file.startswith(installed)):
            continue
        package = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) or ""
        if package.startswith(installed) or (file is None and "." in name):
            continue  # made by its package when that is imported
        if not _found_again(name, file):
            only_here.append(module)
    return only_here


def _found_again(name: str, file: str | None) -> bool:
    parent = name.rpartition(".")[0]
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        except Exception:  # a third party's import hook
            spec = None
        if spec is not None:
            return file is None or spec.origin is None or os.path.realpath(spec.origin) == os.path.realpath(file)
    return False
