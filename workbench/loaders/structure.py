"""What a batch is made of: a walk over containers, records and home-made classes down to tensors and plain values.

Batches are only looked at, never changed; no property and no method of a user's class is called but `Mapping`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

MAX_DEPTH = 12  # deeper nesting is taken as one leaf
MAX_SHOWN = 6  # parts of a container that a description spells out
MAX_TEXT = 600  # letters of a description
PLAIN = (str, bytes, bytearray, int, float, complex, bool, np.generic, type(None))


class Step(NamedTuple):
    """One step from a container to a part of it.

    Attributes:
        kind: "key" (of a Mapping), "index" (of a list or tuple) or "attribute".
        name: The key, index or attribute name.
    """

    kind: str
    name: Any


def leaves(batch: Any) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Every innermost value with the steps that lead to it.

    Tensors and arrays come one by one, wherever they are; a list of plain values, such as paths or labels, is one leaf.
    """
    yield from _leaves(batch, (), frozenset())


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors, arrays and byte strings in a batch."""
    return sum(leaf_bytes(leaf) for _, leaf in leaves(batch))


def count_tensors(batch: Any) -> int:
    """How many tensors a batch holds; each costs a hand-over of its own between processes."""
    return sum(isinstance(leaf, torch.Tensor) for _, leaf in leaves(batch))


def describe_structure(batch: Any) -> str:
    """One line about types, shapes and dtypes, such as "dict(image: float32[14, 3, 8, 8], paths: list of 14 str)"."""
    text = _described(batch, 0)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def parts_of(node: Any) -> list[tuple[Step, Any]] | None:
    """The parts of a container, record or home-made object; None for a leaf."""
    if is_array(node) or isinstance(node, PLAIN) or isinstance(node, type) or callable(node):
        return None
    if isinstance(node, Mapping):
        return [(Step("key", key), node[key]) for key in node]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return [(Step("attribute", name), getattr(node, name)) for name in node._fields]
    if isinstance(node, list | tuple):
        return [(Step("index", i), part) for i, part in enumerate(node)]
    if dataclasses.is_dataclass(node):
        names = [f.name for f in dataclasses.fields(node) if hasattr(node, f.name)]
        return [(Step("attribute", name), getattr(node, name)) for name in names]
    return [(Step("attribute", name), value) for name, value in _own_attributes(node).items()] or None


def is_array(node: Any) -> bool:
    """Whether it has a shape and element types: tensors, numpy arrays, and tables of data-frame libraries."""
    if isinstance(node, torch.Tensor | np.ndarray):
        return True
    shape = getattr(type(node), "shape", None)
    return shape is not None and isinstance(getattr(node, "shape", None), tuple) and hasattr(node, "__len__")


def is_plain_list(node: Any) -> bool:
    """Whether it is a list or tuple (no named tuple) with at least one entry, all of them plain values."""
    if not isinstance(node, list | tuple) or hasattr(node, "_fields") or not node:
        return False
    return all(isinstance(part, PLAIN) for part in node)


def leaf_bytes(leaf: Any) -> int:
    """Bytes of a tensor, array or byte string; 0 for anything else."""
    if isinstance(leaf, torch.Tensor):
        return _tensor_bytes(leaf)
    if isinstance(leaf, bytes | bytearray):
        return len(leaf)
    if isinstance(leaf, list | tuple):
        return sum(len(part) for part in leaf if isinstance(part, bytes | bytearray))
    size = getattr(leaf, "nbytes", 0)
    return size if isinstance(size, int) and not isinstance(leaf, PLAIN) else 0


def path_name(path: tuple[Step, ...]) -> str:
    """A path as people write it: "target.label", "[0]", "ids"; "the batch" for the batch itself."""
    text = ""
    for step in path:
        plain = step.kind == "attribute" or (step.kind == "key" and isinstance(step.name, str))
        text += f".{step.name}" if plain else f"[{step.name!r}]"
    return text.removeprefix(".") or "the batch"


def _leaves(node: Any, path: tuple[Step, ...], above: frozenset[int]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    parts = None if is_plain_list(node) or len(path) >= MAX_DEPTH or id(node) in above else parts_of(node)
    if parts is None:
        yield path, node
        return
    above = above | {id(node)}
    for step, part in parts:
        yield from _leaves(part, (*path, step), above)


def _own_attributes(node: Any) -> dict[str, Any]:
    attributes = dict(getattr(node, "__dict__", {}))
    for cls in type(node).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.startswith("__") and hasattr(node, slot):
                attributes[slot] = getattr(node, slot)
    return attributes


def _tensor_bytes(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.jagged:
        return _tensor_bytes(tensor.values())
    if tensor.layout is torch.sparse_coo:
        return _tensor_bytes(tensor._indices()) + _tensor_bytes(tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return sum(map(_tensor_bytes, (tensor.crow_indices(), tensor.col_indices(), tensor.values())))
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return sum(map(_tensor_bytes, (tensor.ccol_indices(), tensor.row_indices(), tensor.values())))
    return tensor.numel() * tensor.element_size()


def _described(node: Any, depth: int) -> str:
    kind = type(node).__name__
    if is_array(node):
        return _array_text(node)
    if isinstance(node, PackedSequence):
        return f"PackedSequence({_array_text(node.data)})"
    if is_plain_list(node):
        kinds = {type(part).__name__ for part in node}
        return f"{kind} of {len(node)} {kinds.pop() if len(kinds) == 1 else 'values'}"
    parts = parts_of(node)
    if parts is None or depth >= MAX_DEPTH:
        return kind
    shown = [_described(part, depth + 1) for _, part in parts[:MAX_SHOWN]]
    more = ", …" if len(parts) > MAX_SHOWN else ""
    if isinstance(node, list | tuple) and not hasattr(node, "_fields"):
        if len(parts) > MAX_SHOWN:
            return f"{kind} of {len(parts)}: {', '.join(shown[:3])}, …"
        return f"{kind}({', '.join(shown)})"
    named = [f"{step.name}: {text}" for (step, _), text in zip(parts, shown, strict=False)]
    return f"{kind}({', '.join(named)}{more})"


def _array_text(node: Any) -> str:
    dtype = str(getattr(node, "dtype", type(node).__name__)).removeprefix("torch.")
    if isinstance(node, torch.Tensor) and node.is_nested:
        return f"{dtype}[{node.size(0)}, jagged]"
    return f"{dtype}[{', '.join(str(n) for n in node.shape)}]"
