"""Whether the data that some settings deliver are the right data: nothing lost, nothing repeated, nothing changed.

Runs inside the isolated process of a trial, after the timed windows, on a bounded amount of data. Where a dataset is
asked by index, every batch that a worker delivered is fetched again in the main process and compared; where it is a
stream, its samples are compared as a multiset with an epoch at 0 workers, which `reference` keeps once a sweep.
"""

from __future__ import annotations

import base64
import dataclasses
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.loaders.counting import make_counter
from workbench.loaders.settings import LoaderSettings
from workbench.measure.arrivals import Tap, is_map_style, seed_everything, untouched_randomness
from workbench.measure.digests import DIGEST_BYTES, combine, leaf_digests, sample_digests, structure
from workbench.measure.epochs import epoch_paths, frozen_epoch, owner_of_set_epoch
from workbench.measure.refetch import Delivered, compare_with_main_process, repeated_randomness
from workbench.measure.right_stream import Finding, SampleLog, compare

DEFAULT_SECONDS = 1.5
MAX_SAMPLES = 100_000  # 0.8 MB of digests a leaf, and as much once in the reference
MAX_BATCHES = 256  # of a dataset asked by index; a race that spoils 1 batch in 50 is met with a chance of 99.4 %
DRAWING_SHARE = 0.35  # of the time for drawing batches; fetching them again, twice, in one process takes longer
EPOCHS_SHARE = 0.3  # of the time for comparing two epochs
LEAST_BATCHES_TIMED, LEAST_SECONDS_TIMED = 8, 0.05  # below, one delay of the machine is as long as all batches
CACHED_RATIO = 3.0  # times as fast as the first look: other programs were seen to slow a look down to a half
DISTINCT_SHARE = 0.5  # leaves that repeat more than this (labels) cannot tell samples apart


@dataclass(frozen=True)
class Reference:
    """What a loader brings at 0 workers, as far as a bounded look goes; made once a sweep.

    Attributes:
        samples: Samples in the first look.
        totals: Samples in each look that reached the end of the epoch.
        complete: Whether both looks did.
        reproducible: Whether both looks, under different seeds, brought the same samples.
        unit: What `keys` digest: "sample", or "batch" where batches cannot be cut.
        key_paths: Leaves of the batch that the digests cover: those that are the same under both seeds, if they tell
            samples apart, else all.
        keys: The digests in order, 8 bytes each, as base64.
        structures: Every batch structure seen.
        largest_batch: Most samples in a batch.
        equal_batches: Whether all batches held equally many samples.
        batch_size: The loader's own, None where it has none.
        drop_last: The loader's own, None where it has none.
        epoch_paths: Leaves whose order follows the dataset's `set_epoch`; empty where nothing follows it.
        second_look: How many times as fast a batch came in the second look; None where they were too short to tell.
    """

    samples: int
    totals: tuple[int, ...]
    complete: bool
    reproducible: bool
    unit: str
    key_paths: tuple[str, ...]
    keys: str
    structures: tuple[str, ...]
    largest_batch: int
    equal_batches: bool
    batch_size: int | None = None
    drop_last: bool | None = None
    epoch_paths: tuple[str, ...] = ()
    second_look: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-ready dict; `from_json` reads it back equal."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reference:
        """The reference that `to_json` wrote; unknown keys of later versions are ignored."""
        names = {f.name for f in dataclasses.fields(cls)}
        known = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items() if key in names}
        return cls(**known)

    @property
    def note(self) -> str:
        """A sentence where the loader keeps what it has read, so that later epochs are faster than what is measured."""
        if self.second_look is None or self.second_look < CACHED_RATIO:
            return ""
        return (
            f"a second epoch began {self.second_look:.1f} times as fast as the first: something keeps what was read; "
            "the rates here are of a first epoch, and later ones may be faster where the process that keeps it lives "
            "on: num_workers=0, or persistent_workers=True"
        )

    @property
    def log(self) -> SampleLog:
        """The digests, ready to be compared."""
        keys = np.frombuffer(base64.b64decode(self.keys), dtype=np.uint64)
        return SampleLog(self.samples, keys, self.complete, self.totals, self.reproducible, self.unit)


