"""What a good batch looks like: written by hand, or learnt from batches that are known to be good, kept as YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from workbench.errors import SettingsError
from workbench.layouts.publishing import publishing
from workbench.loaders.counting import count_samples
from workbench.review.fields import Field, fields_of
from workbench.review.traits import constant_samples, duplicate_samples, padding

IGNORED_LABEL = -100
"""The label that ``torch.nn.CrossEntropyLoss`` leaves out by default (its ``ignore_index``)."""

SEEN_TIMES = 20
"""Whole numbers are held to the range seen once each has been seen this often on average: a class of equal share is
then missing from the batch with a chance of exp(-20)."""


@dataclass(frozen=True)
class FieldExpectation:
    """What one field must be; None expects nothing.

    Attributes:
        dtype: Its dtype, e.g. ``float32``.
        shape: Its shape over the batch, the sample first; None in it leaves an axis free.
        range: Lowest and highest value allowed.
        ignore: A value outside the range that is allowed all the same, e.g. -100 in labels.
        finite: Whether NaN and Inf are errors.
        length: Shortest and longest sample allowed (padding left out).
        pad_id: The value that padding has; None tells it by a mask field or by equal ends.
        max_padding_share: Share of padding allowed.
        max_constant_share: Share of samples allowed in which every value is the same.
    """

    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    range: tuple[float, float] | None = None
    ignore: float | None = None
    finite: bool = True
    length: tuple[int, int] | None = None
    pad_id: int | None = None
    max_padding_share: float | None = None
    max_constant_share: float | None = None


@dataclass(frozen=True)
class BatchExpectation:
    """What a whole batch must be.

    Attributes:
        fields: What each field must be, by name.
        samples: How many samples it must hold; None leaves that free.
        only_these_fields: Whether another field is an error.
        max_duplicate_share: Share of samples allowed that repeat an earlier one of the batch.
    """

    fields: Mapping[str, FieldExpectation] = field(default_factory=dict)
    samples: int | None = None
    only_these_fields: bool = False
    max_duplicate_share: float | None = None


def learn_expectations(batches: Iterable[Any], samples: int | None = None, most_batches: int = 4) -> BatchExpectation:
    """What the first ``most_batches`` of ``batches`` have in common.

    Shapes and dtypes are held as they are (an axis that differs is left free). Ranges get room: as much again as the
    values span on each side, and none beyond zero for values that are never negative; whole numbers that were each
    seen about ``SEEN_TIMES`` times are held to what was seen. Shares of padding, constant and duplicate samples are
    held to the highest seen.

    Args:
        batches: A loader, or a list of batches.
        samples: Samples in each batch; None counts them.
        most_batches: How many to look at.

    Raises:
        SettingsError: There is no batch.
    """
    learnt: BatchExpectation | None = None
    seen: dict[str, list[Field]] = {}
    for number, batch in enumerate(batches):
        count = samples if samples is not None else count_samples(batch).samples
        found = fields_of(batch, count)
        for name, one in found.items():
            seen.setdefault(name, []).append(one)
        shape = _of_batch(found, count)
        learnt = shape if learnt is None else _joined(learnt, shape)
        if number + 1 >= most_batches:
            break
    if learnt is None:
        raise SettingsError("There is no batch to learn from: the loader is empty; give it at least one batch.")
    ranged = {name: replace(expected, **_learnt_range(seen[name])) for name, expected in learnt.fields.items()}
    return replace(learnt, fields=ranged)


def save_expectations(expected: BatchExpectation, path: str | Path) -> Path:
    """Write ``expected`` as YAML, to be read and changed by people; what is not expected is left out."""
    document = {
        "samples": expected.samples,
        "only_these_fields": expected.only_these_fields,
        "max_duplicate_share": expected.max_duplicate_share,
        "fields": {name: _plain(one) for name, one in expected.fields.items()},
    }
    document = {name: value for name, value in document.items() if value is not None}
    text = "# What a good batch looks like; null in a shape leaves that axis free.\n"
    text += yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None)
    with publishing(Path(path)) as file:
        file.write(text.encode("utf-8"))
    return Path(path)


def load_expectations(path: str | Path) -> BatchExpectation:
    """The expectations in a YAML file.

    Raises:
        SettingsError: It cannot be read, or says something that no expectation can.
    """
    try:
        document = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read ({error.strerror}): learn expectations and save them there."
        ) from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML ({error}): repair it, or learn the expectations again.") from error
    if not isinstance(document, Mapping):
        raise SettingsError(f"{path} holds {type(document).__name__}: a mapping with `fields` is expected.")
    return expectation_from(document, str(path))


def expectation_from(document: Mapping[str, Any], where: str = "expect") -> BatchExpectation:
    """Expectations from plain values: the whole document, or only field names with what they must be.

    >>> expectation_from({"label": {"range": [0, 9]}}).fields["label"].range
    (0, 9)

    Raises:
        SettingsError: A name or a value is none that an expectation has.
    """
    whole = set(document) & {f.name for f in fields(BatchExpectation)} if "fields" in document else set()
    parts: Mapping[str, Any] = document["fields"] if whole else document
    if whole and set(document) - whole:
        raise SettingsError(f"{where}: {sorted(set(document) - whole)[0]!r} is nothing to expect of a batch.")
    if not isinstance(parts, Mapping):
        raise SettingsError(f"{where}: `fields` is {type(parts).__name__}: give each field's name and what it must be.")
    expected = {str(name): _field_from(str(name), value, where) for name, value in parts.items()}
    rest = {name: document[name] for name in whole - {"fields"}}
    return BatchExpectation(fields=expected, **rest)


def _field_from(name: str, document: Any, where: str) -> FieldExpectation:
    known = {f.name for f in fields(FieldExpectation)}
    if not isinstance(document, Mapping) or set(document) - known:
        odd = sorted(set(document) - known)[0] if isinstance(document, Mapping) else document
        raise SettingsError(f"{where}: {odd!r} of field {name!r} is nothing to expect; use {', '.join(sorted(known))}.")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    for key in ("range", "length"):
        pair = values.get(key)
        if pair is not None and (not isinstance(pair, tuple) or len(pair) != 2 or pair[0] > pair[1]):
            raise SettingsError(
                f"{where}: {key}={document[key]!r} of field {name!r}: give the lowest and the highest value."
            )
    return FieldExpectation(**values)


def _plain(expected: FieldExpectation) -> dict[str, Any]:
    values = {f.name: getattr(expected, f.name) for f in fields(FieldExpectation)}
    kept = {name: value for name, value in values.items() if value is not None and (name, value) != ("finite", True)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _of_batch(found: Mapping[str, Field], samples: int | None) -> BatchExpectation:
    pads = padding(found, {})
    expected = {}
    for name, one in found.items():
        shape = list(one.shape)
        if one.per_sample and shape:
            shape[0] = None
        constant = constant_samples(one)
        pad = pads.get(name)
        expected[name] = FieldExpectation(
            dtype=one.dtype,
            shape=tuple(shape),
            finite=_is_finite(one),
            max_padding_share=None if pad is None else round(pad.share, 4),
            max_constant_share=None if constant is None else len(constant) / max(1, samples or 1),
        )
    copies = duplicate_samples(found)
    share = None if copies is None or not samples else len(copies) / samples
    return BatchExpectation(expected, samples, True, share)


def _joined(one: BatchExpectation, other: BatchExpectation) -> BatchExpectation:
    both = {name: _joined_field(one.fields[name], other.fields[name]) for name in one.fields if name in other.fields}
    same_fields = set(one.fields) == set(other.fields)
    return BatchExpectation(
        both,
        one.samples if one.samples == other.samples else None,
        one.only_these_fields and same_fields,
        _highest(one.max_duplicate_share, other.max_duplicate_share),
    )


def _joined_field(one: FieldExpectation, other: FieldExpectation) -> FieldExpectation:
    same_rank = one.shape is not None and other.shape is not None and len(one.shape) == len(other.shape)
    shape = None
    if same_rank:
        shape = tuple(a if a == b else None for a, b in zip(one.shape or (), other.shape or (), strict=True))
    return FieldExpectation(
        dtype=one.dtype if one.dtype == other.dtype else None,
        shape=shape,
        finite=one.finite and other.finite,
        max_padding_share=_highest(one.max_padding_share, other.max_padding_share),
        max_constant_share=_highest(one.max_constant_share, other.max_constant_share),
    )


def _highest(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def _is_finite(one: Field) -> bool:
    return all(bool(np.isfinite(values).all()) for _, values in one.numbered() if values.dtype.kind == "f")


def _learnt_range(seen: Sequence[Field]) -> dict[str, Any]:
    arrays = [values.reshape(-1) for one in seen for _, values in one.numbered() if values.dtype.kind in "iuf"]
    flat = np.concatenate(arrays) if arrays else np.empty(0)
    flat = flat[np.isfinite(flat)]
    whole = flat.dtype.kind in "iu"
    ignore = IGNORED_LABEL if whole and (flat == IGNORED_LABEL).any() and (flat != IGNORED_LABEL).any() else None
    if ignore is not None:
        flat = flat[flat != ignore]
    if not flat.size or flat.dtype == np.uint8:
        return {}
    low, high = flat.min().item(), flat.max().item()
    room = (high - low) or max(1, abs(high))
    if whole and flat.size >= SEEN_TIMES * len(np.unique(flat)):
        room = 0
    lowest = max(0, low - room) if low >= 0 else low - room
    limits = (lowest, high + room)
    return {"range": limits if whole else tuple(round(float(v), 6) for v in limits), "ignore": ignore}


def as_expectation(expect: Any) -> BatchExpectation:
    """Expectations from themselves, plain values, or the path of a YAML file; None expects nothing.

    Raises:
        SettingsError: It is none of these.
    """
    if expect is None:
        return BatchExpectation()
    if isinstance(expect, BatchExpectation):
        return expect
    if isinstance(expect, str | Path):
        return load_expectations(expect)
    if isinstance(expect, Mapping):
        return expectation_from(expect)
    raise SettingsError(
        f"expect={type(expect).__name__}: give a mapping, the path of a YAML file, or a BatchExpectation."
    )
