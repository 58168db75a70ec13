"""Values of a sample as bytes with a suffix that says what they are, and back."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.protocol import KEY, Sample

FieldFacts = dict[str, Any]
"""What the manifest says of a suffix: ``field`` (None: a record of many), ``kind``; of arrays ``dtype``, ``shape``."""

MOST_APART = 3
PACKED_SUFFIX = "fields.json"
"""Holds all texts and values of a sample that has many."""

_EXTENSIONS = {"text": "txt", "json": "json", "array": "npy"}


def encode_sample(sample: Mapping[str, Any]) -> list[tuple[str, bytes | memoryview, FieldFacts]]:
    """Every field as (suffix, content, facts), sorted by suffix; None and fields about the sample are left out.

    Text becomes ``<field>.txt``, arrays ``<field>.npy``, numbers, lists and records ``<field>.json``; bytes keep the
    field as their suffix. WebDataset decodes each of them by the last suffix. Where there are more than ``MOST_APART``
    texts and values, they become one record in ``fields.json``: a file each would take 1 kB a value in a tar.

    Raises:
        LayoutError: A field cannot be part of a file name, or its value is of no kind that can be written.
    """
    wanted = ((name, value) for name, value in sample.items() if value is not None and not is_reserved(name))
    encoded = [_encode(name, value, sample) for name, value in wanted]
    small = [facts["field"] for _, _, facts in encoded if facts["kind"] in ("text", "json")]
    if len(small) > MOST_APART and not any(suffix == PACKED_SUFFIX for suffix, _, _ in encoded):
        record = {name: sample[name] for name in small}
        encoded = [item for item in encoded if item[2]["field"] not in record]
        encoded.append((PACKED_SUFFIX, _json_bytes(record), {"field": None, "kind": "record"}))
    return sorted(encoded, key=lambda item: item[0])


def is_reserved(field: object) -> bool:
    """Whether a field is about the sample rather than of it: ``__key__``, ``__url__`` ..."""
    return isinstance(field, str) and field.startswith("__") and field.endswith("__")


def decoder(kind: str) -> Callable[[bytes], Any] | None:
    """What turns stored bytes of ``kind`` back into the value, or None where bytes are the value."""
    return {"text": _decode_text, "json": json.loads, "record": json.loads, "array": _decode_array}.get(kind)


def merge_fields(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, FieldFacts]:
    """Facts of many samples or shards as one: an axis that varies becomes None, and so does a dtype or rank."""
    merged: dict[str, FieldFacts] = {}
    for part in parts:
        for suffix, facts in part.items():
            known = merged.get(suffix)
            merged[suffix] = dict(facts) if known is None else _merge(known, facts)
    return merged


def with_fields(fields: dict[str, FieldFacts], parts: list[tuple[str, Any, FieldFacts]]) -> dict[str, FieldFacts]:
    """``fields`` with the facts of one encoded sample; the same object where nothing is new."""
    if all(fields.get(suffix) == facts for suffix, _, facts in parts):
        return fields
    return merge_fields([fields, {suffix: facts for suffix, _, facts in parts}])


def plain_value(value: Any) -> Any:
    """``value`` with torch tensors and numpy scalars as numpy arrays and Python numbers; everything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "numpy"):
        return plain_value(value.detach().cpu().numpy()[()])
    return value


def _encode(name: object, value: Any, sample: Mapping[str, Any]) -> tuple[str, bytes | memoryview, FieldFacts]:
    where = f"Field {name!r} of sample {sample.get(KEY)!r}"
    if (
        not isinstance(name, str)
        or not name
        or "/" in name
        or "\0" in name
        or name.startswith(".")
        or name.endswith(".")
    ):
        raise LayoutError(f"{where} cannot be part of a file name: use letters, digits and inner dots.")
    value = plain_value(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return name, memoryview(value) if isinstance(value, bytearray) else value, {"field": name, "kind": "bytes"}
    if isinstance(value, str):
        return _suffix(name, "text"), value.encode("utf-8", "surrogatepass"), {"field": name, "kind": "text"}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise LayoutError(f"{where} is an array of Python objects: use a dtype of fixed size.")
        facts = {"field": name, "kind": "array", "dtype": value.dtype.str, "shape": list(value.shape)}
        return _suffix(name, "array"), _array_bytes(value), facts
    try:
        content = _json_bytes(value)
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"{where} is {type(value).__name__} ({error}): use bytes, text, numbers, lists or arrays."
        ) from error
    return _suffix(name, "json"), content, {"field": name, "kind": "json"}


def _json_bytes(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_value)
    return text.encode("utf-8", "surrogatepass")


def _json_value(value: Any) -> Any:
    plain = plain_value(value)
    if isinstance(plain, np.ndarray):
        return plain.tolist()
    if isinstance(plain, datetime.date | datetime.time):
        return plain.isoformat()
    if isinstance(plain, decimal.Decimal):
        return str(plain)
    if plain is value:
        raise TypeError(f"{type(value).__name__} is no JSON value")
    return plain


def _suffix(field: str, kind: str) -> str:
    extension = _EXTENSIONS[kind]
    return field if field == extension or field.endswith("." + extension) else f"{field}.{extension}"


def _array_bytes(value: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def _decode_text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _decode_array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _merge(known: FieldFacts, new: Mapping[str, Any]) -> FieldFacts:
    if known == new:
        return known
    merged = {**known, **new}
    if known.get("dtype") != new.get("dtype"):
        merged["dtype"] = None
    one, two = known.get("shape"), new.get("shape")
    if one != two:
        same_rank = one is not None and two is not None and len(one) == len(two)
        merged["shape"] = [a if a == b else None for a, b in zip(one, two, strict=True)] if same_rank else None
    if known.get("kind") != new.get("kind"):
        merged["kind"] = "bytes"
    return merged


def decode_fields(found: Mapping[str, bytes], fields: Mapping[str, Mapping[str, Any]]) -> Sample:
    """The sample whose stored parts are ``found`` (suffix -> bytes); a suffix without facts stays bytes."""
    sample: Sample = {}
    for suffix, content in found.items():
        facts = fields.get(suffix, {})
        decode = decoder(facts.get("kind", "bytes"))
        value = content if decode is None else decode(content)
        if facts.get("kind") == "record":
            sample.update(value)
        else:
            sample[facts.get("field", suffix)] = value
    return sample
