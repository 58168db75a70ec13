"""What a resumed run lost, repeated or reordered against an uninterrupted one; pure functions of digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.measure.digests import DIGEST_BYTES

Columns = dict[str, bytes]
"""One batch: by leaf, the digests of its samples, 8 bytes each (see ``workbench.measure.digests``)."""

_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """How the batches of a resumed run differ from those of an uninterrupted one.

    Attributes:
        expected: Samples of the uninterrupted run.
        lost: Those that never came.
        repeated: Samples that came more often than in the uninterrupted run.
        unknown: Samples that the uninterrupted run never had.
        reordered: The same samples came in another order.
        rebatched: The same samples in the same order came in other batches.
        where: The first differences in words, or "".
    """

    expected: int
    lost: int = 0
    repeated: int = 0
    unknown: int = 0
    reordered: bool = False
    rebatched: bool = False
    where: str = ""

    @property
    def exact(self) -> bool:
        """Every sample once, in the same order and the same batches."""
        return self.complete and not self.reordered and not self.rebatched

    @property
    def complete(self) -> bool:
        """Every sample as often as in the uninterrupted run."""
        return not (self.lost or self.repeated or self.unknown)

    def describe(self) -> str:
        """One sentence part: what differs."""
        facts = [
            f"{count} of {self.expected} samples {what}"
            for count, what in ((self.lost, "lost"), (self.repeated, "repeated"), (self.unknown, "never seen before"))
            if count
        ]
        facts += ["all samples, in another order"] if self.reordered and self.complete else []
        facts += ["all samples in order, in other batches"] if self.rebatched and self.complete else []
        return "; ".join([*(facts or [f"all {self.expected} samples as uninterrupted"]), *filter(None, [self.where])])


def stable_leaves(
    first: Sequence[Columns], second: Sequence[Columns], reference: Sequence[Columns], reseeded: Sequence[Columns]
) -> tuple[str, ...]:
    """Leaves that hold the same content whenever the same sample comes, and so tell which sample came.

    Others are random (augmentation): no resume could be checked by them. Nor by a leaf in which all samples are equal.

    Args:
        first: Batches of one run.
        second: Those of a run seeded differently: a leaf is stable if both hold the same, in whatever order, which
            needs an epoch that is seen to its end, and every sample in it once.
        reference: Batches of a run without workers.
        reseeded: Those of the same, seeded anew once the order was drawn: a leaf is stable if it did not change.
    """
    batches = [*first, *second, *reference, *reseeded]
    names = [name for name in (first[0] if first else {}) if all(name in batch for batch in batches)]
    return tuple(
        name
        for name in names
        if len(_tally(first, (name,))) > 1
        and (_tally(first, (name,)) == _tally(second, (name,)) or _unchanged(reference, reseeded, name))
    )


def compare(expected: Sequence[Columns], got: Sequence[Columns], leaves: Sequence[str]) -> Difference:
    """How the batches ``got`` differ from ``expected``, looking at ``leaves`` only.

    Args:
        expected: Batches of the uninterrupted run.
        got: Batches before the cut, then those after the resume.
        leaves: What ``stable_leaves`` found; none compares the number of samples alone.
    """
    before, after = [_samples(batch, leaves) for batch in expected], [_samples(batch, leaves) for batch in got]
    flat_before, flat_after = sum_of(before), sum_of(after)
    if not leaves:
        missing = len(flat_before) - len(flat_after)
        return Difference(
            len(flat_before),
            max(missing, 0),
            max(-missing, 0),
            where="content is random, so only numbers were compared",
        )
    tally, came = Counter(flat_before), Counter(flat_after)
    lost, extra = tally - came, came - tally
    unknown = sum(count for sample, count in extra.items() if sample not in tally)
    return Difference(
        expected=len(flat_before),
        lost=lost.total(),
        repeated=extra.total() - unknown,
        unknown=unknown,
        reordered=flat_before != flat_after,
        rebatched=flat_before == flat_after and before != after,
        where=_where(before, after, lost, extra, tally),
    )


def came_again(expected: Sequence[Columns], got: Sequence[Columns], leaves: Sequence[str]) -> int:
    """How many samples of ``got`` came before; 0 where the uninterrupted run repeats samples by itself.

    What can be said of part of an epoch, in which other numbers of workers may hand out other samples.
    """
    if not leaves or any(count > 1 for count in _tally(expected, leaves).values()):
        return 0
    return sum(count - 1 for count in _tally(got, leaves).values())


def sum_of(batches: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The samples of all batches in one list."""
    return [sample for batch in batches for sample in batch]


def samples_in(batch: Columns) -> int:
    """Samples that a batch holds (at least 1: what cannot be cut is one unit)."""
    return max((len(column) // DIGEST_BYTES for column in batch.values()), default=1)


def _samples(batch: Columns, leaves: Sequence[str]) -> list[bytes]:
    count = samples_in(batch)
    columns = [batch.get(name, b"") for name in leaves]
    return [b"".join(column[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES] for column in columns) for at in range(count)]


def _tally(batches: Sequence[Columns], leaves: Sequence[str]) -> Counter[bytes]:
    return Counter(sum_of([_samples(batch, leaves) for batch in batches]))


def _unchanged(reference: Sequence[Columns], reseeded: Sequence[Columns], name: str) -> bool:
    """Whether a leaf is the same in every batch from the second on."""
    columns = [[batch[name] for batch in run[1:]] for run in (reference, reseeded)]
    return bool(columns[0]) and columns[0] == columns[1]


def _where(
    before: list[list[bytes]],
    after: list[list[bytes]],
    lost: Counter[bytes],
    extra: Counter[bytes],
    tally: Counter[bytes],
) -> str:
    words = []
    if lost:
        words.append("lost: " + _places(before, lost))
    repeats = Counter({sample: count for sample, count in extra.items() if sample in tally})
    if repeats:
        words.append("repeated: " + _places(before, repeats))
    if not lost and not extra and before != after:
        first = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
        words.append(f"first difference in batch {first}")
    return "; ".join(words)


def _places(batches: list[list[bytes]], wanted: Counter[bytes]) -> str:
    """The first samples that are wanted, by batch and place in the uninterrupted run."""
    left, places = Counter(wanted), []
    for number, batch in enumerate(batches):
        for at, sample in enumerate(batch):
            if left[sample] > 0:
                left[sample] -= 1
                places.append(f"batch {number} sample {at}")
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(places[:_SHOWN]) + more
