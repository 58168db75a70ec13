"""Digests of batches: a short hash of every leaf, whole or sample by sample, to compare data across processes."""

from __future__ import annotations

import datetime
import enum
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from workbench.loaders.structure import MAX_DEPTH, PLAIN, is_plain_list, parts_of

DIGEST_BYTES = 8  # 200,000 samples collide by chance with probability n^2 / 2^65 = 1e-9
SHAPE = " shape"  # suffix of the path under which a leaf's shape is kept apart from its values
_BY_REPR = (enum.Enum, pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, torch.dtype, torch.device)


def leaf_digests(batch: Any) -> dict[str, bytes]:
    """Digest of every leaf by its path, values and shape apart.

    A path is "image", "0.label" or "3" as the batch is indexed; `path + SHAPE` holds the leaf's shape, so that random
    pixels of a fixed size still compare equal in shape. What has no values that could be compared (an open handle, a
    tensor without storage) is digested by its type alone.
    """
    found: dict[str, bytes] = {}
    for path, leaf in _leaves(batch, ""):
        found[path] = _digest(leaf)
        found[path + SHAPE] = _hash(repr(_shape(leaf)).encode())
    return found


def sample_digests(batch: Any, samples: int | None) -> dict[str, bytes]:
    """Digests of each sample's part of each leaf, by path: `DIGEST_BYTES` bytes a sample, samples in order.

    Tensors and arrays are cut along their first dimension where its length is `samples`, lists of that length by
    their entries; what belongs to the batch as a whole (a padding length, a step counter) is left out. A batch that
    cannot be cut, or whose `samples` is None, is one unit: `DIGEST_BYTES` bytes a path.
    """
    if samples:
        rows: dict[str, bytes] = {}
        _collect_rows(batch, "", samples, rows, 0)
        if rows:
            return rows
    return leaf_digests(batch)


def structure(batch: Any) -> str:
    """Types and dtypes of a batch, without sizes: equal for two batches that training code can treat alike.

    Entries of a list or tuple that look the same are named once, so that ragged lists of any length agree.
    """
    return _structure(batch, 0)


