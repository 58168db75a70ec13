"""What of a loader cannot be pickled, found by trying: which part, under which name, and what to do about it."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import context, reduction
from typing import Any

from workbench.loaders.modules import ModulePickler

MAX_DEPTH = 8
MAX_ENTRIES = 200  # of a container that are tried one by one
WORKER_PARTS = ("dataset", "collate_fn", "worker_init_fn")  # what DataLoader sends to a worker
GENERATED = "<string>"  # file name of code that was compiled from text, as dataclasses does

_sender: dict[str, str | None] = {}


class CountingSink:
    """A file that only counts what is written to it."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        """Add the length of `data`."""
        size = memoryview(data).nbytes
        self.bytes += size
        return size


def remember_main_file(file: str | None) -> None:
    """Tell which script `__main__` classes come from when they were sent here by another process; None: a notebook."""
    _sender["main_file"] = file


def pickle_problem(loader: Any, method: str) -> str | None:
    """Why the loader could not run its workers under a start method in a program of the user's own, or None.

    Tried with plain pickle, as torch would, but without writing or sharing the data. Classes and functions that live
    in a notebook count as a problem, since a spawned worker cannot import them.

    Args:
        loader: A DataLoader; anything else has no problem that could be told.
        method: "fork", "spawn" or "forkserver".

    Returns:
        A sentence such as "collate_fn <lambda> at train.py:12 cannot be pickled; move it to ...", or None.
    """
    if method == "fork" or not hasattr(loader, "dataset"):
        return None
    for name in WORKER_PARTS:
        found = culprit(getattr(loader, name, None), name, why_not_plain)
        if found is not None:
            return _sentence(*found)
    return None


def unsendable_part(loader: Any) -> str:
    """Which part of a loader no started process can take, as "dataset.lock (TypeError: ...)"; empty where none is."""
    for name in WORKER_PARTS:
        found = culprit(getattr(loader, name, None), name, why_not_by_value)
        if found is not None:
            return f"{found[0]} ({found[2]})"
    return ""


def culprit(obj: Any, path: str, attempt: Callable[[Any], str | None]) -> tuple[str, Any, str] | None:
    """The innermost part of `obj` for which `attempt` gives a reason: (its path, the part, the reason); None if none.

    Args:
        obj: What fails as a whole, or may.
        path: What to call it; parts are named after it, as in "dataset.lock".
        attempt: Gives the reason why a value fails, None when it does not.
    """
    return _culprit(obj, path, attempt, 0, set())


def why_not_plain(value: Any) -> str | None:
    """Why pickle, as multiprocessing uses it to start a process, refuses the value; None when it takes it."""
    return _refusal(lambda: _PlainPickler(CountingSink(), 5, True, _drop).dump(value))


def why_not_by_value(value: Any) -> str | None:
    """Why cloudpickle refuses the value; None when it takes it."""
    return _refusal(lambda: ModulePickler(CountingSink(), 5, buffer_callback=_drop).dump(value))


class _PlainPickler(reduction.ForkingPickler):
    """ForkingPickler that leaves tensors where they are and refuses what only a notebook holds."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and lives_in_notebook(obj):
            kind = "class" if isinstance(obj, type) else "function"
            raise pickle.PicklingError(f"{kind} {obj.__qualname__} lives in __main__")
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.UntypedStorage):
            return bool, ()  # shared memory on the real way
        return NotImplemented


