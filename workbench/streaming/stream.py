"""ShardStream: every sample of every epoch exactly once over all ranks and workers, from wherever it was stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch.distributed as distributed
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from workbench.errors import ResumeError, SettingsError
from workbench.streaming.order import ORDER_VERSION, EpochOrder, Segment
from workbench.streaming.passes import Passes
from workbench.streaming.position import Consumed, Identity, Place, merged, share_of
from workbench.streaming.reading import gathered_along, read_along
from workbench.streaming.running import Running
from workbench.streaming.shards import GatheringShards, as_shards, digest
from workbench.streaming.spans import Spans, cut, size
from workbench.streaming.split import REMAINDERS, Seat, share_of_rank

_LONGEST_FINGERPRINT = 64
"""Characters that shards may add to every state."""

DEFAULT_WINDOW = 256
"""Rows that are shuffled together: they are held in memory, and read again when a resume falls among them."""


class ShardStream(IterableDataset):
    """Samples of many shards as one stream that is split over ranks and workers, shuffled by seed, and resumable.

    The samples of an epoch have one order, known without reading (``EpochOrder``). What is left of it is cut into one
    contiguous run a rank, each of these into one run a worker; every sample is in exactly one of them. A state says
    how far each worker had come, so that a resume opens the shard it stopped in and no other. Given the states of all
    ranks (``StreamLoader.load_state_dict`` or ``merge_states``), what is left is cut anew for any number of ranks and
    workers: still exactly once, each new run in the epoch's order.

    Each pass is the next epoch, unless ``set_epoch`` says otherwise. Under ``StatefulDataLoader`` the state is the one
    of the batch handed out last, whatever workers have prefetched.

    Args:
        shards: A data set's path, what ``open_dataset`` gives, ``TokenBlocks``, or a list of sequences.
        seed: Seed of the shuffle.
        shuffle: Shuffle shards, and rows within windows; False keeps them as they lie.
        window: Rows of a shard that are shuffled together.
        batch_size: Form whole batches here, to be used with ``batch_size=None`` in the loader; None yields samples.
        drop_last: Leave out the partial batch at the end of a rank's share (batches formed here only).
        collate: Makes a batch of a list of samples; None uses torch's ``default_collate``, or no loop at all where the
            shards can gather rows themselves.
        transform: Applied to each sample, or to each batch that the shards gathered.
        remainder: ``exact``, ``drop`` or ``pad``: what happens where ranks do not divide the samples.
        rank: This rank; None asks ``torch.distributed``, then the variables RANK and WORLD_SIZE.
        world_size: Ranks in all; given with ``rank``.

    Raises:
        SettingsError: A value is impossible.
        SourceError: ``shards`` is nothing to stream over.
    """

    def __init__(
        self,
        shards: Any,
        *,
        seed: int = 0,
        shuffle: bool = True,
        window: int = DEFAULT_WINDOW,
        batch_size: int | None = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        remainder: str = "exact",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        _check(seed, window, batch_size, drop_last, remainder, rank, world_size)
        self.shards = as_shards(shards)
        self.seed, self.shuffle, self.window = seed, shuffle, window
        self.batch_size, self.drop_last = batch_size, drop_last
        self.collate, self.transform = collate, transform
        self.remainder = remainder
        self._ranks = None if rank is None else (rank, world_size)
        self._passes = Passes()
        self._consumed = Consumed(0, {})
        self._pending: Place | None = None
        self._place: Place | None = None
        self._place_state: dict[str, Any] = {}
        self._taken = 0
        self._running = Running()
        self.identity = Identity(
            shards=_short(self.shards.fingerprint()),
            samples=sum(self.shards.counts),
            seed=seed,
            order=f"{ORDER_VERSION}, window {window}" if shuffle else "as stored",
            remainder=remainder,
            batch_size=batch_size or 1,
            length=getattr(self.shards, "length", None),
        )

    def __iter__(self) -> Iterator[Any]:
        self._place = self._next_place()
        self._place_state = self._place.as_dict(self.identity)
        self._taken = self._place.taken
        return self._running.begin(self._handed_out(self._place))

    def __len__(self) -> int:
        """Samples, or batches where they are formed here, that this rank hands out in a whole epoch."""
        rank, world_size = self.ranks()
        samples = size(share_of_rank(((0, self.identity.samples),), rank, world_size, self.remainder))
        if self.batch_size is None:
            return samples
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    @property
    def epoch(self) -> int:
        """The epoch that was begun last (or asked for since), as this process knows it."""
        return self._passes.last(self.ranks()[0])

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be ``epoch``, in this process and in every worker, those that live on included."""
        if epoch < 0:
            raise SettingsError(f"epoch={epoch} lies before the first one: use 0 or more.")
        self._passes.ask(self.ranks()[0], epoch)

    def samples_of(self, worker: int, num_workers: int) -> int:
        """Samples that one worker of this rank hands out in a whole epoch."""
        place = Place(Seat(*self.ranks(), worker, num_workers), epoch=0)
        return size(share_of(place, self.identity))

    def ranks(self) -> tuple[int, int]:
        """This rank and how many there are."""
        if self._ranks is not None:
            return self._ranks
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    def seat(self) -> Seat:
        """Which worker of which rank this process is."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 0)
        return Seat(*self.ranks(), worker, workers)

    def order(self, epoch: int) -> EpochOrder:
        """The order of all samples in ``epoch``."""
        return EpochOrder.of(self.shards.counts, self.seed, epoch, shuffle=self.shuffle, window=self.window)

    def samples_at(self, epoch: int, path: Spans) -> Iterator[Any]:
        """The samples at the positions of ``path`` in the order of ``epoch``; no state follows them."""
        return read_along(self.shards, self._segments(epoch, path), self.transform)

    def place(self) -> Place | None:
        """Where the pass that was begun last had begun; None before the first."""
        return self._place

    def state_dict(self) -> dict[str, Any]:
        """The place after the last sample handed out, as plain values (about 0.5 kB)."""
        if self._place is None:
            return (self._pending or self._planned_place()).as_dict(self.identity)
        return {**self._place_state, "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from ``state``.

        Args:
            state: What ``state_dict`` gave in the same worker of the same rank, or what ``merge_states`` made of the
                states of all ranks, for any number of ranks and workers.

        Raises:
            ResumeError: A pass is running (it would not see the state); the state belongs to another stream; or it
                was saved under another number of ranks or workers and is not merged.
        """
        self._running.refuse()
        if isinstance(state, Mapping) and "consumed" in state:
            self._keep(Consumed.from_dict(state, self.identity))
            self._pending = self._place = None
            self.set_epoch(self._consumed.epoch)
            return
        place = Place.from_dict(state, self.identity)
        seat = self.seat()
        if place.seat != seat:
            raise ResumeError(
                f"The state was saved by {_named(place.seat)} and is loaded by {_named(seat)}: merge the states of all "
                "ranks (StreamLoader.load_state_dict with all of them, or merge_states) to go on with other numbers."
            )
        self.keep_ahead(place)
        self._pending = place
        self._place = None

    def keep_ahead(self, place: Place) -> None:
        """Remember what of the epoch after ``place`` was consumed already, for the pass that follows.

        All processes of this rank are told: the workers of that pass may be begun by one that never saw the state.
        """
        self._keep(Consumed(place.epoch, {place.epoch + 1: place.ahead} if place.ahead else {}))

    def merged_state(self, states: Iterable[Mapping[str, Any]], *, finished: bool = False) -> dict[str, Any]:
        """One state for any number of ranks and workers, made of the states of all workers of all ranks.

        Args:
            states: What ``state_dict`` gave in each of them, at one moment.
            finished: Every rank had ended the epoch, so that the next one begins.

        Raises:
            ResumeError: One is missing, or they belong to another stream or to several moments.
        """
        places = [Place.from_dict(state, self.identity) for state in states]
        return merged(places, self.identity, finished=finished).as_dict(self.identity)

    def advanced(
        self,
        states: Sequence[Mapping[str, Any]],
        last_worker: int,
        batches: int,
        batch_size: int | None,
        drop_last: bool,
    ) -> list[dict[str, Any]]:
        """States of one rank's workers, moved on by batches that were handed out after they were taken.

        Args:
            states: Of all workers of one rank, in order.
            last_worker: The worker whose batch was handed out last when they were taken.
            batches: Batches handed out since; the loader takes them from its workers in turn.
            batch_size: Samples a batch, formed by the loader; None where the stream forms them.
            drop_last: The loader leaves partial batches out.
        """
        places = [Place.from_dict(state, self.identity) for state in states]
        if self.batch_size is not None:
            batch_size, drop_last = self.batch_size, self.drop_last
        left = [size(share_of(place, self.identity)) - place.taken for place in places]
        worker, step, least = last_worker, batch_size or 1, (batch_size or 1) if drop_last else 1
        for _ in range(batches):
            turns = ((worker + turn) % len(left) for turn in range(1, len(left) + 1))
            worker = next((turn for turn in turns if left[turn] >= least), worker)
            left[worker] -= min(step, left[worker])
        moved = (
            replace(place, taken=size(share_of(place, self.identity)) - rest)
            for place, rest in zip(places, left, strict=True)
        )
        return [place.as_dict(self.identity) for place in moved]

    def planned_state(self) -> dict[str, Any]:
        """The state before the next pass, for any number of ranks and workers."""
        epoch = self.epoch
        spans = {number: held for number in (epoch, epoch + 1) if (held := self._consumed_of(number))}
        return Consumed(epoch, spans).as_dict(self.identity)

    def _next_place(self) -> Place:
        seat = self.seat()
        if self._pending is not None:
            place, self._pending = self._pending, None
            self._passes.adopt(seat.rank, seat.worker, seat.num_workers, place.epoch)
            return place
        epoch = self._passes.begin(seat.rank, seat.worker, seat.num_workers)
        return self._place_in(epoch, seat)

    def _planned_place(self) -> Place:
        return self._place_in(self.epoch, self.seat())

    def _place_in(self, epoch: int, seat: Seat) -> Place:
        return Place(seat, epoch, self._consumed_of(epoch), ahead=self._consumed_of(epoch + 1))

    def _keep(self, consumed: Consumed) -> None:
        self._consumed = consumed
        following = consumed.epoch + 1
        self._passes.leave(self.ranks()[0], following, consumed.spans.get(following, ()))

    def _consumed_of(self, epoch: int) -> Spans:
        """What of an epoch was consumed before this process reads it, as the last state loaded says."""
        left = self._passes.left(self.ranks()[0], epoch)
        return self._consumed.spans.get(epoch, ()) if left is None else left

    def _handed_out(self, place: Place) -> Iterator[Any]:
        self._passes.began(place.seat.rank, place.seat.num_workers)
        share = share_of(place, self.identity)
        segments = self._segments(place.epoch, cut(share, place.taken, size(share)))
        if self.batch_size is None:
            yield from self._samples(segments)
        elif isinstance(self.shards, GatheringShards) and self.collate is None:
            yield from self._gathered(segments)
        else:
            yield from self._collated(segments)

    def _segments(self, epoch: int, path: Spans) -> Iterator[Segment]:
        """What to read; shards that may lie elsewhere are told of one shard ahead."""
        order = self.order(epoch)
        will_need = getattr(self.shards, "will_need", None)
        if will_need is None:
            yield from order.segments(path)
            return
        coming, shard = islice(order.shards_along(path), 1, None), None
        for segment in order.segments(path):
            if segment.shard != shard:
                shard, following = segment.shard, next(coming, None)
                if following is not None:
                    will_need(following)
            yield segment

    def _samples(self, segments: Iterator[Segment]) -> Iterator[Any]:
        for sample in read_along(self.shards, segments, self.transform):
            self._taken += 1
            yield sample

    def _collated(self, segments: Iterator[Segment]) -> Iterator[Any]:
        collate, batch = self.collate or default_collate, []
        for sample in read_along(self.shards, segments, self.transform):
            batch.append(sample)
            if len(batch) == self.batch_size:
                self._taken += len(batch)
                yield collate(batch)
                batch = []
        if batch and not self.drop_last:
            self._taken += len(batch)
            yield collate(batch)

    def _gathered(self, segments: Iterator[Segment]) -> Iterator[Any]:
        for batch, count in gathered_along(self.shards, segments, self.batch_size):
            if count == self.batch_size or not self.drop_last:
                self._taken += count
                yield batch if self.transform is None else self.transform(batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ranks": self._ranks_to_ship()}

    def _ranks_to_ship(self) -> tuple[int, int] | None:
        """A spawned worker has no process group of its own: it is told the ranks of this one."""
        in_group = distributed.is_available() and distributed.is_initialized()
        return self.ranks() if in_group and self._ranks is None else self._ranks


def _short(fingerprint: str) -> str:
    """The fingerprint itself, so that a state shows the digest of the manifest; a digest of it where it is long."""
    return fingerprint if len(fingerprint) <= _LONGEST_FINGERPRINT else digest(fingerprint)


def _check(
    seed: int,
    window: int,
    batch_size: int | None,
    drop_last: bool,
    remainder: str,
    rank: int | None,
    world_size: int | None,
) -> None:
    for name, value, least in (("seed", seed, 0), ("window", window, 1), ("batch_size", batch_size, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise SettingsError(f"{name}={value!r} is not possible: use a whole number of {least} or more.")
    if drop_last and batch_size is None:
        raise SettingsError("drop_last=True without batch_size: the loader forms the batches, set drop_last there.")
    if remainder not in REMAINDERS:
        raise SettingsError(f"remainder={remainder!r} is no policy: use one of {', '.join(REMAINDERS)}.")
    if (rank is None) != (world_size is None):
        raise SettingsError(f"rank={rank} with world_size={world_size}: give both, or neither.")
    if rank is not None and not 0 <= rank < world_size:
        raise SettingsError(f"rank={rank} is not one of {world_size} ranks: use 0 to {world_size - 1}.")


def _named(seat: Seat) -> str:
    where = f"worker {seat.worker} of {seat.num_workers}" if seat.num_workers else "the process itself (0 workers)"
    return f"{where} on rank {seat.rank} of {seat.world_size}"
