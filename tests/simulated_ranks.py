"""Ranks and workers of a StatefulDataLoader played in one process: the same turns, snapshots and batches in flight."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from workbench.streaming.running import Running
from workbench.streaming.split import Seat
from workbench.streaming.stream import ShardStream


class SimulatedWorker:
    """One worker: batches that it has made ahead, each with the state that goes with it."""

    def __init__(self, stream: ShardStream, seat: Seat, batch_size: int | None, drop_last: bool, state: Any) -> None:
        self.stream = copy.copy(stream)  # as after a fork: an object of its own that shares the table of epochs
        self.stream._running = Running()
        self.stream.seat, self.seat = lambda: seat, seat
        self.batch_size, self.drop_last = batch_size, drop_last
        if state is not None:
            self.stream.load_state_dict(state)
        self.begin()

    def begin(self) -> None:
        """Begin a pass, as a worker that lives on does."""
        self.ended, self.made = False, deque()
        self.samples = iter(self.stream)
        self.state = self.stream.state_dict()

    def make(self, ahead: int) -> None:
        """Make batches until ``ahead`` are ready or the share is through."""
        while len(self.made) < ahead and not self.ended:
            batch = self._fetch()
            self.ended = batch is None or (self.batch_size is not None and len(batch) < self.batch_size)
            self.made.append((batch or None, self.stream.state_dict()))

    def take(self) -> list[Any] | None:
        """The next batch, or None at the end of the share; the state follows what is taken, not what was made."""
        self.make(1)
        batch, self.state = self.made.popleft() if self.made else (None, self.state)
        return batch

    def _fetch(self) -> list[Any] | None:
        if self.batch_size is None:
            whole = next(self.samples, None)
            return None if whole is None else whole.tolist()
        batch = [sample for _, sample in zip(range(self.batch_size), self.samples, strict=False)]
        return None if self.drop_last and len(batch) < self.batch_size else batch


class SimulatedRank:
    """One rank's loader: takes batches from its workers in turn; state_dict() as StatefulDataLoader gives it."""

    def __init__(
        self,
        make_stream: Callable[[int, int], ShardStream],
        rank: int,
        world_size: int,
        num_workers: int,
        *,
        batch_size: int | None,
        drop_last: bool = False,
        ahead: int = 2,
        snapshot_every: int = 1,
        state: dict[str, Any] | None = None,
        merged: dict[str, Any] | None = None,
        epoch: int | None = None,
        persistent: bool = True,
    ) -> None:
        self.stream = stream = make_stream(rank, world_size)
        if epoch is not None:
            stream.set_epoch(epoch)
        if merged is not None:
            stream.load_state_dict(merged)
        self.ahead, self.snapshot_every, self.persistent = ahead, snapshot_every, persistent
        self.batching = {"batch_size": batch_size, "drop_last": drop_last}
        states = [None] * max(1, num_workers)
        self.turn = self.steps = 0
        if state is not None:
            workers = state["_snapshot"]["_worker_snapshots"]
            states = [workers[f"worker_{number}"]["dataset_state"] for number in range(len(states))]
            self.turn = state["_snapshot"]["_last_yielded_worker_id"] + 1
        self.workers = [
            SimulatedWorker(stream, Seat(rank, world_size, number, num_workers), batch_size, drop_last, of_worker)
            for number, of_worker in enumerate(states)
        ]
        self.finished = False
        self._snap()
        if state is not None:
            for _ in range(state["_steps_since_snapshot"]):
                next(self)
            if state["_iterator_finished"]:
                self.next_epoch()

    @property
    def epoch(self) -> int:
        """The epoch that it is in."""
        return self.workers[0].state["epoch"]

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        asked = 0
        while asked < len(self.workers):
            worker = self.workers[self.turn % len(self.workers)]
            self.turn += 1
            batch = worker.take()
            for other in self.workers:
                other.make(self.ahead)
            if batch is not None:
                self.steps += 1
                if self.steps % self.snapshot_every == 0:
                    self._snap()
                return batch
            asked += 1
        self.finished = True
        raise StopIteration

    def next_epoch(self) -> None:
        """Begin the next pass, with the workers that live on or with new ones from this process, as DataLoader does."""
        self.turn = self.steps = 0
        self.finished = False
        if self.persistent or not self.workers[0].seat.num_workers:
            for worker in self.workers:
                worker.begin()
        else:
            batching = tuple(self.batching.values())
            self.workers = [SimulatedWorker(self.stream, worker.seat, *batching, None) for worker in self.workers]
        self._snap()

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch handed out last."""
        return {
            "_snapshot": self.snapshot,
            "_steps_since_snapshot": self.steps - self.snapshot_step,
            "_iterator_finished": self.finished,
            "workbench_batching": self.batching,
        }

    def _snap(self) -> None:
        self.snapshot_step = self.steps
        self.snapshot = {
            "_last_yielded_worker_id": (self.turn - 1) % len(self.workers),
            "_worker_snapshots": {
                f"worker_{number}": {"dataset_state": worker.state} for number, worker in enumerate(self.workers)
            },
        }
