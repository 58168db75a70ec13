"""Carry out a plan: leave alone what is there, write what is missing, publish the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.errors import ConversionError, LayoutError
from workbench.layouts.codec import merge_fields
from workbench.layouts.conversion_plan import Plan, duplicate_error
from workbench.layouts.crew import run_pieces
from workbench.layouts.manifest import Manifest, read_manifest
from workbench.layouts.names import first_duplicate
from workbench.layouts.pieces import Done, Interrupted, Piece, room_error, samples_digest
from workbench.layouts.registry import LAYOUTS
from workbench.layouts.spool import spooled_pieces
from workbench.layouts.staging import Staging
from workbench.machine import usable_cores

_MADE_BY = "workbench.layouts.convert"


@dataclass(frozen=True)
class Progress:
    """How far a conversion is.

    Attributes:
        samples: Samples read so far, those of shards from an earlier run among them.
        total_samples: All samples, or None where the source does not tell.
        shards: Shards finished.
        total_shards: All shards, or None where the source does not tell.
        seconds: Since the conversion began.
    """

    samples: int
    total_samples: int | None
    shards: int
    total_shards: int | None
    seconds: float


@dataclass(frozen=True)
class Conversion:
    """What a conversion did.

    Attributes:
        path: The data set.
        manifest: What is in it.
        shards_written: Shards that this run wrote.
        shards_reused: Shards that an earlier run had finished.
        samples_dropped: Samples for which the transform returned None.
        samples_failed: Samples that were left out because their transform raised.
        failures: The first of those, as ``name: error``.
        seconds: How long this run took.
    """

    path: Path
    manifest: Manifest
    shards_written: int
    shards_reused: int
    samples_dropped: int
    samples_failed: int
    failures: tuple[str, ...]
    seconds: float


class ConversionRun:
    """One call of ``convert``, after everything was checked that can be checked without writing.

    Args:
        plan: What to do.
        target: Folder that will hold the data set.
        processes: How many write at once; None takes every usable core.
        progress: Called in this thread a few times a second.
        overwrite: Replace what a different conversion made.
    """

    def __init__(
        self,
        plan: Plan,
        target: Path,
        processes: int | None,
        progress: Callable[[Progress], None] | None,
        overwrite: bool,
    ) -> None:
        self._plan, self._target, self._overwrite = plan, target, overwrite
        self._processes = usable_cores() if processes is None else processes
        self._progress = progress
        self._staging = Staging(target, plan.digest)
        self._done: dict[int, Done] = {}
        self._samples = self._written = 0
        self._began = time.monotonic()

    def go(self) -> Conversion:
        """Do it.

        Raises:
            ConversionError: It cannot start or go on; nothing was published.
            LayoutError: A sample cannot be read or written.
        """
        manifest = self._there()
        if manifest is not None:
            return self._conversion(manifest, len(manifest.shards))
        try:
            self._staging.take()
            manifest = self._there() or self._nearly_there()  # another run may have finished just now
            return self._conversion(manifest, len(manifest.shards)) if manifest is not None else self._new()
        except OSError as error:
            raise room_error(error, self._staging.root) or error from error
        finally:
            self._staging.leave()

    def _new(self) -> Conversion:
        manifest = self._convert()
        return self._conversion(manifest, reused=len(self._done) - self._written)

    def _nearly_there(self) -> Manifest | None:
        """What a run left that was stopped just before it gave the folder its name; it gets it now."""
        manifest = self._staging.finished()
        if manifest is None or not self._unchanged(manifest):
            return None
        self._staging.rename()
        return manifest

    def _there(self) -> Manifest | None:
        target = self._target
        manifest = read_manifest(target) if target.is_dir() else None
        if manifest is None:
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise ConversionError(f"{target} exists and holds no data set with a manifest: choose another target.")
            return None
        if self._whole(manifest) and self._unchanged(manifest):
            return manifest
        if self._overwrite:
            return None
        raise ConversionError(
            f"{target} holds a data set of another source or options ({manifest.made.get('source') or 'unknown'}), "
            "or was damaged since: choose another target, or pass overwrite=True."
        )

    def _whole(self, manifest: Manifest) -> bool:
        entries = ((self._target / entry.path, entry.bytes) for entry in manifest.files)
        return all(path.is_file() and path.stat().st_size == size for path, size in entries)

    def _unchanged(self, manifest: Manifest) -> bool:
        """Whether the source is what ``manifest`` was made of; read through where it has no fingerprint."""
        if manifest.made.get("job") != self._plan.digest:
            return False
        if self._plan.description.get("source_fingerprint") is not None:
            return True
        if self._overwrite:
            return False
        return list(self._plan.content_digests()) == manifest.made.get("source_digests")

    def _convert(self) -> Manifest:
        staging, plan = self._staging, self._plan
        staging.enter(plan.description, overwrite=self._overwrite)
        finished = staging.done()
        job = replace(plan.job, root=staging.root)
        pieces = self._missing(finished)
        try:
            run_pieces(job, pieces, self._crew_size(finished), staging.notes, self._on_done, self._on_samples)
            manifest = self._manifest()
        except LayoutError as error:
            if not isinstance(error, Interrupted):
                staging.discard()
            raise
        finally:
            staging.tidy()
        staging.keep_only(self._done)
        staging.publish(manifest)
        return manifest

    def _missing(self, finished: dict[int, Done]) -> Iterator[Piece]:
        """Pieces that are still to write; finished ones are taken over on the way."""
        plan = self._plan
        pieces = (
            spooled_pieces(plan.stream, self._staging.notes, plan.ends)
            if plan.stream is not None and plan.ends is not None
            else plan.pieces or ()
        )
        for piece in pieces:
            known = finished.get(piece.number)
            if known is None or not self._still_fits(known, piece):
                yield piece
                continue
            if piece.spool is not None:
                Path(piece.spool).unlink(missing_ok=True)
            self._done[piece.number] = known
            self._on_samples(piece.stop - piece.start)

    def _still_fits(self, known: Done, piece: Piece) -> bool:
        source = self._plan.job.source
        if (known.piece.start, known.piece.stop) != (piece.start, piece.stop):
            return False
        if piece.spool is not None:
            return known.digest == piece.digest
        if self._plan.job.digested and source is not None:
            return known.digest == samples_digest(source.read(piece.start, piece.stop))
        return True

    def _crew_size(self, finished: dict[int, Done]) -> int:
        pieces = self._plan.pieces
        return max(1, self._processes if pieces is None else min(self._processes, len(pieces) - len(finished)))

    def _manifest(self) -> Manifest:
        plan, done = self._plan, [self._done[number] for number in sorted(self._done)]
        if not done or not any(record.written.shard.samples for record in done):
            raise ConversionError("The transform dropped every sample: nothing is left to write.")
        twice = first_duplicate(name for record in done for name in record.names)
        if twice is not None:
            raise duplicate_error(twice, can_be_numbered=False)
        layout = LAYOUTS[plan.job.layout]
        written, facts = layout.finish(self._staging.root, [record.written for record in done], plan.job.options)
        made = {"by": _MADE_BY, **plan.description, "job": plan.digest}
        digests = [record.digest for record in done]
        if any(digest is not None for digest in digests):
            made["source_digests"] = digests
        left_out = {"dropped": sum(r.dropped for r in done), "failed": sum(r.failed for r in done)}
        made |= {name: count for name, count in left_out.items() if count}
        shards = tuple(record.shard for record in written)
        return Manifest(layout.name, shards, merge_fields(record.fields for record in written), facts, made)

    def _conversion(self, manifest: Manifest, reused: int) -> Conversion:
        done = [self._done[number] for number in sorted(self._done)]
        return Conversion(
            self._target,
            manifest,
            self._written,
            reused,
            int(manifest.made.get("dropped", 0)),
            int(manifest.made.get("failed", 0)),
            tuple(failure for record in done for failure in record.failures),
            time.monotonic() - self._began,
        )

    def _on_done(self, done: Done) -> None:
        self._staging.record(done)
        self._done[done.piece.number] = done
        self._written += 1
        self._report()

    def _on_samples(self, count: int) -> None:
        self._samples += count
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            total = None if self._plan.pieces is None else len(self._plan.pieces)
            seconds = time.monotonic() - self._began
            self._progress(Progress(self._samples, self._plan.total_samples, len(self._done), total, seconds))
