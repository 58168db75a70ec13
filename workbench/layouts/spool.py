"""Pieces of a source that only comes one sample after the other: set aside, a shard at a time."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ConversionError
from workbench.layouts.codec import is_reserved
from workbench.layouts.pieces import Piece, new_digest, room_error, sample_digest
from workbench.layouts.protocol import KEY, Sample

SPOOL_PREFIX = ".spool-"


@dataclass(frozen=True)
class EndOfPiece:
    """When a piece of a stream is full.

    Attributes:
        shard_bytes: Size that its shard may reach.
        ratio: Bytes in the shard for each byte of content read.
        bytes_a_sample: Bytes that each sample costs beside its content.
        most_samples: Samples that a shard may hold; None sets no limit.
    """

    shard_bytes: int
    ratio: float
    bytes_a_sample: float
    most_samples: int | None

    def full(self, content_bytes: int, samples: int) -> bool:
        """Whether a piece with this much in it takes no more."""
        return (
            content_bytes * self.ratio + samples * self.bytes_a_sample >= self.shard_bytes
            or samples == self.most_samples
        )


def spooled_pieces(samples: Iterable[Sample], notes: Path, ends: EndOfPiece) -> Iterator[Piece]:
    """Pieces of ``samples`` with their digests.

    Args:
        samples: The source, from its beginning.
        notes: Folder for the spool files.
        ends: When a piece is full.

    Raises:
        ConversionError: There is no room, or a sample cannot be set aside.
    """
    source = iter(samples)
    number, start = 0, 0
    waiting = next(source, None)
    while waiting is not None:
        piece, waiting = _next_piece(source, waiting, number, start, notes, ends)
        yield piece
        number, start = number + 1, piece.stop


def piece_digests(samples: Iterable[Sample], ends: EndOfPiece) -> Iterator[str]:
    """Digest of each piece that ``spooled_pieces`` would make, without writing anything."""
    digest, size, count = new_digest(), 0, 0
    for sample in samples:
        size += sample_digest(digest, sample)
        count += 1
        if ends.full(size, count):
            yield digest.hexdigest()
            digest, size, count = new_digest(), 0, 0
    if count:
        yield digest.hexdigest()


def _next_piece(
    source: Iterator[Sample],
    first: Sample,
    number: int,
    start: int,
    notes: Path,
    ends: EndOfPiece,
) -> tuple[Piece, Sample | None]:
    path = notes / f"{SPOOL_PREFIX}{number:05d}.pickle"
    digest, size, count = new_digest(), 0, 0
    sample: Sample | None = first
    try:
        with open(path, "wb") as file:
            while sample is not None:
                size += sample_digest(digest, sample)
                count += 1
                pickle.dump(_plain(sample), file, pickle.HIGHEST_PROTOCOL)
                sample = next(source, None)
                if ends.full(size, count):
                    break
    except OSError as error:
        path.unlink(missing_ok=True)
        raise room_error(error, notes.parent) or error from error
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConversionError(
            f"Sample {start + count - 1} of the source cannot be set aside ({error}): yield bytes, text, arrays."
        ) from error
    return Piece(number, start, start + count, str(path), digest.hexdigest()), sample


def _plain(sample: Sample) -> Sample:
    return {name: value for name, value in sample.items() if name == KEY or not is_reserved(name)}
