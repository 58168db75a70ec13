"""Parquet shards: row groups sized for how they will be read, and stated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.manifest import file_entry
from workbench.layouts.parquet_rows import RowWriter, column_values, pyarrow
from workbench.layouts.parquet_settings import ParquetOptions
from workbench.layouts.protocol import KEY, FileEntry, Sample, Shard, WrittenShard
from workbench.layouts.publishing import publishing

_BATCH_BYTES = 4 << 20
"""Rows turned into Python values together while a shard is read through: this many bytes of them."""

_last_group: tuple[tuple[str, int, int], Any] | None = None
"""The one row group that this process keeps decoded for access by index: (path, size, group), table."""


class ParquetShard:
    """One Parquet file, mapped; one row group at most is decoded for access by index."""

    def __init__(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> None:
        main = shard.files[0]
        self._path, self._bytes, self._fields = root / main.path, main.bytes, fields
        self.file = open_file(self._path)
        metadata = self.file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self.group_rows = [group.num_rows for group in groups]
        self.group_bytes = [group.total_byte_size for group in groups]
        self._ends = list(accumulate(self.group_rows))
        if len(self) != shard.samples:
            raise LayoutError(
                f"{self._path} holds {len(self)} rows and the manifest says {shard.samples}: "
                "run `workbench verify` on the data set."
            )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def sample(self, row: int) -> Sample:
        if not 0 <= row < len(self):
            raise IndexError(f"Row {row} was asked for and the shard holds {len(self)}.")
        group = bisect_right(self._ends, row)
        first = self._ends[group] - self.group_rows[group]
        return next(self._rows(self._group(group).slice(row - first, 1)))

    def samples(self, start: int = 0) -> Iterator[Sample]:
        group = bisect_right(self._ends, start)
        if group >= len(self._ends):
            return
        skip = start - (self._ends[group] - self.group_rows[group])
        bytes_a_row = max(1, sum(self.group_bytes) // max(1, len(self)))
        batch_rows = max(1, min(max(self.group_rows), _BATCH_BYTES // bytes_a_row))
        for number in range(group, len(self._ends)):
            for batch in self.file.iter_batches(batch_size=batch_rows, row_groups=[number], use_threads=False):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                yield from self._rows(batch.slice(skip))
                skip = 0

    def sample_bytes(self) -> np.ndarray:
        means = [size // max(1, rows) for size, rows in zip(self.group_bytes, self.group_rows, strict=True)]
        return np.repeat(np.array(means, np.int64), self.group_rows)

    def names(self) -> list[str] | None:
        if KEY not in self.file.schema_arrow.names:
            return None
        return self.file.read(columns=[KEY], use_threads=False).column(KEY).to_pylist()

    def _rows(self, table: Any) -> Iterator[Sample]:
        names = table.schema.names
        columns = [column_values(table.column(name), self._fields.get(name, {})) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

    def _group(self, group: int) -> Any:
        global _last_group
        wanted = (str(self._path), self._bytes, group)
        held = _last_group
        if held is not None and held[0] == wanted:
            return held[1]
        held = _last_group = None
        table = self.file.read_row_group(group, use_threads=False)
        _last_group = (wanted, table)
        return table


class ParquetLayout:
    """Arrow's own format: columns, compressed, in row groups that are read whole."""

    name = "parquet"

    def find_shards(self, root: Path) -> tuple[tuple[Shard, ...], dict[str, Any]]:
        paths = [root] if root.is_file() else sorted(p for p in root.iterdir() if _is_shard(p))
        if not paths:
            raise LayoutError(f"{root} holds no .parquet files: check the folder.")
        shards = []
        fields: dict[str, Any] = {}
        for path in paths:
            file = open_file(path)
            shards.append(Shard(path.name, file.metadata.num_rows, (FileEntry(path.name, path.stat().st_size),)))
            fields.update(
                {f.name: {"field": f.name, "kind": "column", "dtype": str(f.type)} for f in file.schema_arrow}
            )
        return tuple(shards), fields

    def open_shard(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> ParquetShard:
        return ParquetShard(root, shard, fields)

    def write_shard(
        self, root: Path, name: str, samples: Iterable[Sample], options: ParquetOptions | None = None
    ) -> WrittenShard:
        path = root / f"{name}.parquet"
        with publishing(path) as file:
            writer = RowWriter(file, options or ParquetOptions())
            for sample in samples:
                writer.add(sample)
            writer.finish()
        shard = Shard(path.name, writer.rows, (file_entry(root, path),))
        facts = {
            "row_group_rows": writer.largest_group_rows,
            "row_group_bytes": writer.largest_group_bytes,
            "access": writer.options.access,
        }
        return WrittenShard(shard, writer.fields(), facts)

    def finish(
        self, root: Path, written: Sequence[WrittenShard], options: Any
    ) -> tuple[tuple[WrittenShard, ...], dict[str, Any]]:
        if not written:
            return (), {}
        largest = {name: max(w.facts[name] for w in written) for name in ("row_group_rows", "row_group_bytes")}
        return tuple(written), {**largest, "access": written[0].facts["access"]}


def arrow_schema(shard: ParquetShard) -> Any:
    """The Arrow schema of a shard, with a column for names in front."""
    schema, pa = shard.file.schema_arrow, pyarrow()
    return schema if KEY in schema.names else pa.schema([pa.field(KEY, pa.string()), *schema])


def open_file(path: Path) -> Any:
    """The ``pyarrow.parquet.ParquetFile`` at ``path``, memory-mapped.

    Raises:
        LayoutError: It is missing, cut short or no Parquet file.
    """
    parquet = pyarrow("parquet")
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except FileNotFoundError as error:
        raise LayoutError(f"{path} is listed and missing: restore it, or convert the data set again.") from error
    except (pyarrow().ArrowInvalid, OSError) as error:
        raise LayoutError(f"{path} cannot be read as Parquet ({error}): it is cut short or of another kind.") from error


def _is_shard(path: Path) -> bool:
    return path.suffix == ".parquet" and path.is_file() and not path.name.startswith(".")