def combine(columns: list[bytes]) -> np.ndarray:
    """One digest a sample from several columns of digests, as uint64.

    The columns are added with different odd weights modulo 2^64, which keeps uniformly distributed digests uniform
    and tells a swap of two columns apart.
    """
    total = np.zeros(len(columns[0]) // DIGEST_BYTES, dtype=np.uint64)
    for place, column in enumerate(columns):
        total += np.frombuffer(column, dtype=np.uint64) * np.uint64(2 * place + 3)
    return total


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """Named parts of a container, or None for a leaf; pictures, paths, dates and enum members are leaves."""
    if isinstance(node, _BY_REPR) or hasattr(node, "__array_interface__") or is_plain_list(node):
        return None
    parts = parts_of(node)
    return None if parts is None else [(str(step.name), part) for step, part in parts]


def _leaves(node: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    children = _children(node) if depth < MAX_DEPTH else None
    if children is None:
        yield path, node
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}" if path else name, depth + 1)


def _collect_rows(node: Any, path: str, samples: int, rows: dict[str, bytes], depth: int) -> None:
    if _has_rows(node, samples):
        rows[path] = _row_digests(node, samples)
        return
    children = _children(node) if depth < MAX_DEPTH else None
    if not children:
        return
    entries = isinstance(node, (list, tuple)) and not hasattr(node, "_fields") and len(node) == samples
    if entries and not all(_has_rows(child, samples) for _, child in children):
        rows.update(_entry_digests([child for _, child in children], path))
        return
    for name, child in children:
        _collect_rows(child, f"{path}.{name}" if path else name, samples, rows, depth + 1)


def _has_rows(node: Any, samples: int) -> bool:
    if isinstance(node, (torch.Tensor, np.ndarray)):
        return node.ndim > 0 and not _is_irregular(node) and node.shape[0] == samples
    return is_plain_list(node) and len(node) == samples


def _row_digests(node: Any, samples: int) -> bytes:
    if isinstance(node, (list, tuple)):
        return b"".join(_digest(entry) for entry in node)
    array = _as_array(node)
    if array is None or array.dtype.hasobject:
        return b"".join(_digest(node[i]) for i in range(samples))
    flat = np.ascontiguousarray(array).reshape(samples, -1).view(np.uint8)
    return b"".join(_hash(row) for row in flat)


def _entry_digests(entries: list[Any], path: str) -> dict[str, bytes]:
    """Digests of list entries that are one sample each, column by column; a missing part is zero bytes."""
    each = [leaf_digests(entry) for entry in entries]
    names = sorted({name for digests in each for name in digests if not name.endswith(SHAPE)})
    blank = bytes(DIGEST_BYTES)
    return {f"{path}[*].{name}": b"".join(digests.get(name, blank) for digests in each) for name in names}


def _digest(leaf: Any) -> bytes:
    return _hash(_value_bytes(leaf))


def _hash(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _value_bytes(leaf: Any) -> Any:
    """A buffer that is equal for equal values; the type's name where values cannot be read."""
    if isinstance(leaf, str):
        return leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, (bytes, bytearray)):
        return leaf
    if isinstance(leaf, (*PLAIN, *_BY_REPR, list, tuple)):
        return repr(leaf).encode("utf-8", "surrogatepass")
    if isinstance(leaf, (set, frozenset)):
        return b"".join(sorted(_digest(entry) for entry in leaf))
    array = _as_array(leaf)
    if array is None:
        return type(leaf).__qualname__.encode()
    if array.dtype.hasobject:
        return b"".join(_digest(entry) for entry in array.ravel().tolist())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _is_irregular(node: Any) -> bool:
    """A tensor whose values do not lie in one strided block: sparse, nested, quantised or without storage."""
    return isinstance(node, torch.Tensor) and (
        node.is_nested or node.layout != torch.strided or node.is_quantized or node.device.type == "meta"
    )


def _as_array(leaf: Any) -> np.ndarray | None:
    """The leaf's values as an array without a copy where that is possible, or None where it has none."""
    if isinstance(leaf, np.ndarray):
        return leaf
    try:
        if isinstance(leaf, torch.Tensor):
            return _tensor_array(leaf.detach())
        return np.asarray(leaf) if hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__") else None
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None


def _tensor_array(tensor: torch.Tensor) -> np.ndarray | None:
    if tensor.device.type == "meta":
        return None
    if tensor.is_nested:
        return np.frombuffer(b"".join(_digest(part) for part in tensor.unbind()), dtype=np.uint8)
    if tensor.layout != torch.strided:
        parts = tensor.to_sparse_coo().coalesce()
        return np.frombuffer(_digest(parts.indices()) + _digest(parts.values()), dtype=np.uint8)
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    tensor = tensor.cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and the 8-bit floats have no numpy twin; their bytes do
        return _bytes_of(tensor)


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Bytes of a tensor, the last dimension widened by the size of an element."""
    shaped = tensor.reshape(1) if tensor.ndim == 0 else tensor
    return shaped.contiguous().view(torch.uint8).numpy()


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return [tuple(part.shape) for part in leaf.unbind()]
    if isinstance(getattr(leaf, "shape", None), tuple):
        return tuple(leaf.shape)
    return len(leaf) if isinstance(leaf, (str, bytes, bytearray, list, tuple, set, frozenset)) else None


def _structure(node: Any, depth: int) -> str:
    name = type(node).__qualname__
    if isinstance(node, (torch.Tensor, np.ndarray)):
        return f"{name}({str(node.dtype).removeprefix('torch.')})"
    if is_plain_list(node):
        return f"{name}[{'|'.join(sorted({type(entry).__name__ for entry in node}))}]"
    children = _children(node) if depth < MAX_DEPTH else None
    if not children:
        return name
    parts = [(key, _structure(child, depth + 1)) for key, child in children]
    if isinstance(node, (list, tuple)) and not hasattr(node, "_fields") and len({text for _, text in parts}) == 1:
        return f"{name}[{parts[0][1]}]"
    return f"{name}{{{', '.join(f'{key}: {text}' for key, text in parts)}}}"
