"""Samples into Arrow columns and back."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.codec import FieldFacts, is_reserved, merge_fields, plain_value
from workbench.layouts.names import checked_key
from workbench.layouts.parquet_settings import ParquetOptions
from workbench.layouts.protocol import KEY, Sample


def pyarrow(part: str | None = None) -> Any:
    """``pyarrow`` or one of its modules, imported on first use.

    Raises:
        LayoutError: It is not installed.
    """
    try:
        return importlib.import_module("pyarrow" if part is None else f"pyarrow.{part}")
    except ImportError as error:
        raise LayoutError(f"Parquet needs pyarrow ({error}): pip install 'loader-workbench[samples]'.") from error


class RowWriter:
    """Gathers samples into row groups of one Parquet file.

    Args:
        file: Where the Parquet file goes; it stays open.
        options: Row-group size, compression and schema.
    """

    def __init__(self, file: BinaryIO, options: ParquetOptions) -> None:
        self.options = options
        self.rows = 0
        self.largest_group_rows = 0
        self.largest_group_bytes = 0
        self._file, self._writer, self._schema = file, None, options.schema
        self._waiting: list[Sample] = []
        self._waiting_bytes = 0
        self._arrays: dict[str, FieldFacts] = {}

    def add(self, sample: Sample) -> None:
        """Take one sample; closes a row group when it is full."""
        row = {name: plain_value(value) for name, value in sample.items() if name == KEY or not is_reserved(name)}
        checked_key(row[KEY])
        self._note_arrays(row)
        self._waiting.append(row)
        self._waiting_bytes += sum(_size(value) for value in row.values())
        rows = self.options.row_group_rows
        full = self._waiting_bytes >= self.options.target_bytes if rows is None else len(self._waiting) >= rows
        if full:
            self._flush()

    def _opened(self) -> Any:
        """The writer; columns of bytes get neither compression nor a dictionary, which only cost time on images."""
        plain = {f.name for f in self._schema if _is_binary(f.type)}
        compression = self.options.compression or {f.name: "none" if f.name in plain else "zstd" for f in self._schema}
        return pyarrow("parquet").ParquetWriter(
            self._file,
            self._schema,
            compression=compression,
            use_dictionary=[f.name for f in self._schema if f.name not in plain],
        )

    def finish(self) -> None:
        """Close the last row group and write the footer."""
        if self._waiting or self._writer is None:
            self._flush()
        self._writer.close()

    def fields(self) -> dict[str, FieldFacts]:
        """Facts of every column for the manifest."""
        columns = {f.name: {"field": f.name, "kind": "column", "dtype": str(f.type)} for f in self._schema}
        return {name: self._arrays.get(name, facts) for name, facts in columns.items()}

    def _note_arrays(self, row: Sample) -> None:
        for name, value in row.items():
            if isinstance(value, np.ndarray):
                facts = {"field": name, "kind": "array", "dtype": value.dtype.str, "shape": list(value.shape)}
                if self._arrays.get(name) != facts:
                    self._arrays = merge_fields([self._arrays, {name: facts}])

    def _flush(self) -> None:
        pa, rows = pyarrow(), self._waiting
        if self._schema is None:
            self._schema = infer_schema(rows)
        table = pa.table([_column(rows, field) for field in self._schema], schema=self._schema)
        _refuse_unknown(rows, self._schema)
        if self._writer is None:
            self._writer = self._opened()
        if rows:
            self._writer.write_table(table, row_group_size=len(rows))
        self.rows += len(rows)
        self.largest_group_rows = max(self.largest_group_rows, len(rows))
        self.largest_group_bytes = max(self.largest_group_bytes, table.nbytes)
        self._waiting, self._waiting_bytes = [], 0


def _is_binary(column_type: Any) -> bool:
    types = pyarrow().types
    return types.is_binary(column_type) or types.is_large_binary(column_type)


def infer_schema(rows: Sequence[Sample]) -> Any:
    """The Arrow schema that holds every value of ``rows``: the name first, other fields in order of appearance.

    Raises:
        LayoutError: A field has values that no one type holds.
    """
    pa = pyarrow()
    names = dict.fromkeys(name for row in rows for name in row if name != KEY and not is_reserved(name))
    fields = [pa.field(KEY, pa.string())]
    for name in names:
        values = [_storable(row.get(name)) for row in rows]
        try:
            fields.append(pa.field(name, pa.infer_type(values)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            kinds = sorted({type(value).__name__ for value in values if value is not None})
            raise LayoutError(
                f"Field {name!r} holds {' and '.join(kinds)} ({error}): a Parquet column has one type; transform it."
            ) from error
    return pa.schema(fields)


def column_values(column: Any, facts: Mapping[str, Any]) -> Sequence[Any]:
    """Values of one Arrow column as they were given: arrays as numpy arrays, everything else as Python values."""
    if facts.get("kind") != "array":
        return column.to_pylist()
    pa = pyarrow()
    dtype = np.dtype(facts["dtype"]) if facts.get("dtype") else None
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    flat = pa.types.is_list(array.type) and pa.types.is_primitive(array.type.value_type)
    if not flat or array.null_count or array.values.null_count or dtype is None:
        return [None if value is None else _shaped(value, dtype, facts.get("shape")) for value in array.to_pylist()]
    offsets = array.offsets.to_numpy().tolist()
    values = array.values.to_numpy(zero_copy_only=False)
    return [values[a:b].astype(dtype) for a, b in pairwise(offsets)]


def _shaped(value: Any, dtype: np.dtype | None, shape: Sequence[int | None] | None) -> np.ndarray:
    array = np.asarray(value, dtype)
    if shape is None or sum(n is None for n in shape) > 1:
        return array
    return array.reshape([-1 if n is None else n for n in shape])


def _column(rows: Sequence[Sample], field: Any) -> Any:
    pa = pyarrow()
    values = [_storable(row.get(field.name)) for row in rows]
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        for row, value in zip(rows, values, strict=True):
            try:
                pa.array([value], type=field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
                raise LayoutError(
                    f"Field {field.name!r} of sample {row.get(KEY)!r} is {_short(value)}, its column {field.type}: "
                    "a column has the type of the samples looked at first; make the field one type with transform=."
                ) from error
        raise LayoutError(f"Field {field.name!r} does not fit the column type {field.type} ({error}).") from error


def _refuse_unknown(rows: Sequence[Sample], schema: Any) -> None:
    known = set(schema.names)
    for row in rows:
        extra = sorted(set(row) - known)
        if extra:
            raise LayoutError(
                f"Sample {row.get(KEY)!r} has a field {extra[0]!r} that none of the samples looked at first has: "
                "give every sample the same fields with transform=."
            )


def _storable(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return value.tolist()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes | bytearray | memoryview | str):
        return len(value)
    if isinstance(value, list | tuple | dict):
        return 8 * len(value)
    return 8


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
