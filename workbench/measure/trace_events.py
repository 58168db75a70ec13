"""Reads the events of a profiler trace one by one and keeps only what a diagnosis needs, however large or damaged.

Chrome JSON as torch.profiler (Kineto) writes it, plain or gzipped, is decoded event by event from a buffer of a few MB.
Bytes that are no UTF-8 are replaced, control characters are accepted, an event that cannot be decoded is repaired or
skipped and counted, and a file that ends too early gives what it has.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workbench.errors import TraceError
from workbench.measure.intervals import NOTHING, Spans

CHUNK_BYTES = 1 << 20
MAX_EVENT_CHARS = 1 << 20  # an event longer than this is damage: Kineto's longest (call stacks) are some kB
TAIL_CHARS = 64  # an error this close to the end of the buffer may only mean that the rest is still to come

Thread = tuple[Any, Any]  # process and thread id, as the trace has them

STEP_NAME = re.compile(r"^ProfilerStep#(\d+)")
LOADER_NAME = re.compile(r"enumerate\(DataLoader\)#.*__next__")
LOADER_FRAME = re.compile(
    r"(?:torch/utils/data/dataloader|stateful_dataloader/stateful_dataloader)\.py\(\d+\): __next__"
)
SYNC_NAME = re.compile(r"^(?:cuda|cu|hip|xpu|ze)\w*Synchronize$|^(?:cuda|hip)Memcpy(?:WithStream)?$")
COLLECTIVE_NAME = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)
KERNEL_CATEGORIES = {"kernel"}
COPY_CATEGORIES = {"gpu_memcpy", "memcpy"}  # the second of each pair as torch < 1.12 wrote it
FILL_CATEGORIES = {"gpu_memset", "memset"}
RUNTIME_CATEGORIES = {"cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime", "runtime"}
OPERATOR_CATEGORIES = {"cpu_op", "operator"}

_SEPARATORS = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
_BARE_NUMBER = re.compile(r":\s*[-+]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_RANK = re.compile(r'"rank"\s*:\s*(\d+)')


@dataclass
class SpanColumns:
    """Intervals in microseconds, in order of the file."""

    starts: array = field(default_factory=lambda: array("d"))
    ends: array = field(default_factory=lambda: array("d"))

    def add(self, start: float, end: float) -> None:
        """One more interval."""
        self.starts.append(start)
        self.ends.append(end)

    def union(self) -> Spans:
        """What the intervals cover together."""
        return Spans.union(np.frombuffer(self.starts), np.frombuffer(self.ends)) if len(self) else NOTHING

    def __len__(self) -> int:
        return len(self.starts)


@dataclass
class DeviceActivity:
    """What ran on one device, over all its streams."""

    kernels: SpanColumns = field(default_factory=SpanColumns)
    collectives: SpanColumns = field(default_factory=SpanColumns)
    uploads: SpanColumns = field(default_factory=SpanColumns)
    downloads: SpanColumns = field(default_factory=SpanColumns)
    other_copies: SpanColumns = field(default_factory=SpanColumns)
    fills: SpanColumns = field(default_factory=SpanColumns)
    upload_bytes: Counter[str] = field(default_factory=Counter)  # by memory kind: "pageable", "pinned", "unknown"
    upload_microseconds: Counter[str] = field(default_factory=Counter)


@dataclass
class TraceEvents:
    """The events of one trace that say where a step's time went, in microseconds of the trace's clock.

    Attributes:
        steps: Number, start, end and thread of each `ProfilerStep#n`.
        loader: Spans of the DataLoader's `__next__` by thread.
        loader_frames: The same from Python stacks, for traces without the annotation.
        syncs: Calls that block until the device has caught up, by thread.
        sync_names: How often each of them was called.
        operators: CPU operators by thread.
        devices: Device work by device.
        rank: Rank of a distributed run, None when the trace does not say.
        events: Events decoded.
        skipped: Events that could not be decoded.
        truncated: Whether the file ended before its list of events did.
    """

    steps: list[tuple[int, float, float, Thread]] = field(default_factory=list)
    loader: dict[Thread, SpanColumns] = field(default_factory=lambda: defaultdict(SpanColumns))
    loader_frames: dict[Thread, SpanColumns] = field(default_factory=lambda: defaultdict(SpanColumns))
    syncs: dict[Thread, SpanColumns] = field(default_factory=lambda: defaultdict(SpanColumns))
    sync_names: Counter[str] = field(default_factory=Counter)
    operators: dict[Thread, SpanColumns] = field(default_factory=lambda: defaultdict(SpanColumns))
    devices: dict[Any, DeviceActivity] = field(default_factory=lambda: defaultdict(DeviceActivity))
    rank: int | None = None
    events: int = 0
    skipped: int = 0
    truncated: bool = False


def read_events(path: Path) -> TraceEvents:
    """The events of one trace file.

    Raises:
        TraceError: If the file cannot be opened, or has no list of trace events.
    """
    found = TraceEvents()
    try:
        with open(path, "rb") as file:
            for event in _EventReader(file, found, path):
                found.events += 1
                _keep(event, found)
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error.strerror or error}); give a trace file or a folder of them"
        ) from error
    return found


class _EventReader:
    """Iterates over the events of an open trace file, and notes in `found` what was damaged."""

    def __init__(self, file: BinaryIO, found: TraceEvents, path: Path) -> None:
        self._chunks = _text_chunks(file, found)
        self._found, self._path = found, path
        self._buffer, self._at, self._ended = "", 0, False
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._skip_header()
        while True:
            self._at = _SEPARATORS.match(self._buffer, self._at).end()  # type: ignore[union-attr]
            if self._at >= len(self._buffer):
                if self._more():
                    continue
                self._found.truncated = True
                return
            if self._buffer[self._at] == "]":
                return
            event = self._next_event()
            if isinstance(event, dict):
                yield event

    def _skip_header(self) -> None:
        """Moves behind the bracket that opens the list of events; the header before it may name the rank."""
        while True:
            text = self._buffer.lstrip("\ufeff \t\r\n")
            place = self._buffer.find('"traceEvents"')
            bracket = self._buffer.find("[", max(0, place)) if place >= 0 or text[:1] == "[" else -1
            if bracket >= 0:
                break
            if not self._more():
                raise TraceError(
                    f"{self._path} is no profiler trace: it has no traceEvents; record one with torch.profiler and "
                    "export_chrome_trace()"
                )
        rank = _RANK.search(self._buffer, 0, bracket)
        self._found.rank = int(rank.group(1)) if rank else None
        self._at = bracket + 1

    def _next_event(self) -> Any:
        """The event at the cursor, or None where there is nothing to decode but damage."""
        try:
            event, self._at = self._decode(self._buffer, self._at)
            return event
        except json.JSONDecodeError as error:
            unterminated = error.msg.startswith("Unterminated") or error.pos > len(self._buffer) - TAIL_CHARS
            if unterminated and len(self._buffer) - self._at < MAX_EVENT_CHARS and self._more():
                return None
        return self._repair()

    def _repair(self) -> Any:
        """Steps over a damaged event to the next one, and decodes it when the damage is a known one."""
        while (border := _NEXT_EVENT.search(self._buffer, self._at)) is None and self._more():
            if len(self._buffer) - self._at > MAX_EVENT_CHARS:
                break
        stop = border.start() + 1 if border else len(self._buffer)
        text = _BAD_ESCAPE.sub(r"\\\\", _BARE_NUMBER.sub(": null", self._buffer[self._at : stop]))
        self._at = border.end() if border else len(self._buffer)
        try:
            return self._decode(text, 0)[0]
        except json.JSONDecodeError:
            self._found.skipped += 1
            self._found.truncated |= self._ended and border is None
            return None

    def _more(self) -> bool:
        """Appends the next chunk to what is left of the buffer; False at the end of the file."""
        if self._ended:
            return False
        chunk = next(self._chunks, None)
        if chunk is None:
            self._ended = True
            return False
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return True


def _text_chunks(file: BinaryIO, found: TraceEvents) -> Iterator[str]:
    """The file's text, unzipped if it is gzipped (whatever its name), undecodable bytes replaced."""
    magic = file.read(2)
    file.seek(0)
    source: Any = gzip.GzipFile(fileobj=file) if magic == b"\x1f\x8b" else file
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        try:
            data = source.read1(CHUNK_BYTES) if source is not file else file.read(CHUNK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            found.truncated = True
            return
        if not data:
            return
        yield decoder.decode(data)


def _keep(event: dict[str, Any], found: TraceEvents) -> None:
    """Files one event under what it says; most say nothing about waiting and are dropped."""
    if event.get("ph") != "X":
        return
    start, length = _number(event.get("ts")), _number(event.get("dur", 0))
    if start is None or length is None or length < 0:
        found.skipped += 1
        return
    name, category = str(event.get("name", "")), str(event.get("cat", "")).lower()
    thread, end = (event.get("pid"), event.get("tid")), start + length
    if category == "gpu_user_annotation":
        return
    if name.startswith("ProfilerStep#") and (step := STEP_NAME.match(name)):
        found.steps.append((int(step.group(1)), start, end, thread))
    elif category in OPERATOR_CATEGORIES and not name.startswith("enumerate("):
        found.operators[thread].add(start, end)
    elif category in KERNEL_CATEGORIES | COPY_CATEGORIES | FILL_CATEGORIES:
        _keep_device_work(event, name, category, start, end, found)
    elif category in RUNTIME_CATEGORIES:
        if SYNC_NAME.match(name):
            found.syncs[thread].add(start, end)
            found.sync_names[name] += 1
    elif LOADER_NAME.search(name):
        found.loader[thread].add(start, end)
    elif category == "python_function" and LOADER_FRAME.search(name):
        found.loader_frames[thread].add(start, end)


def _keep_device_work(
    event: dict[str, Any], name: str, category: str, start: float, end: float, found: TraceEvents
) -> None:
    arguments = event.get("args") if isinstance(event.get("args"), dict) else {}
    device = found.devices[arguments.get("device", event.get("pid"))]
    if category in FILL_CATEGORIES:
        device.fills.add(start, end)
    elif category in KERNEL_CATEGORIES:
        (device.collectives if COLLECTIVE_NAME.search(name) else device.kernels).add(start, end)
    elif "HtoD" in name or "HostToDevice" in name:
        device.uploads.add(start, end)
        kind = next((kind for kind in ("pageable", "pinned") if kind in name.lower()), "unknown")
        device.upload_bytes[kind] += int(_number(arguments.get("bytes", 0)) or 0)
        device.upload_microseconds[kind] += end - start
    elif "DtoH" in name or "DeviceToHost" in name:
        device.downloads.add(start, end)
    else:
        device.other_copies.add(start, end)


def _number(value: Any) -> float | None:
    """A finite number, also where an old trace wrote it as text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
