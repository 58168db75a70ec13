"""What is odd about the samples of a batch: constant ones, copies, padding, lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.review.fields import Field

SMALLEST_SAMPLE = 4
"""A sample of fewer values may well be constant: a label, a flag, a pair."""
MASK_NAMES = ("attention_mask", "mask", "padding_mask")


@dataclass(frozen=True)
class Padding:
    """Padding of one field.

    Attributes:
        share: Of all its values.
        lengths: Values of each sample that are no padding, shape ``[samples]``.
        told_by: What told it: a mask field, the id that was given, or equal ends.
    """

    share: float
    lengths: np.ndarray
    told_by: str


def constant_samples(one: Field) -> list[int] | None:
    """Samples in which every value is the same; None where samples are too small to tell."""
    if not one.per_sample or one.rows is None:
        return None
    rows = list(one.numbered())
    if not rows or max(values.size for _, values in rows) < SMALLEST_SAMPLE:
        return None
    return [n for n, values in rows if n is not None and values.size >= SMALLEST_SAMPLE and _is_constant(values)]


def duplicate_samples(found: Mapping[str, Field]) -> list[tuple[int, int]] | None:
    """(sample, earlier sample that it repeats), over all fields of numbers; None where nothing tells samples apart.

    Samples of fewer than ``SMALLEST_SAMPLE`` values are not compared: labels repeat by nature.
    """
    telling = [one for one in found.values() if one.per_sample and one.rows is not None]
    rows = [list(one.numbered()) for one in telling]
    if not rows or sum(max((v.size for _, v in row), default=0) for row in rows) < SMALLEST_SAMPLE:
        return None
    first: dict[bytes, int] = {}
    copies = []
    for sample in range(len(rows[0])):
        digest = hashlib.blake2b(digest_size=16)
        for row in rows:
            values = row[sample][1]
            digest.update(f"{values.shape}{values.dtype.str}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
        earlier = first.setdefault(digest.digest(), sample)
        if earlier != sample:
            copies.append((sample, earlier))
    return copies


def padding(found: Mapping[str, Field], pad_ids: Mapping[str, int]) -> dict[str, Padding]:
    """Padding and lengths of every field of sequences of whole numbers.

    Padding is told by ``pad_ids``, else by a mask of the same shape, else by an id that ends at least two samples
    more than once; ragged fields have none.

    Args:
        found: Fields of a batch.
        pad_ids: The id of padding, by field.
    """
    mask = next(
        (found[name] for name in MASK_NAMES if name in found and isinstance(found[name].rows, np.ndarray)), None
    )
    told = {name: _padding(one, pad_ids.get(name), mask) for name, one in found.items() if _is_sequence(one)}
    return {name: one for name, one in told.items() if one is not None}


def trailing(rows: np.ndarray, pad_id: int) -> np.ndarray:
    """How many ``pad_id`` stand at the end of each row, shape ``[samples]``."""
    kept = rows[:, ::-1] != pad_id
    return np.where(kept.any(axis=1), kept.argmax(axis=1), rows.shape[1])


def _padding(one: Field, pad_id: int | None, mask: Field | None) -> Padding | None:
    if not isinstance(one.rows, np.ndarray):
        lengths = np.array([values.shape[0] for _, values in one.numbered()])
        return Padding(0.0, lengths, "samples of their own length")
    rows = one.rows
    if pad_id is not None:
        return _of_ends(rows, trailing(rows, pad_id), f"pad_id {pad_id}")
    if mask is not None and isinstance(mask.rows, np.ndarray) and mask.rows.shape == rows.shape:
        lengths = (mask.rows != 0).sum(axis=1)
        return _of_ends(rows, rows.shape[1] - lengths, f"field {mask.name!r}")
    ids, counts = np.unique(rows[:, -1], return_counts=True)
    likely = int(ids[counts.argmax()])
    ends = trailing(rows, likely)
    if (ends >= 2).sum() < 2 or (ends == rows.shape[1]).all():
        return None
    return _of_ends(rows, ends, f"id {likely}, which ends {int((ends >= 2).sum())} samples more than once")


def _of_ends(rows: np.ndarray, ends: np.ndarray, told_by: str) -> Padding:
    return Padding(float(ends.sum() / rows.size) if rows.size else 0.0, rows.shape[1] - ends, told_by)


def _is_sequence(one: Field) -> bool:
    if not one.per_sample or not one.is_integer or one.name in MASK_NAMES:
        return False
    if isinstance(one.rows, np.ndarray):
        return one.rows.ndim == 2 and one.rows.shape[1] >= SMALLEST_SAMPLE and one.rows.dtype != np.uint8
    return all(values.ndim == 1 for _, values in one.numbered())


def _is_constant(values: np.ndarray) -> bool:
    flat = values.reshape(-1)
    return bool((flat == flat[0]).all())
