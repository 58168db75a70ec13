"""One look at the user's loader with 0 workers, in a process of its own, before any trial."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
import time
import traceback
from collections.abc import MutableSequence
from dataclasses import asdict
from typing import Any

from workbench.loaders import shipping
from workbench.loaders.counting import batch_bytes, count_samples, count_tensors, describe_structure, leaves
from workbench.loaders.returned import Returned
from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.measure.arrivals import Tap, is_map_style
from workbench.measure.channel import Channel, progress_counter
from workbench.measure.data_version import manifest_digest
from workbench.measure.records import Probe
from workbench.measure.right_data import reference
from workbench.measure.slicing import batched_fetch_note

FIRST_BATCHES = 3
"""Batches that must come without an error before a sweep starts; a later failure is each trial's own result."""
EPOCH_SECONDS = 2.0
"""How long the probe goes on to see whether the epoch ends ..."""
ASSURED_SECONDS, ASSURED_BATCHES = 0.5, 8
"""... and how long, and for how many batches at least, where the loader states a length too long to end by then."""
REFERENCE_SECONDS, REFERENCE_SECONDS_BY_INDEX = 1.5, 0.6
"""How long the data of an epoch are digested, as the reference for every trial; less where a trial can ask the dataset
for every index again."""
MANY_TENSORS, TINY_TENSOR_BYTES = 64, 4096
"""From so many tensors of less than a page in a batch on, handing them over costs more than what they hold."""
MOST_INDICES = 8
"""Indices of a failing batch that are listed where they are no range."""


