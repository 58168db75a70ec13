"""A batch as named fields with a value for each sample, whatever containers it comes in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.loaders.structure import Step, leaves, path_name


@dataclass(frozen=True)
class Field:
    """One field of a batch.

    Attributes:
        name: As people write it: ``target.label``, ``[0]``; the place of the sample is left out.
        dtype: ``float32``, ``int64``, ``str`` ...
        rows: One array a sample (stacked fields are one array whose first axis is the sample), or one value for the
            whole batch; None where the values are no numbers.
        texts: Text or bytes a sample; None where the values are numbers.
        per_sample: Whether there is one value for each sample.
        stacked: Whether the samples came in one tensor, so that they share a shape.
    """

    name: str
    dtype: str
    rows: np.ndarray | Sequence[np.ndarray] | None
    texts: Sequence[Any] | None
    per_sample: bool
    stacked: bool

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of the field over the batch; None for an axis on which samples differ."""
        if self.rows is None:
            return (len(self.texts or ()),)
        if isinstance(self.rows, np.ndarray):
            return self.rows.shape
        shapes = {row.shape for row in self.rows}
        if len({len(shape) for shape in shapes}) != 1:
            return (len(self.rows),)
        axes = tuple(axis[0] if len(set(axis)) == 1 else None for axis in zip(*shapes, strict=True))
        return (len(self.rows), *axes)

    @property
    def is_integer(self) -> bool:
        """Whether the values are whole numbers (bool is not)."""
        return self.rows is not None and all(row.dtype.kind in "iu" for row in self._arrays())

    def numbered(self) -> Iterator[tuple[int | None, np.ndarray]]:
        """(sample, values of it), or (None, all values) where the field is one value for the batch."""
        if self.rows is None:
            return
        if not self.per_sample:
            yield None, np.asarray(self.rows)
            return
        yield from enumerate(np.asarray(row) for row in self.rows)

    def _arrays(self) -> Sequence[np.ndarray]:
        return [self.rows] if isinstance(self.rows, np.ndarray) else list(self.rows or ())


def fields_of(batch: Any, samples: int | None) -> dict[str, Field]:
    """Every field of ``batch`` by name.

    A tensor whose first axis has ``samples`` entries is one field, and so is a list with one entry a sample, of
    tensors or of records.

    Args:
        batch: Anything a loader yields.
        samples: How many samples it holds; None treats every leaf as one value for the batch.
    """
    lists: dict[str, dict[int, Any]] = {}
    found: dict[str, Field] = {}
    sample_steps = _sample_steps(batch, samples)
    for path, leaf in leaves(batch):
        place = sample_steps.get(path[: _depth(path, sample_steps) + 1]) if samples else None
        if place is None:
            name = path_name(path)
            found[name] = _field(name, leaf, samples)
            continue
        depth = _depth(path, sample_steps)
        lists.setdefault(path_name(path[:depth] + path[depth + 1 :]), {})[place] = leaf
    for name, entries in lists.items():
        found[name] = _listed(name, [entries[place] for place in sorted(entries)])
    return found


def _sample_steps(batch: Any, samples: int | None) -> dict[tuple[Step, ...], int]:
    """Prefixes of paths that end in the place of a sample: lists with one entry a sample, all of one make.

    A pair of images and labels for two samples also has two entries; they are of different make.
    """
    makes: dict[tuple[Step, ...], dict[int, set[Any]]] = {}
    for path, leaf in leaves(batch):
        for depth, step in enumerate(path):
            if step.kind == "index":
                entry = makes.setdefault(path[:depth], {}).setdefault(step.name, set())
                entry.add((tuple(s for s in path[depth + 1 :] if s.kind != "index"), _make(leaf)))
    steps: dict[tuple[Step, ...], int] = {}
    for prefix, entries in sorted(makes.items(), key=lambda item: len(item[0])):
        inside = any(prefix[:depth] in steps for depth in range(1, len(prefix) + 1))
        alike = len({frozenset(make) for make in entries.values()}) == 1
        if set(entries) == set(range(samples or 0)) and alike and not inside:
            steps.update({(*prefix, Step("index", place)): place for place in entries})
    return steps


def _make(leaf: Any) -> Any:
    array, dtype = _array(leaf)
    return dtype if array is None else (dtype, array.ndim)


def _depth(path: tuple[Step, ...], steps: dict[tuple[Step, ...], int]) -> int:
    return next((depth for depth in range(len(path)) if path[: depth + 1] in steps), len(path))


def _field(name: str, leaf: Any, samples: int | None) -> Field:
    array, dtype = _array(leaf)
    if array is not None:
        per_sample = array.ndim > 0 and samples is not None and array.shape[0] == samples
        return Field(name, dtype, array, None, per_sample, True)
    if isinstance(leaf, list | tuple):
        return Field(name, dtype, None, leaf, samples is not None and len(leaf) == samples, False)
    return Field(name, dtype, None, [leaf], False, False)


def _listed(name: str, entries: list[Any]) -> Field:
    pairs = [_array(entry) for entry in entries]
    dtypes = sorted({dtype for _, dtype in pairs})
    arrays = [array for array, _ in pairs if array is not None]
    if len(arrays) == len(entries):
        return Field(name, "/".join(dtypes), arrays, None, True, False)
    return Field(name, "/".join(dtypes), None, entries, True, False)


def _array(leaf: Any) -> tuple[np.ndarray | None, str]:
    """The leaf as a numpy array, or None where it is none, and the name of its type in the batch."""
    if isinstance(leaf, torch.Tensor):
        name = str(leaf.dtype).removeprefix("torch.")
        if leaf.layout is not torch.strided or leaf.is_nested:
            return None, name
        plain = leaf.detach().cpu()
        return (plain.float() if plain.dtype.is_floating_point and plain.element_size() < 4 else plain).numpy(), name
    if isinstance(leaf, list | tuple) and leaf and all(isinstance(v, bool | int | float | np.generic) for v in leaf):
        array = np.asarray(leaf)
        return array, array.dtype.name
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(leaf)
        return (array, array.dtype.name) if array.dtype.kind in "biufc" else (None, array.dtype.name)
    if isinstance(leaf, list | tuple) and leaf:
        return None, "/".join(sorted({type(value).__name__ for value in leaf}))
    return None, type(leaf).__name__