@dataclass(frozen=True)
class DataCheck:
    """What the check of one settings says.

    Attributes:
        status: "ok" or "wrong_data".
        reason: For "wrong_data", a sentence with the fault, its extent and the way out; else empty.
        notes: Sentences worth showing that do not change the status.
        worker_samples: Samples that each worker delivered, None where that cannot be known.
        idle_workers: Workers that have nothing to deliver in an epoch, None where that cannot be known.
        batches: Batches looked at.
        samples: Samples in them.
        epoch_complete: Whether the look reached the end of the epoch.
    """

    status: str
    reason: str = ""
    notes: tuple[str, ...] = ()
    worker_samples: tuple[int, ...] | None = None
    idle_workers: int | None = None
    batches: int = 0
    samples: int = 0
    epoch_complete: bool = False


def reference(build_zero_worker_loader: Callable[[], Any], seconds: float = DEFAULT_SECONDS) -> Reference:
    """What the loader brings at 0 workers: one epoch, or its beginning, looked at twice under different seeds.

    Args:
        build_zero_worker_loader: Builds the user's loader with `num_workers=0`.
        seconds: Time for all looks together, counted from each look's first batch.

    Raises:
        Exception: Whatever the user's own loading code raises.
    """
    loader = build_zero_worker_loader()
    with untouched_randomness(loader):
        share = seconds * ((1 - EPOCHS_SHARE) if owner_of_set_epoch(loader) is not None else 1) / 2
        looks = []
        for seed in (1, 2):
            seed_everything(seed)
            with Tap(loader) as tap:
                looks.append(_look(tap, share, getattr(loader, "batch_size", None)))
        followed = epoch_paths(loader, seconds * EPOCHS_SHARE / 3)
    return _reference(looks[0], looks[1], loader, followed)


def check(
    loader: Any,
    settings: LoaderSettings,
    reference: Reference,
    seconds: float = DEFAULT_SECONDS,
    rebuild_zero: Callable[[], Any] | None = None,
) -> DataCheck:
    """Whether `loader`, built for `settings` and not yet iterated, delivers the data that 0 workers deliver.

    The loader's workers are gone afterwards and random states are as before. Only a suspicion takes longer than
    `seconds` (at most twice): what looks like corruption is fetched again until rare augmentation cannot explain it.

    Args:
        loader: Built for `settings`.
        settings: The knobs in question.
        reference: What `reference` made of the same loader.
        seconds: Time for the whole check, counted from the first batch.
        rebuild_zero: Builds the same loader at 0 workers, to tell data that differ from build to build.

    Raises:
        Exception: Whatever the user's own loading code raises in a worker.
    """
    if not (settings.num_workers or settings.batch_on_worker or settings.pin_memory):
        return DataCheck("ok")
    with untouched_randomness(loader):
        with Tap(loader) as tap:
            by_index = is_map_style(loader)
            drawing = seconds * (DRAWING_SHARE if by_index else 1 - EPOCHS_SHARE)
            look = _look(tap, drawing, reference.batch_size, by_index)
            frozen = frozen_epoch(tap, loader, settings, reference.epoch_paths, seconds * EPOCHS_SHARE / 2)
        finding = _judge(look, loader, settings, reference, seconds, rebuild_zero)
    reason = finding.reason or frozen
    idle = _idle_workers(look, settings)
    notes = finding.notes + _worker_notes(look, settings, idle)
    counts = look.worker_samples(settings.num_workers)
    status = "wrong_data" if reason else "ok"
    return DataCheck(status, reason, notes, counts, idle, look.batches, look.samples, look.complete)


def log_like(reference: Reference, loader: Any, seconds: float = DEFAULT_SECONDS) -> SampleLog:
    """What another loader gives, looked at under the first seed of `reference` and by the same leaves."""
    with untouched_randomness(loader):
        seed_everything(1)
        with Tap(loader) as tap:
            return _sample_log(_look(tap, seconds, reference.batch_size), reference)