class _Spawning:
    """Stands for the process being started, so that locks and pipes agree to be pickled."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor


def lives_in_notebook(obj: type | types.FunctionType) -> bool:
    """Whether a class or function of `__main__` comes from no script that a spawned worker could run again."""
    if obj.__module__ != "__main__":
        return False
    main_file = _sender["main_file"] if "main_file" in _sender else getattr(sys.modules["__main__"], "__file__", None)
    if main_file is None or main_file.startswith("<"):  # "<stdin>": code that was typed or piped in
        return True
    files = {code.co_filename for code in _codes(obj)}
    if any(os.path.realpath(file) == os.path.realpath(main_file) for file in files):
        return False
    return bool(files - {GENERATED}) or not dataclasses.is_dataclass(obj)


def _codes(obj: type | types.FunctionType) -> Iterator[types.CodeType]:
    for value in [obj] if isinstance(obj, types.FunctionType) else vars(obj).values():
        value = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(value, types.FunctionType):
            yield value.__code__


def _drop(_: pickle.PickleBuffer) -> None:
    """Take a large buffer out of the stream, so that nothing copies it."""


def _refusal(dump: Callable[[], None]) -> str | None:
    spawning = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning())
    try:
        dump()
    except Exception as error:  # whatever a user's __reduce__ or __getstate__ raises
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
    finally:
        context.set_spawning_popen(spawning)
    return None


def _culprit(
    obj: Any, path: str, attempt: Callable[[Any], str | None], depth: int, seen: set[int]
) -> tuple[str, Any, str] | None:
    if id(obj) in seen or depth > MAX_DEPTH:
        return None
    seen.add(id(obj))
    reason = attempt(obj)
    if reason is None:
        return None
    for name, part in _parts(obj, into_functions=attempt is why_not_by_value):
        found = _culprit(part, f"{path}{name}".lstrip("."), attempt, depth + 1, seen)
        if found is not None:
            return found
    return path or type(obj).__qualname__, obj, reason


def _parts(obj: Any, into_functions: bool) -> Iterator[tuple[str, Any]]:
    """What an object holds, with the text that leads to it; plain pickle does not look into functions."""
    if isinstance(obj, types.FunctionType):
        if not into_functions:
            return
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=False):
            yield f"'s variable {name}", _content(cell)
        if obj.__module__ == "__main__":
            for name in obj.__code__.co_names:
                if name in obj.__globals__:
                    yield f"'s global {name}", obj.__globals__[name]
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
    elif isinstance(obj, functools.partial):
        yield ".func", obj.func
        yield from ((f".args[{i}]", v) for i, v in enumerate(obj.args))
        yield from ((f".keywords[{k!r}]", v) for k, v in obj.keywords.items())
    elif isinstance(obj, Mapping):
        yield from ((f"[{k!r}]", v) for k, v in list(obj.items())[:MAX_ENTRIES])
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{i}]", v) for i, v in enumerate(list(obj)[:MAX_ENTRIES]))
    elif not isinstance(obj, type | types.ModuleType):
        yield from _state(obj)


def _state(obj: Any) -> Iterator[tuple[str, Any]]:
    custom = getattr(type(obj), "__getstate__", None)
    if custom is not None and custom is not getattr(object, "__getstate__", None):
        try:
            state = obj.__getstate__()
        except Exception:  # the user's own
            return
        if isinstance(state, dict):
            yield from ((f".{k.removeprefix('_target')}".rstrip("."), v) for k, v in state.items())
            return
    for name, value in getattr(obj, "__dict__", {}).items():
        yield ("" if name == "user_dataset" else f".{name}"), value  # what batches on the worker is not the user's
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.startswith("__") and hasattr(obj, slot):
                yield f".{slot}", getattr(obj, slot)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _sentence(path: str, part: Any, reason: str) -> str:
    way_out = "move it to the top level of a .py file"
    if isinstance(part, types.FunctionType):
        code = part.__code__
        name = part.__qualname__.rpartition(".")[2]
        where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        return f"{path} {name} at {where} cannot be pickled; {way_out}"
    cls = part if isinstance(part, type) else type(part)
    if lives_in_notebook(cls):
        return f"{path}: class {cls.__qualname__} lives in __main__ and cannot be pickled; {way_out}"
    if "<locals>" in cls.__qualname__:
        name = cls.__qualname__.rpartition(".")[2]
        return f"{path}: class {name}, defined inside a function, cannot be pickled; {way_out}"
    return f"{path} cannot be pickled ({reason}); create it in the worker, or leave it out in __getstate__"
