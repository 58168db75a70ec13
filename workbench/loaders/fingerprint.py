"""Whether two processes hold the same loader: a hash over its definition that depends on neither object ids nor paths
of temporary files, for deciding whether stored trials still belong to the loader at hand."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from workbench.loaders.address import Address

DIGITS = 16  # hex digits kept of the SHA-256
MAX_DEPTH = 5
MAX_ENTRIES = 64  # of a container, halved at each level; the rest counts by its length
LIBRARIES = ("torch", "torchdata", "numpy", "builtins", "typing", "abc", "collections")
PASSING_NAMES = ("epoch", "_epoch", "_iterator", "next_iter_state")  # change while a loader is in use
KNOB_ATTRIBUTES = (
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "pin_memory_device",
    "persistent_workers",
    "in_order",
    "_DataLoader__multiprocessing_context",
    "_IterableDataset_len_called",
    "_initial_iter_for_state_dict",
)


def fingerprint_of(target: Any) -> str:
    """16 hex digits over what defines the loader; equal in every process, different when its code or values change."""
    described = _address(target) if isinstance(target, Address) else _described(target, 0, set())
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _address(address: Address) -> list[Any]:
    try:
        content = hashlib.sha256(Path(str(address.file)).read_bytes()).hexdigest()
    except OSError:
        content = "no source"
    return ["address", address.module, address.attribute, content]


def _described(value: Any, depth: int, seen: set[int]) -> Any:
    """A JSON value that stands for `value`: plain values as they are, code by its bytes, objects by their parts."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex | bytes | PurePath):
        return [type(value).__name__ if not isinstance(value, PurePath) else "path", repr(value)]
    if isinstance(value, types.FunctionType):
        return _function(value, depth, seen)
    if isinstance(value, types.MethodType):
        return ["method", _described(value.__func__, depth, seen), _described(value.__self__, depth, seen)]
    if isinstance(value, type):
        return _class(value, depth, seen)
    if depth >= MAX_DEPTH or id(value) in seen:
        return ["object", _name(type(value))]
    seen = seen | {id(value)}
    if isinstance(value, functools.partial):
        return ["partial", *(_described(v, depth + 1, seen) for v in (value.func, value.args, value.keywords))]
    if hasattr(type(value), "shape") and hasattr(type(value), "dtype"):
        text = str(value) if tuple(value.shape) == () else ""
        return ["array", _name(type(value)), [str(n) for n in value.shape], str(value.dtype), text]
    if isinstance(value, Mapping | list | tuple | set | frozenset | range):
        return _container(value, depth, seen)
    return ["object", _described(type(value), depth + 1, seen), _attributes(value, depth, seen)]


def _container(value: Any, depth: int, seen: set[int]) -> Any:
    head, limit = [_name(type(value)), len(value)], MAX_ENTRIES >> depth
    if isinstance(value, range):
        return [*head, repr(value)]
    if isinstance(value, Mapping):
        entries = [[repr(k), _described(v, depth + 1, seen)] for k, v in islice(value.items(), limit)]
    elif isinstance(value, set | frozenset):
        if len(value) > limit:  # which entries come first differs between processes
            return head
        return [*head, sorted(json.dumps(_described(v, depth + 1, seen)) for v in value)]
    else:
        entries = [_described(v, depth + 1, seen) for v in value[:limit]]
    return [*head, entries]


def _function(function: types.FunctionType, depth: int, seen: set[int]) -> Any:
    if _from_library(function.__module__):
        return ["function", f"{function.__module__}.{function.__qualname__}"]
    if depth >= MAX_DEPTH or id(function) in seen:
        return ["function", function.__qualname__]
    seen = seen | {id(function)}
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    defaults = [function.__defaults__, function.__kwdefaults__]
    parts = [_described(v, depth + 1, seen) for v in defaults + cells]
    return ["function", function.__qualname__, list(_code(function.__code__)), parts]


def _class(cls: type, depth: int, seen: set[int]) -> Any:
    if _from_library(cls.__module__) or depth >= MAX_DEPTH or id(cls) in seen:
        return ["class", _name(cls)]
    seen = seen | {id(cls)}
    own = {}
    for name, value in vars(cls).items():
        value = getattr(value, "__func__", value)  # classmethod, staticmethod
        value = getattr(value, "fget", value)  # property
        if isinstance(value, types.FunctionType | bool | int | float | str | tuple) and name not in (
            "__module__",
            "__doc__",
        ):
            if name not in ("__firstlineno__", "__static_attributes__", "__qualname__"):
                own[name] = _described(value, depth + 1, seen)
    return ["class", cls.__qualname__, own, [_described(base, depth + 1, seen) for base in cls.__bases__]]


def _attributes(value: Any, depth: int, seen: set[int]) -> dict[str, Any]:
    state = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        state |= {s: getattr(value, s) for s in ((slots,) if isinstance(slots, str) else slots) if hasattr(value, s)}
    left_out = PASSING_NAMES + (KNOB_ATTRIBUTES if hasattr(value, "collate_fn") else ())
    return {k: _described(v, depth + 1, seen) for k, v in state.items() if k not in left_out}


def _code(code: types.CodeType) -> Iterator[str]:
    """What a code object does, without file names and line numbers."""
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _from_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


def _name(cls: type) -> str:
    module = "" if cls.__module__ == "__main__" else cls.__module__ + "."
    return f"{module}{cls.__qualname__}".replace(os.sep, "/")
