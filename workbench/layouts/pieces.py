"""One shard of a conversion: its samples read, transformed, written, and recorded as done."""

from __future__ import annotations

import errno
import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import ConversionError, LayoutError
from workbench.layouts.codec import encode_sample
from workbench.layouts.manifest import shard_from_document, shard_to_document
from workbench.layouts.names import numbered_key
from workbench.layouts.protocol import KEY, Sample, WrittenShard
from workbench.layouts.registry import LAYOUTS
from workbench.layouts.sources import Source
from workbench.layouts.transforms import describe_transform

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FAILURES_NAMED = 20


@dataclass(frozen=True)
class Job:
    """What every piece of one conversion has in common; shipped once to each process.

    Attributes:
        root: Folder that the shards are built in.
        layout: Target layout.
        options: The layout's own options.
        source: Where samples come from; None where pieces bring theirs in a spool file.
        names: Name of each sample where it differs from the source's own (index -> name).
        listed: Whether all names were known, and checked, before anything was written.
        digested: Whether to keep a digest of the samples, for a source that cannot tell whether it has changed.
        transform: Applied to each sample; returning None drops it.
        skip_failures: Whether a sample whose transform raises is left out instead of ending the conversion.
    """

    root: Path
    layout: str
    options: Any
    source: Source | None
    names: dict[int, str]
    listed: bool
    digested: bool
    transform: Callable[[Sample], Sample | None] | None
    skip_failures: bool


@dataclass(frozen=True)
class Piece:
    """One shard to write.

    Attributes:
        number: Position among the shards.
        start: Index of its first sample.
        stop: Index after its last.
        spool: File of pickled samples, where the source cannot be read by index.
        digest: Digest of those samples.
    """

    number: int
    start: int
    stop: int
    spool: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Name of the shard, without the layout's suffix."""
        return f"shard-{self.number:05d}"