class _Look:
    """A bounded look at one epoch while it is taken: digests only, no batch is kept."""

    def __init__(self) -> None:
        self.columns: dict[str, bytearray] = {}
        self.delivered: list[Delivered] = []
        self.by_worker: dict[int, list[int]] = {}
        self.structures: dict[str, int] = {}
        self.sizes: set[int] = set()
        self.batches = self.samples = self.units = 0
        self.arrivals = array("d")  # seconds since the first batch
        self.unit = "sample"
        self.complete = False
        self.attributed = True
        self.requests = 0
        self.unit_workers = array("q")

    def add_samples(self, batch: Any, samples: int | None, worker: int | None) -> None:
        """Digests one batch, sample by sample where it can be cut."""
        digests = sample_digests(batch, samples)
        width = max(map(len, digests.values()), default=0)
        if width != DIGEST_BYTES * (samples or 0):
            self.unit = "batch"
        for path in self.columns.keys() | digests.keys():
            column = self.columns.setdefault(path, bytearray(DIGEST_BYTES * self.units))
            column += digests.get(path, bytes(width))
        self.units += width // DIGEST_BYTES
        self.unit_workers.extend([-1 if worker is None else worker] * (width // DIGEST_BYTES))

    def keys(self, paths: Iterable[str]) -> np.ndarray:
        """One uint64 a unit, over the leaves named."""
        columns = [bytes(self.columns[path]) for path in paths]
        return combine(columns) if columns else np.zeros(0, np.uint64)

    def worker_samples(self, workers: int) -> tuple[int, ...] | None:
        """Samples by worker, or None where some batch could not be attributed."""
        if not workers or not self.attributed or not self.batches:
            return None
        return tuple(sum(self.by_worker.get(worker, ())) for worker in range(workers))


def _look(tap: Tap, seconds: float, batch_size: int | None, by_index: bool = False) -> _Look:
    """Draws an epoch until it ends, `seconds` after its first batch, or at the bounds on samples and batches."""
    look, count, deadline, begun = _Look(), None, None, 0.0
    for arrival in tap.epoch():
        begun = begun or time.monotonic()
        look.arrivals.append(time.monotonic() - begun)
        deadline = begun + seconds
        count = count or make_counter(arrival.batch, batch_size)
        samples = _request_size(arrival.index) or count(arrival.batch)
        kind = structure(arrival.batch)
        look.structures[kind] = look.structures.get(kind, 0) + 1
        look.batches += 1
        look.samples += samples or 0
        look.sizes.add(samples or 0)
        look.attributed &= arrival.worker is not None
        if arrival.worker is not None:
            look.by_worker.setdefault(arrival.worker, []).append(samples or 0)
        if by_index and arrival.index is not None:
            digests = leaf_digests(arrival.batch)
            look.delivered.append(Delivered(arrival.index, arrival.task, arrival.worker, kind, digests))
        else:
            look.add_samples(arrival.batch, samples, arrival.worker)
        full = look.samples >= MAX_SAMPLES or (look.delivered and look.batches >= MAX_BATCHES)
        if full or time.monotonic() > deadline:
            break
    look.complete, look.requests = tap.complete, len(tap.requests)
    return look


def _request_size(index: Any) -> int | None:
    return len(index) if isinstance(index, (list, tuple)) else None


def _reference(first: _Look, second: _Look, loader: Any, epoch_paths: tuple[str, ...]) -> Reference:
    stable = [path for path in sorted(first.columns) if _same_samples(first, second, path)]
    paths = sorted(first.columns)
    if stable and _tells_apart(first, stable):
        paths = stable
    return Reference(
        samples=first.samples,
        totals=tuple(look.samples for look in (first, second) if look.complete),
        complete=first.complete and second.complete,
        reproducible=bool(stable) and set(paths) <= set(stable),
        unit=first.unit,
        key_paths=tuple(paths),
        keys=base64.b64encode(first.keys(paths).tobytes()).decode(),
        structures=tuple(sorted({*first.structures, *second.structures})),
        largest_batch=max(first.sizes | second.sizes, default=0),
        equal_batches=len(first.sizes | second.sizes) <= 1,
        batch_size=getattr(loader, "batch_size", None),
        drop_last=getattr(loader, "drop_last", None),
        epoch_paths=epoch_paths,
        second_look=_speed_up(first, second),
    )


def _speed_up(first: _Look, second: _Look) -> float | None:
    """Median time between batches in the first look over that in the second; None where they were too short to tell."""
    batches = min(first.batches, second.batches)
    if batches < LEAST_BATCHES_TIMED or first.arrivals[batches - 1] < LEAST_SECONDS_TIMED:
        return None
    before, after = (float(np.median(np.diff(look.arrivals[:batches]))) for look in (first, second))
    return before / after if after else None


def _same_samples(first: _Look, second: _Look, path: str) -> bool:
    """Whether a leaf takes the same values under both seeds; of beginnings, half the values suffice (shuffling)."""
    one = np.frombuffer(bytes(first.columns[path]), dtype=np.uint64)
    two = np.frombuffer(bytes(second.columns.get(path, b"")), dtype=np.uint64)
    if first.complete and second.complete:
        return len(one) == len(two) and bool(np.array_equal(np.sort(one), np.sort(two)))
    common = min(len(one), len(two))
    one, two = np.unique(one[:common]), np.unique(two[:common])
    return common > 0 and len(np.intersect1d(one, two)) >= DISTINCT_SHARE * min(len(one), len(two))


def _tells_apart(look: _Look, paths: list[str]) -> bool:
    everything = len(np.unique(look.keys(sorted(look.columns))))
    return len(np.unique(look.keys(paths))) >= DISTINCT_SHARE * everything


def _judge(
    look: _Look,
    loader: Any,
    settings: LoaderSettings,
    reference: Reference,
    seconds: float,
    rebuild_zero: Callable[[], Any] | None,
) -> Finding:
    if look.delivered:
        finding = compare_with_main_process(loader, look.delivered, seconds * (1 - DRAWING_SHARE), rebuild_zero)
        if finding.reason:
            return finding
        missing = look.requests - look.batches if look.complete else 0
        if missing:
            return Finding(f"lost batches: {missing} of {look.requests} that the sampler asked for never came")
        return _same_total(look, settings, reference, finding)
    changed = _changed_structure(look, reference)
    if changed:
        return Finding(changed)
    seen, droppable = _sample_log(look, reference), _droppable(reference, settings)
    return compare(reference.log, seen, workers=settings.num_workers, droppable=droppable)


def _same_total(look: _Look, settings: LoaderSettings, reference: Reference, finding: Finding) -> Finding:
    comparable = look.complete and reference.complete and len(set(reference.totals)) == 1
    if not comparable or settings.batch_size is not None or look.samples == reference.samples:
        return finding
    verb = "lost" if look.samples < reference.samples else "repeated"
    return Finding(
        f"{verb} samples: an epoch has {look.samples} samples, at num_workers=0 it has {reference.samples}",
        finding.notes,
    )


def _sample_log(look: _Look, reference: Reference) -> SampleLog:
    if not reference.key_paths or not set(reference.key_paths) <= look.columns.keys():
        return SampleLog(look.samples, np.zeros(0, np.uint64), look.complete, unit="")
    by_worker = np.frombuffer(look.unit_workers, dtype=np.int64) if look.attributed else None
    keys = look.keys(reference.key_paths)
    return SampleLog(look.samples, keys, look.complete, unit=look.unit, workers=by_worker)


def _droppable(reference: Reference, settings: LoaderSettings) -> int:
    """Samples that unfilled last batches may cost: with drop_last, or when the stream forms only full batches."""
    drops = reference.drop_last or (reference.batch_size is None and reference.equal_batches)
    largest = max(reference.largest_batch, settings.batch_size or 0)
    return max(1, settings.num_workers) * (largest - 1) if drops and largest > 1 else 0


def _changed_structure(look: _Look, reference: Reference) -> str:
    if len(reference.structures) != 1 or not look.structures or reference.structures[0] in look.structures:
        return ""
    here = max(look.structures, key=look.structures.__getitem__)
    return f"batch type changes: {reference.structures[0]} at num_workers=0, {here} with these settings"


def _idle_workers(look: _Look, settings: LoaderSettings) -> int | None:
    """Workers that delivered nothing although each had its turn; None where the look was too short to tell."""
    workers = settings.num_workers
    enough = look.complete or (settings.in_order and look.batches >= 2 * workers)
    if not workers or not look.attributed or not look.by_worker or not enough:
        return None
    return workers - len(look.by_worker)


def _worker_notes(look: _Look, settings: LoaderSettings, idle: int | None) -> tuple[str, ...]:
    notes = []
    if idle:
        workers, active = settings.num_workers, len(look.by_worker)
        told = f"{idle} of {workers} workers delivered nothing"
        if look.delivered:
            notes.append(f"{told}: an epoch has only {look.batches} batches")
        else:
            notes.append(f"{told} ({active} shards): more than {active} workers cannot help; make more shards")
    if repeated_randomness(look.delivered):
        notes.append("randomness repeats across workers: seed from get_worker_info().seed")
    return tuple(notes)
