"""Whether a loader's memory grows with the samples it reads, from exact readings of its process tree. Pure functions.

Three readings tell three things apart. Between the first round of batches and the end of the warm-up, queues, caches
and allocators fill: that is start-up and counts only where it shows what start-up does not, private pages without a
larger resident set, which is the mark of pages that forked workers un-share by touching Python objects. Between the
warm-up and the end, whatever grows is growth. Workers that end with an epoch start afresh, so samples count from the
start of the workers that a reading found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

NOISE_BYTES = 4 << 20
"""Growth below this for each process, plus `NOISE_SHARE` of what is held, is noise: arenas that fill once, a module
imported late. Loaders that keep nothing were seen to grow by up to 15 MB in three processes."""
NOISE_SHARE = 0.02
NOISE_BATCHES = 4
"""Batches for each loading process by which heaps come and go. malloc's heap keeps freed blocks between those in use,
and gives them back by chance: of a loader that keeps nothing, with batches of 19 MB, the private memory of each of two
workers went up and down by up to 132 MB within two epochs, and both together by 158 MB."""
LEAST_ROUNDS = 10
"""Rounds of batches, one from every worker, between two readings below which nothing is called established."""


@dataclass(frozen=True)
class Held:
    """What one exact reading found, in bytes.

    Attributes:
        samples: Samples taken since the workers that were read had started.
        rounds: Rounds of batches taken since then: batches over workers.
        private_bytes: Anonymous memory of the tree, a shared page counted once.
        main_private_bytes: The part of the process that a training loop would run in.
        resident_bytes: Sum of resident set sizes.
        processes: Processes in the tree.
    """

    samples: int
    rounds: float
    private_bytes: int
    main_private_bytes: int
    resident_bytes: int
    processes: int = 1


@dataclass(frozen=True)
class Growth:
    """What is known of growth.

    Attributes:
        bytes_per_1000_samples: Growth between the two readings that it rests on.
        samples: Samples between them.
        established: Whether it is more than noise over enough rounds.
        in_workers: Whether most of it is in worker processes; None unless established.
        kind: "copy-on-write", "anonymous", or "" unless established.
        pace_bytes_per_1000_samples: Growth towards the end of the run, at which it goes on at most; None unless
            established.
        most_ahead_bytes: What growth can still add at all: each worker a copy of its own of what the main process
            holds. None where it has no bound, or unless established.
    """

    bytes_per_1000_samples: float
    samples: int
    established: bool
    in_workers: bool | None = None
    kind: str = ""
    pace_bytes_per_1000_samples: float | None = None
    most_ahead_bytes: int | None = None


def growth(readings: Sequence[Held], batch_bytes: int = 0) -> Growth | None:
    """What the readings of one run, oldest first, say about growth; None when no two can be compared.

    Args:
        readings: After the first round, after the warm-up, and at the end; further ones may lie between.
        batch_bytes: Size of a batch; a few of them in every loading process are noise.
    """
    if len(readings) < 2:
        return None
    first, warm, last = readings[0], readings[1], readings[-1]
    heaps = NOISE_BATCHES * batch_bytes * max(1, warm.processes - 1)
    steady = _between(warm, last, "anonymous", heaps) if len(readings) > 2 else None
    if steady is not None and steady.established:
        return replace(steady, pace_bytes_per_1000_samples=steady.bytes_per_1000_samples)
    latest = max(readings[1:], key=lambda held: held.samples)
    unshared = _between(first, latest, "copy-on-write")
    if unshared is not None and unshared.established:
        return _unsharing(unshared, first, latest, steady)
    return steady or unshared


def _unsharing(found: Growth, first: Held, latest: Held, steady: Growth | None) -> Growth:
    """With what is still ahead. Pages are un-shared once, so the pace only falls, and there is an end to it."""
    pace = found.bytes_per_1000_samples
    if steady is not None:
        pace = min(pace, max(0.0, steady.bytes_per_1000_samples))
    copies = max(0, latest.processes - 1) * latest.main_private_bytes
    ahead = max(0, copies - (latest.private_bytes - first.private_bytes))
    return replace(found, pace_bytes_per_1000_samples=pace, most_ahead_bytes=ahead)


def _between(before: Held, after: Held, kind: str, heaps_bytes: int = 0) -> Growth | None:
    samples = after.samples - before.samples
    if samples <= 0:
        return None
    grown = after.private_bytes - before.private_bytes
    counted = grown
    if kind == "copy-on-write":
        counted = grown - max(0, after.resident_bytes - before.resident_bytes)
    noise = NOISE_BYTES * before.processes + NOISE_SHARE * before.private_bytes + heaps_bytes
    if counted <= noise or after.rounds - before.rounds < LEAST_ROUNDS:
        return Growth(grown * 1000 / samples, samples, False)
    in_workers = after.main_private_bytes - before.main_private_bytes < grown / 2
    return Growth(grown * 1000 / samples, samples, True, in_workers, kind)
