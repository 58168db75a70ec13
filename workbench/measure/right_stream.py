"""Whether a stream at other settings brought what it brings at 0 workers: two multisets of sample digests compared.

Pure functions over digests in order of arrival; nothing here runs a loader. Samples are told apart by digest, never by
position, so shuffling is no fault; a comparison is as exact as the stream itself is reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

REPEATED_RATIO = 1.5  # from here on "not sharded" explains repeats better than an overlap of shards does
KNOWN_SHARE = 0.5  # below it digests depend on what else is in the batch (padding), and only totals are compared
PREFIX_MIN = 16  # fewer samples than this say nothing about repeats
PREFIX_OWN_REPEATS = 0.01  # the reference's own repeats that a prefix may hold and still count as free of them
PREFIX_REPEATS = 0.10  # ten times that: not the birthday paradox of a stream that samples with replacement
PREFIX_REPEATS_MIN = 5
PREFIX_SHARE = 0.5  # of it is looked at: by then, a worker twice as fast as its share has not begun a second round
RANDOM_LENGTH_SPREAD = 4  # a stream of random length may stray this many times the gap between two reference epochs


@dataclass(frozen=True)
class SampleLog:
    """What came out of one bounded look at a loader.

    Attributes:
        samples: Samples counted.
        keys: One uint64 digest a unit, in order of arrival. A unit is a sample, or a whole batch where batches could
            not be cut into samples.
        complete: Whether the epoch ended by itself.
        totals: Samples in each complete epoch seen; two reference epochs that differ make totals inexact.
        reproducible: Whether a second look with other seeds brought the same digests.
        unit: "sample" or "batch".
        workers: Worker that delivered each unit, shape as `keys`; None where that is not known.
    """

    samples: int
    keys: np.ndarray
    complete: bool
    totals: tuple[int, ...] = ()
    reproducible: bool = True
    unit: str = "sample"
    workers: np.ndarray | None = None


@dataclass(frozen=True)
class Finding:
    """What a comparison says: `reason` is empty when the data are right, else a sentence; `notes` are worth showing."""

    reason: str = ""
    notes: tuple[str, ...] = ()


def compare(reference: SampleLog, seen: SampleLog, *, workers: int, droppable: int) -> Finding:
    """Whether `seen` holds the samples of `reference`, as far as both looks go.

    Args:
        reference: One epoch, or its beginning, at 0 workers.
        seen: The same at the settings in question.
        workers: Worker processes of those settings.
        droppable: Samples that dropping unfilled last batches may cost, one batch a worker; 0 when nothing is dropped.
    """
    if reference.complete and seen.complete:
        return _whole_epochs(reference, seen, workers, droppable)
    slack = _slack(reference)
    if reference.complete and seen.samples > reference.samples + slack:
        return Finding(_repeated(seen.samples, reference.samples, workers, more=True))
    if seen.complete and seen.samples < reference.samples - slack - droppable:
        text = (
            f"lost samples: the epoch ended after {seen.samples}, at num_workers=0 more than {reference.samples} came"
        )
        return Finding(f"{text}; see how the dataset splits its samples among {workers} workers")
    if reference.complete and reference.reproducible and reference.unit == seen.unit:
        extra, _, unknown = _differences(reference.keys, seen.keys)
        if extra and not unknown:
            return Finding(_overlap(extra, len(seen.keys), reference.unit))
    return _prefix(reference, seen, workers)


def _whole_epochs(reference: SampleLog, seen: SampleLog, workers: int, droppable: int) -> Finding:
    exact = reference.reproducible and reference.unit == seen.unit == "sample"
    extra = lost = 0
    if exact:
        extra, lost, unknown = _differences(reference.keys, seen.keys)
        exact = unknown == 0
        if unknown > (1 - KNOWN_SHARE) * len(seen.keys) or not exact:
            extra = lost = 0
    if not exact:
        difference = seen.samples - reference.samples
        if abs(difference) > _slack(reference):
            extra, lost = max(0, difference), max(0, -difference)
    if seen.samples >= REPEATED_RATIO * reference.samples and extra:
        return Finding(_repeated(seen.samples, reference.samples, workers))
    if extra:
        return Finding(_overlap(extra, reference.samples, "sample"))
    if not lost:
        return Finding()
    if lost <= droppable:
        note = f"{lost} of {reference.samples} samples are dropped: each worker leaves out its own unfilled last batch"
        return Finding(notes=(note,))
    way_out = f"see how the dataset splits its samples among {workers} workers"
    return Finding(f"lost samples: {lost} of {reference.samples} that come at num_workers=0 never came; {way_out}")


def _prefix(reference: SampleLog, seen: SampleLog, workers: int) -> Finding:
    """Repeats among the first samples, half as many of them as the reference brings without repeating itself.

    What one worker repeats is its own affair: an endless stream starts a small shard again before a large one ends.
    Where shards are dealt anew in every round, a worker with small ones brings in the second round what another
    brought in the first, before that one is done; hence the half.
    """
    if reference.unit != seen.unit:
        return Finding()
    length = min(int(PREFIX_SHARE * _free_of_repeats(reference.keys)), len(seen.keys))
    if length < PREFIX_MIN:
        return Finding()
    keys = seen.keys[:length]
    if seen.workers is not None:
        keys = np.unique(np.stack((keys, seen.workers[:length].astype(np.uint64))), axis=1)[0]
    came, distinct = len(keys), len(np.unique(keys))
    repeats = came - distinct
    if repeats < PREFIX_REPEATS_MIN or repeats <= PREFIX_REPEATS * came:
        return Finding()
    if came >= REPEATED_RATIO * distinct:
        return Finding(_repeated(came, distinct, workers))
    return Finding(notes=(_early_overlap(repeats, came, reference.unit),))


def _free_of_repeats(keys: np.ndarray) -> int:
    """Length of the longest beginning in which repeats are rarer than `PREFIX_OWN_REPEATS`."""
    if not len(keys):
        return 0
    first_seen = np.zeros(len(keys), dtype=bool)
    first_seen[np.unique(keys, return_index=True)[1]] = True
    lengths = np.arange(1, len(keys) + 1)
    allowed = lengths - np.cumsum(first_seen) <= PREFIX_OWN_REPEATS * lengths
    return int(lengths[allowed][-1])


def _differences(reference: np.ndarray, seen: np.ndarray) -> tuple[int, int, int]:
    """How many came too often, how many too rarely, and how many the reference does not know."""
    known, reference_counts = np.unique(reference, return_counts=True)
    values, counts = np.unique(seen, return_counts=True)
    if not len(known):
        return 0, 0, int(counts.sum())
    places = np.clip(np.searchsorted(known, values), 0, len(known) - 1)
    is_known = known[places] == values
    arrived = np.zeros(len(known), dtype=np.int64)
    arrived[places[is_known]] = counts[is_known]
    gap = arrived - reference_counts
    return int(gap[gap > 0].sum()), int(-gap[gap < 0].sum()), int(counts[~is_known].sum())


def _slack(reference: SampleLog) -> int:
    totals = reference.totals or (reference.samples,)
    return RANDOM_LENGTH_SPREAD * (max(totals) - min(totals))


def _repeated(came: int, unique: int, workers: int, *, more: bool = False) -> str:
    times = came / max(1, unique)
    cause = "dataset is not sharded by worker" if workers > 1 else "samples repeat within an epoch"
    often = f"each sample came {'more than ' if more else ''}{times:.1f} times"
    if more:
        often = f"{came} samples came from an epoch of {unique}, and it went on"
    share = f"unique samples/s are at most {unique / came:.0%} of the samples/s counted"
    way_out = "; split the stream by torch.utils.data.get_worker_info() in __iter__" if workers > 1 else ""
    return f"{cause}: {often}; {share}{way_out}"


def _early_overlap(repeats: int, of: int, unit: str) -> str:
    plural = "es" if unit == "batch" else "s"
    return (
        f"{repeats} of the first {of} {unit}{plural} came from more than one worker: either the shards of the workers "
        "overlap, or the stream goes round more than once and some workers are a round ahead; the epoch was too long "
        "to tell which"
    )


def _overlap(extra: int, of: int, unit: str) -> str:
    plural = "es" if unit == "batch" else "s"
    return (
        f"repeated data: {extra} of {of} {unit}{plural} came more often than at num_workers=0; "
        "see that the shards of the workers do not overlap"
    )
