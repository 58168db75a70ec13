"""StreamLoader: a StatefulDataLoader whose state survives other numbers of workers and ranks, and is never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful_dataloader import _StatefulSingleProcessDataLoaderIter

from workbench.errors import ResumeError
from workbench.streaming.packed import PackedStream
from workbench.streaming.position import Place
from workbench.streaming.split import Seat
from workbench.streaming.stream import ShardStream

LoaderState = Mapping[str, Any]
_BATCHING = "workbench_batching"


class StreamLoader(StatefulDataLoader):
    """A ``StatefulDataLoader`` over a ``ShardStream``: the same arguments and the same states, and beyond that

    * ``load_state_dict`` takes a state that was saved with any number of workers, or the states of all ranks, saved
      with any number of ranks: what is left of the epoch is split anew, and nothing is lost or repeated;
    * it refuses to load while an iterator is in use (which would go on from where it is, in silence);
    * a state that belongs to other data, another seed or another order is refused at once, in one sentence;
    * ``state_dict`` before the first pass starts no workers;
    * ``len`` is exact for any number of workers.

    A ``PackedStream`` over a ``ShardStream`` is taken too, and a ``BudgetStream``, whose states need the same numbers.

    A state with the same numbers goes on in the very order of the run that saved it. With other numbers every worker
    takes one contiguous run of what was left, in the epoch's order.
    """

    def __init__(self, dataset: ShardStream, batch_size: int | None = 1, **options: Any) -> None:
        if batch_size is None and options.get("collate_fn") is None:
            options["collate_fn"] = _as_formed
        super().__init__(dataset, batch_size, **options)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch.

        Raises:
            TypeError: The data set packs or sorts samples, and only reading them tells how many batches they make.
        """
        stream = self._stream()
        if stream is not self.dataset:
            raise TypeError(f"{type(self.dataset).__name__} does not know its batches before it has read its samples.")
        if self.batch_size is None:
            return len(stream)
        samples = [stream.samples_of(worker, self.num_workers) for worker in range(max(1, self.num_workers))]
        if self.drop_last:
            return sum(count // self.batch_size for count in samples)
        return sum(-(-count // self.batch_size) for count in samples)

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch handed out last, for ``load_state_dict``."""
        if self._iterator is None and (self.next_iter_state or hasattr(self.dataset, "planned_state")):
            return dict(self.next_iter_state or self.dataset.planned_state())
        return {**super().state_dict(), _BATCHING: {"batch_size": self.batch_size, "drop_last": self.drop_last}}

    def load_state_dict(self, state_dict: LoaderState | Sequence[LoaderState]) -> None:
        """Go on from ``state_dict`` at the next ``iter``.

        Args:
            state_dict: What ``state_dict`` gave on this rank, or a list of what it gave on every rank.

        Raises:
            ResumeError: An iterator is in use; the state belongs to another stream; or it was saved with another
                number of ranks and not every rank's state is given.
        """
        if self._iterator is not None and not self._iterator._finished and not self._initial_iter_for_state_dict:
            raise ResumeError(
                "This loader is already being iterated, and that iterator would not see the state: call "
                "load_state_dict() before iter(), or make a new loader."
            )
        if state_dict == {}:
            super().load_state_dict({})
            return
        states = [state_dict] if isinstance(state_dict, Mapping) else list(state_dict)
        stream = self._stream()
        own = self._own(states, stream)
        if own is None and not hasattr(self.dataset, "merged_state"):
            raise ResumeError(
                f"The state was saved with other numbers of workers or ranks, and what {type(self.dataset).__name__} "
                "has half handed out cannot be split anew: resume with the numbers that it was saved with."
            )
        if own is not None:
            super().load_state_dict(own)
            return
        merged = merge_states(self.dataset, states)
        super().load_state_dict({})
        self.dataset.load_state_dict(merged)

    def _get_iterator(self) -> Any:
        if self.num_workers:
            return super()._get_iterator()
        state, self.next_iter_state = self.next_iter_state, None
        return _DirectIterator(self, state)

    def _own(self, states: Sequence[LoaderState], stream: ShardStream) -> LoaderState | None:
        """The state that this rank can simply go on from, if there is one; the stream is told what lies ahead of it."""
        rank, world_size = stream.ranks()
        wanted = {Seat(rank, world_size, worker, self.num_workers) for worker in range(max(1, self.num_workers))}
        for state in states:
            if "consumed" in state:
                continue
            own = worker_states(state)
            found = own if stream is self.dataset else [of_worker["source"] for of_worker in own]
            places = [Place.from_dict(of_worker, stream.identity) for of_worker in found]
            if {place.seat for place in places} == wanted:
                stream.keep_ahead(places[0])
                return state
        return None

    def _stream(self) -> ShardStream:
        stream = self.dataset if isinstance(self.dataset, ShardStream) else getattr(self.dataset, "source", None)
        if not isinstance(stream, ShardStream):
            raise ResumeError(
                f"StreamLoader reads a ShardStream or what is packed or batched from one, and "
                f"{type(self.dataset).__name__} is neither: use StatefulDataLoader."
            )
        return stream


class _DirectIterator(_StatefulSingleProcessDataLoaderIter):
    """The iterator of 0 workers without a profiler span a batch where nobody profiles.

    Opening and closing the span takes about 5 us, a third of what a whole batch of tokens takes from a memory map.
    """

    def __next__(self) -> Any:
        if torch.autograd._profiler_enabled():
            return super().__next__()
        try:
            batch = self._next_data()
        except StopIteration:
            self._finished = True
            raise
        self._num_yielded += 1
        return batch


def _as_formed(batch: Any) -> Any:
    return batch


def merge_states(stream: ShardStream | PackedStream, states: Sequence[LoaderState]) -> dict[str, Any]:
    """One state for any number of ranks and workers, made of the states of every rank's loader.

    ``ShardStream.load_state_dict`` takes it, so that a plain ``StatefulDataLoader`` can go on with other numbers too.

    Args:
        stream: The stream that will go on, with the same shards, seed and order.
        states: What ``state_dict()`` of the loader (``StreamLoader`` or ``StatefulDataLoader``) gave on every rank.

    Raises:
        ResumeError: A rank is missing, the states are of several moments, or of another stream.
    """
    planned = [state for state in states if "consumed" in state]
    if planned and len(planned) == len(states):
        return dict(planned[0])
    if planned:
        raise ResumeError("Some ranks had not begun when their state was saved: load states of one moment.")
    places = [place for state in states for place in _exact_worker_states(stream, state)]
    return stream.merged_state(places, finished=all(state.get("_iterator_finished") for state in states))


def worker_states(state: LoaderState) -> list[dict[str, Any]]:
    """The stream's state in each worker, in order, out of the state of a ``StatefulDataLoader``.

    Raises:
        ResumeError: It is no such state, or its data set keeps none.
    """
    if "_snapshot" in state:
        workers = state["_snapshot"]["_worker_snapshots"]
        found = [workers[f"worker_{number}"]["dataset_state"] for number in range(len(workers))]
    elif "dataset_state" in state:
        found = [state["dataset_state"]]
    else:
        raise ResumeError(f"{str(dict(state))[:80]} is not the state of a StatefulDataLoader: load what it gave.")
    if any(of_worker is None for of_worker in found):
        raise ResumeError("The state holds no place in a stream: it was saved by a loader over another data set.")
    return found


def _exact_worker_states(stream: ShardStream | PackedStream, state: LoaderState) -> list[dict[str, Any]]:
    """States of one rank's workers after the batch that was handed out last, snapshots being taken seldom."""
    found = worker_states(state)
    batches = state.get("_steps_since_snapshot", 0)
    if not batches:
        return found
    if not isinstance(stream, ShardStream):
        raise ResumeError(
            f"The state is {batches} batches older than the last one handed out, and what they held is only known from "
            "reading them: save it with snapshot_every_n_steps=1 to go on with other numbers."
        )
    if _BATCHING not in state and stream.batch_size is None:
        raise ResumeError(
            f"The state is {batches} batches older than the last one handed out and does not say how long they were: "
            "save it with StreamLoader, or with snapshot_every_n_steps=1, to go on with other numbers."
        )
    batching = state.get(_BATCHING, {"batch_size": None, "drop_last": False})
    return stream.advanced(found, state["_snapshot"]["_last_yielded_worker_id"], batches, **batching)
