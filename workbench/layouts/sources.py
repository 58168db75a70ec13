"""What can be converted: a data set in any layout, JSON lines, a map-style data set, anything that yields samples."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.codec import encode_sample, plain_value
from workbench.layouts.manifest import digest_of
from workbench.layouts.mapping import map_file
from workbench.layouts.parquet import arrow_schema
from workbench.layouts.protocol import Sample
from workbench.layouts.reader import ShardedReader, open_dataset

JSON_LINES = (".jsonl", ".ndjson")
_PROBED = 64
_READ_BYTES = 4 << 20


class Source(Protocol):
    """Samples that can be read by index, in any process."""

    def describe(self) -> str:
        """One line for the manifest, without the machine's paths."""

    def fingerprint(self) -> str | None:
        """Digest that changes when the samples may have changed; None where that cannot be told."""

    def __len__(self) -> int: ...

    def sample_bytes(self) -> np.ndarray:
        """Bytes of each sample, as near as can be told without reading it, int64, shape ``[samples]``."""

    def names(self) -> list[str] | None:
        """Name of each sample, or None where that takes reading them."""

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples ``start`` to ``stop - 1``, in order."""

    def sample(self, index: int) -> Sample:
        """One sample."""


class ReaderSource:
    """A data set in one of the layouts."""

    def __init__(self, reader: ShardedReader) -> None:
        self.reader = reader

    def describe(self) -> str:
        return f"{self.reader.layout} {self.reader.root.name}"

    def fingerprint(self) -> str | None:
        entries = []
        for entry in self.reader.manifest.files:
            path = self.reader.root / entry.path
            status = path.stat() if entry.checksum is None or path.exists() else None
            size = entry.bytes if status is None else status.st_size
            entries.append([entry.path, size, entry.checksum or (status and status.st_mtime_ns)])
        return digest_of(entries)

    def schema(self) -> Any:
        """The Arrow schema of a Parquet source, the name first; None of any other."""
        return arrow_schema(self.reader.open_shard(0)) if self.reader.layout == "parquet" else None

    def __len__(self) -> int:
        return len(self.reader)

    def sample_bytes(self) -> np.ndarray:
        parts = [self.reader.open_shard(k).sample_bytes() for k in range(len(self.reader.shards))]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def names(self) -> list[str] | None:
        parts = [self.reader.open_shard(k).names() for k in range(len(self.reader.shards))]
        return None if any(part is None for part in parts) else [name for part in parts for name in part or ()]

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        while start < stop:
            shard, row = self.reader.locate(start)
            take = min(stop - start, self.reader.shards[shard].samples - row)
            samples = self.reader.read_shard(shard, row)
            for _ in range(take):
                yield next(samples)
            start += take

    def sample(self, index: int) -> Sample:
        return self.reader.sample(index)


class JsonLinesSource:
    """Files with one JSON record a line."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._lines = [_line_borders(path) for path in paths]
        self._firsts = np.cumsum([0] + [len(lines) for lines in self._lines])

    def describe(self) -> str:
        return f"JSON lines {self._paths[0].name}" + (f" and {len(self._paths) - 1} more" if self._paths[1:] else "")

    def fingerprint(self) -> str | None:
        return digest_of([[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in self._paths])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def sample_bytes(self) -> np.ndarray:
        return np.concatenate([lines[:, 1] - lines[:, 0] for lines in self._lines])

    def names(self) -> list[str] | None:
        return None

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        for index in range(start, stop):
            yield self.sample(index)

    def sample(self, index: int) -> Sample:
        file = int(np.searchsorted(self._firsts, index, side="right")) - 1
        begin, end = self._lines[file][index - self._firsts[file]].tolist()
        with open(self._paths[file], "rb") as handle:
            handle.seek(begin)
            return parse_line(handle.read(end - begin), f"{self._paths[file]}, byte {begin:,}")


class SequenceSource:
    """Any object with a length and an index: a map-style data set, a list, a Hugging Face data set."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def describe(self) -> str:
        return f"{type(self._samples).__module__}.{type(self._samples).__qualname__}"

    def fingerprint(self) -> str | None:
        return None

    def __len__(self) -> int:
        return len(self._samples)

    def sample_bytes(self) -> np.ndarray:
        """The mean of some samples for all of them."""
        looked_at = evenly(len(self), _PROBED)
        sizes = [stored_bytes(self.sample(index)) for index in looked_at]
        return np.full(len(self), max(1, int(np.mean(sizes))) if sizes else 1, np.int64)

    def names(self) -> list[str] | None:
        return None

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        for index in range(start, stop):
            yield self.sample(index)

    def sample(self, index: int) -> Sample:
        return as_sample(self._samples[index])


class StreamSource:
    """Samples that only come one after the other: an iterable, a function that returns one, or packed JSON lines.

    Args:
        make: Called for every pass.
        description: One line for the manifest.
    """

    def __init__(self, make: Callable[[], Iterable[Any]], description: str) -> None:
        self._make, self._description = make, description
        self._head: list[Sample] = []
        self._started: Iterator[Sample] | None = None

    def describe(self) -> str:
        return self._description

    def head(self, count: int, most_bytes: int) -> list[Sample]:
        """The first samples; the next pass gives them again, also where the iterable can be passed over only once."""
        self._started, self._head, size = map(as_sample, self._make()), [], 0
        for sample in islice(self._started, count):
            self._head.append(sample)
            size += stored_bytes(sample)
            if size >= most_bytes:
                break
        return self._head

    def __iter__(self) -> Iterator[Sample]:
        if self._started is None:
            return map(as_sample, self._make())
        samples, self._head, self._started = chain(self._head, self._started), [], None
        return samples


def resolve_source(source: Any) -> Source | StreamSource:
    """Find out what ``source`` is.

    Args:
        source: A path (folder in any layout, one shard, ``.jsonl`` or ``.jsonl.gz``, folder of JSON lines), a
            ``ShardedReader``, an object with a length and an index, an iterable, or a function without arguments that
            returns one.

    Raises:
        LayoutError: It is none of these, or a path with nothing to convert.
    """
    if isinstance(source, str) and "://" in source:
        return ReaderSource(open_dataset(source))
    if isinstance(source, str | Path):
        return _path_source(Path(source))
    if isinstance(source, ShardedReader):
        return ReaderSource(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping | bytes):
        return SequenceSource(source)
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return StreamSource(lambda: source, _described(source))
    if callable(source):
        return StreamSource(source, _described(source))
    raise LayoutError(
        f"{type(source).__name__} is no source of samples: pass a path, a data set, an iterable or a function."
    )


def as_sample(item: Any) -> Sample:
    """One item of anybody's data set as a sample.

    Records keep their fields, tuples number theirs, text is ``text``, bytes are ``bytes``, and an array or a list of
    whole numbers is ``tokens``.

    Raises:
        LayoutError: It is none of these.
    """
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, tuple):
        named = getattr(item, "_fields", None) or [str(number) for number in range(len(item))]
        return dict(zip(named, item, strict=True))
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, bytes):
        return {"bytes": item}
    value = plain_value(item)
    if isinstance(value, np.ndarray) or (isinstance(value, list) and all(isinstance(n, int) for n in value)):
        return {"tokens": value}
    raise LayoutError(
        f"A sample is {type(item).__name__}: yield records (dict), tuples, text, bytes, arrays or lists of ids."
    )


def parse_line(line: bytes, where: str) -> Sample:
    """The record in one JSON line.

    Raises:
        LayoutError: It is not JSON, or no record; ``where`` is named.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise LayoutError(f"{where}: not a line of JSON ({error}): repair or drop it.") from error
    if not isinstance(record, dict):
        raise LayoutError(f"{where}: a line holds {type(record).__name__}, and a sample is a record ({{...}}).")
    return record


def evenly(count: int, wanted: int) -> list[int]:
    """At most ``wanted`` indices spread over ``count``, the first and the last among them."""
    return sorted(set(np.linspace(0, count - 1, min(count, wanted)).astype(int).tolist())) if count else []


def stored_bytes(sample: Sample) -> int:
    """Bytes of a sample's fields once they are written."""
    return sum(len(content) for _, content, _ in encode_sample(sample))


def _path_source(path: Path) -> Source | StreamSource:
    if path.is_file() and path.name.endswith(tuple(f"{suffix}.gz" for suffix in JSON_LINES)):
        return StreamSource(lambda: _packed_lines(path), f"JSON lines {path.name}")
    if path.is_file() and path.suffix in JSON_LINES:
        return JsonLinesSource([path])
    if path.is_dir():
        visible = [p for p in sorted(path.iterdir()) if not p.name.startswith(".")]
        if visible and all(p.is_file() and p.suffix in JSON_LINES for p in visible):
            return JsonLinesSource(visible)
    return ReaderSource(open_dataset(path))


def _packed_lines(path: Path) -> Iterator[Sample]:
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield parse_line(line, f"{path}, line {number:,}")
    except (EOFError, gzip.BadGzipFile) as error:
        raise LayoutError(f"{path} is cut short or damaged ({error}): fetch it again.") from error


def _line_borders(path: Path) -> np.ndarray:
    """Begin and end of every line that is not blank, shape ``[lines, 2]``, int64."""
    content = map_file(path)
    ends = [
        np.flatnonzero(np.frombuffer(content[at : at + _READ_BYTES], np.uint8) == ord("\n")) + at
        for at in range(0, len(content), _READ_BYTES)
    ]
    stops = np.concatenate([*ends, [len(content)]]).astype(np.int64)
    borders = np.stack([np.concatenate([[0], stops[:-1] + 1]), stops], axis=1)
    short = np.flatnonzero(borders[:, 1] - borders[:, 0] < 3)
    blank = [row for row in short.tolist() if not content[borders[row, 0] : borders[row, 1]].strip()]
    return np.delete(borders, blank, axis=0).astype(np.int64)


def _described(source: Any) -> str:
    named = source if hasattr(source, "__qualname__") else type(source)
    return f"{named.__module__}.{named.__qualname__}" if hasattr(named, "__module__") else named.__qualname__
