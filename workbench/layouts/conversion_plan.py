"""A conversion before it touches the disk: what decides its result, and the pieces it falls into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.errors import ConversionError, LayoutError
from workbench.layouts.manifest import digest_of
from workbench.layouts.names import checked_key, first_duplicate, numbered_key
from workbench.layouts.pieces import Job, Piece, samples_digest
from workbench.layouts.plan import cut, shards_for
from workbench.layouts.probe import Probe
from workbench.layouts.sources import Source, StreamSource
from workbench.layouts.spool import EndOfPiece, piece_digests
from workbench.layouts.transforms import describe_transform
from workbench.machine import parse_bytes

_RULES_VERSION = 1
"""Raised when equal input would give other files, so that shards of two versions are never mixed."""


@dataclass(frozen=True)
class Plan:
    """What a conversion will do.

    Attributes:
        description: Everything that decides the result, as plain JSON values.
        job: What all pieces have in common.
        total_samples: Samples of the source, or None where it does not tell.
        pieces: The shards, or None where they show only while the source is read.
        stream: The source, where it cannot be read by index.
        ends: When a piece of it is full.
    """

    description: dict[str, Any]
    job: Job
    total_samples: int | None
    pieces: tuple[Piece, ...] | None
    stream: StreamSource | None = None
    ends: EndOfPiece | None = None

    @property
    def digest(self) -> str:
        """Names the conversion: equal for equal source, layout, options, transform and cut."""
        return digest_of([_RULES_VERSION, self.description])

    def content_digests(self) -> Iterator[str]:
        """Digest of each piece's samples, by reading the whole source; only for one without a fingerprint."""
        if self.stream is not None and self.ends is not None:
            yield from piece_digests(self.stream, self.ends)
        elif self.job.source is not None:
            for piece in self.pieces or ():
                yield samples_digest(self.job.source.read(piece.start, piece.stop))


def indexed_plan(
    source: Source,
    probe: Probe,
    job: Job,
    shard_bytes: int | str,
    shards: int | None,
    readers: tuple[int | None, int | None],
    duplicates: str,
) -> Plan:
    """The plan for a source that can be read by index; every name is checked here.

    Args:
        source: What to read.
        probe: What some of its samples told.
        job: The job, its source still open.
        shard_bytes: Size to aim at.
        shards: Exact number of shards; None goes by size.
        readers: ``world_size`` and ``num_workers``, where they are known.
        duplicates: ``refuse`` or ``number``.

    Raises:
        LayoutError: A name cannot be used or occurs twice, or ``shards`` is below 1.
    """
    if shards is not None and shards < 1:
        raise LayoutError(f"shards={shards} holds nothing: give a number from 1.")
    listed = source.names()
    names = {} if listed is None else changed_names(listed, duplicates)
    planned = source.sample_bytes() * probe.ratio + probe.bytes_a_sample
    wanted = shards or shards_for(float(planned.sum()), shard_bytes, *readers)
    if shards is None and probe.most_samples is not None:
        wanted = max(wanted, -(-len(source) // probe.most_samples))
        planned = np.ones(len(source))
    pieces = tuple(Piece(number, start, stop) for number, (start, stop) in enumerate(cut(planned, wanted)))
    fingerprint = source.fingerprint()
    description = {
        **_description(source.describe(), job),
        "source_fingerprint": fingerprint,
        "borders": digest_of([piece.stop for piece in pieces]),
        "duplicates": duplicates,
    }
    ready = replace(job, source=source, names=names, listed=listed is not None, digested=fingerprint is None)
    return Plan(description, ready, len(source), pieces)


def stream_plan(source: StreamSource, probe: Probe, job: Job, shard_bytes: int | str) -> Plan:
    """The plan for a source that only comes one sample after the other."""
    ends = EndOfPiece(parse_bytes(shard_bytes), probe.ratio, probe.bytes_a_sample, probe.most_samples)
    description = {**_description(source.describe(), job), "borders": digest_of([repr(v) for v in vars(ends).values()])}
    return Plan(description, job, None, None, source, ends)


def changed_names(names: Sequence[str | None], duplicates: str) -> dict[int, str]:
    """Names that must differ from the source's: index -> name. Where nothing does, it is empty.

    Raises:
        LayoutError: A name cannot be used in any layout, or occurs twice and ``duplicates`` is ``refuse``.
    """
    changed = {index: numbered_key("sample", index) for index, name in enumerate(names) if name is None}
    given = [changed.get(index, name) for index, name in enumerate(names)]
    for name in given:
        checked_key(name)
    twice = first_duplicate(given)  # type: ignore[arg-type]
    if twice is None:
        return changed
    if duplicates == "refuse":
        raise duplicate_error(twice)
    taken, counts = set(given), dict.fromkeys(given, 0)
    for index, name in enumerate(given):
        counts[name] += 1
        if counts[name] > 1:
            changed[index] = _free_name(str(name), counts[name], taken)
    return changed


def duplicate_error(name: str, *, can_be_numbered: bool = True) -> ConversionError:
    """What to tell about a name that two samples have."""
    way_out = ", or pass duplicates='number'" if can_be_numbered else ", or leave names out and samples are numbered"
    return ConversionError(f"Two samples are named {name!r}: one would hide the other; rename one{way_out}.")


def _free_name(name: str, number: int, taken: set) -> str:
    while f"{name}~{number}" in taken:
        number += 1
    taken.add(f"{name}~{number}")
    return f"{name}~{number}"


def _description(source: str, job: Job) -> dict[str, Any]:
    options = {} if job.options is None else {name: _plain(value) for name, value in vars(job.options).items()}
    return {
        "source": source,
        "layout": job.layout,
        "options": options,
        "transform": describe_transform(job.transform),
        "on_error": "skip" if job.skip_failures else "raise",
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