def probe(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> dict[str, Any]:
    """Looks at the loader and returns a `Probe` as a dict; what is sure early is sent early, in case the rest dies."""
    zero = LoaderSettings()
    loader = source.build(zero)
    current, made = source.current_when_called(), source.seen
    channel.send(phase="first batch")
    seen = _Look(loader, task, progress_counter(task))
    seen.own_with_workers = source.own_with_workers()
    seen.first()
    channel.send(partial=asdict(seen.record(current, made)), phase="epoch length")
    notes = seen.rest()
    if not notes:
        by_index = is_map_style(loader)
        notes = _write_reference(source, zero, task["reference"], channel, by_index) + seen.advice()
    record = seen.record(current, made)
    return asdict(record) | {"notes": record.notes + notes}


class _Look:
    """What the first batches say."""

    def __init__(self, loader: Any, task: dict[str, Any], progress: MutableSequence[int]) -> None:
        self._loader, self._given = loader, task["samples_per_batch"]
        self.own_with_workers: dict[str, Any] = {}
        self._hint = _batch_size(loader)
        self._progress = progress
        self._gaps: list[float] = []
        self._tap = Tap(loader)
        self._arrivals = self._tap.epoch()
        self._first: Any = None
        self._begun = time.perf_counter()
        self._ended = False
        self._bytes = self._samples = 0
        self.batches = 0

    def first(self) -> None:
        """Takes `FIRST_BATCHES`; what the loader raises here is the user's own error, with the batch it belongs to."""
        try:
            while self.batches < FIRST_BATCHES and not self._ended:
                self._take()
        except Exception as error:
            with contextlib.suppress(AttributeError, TypeError):
                error.loader_position = self._position()  # type: ignore[attr-defined]
            raise
        if self.batches == 0:
            raise ValueError("the loader yields no batch with 0 workers")

    def rest(self) -> tuple[str, ...]:
        """Goes on towards the end of the epoch, while it may be near; an error here becomes a note."""
        try:
            while not self._ended and self._may_end_soon():
                self._take()
        except Exception as error:
            last = traceback.format_exception_only(error)[-1].strip()
            return (f"with 0 workers the loader fails at {self._position()}: {last}",)
        return ()

    def _may_end_soon(self) -> bool:
        passed = time.perf_counter() - self._begun
        if passed < ASSURED_SECONDS or self.batches < ASSURED_BATCHES:
            return passed < EPOCH_SECONDS
        stated = self._epoch()[0]
        return passed < EPOCH_SECONDS and (stated is None or stated * passed < EPOCH_SECONDS * self.batches)

    def advice(self) -> tuple[str, ...]:
        """What this loader's batches and dataset suggest, whatever its knobs."""
        return tuple(note for note in (_packing_note(self._first), batched_fetch_note(self._loader)) if note)

    def _position(self) -> str:
        """Which batch failed, and which samples are in it where a sampler asked for them."""
        place, asked = f"batch {self.batches + 1}", self._tap.requests
        if len(asked) <= self.batches or not isinstance(asked[-1], list) or not asked[-1]:
            return place
        wanted = asked[-1]
        if wanted == list(range(wanted[0], wanted[0] + len(wanted))):
            return f"{place} (indices {wanted[0]} to {wanted[-1]})"
        more = ", ..." if len(wanted) > MOST_INDICES else ""
        return f"{place} (indices {', '.join(map(str, wanted[:MOST_INDICES]))}{more})"

    def _take(self) -> None:
        begun = time.perf_counter()
        try:
            batch = next(self._arrivals).batch
        except StopIteration:
            self._ended = True
            return
        self._gaps.append(time.perf_counter() - begun)
        self._first = batch if self._first is None else self._first
        self._bytes = max(self._bytes, batch_bytes(batch))
        self._samples += self._given or count_samples(batch, self._hint).samples or 0
        self.batches += 1
        self._progress[0] = self.batches

    def record(self, current: LoaderSettings | None, made: Returned | None) -> Probe:
        """The probe so far, with the settings the loader has and what its factory made."""
        count = count_samples(self._first, self._hint)
        batches, samples = self._epoch()
        iterable = _is_iterable(self._loader)
        return Probe(
            samples_per_batch=self._given or count.samples,
            samples_evidence="given by the caller" if self._given else count.evidence,
            samples_ambiguous=not self._given and count.ambiguous,
            batch_bytes=self._bytes,
            tensors_per_batch=count_tensors(self._first),
            batch_structure=describe_structure(self._first),
            epoch_batches=batches,
            epoch_samples=samples,
            iterable=iterable,
            start_method=multiprocessing.get_start_method(),
            pickle_problems={m: shipping.pickle_problem(self._loader, m) for m in ("spawn", "forkserver")},
            batches_seen=self.batches,
            batch_seconds=statistics.median(self._gaps[1:]) if len(self._gaps) > 1 else None,
            longest_batch_seconds=max(self._gaps[1:], default=None),
            current=current,
            notes=_rank_note(self._loader),
            manifest_digest=manifest_digest(self._loader),
            epoch_ends=batches is not None or _states_a_length(self._loader),
            returned=made.shown if made else "",
            fixed_knobs=made.fixed if made else (),
            own_with_workers=self.own_with_workers,
        )

    def _epoch(self) -> tuple[int | None, int | None]:
        """Batches and samples of an epoch: counted where it ended, else what a map-style sampler states."""
        if self._ended:
            return self.batches, self._samples
        if _is_iterable(self._loader) is not False:
            return None, None
        batches = samples = None
        with contextlib.suppress(Exception):
            batches = len(self._loader)
        with contextlib.suppress(Exception):
            samples = len(self._loader.sampler) if self._hint else None
        return batches, samples


def _states_a_length(loader: Any) -> bool:
    try:
        return len(loader) >= 0
    except Exception:  # TypeError where there is none; the user's own __len__ may raise anything
        return False


def _batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None


def _is_iterable(loader: Any) -> bool | None:
    from torch.utils.data import DataLoader, IterableDataset

    return isinstance(loader.dataset, IterableDataset) if isinstance(loader, DataLoader) else None


def _rank_note(loader: Any) -> tuple[str, ...]:
    replicas = getattr(getattr(loader, "sampler", None), "num_replicas", 1)
    if isinstance(replicas, int) and replicas > 1:
        return (f"figures are for one rank of {replicas}; ranks on one host share its CPU cores",)
    return ()


def _packing_note(batch: Any) -> str:
    sizes = [size for _, leaf in leaves(batch) if (size := getattr(leaf, "nbytes", None)) is not None]
    tiny = [size for size in sizes if size < TINY_TENSOR_BYTES]
    if len(tiny) < MANY_TENSORS:
        return ""
    mean = format_bytes(sum(tiny) // len(tiny))
    return (
        f"a batch holds {len(tiny)} tensors of {mean} on average, and workers hand over each one by itself, with an "
        "open file of its own: stack or concatenate them in collate_fn"
    )


def _write_reference(source: Any, zero: LoaderSettings, path: str, channel: Channel, by_index: bool) -> tuple[str, ...]:
    channel.send(phase="reference")
    try:
        found = reference(lambda: source.build(zero), REFERENCE_SECONDS_BY_INDEX if by_index else REFERENCE_SECONDS)
    except Exception as error:
        return (f"data are not compared between settings, since the reference failed: {type(error).__name__}: {error}",)
    with open(path, "w") as file:
        json.dump(found.to_json(), file)
    return (found.note,) if found.note else ()