@dataclass(frozen=True)
class Done:
    """A shard that is written: the record that lets a second run leave it alone.

    Attributes:
        piece: What was asked for.
        written: What the layout wrote.
        dropped: Samples that the transform dropped.
        failed: Samples that were left out because the transform raised.
        failures: The first of those, as ``name: error``.
        names: Names that the samples brought themselves; empty where the source listed them before.
        digest: Digest of the samples before the transform; None where the source has a fingerprint.
    """

    piece: Piece
    written: WrittenShard
    dropped: int = 0
    failed: int = 0
    failures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    digest: str | None = None

    def to_document(self) -> dict[str, Any]:
        """As plain JSON values."""
        piece = {**self.piece.__dict__, "spool": None}
        return {
            "piece": piece,
            "shard": shard_to_document(self.written.shard),
            "fields": self.written.fields,
            "facts": self.written.facts,
            "dropped": self.dropped,
            "failed": self.failed,
            "failures": list(self.failures),
            "names": list(self.names),
            "digest": self.digest,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Done:
        """The record that ``to_document`` made.

        Raises:
            KeyError, TypeError, ValueError: The document is not one.
        """
        written = WrittenShard(shard_from_document(document["shard"]), document["fields"], document["facts"])
        failures, names = tuple(document["failures"]), tuple(document["names"])
        piece = Piece(**document["piece"])
        return cls(piece, written, document["dropped"], document["failed"], failures, names, document["digest"])


class Interrupted(ConversionError):
    """A conversion that stopped for a reason outside its samples: what is finished is kept for the next run."""


class _Passing:
    """Samples on their way into the writer, counted."""

    def __init__(self, job: Job, piece: Piece, on_sample: Callable[[], None]) -> None:
        self._job, self._piece, self._on_sample = job, piece, on_sample
        self.dropped = 0
        self.failed = 0
        self.failures: list[str] = []
        self.names: list[str] = []
        self.digest = new_digest() if job.digested and piece.spool is None else None

    def __iter__(self) -> Iterator[Sample]:
        job, piece = self._job, self._piece
        for index, sample in enumerate(_samples_of(job, piece), piece.start):
            self._on_sample()
            if self.digest is not None:
                sample_digest(self.digest, sample)
            named = self._named(sample, index)
            changed = self._transformed(named)
            if changed is None:
                continue
            yield changed if KEY in changed else {KEY: named[KEY], **changed}

    def _named(self, sample: Sample, index: int) -> Sample:
        renamed = self._job.names.get(index)
        if renamed is not None:
            return {**sample, KEY: renamed}
        if sample.get(KEY) is None:
            return {**sample, KEY: numbered_key("sample", index)}
        if not self._job.listed:
            self.names.append(sample[KEY])
        return sample

    def _transformed(self, sample: Sample) -> Sample | None:
        transform = self._job.transform
        if transform is None:
            return sample
        try:
            changed = transform(sample)
        except Exception as error:
            if not self._job.skip_failures:
                raise transform_error(transform, sample, error) from error
            self.failed += 1
            if len(self.failures) < _FAILURES_NAMED:
                self.failures.append(f"{sample[KEY]}: {type(error).__name__}: {error}")
            return None
        self.dropped += changed is None
        return changed


def write_piece(job: Job, piece: Piece, on_sample: Callable[[], None]) -> Done:
    """Write one shard and return its record; ``on_sample`` is called for every sample that is read.

    Raises:
        ConversionError: There is no room, or the transform failed.
        LayoutError: A sample cannot be read, or not be written in this layout.
    """
    passing = _Passing(job, piece, on_sample)
    try:
        written = LAYOUTS[job.layout].write_shard(job.root, piece.name, passing, job.options)
    except OSError as error:
        raise room_error(error, job.root) or error from error
    return Done(
        piece,
        written,
        passing.dropped,
        passing.failed,
        tuple(passing.failures),
        tuple(passing.names),
        piece.digest if passing.digest is None else passing.digest.hexdigest(),
    )


def transform_error(transform: Callable[[Sample], Any], sample: Sample, error: Exception) -> ConversionError:
    """What to tell about a transform that raised."""
    if isinstance(error, LayoutError):
        return ConversionError(f"Sample {sample.get(KEY)!r}: {error}")
    return ConversionError(
        f"{describe_transform(transform)} failed on sample {sample.get(KEY)!r} ({type(error).__name__}: {error}): "
        "repair the sample or the transform, or leave such samples out with on_error='skip'."
    )


def room_error(error: OSError, root: Path) -> Interrupted | None:
    """The one sentence about a full disk, or None where the error is another."""
    if error.errno not in _NO_ROOM:
        return None
    return Interrupted(
        f"No room to write in {root.parent} ({error.strerror}): nothing was published and finished shards wait in "
        f"{root.name}; free space (or lift the file size limit) and run the same conversion again."
    )


def sample_digest(digest: Any, sample: Sample) -> int:
    """Add one sample's name and stored content to ``digest``; return the bytes of its content."""
    size = 0
    digest.update(f"{sample.get(KEY)!r}\n".encode("utf-8", "backslashreplace"))
    for suffix, content, _ in encode_sample(sample):
        digest.update(f"{suffix} {len(content)}\n".encode())
        digest.update(content)
        size += len(content)
    return size


def new_digest() -> Any:
    """The digest that ``sample_digest`` adds to."""
    return hashlib.blake2b(digest_size=16)


def samples_digest(samples: Iterable[Sample]) -> str:
    """Digest of names and stored content of ``samples``."""
    digest = new_digest()
    for sample in samples:
        sample_digest(digest, sample)
    return digest.hexdigest()


def spool_samples(path: Path) -> Iterator[Sample]:
    """Samples of a spool file, one at a time. It was written by this conversion, in a folder that it locks."""
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def _samples_of(job: Job, piece: Piece) -> Iterable[Sample]:
    if piece.spool is not None:
        return spool_samples(Path(piece.spool))
    if job.source is None:
        raise ConversionError(f"{piece.name} has neither a source nor a spool file: start the conversion again.")
    return job.source.read(piece.start, piece.stop)
