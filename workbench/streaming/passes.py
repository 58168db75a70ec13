"""Which epoch a pass is and what of it was consumed before: agreed by all workers of a rank, without a message."""

from __future__ import annotations

import math
import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch.utils.data import get_worker_info

from workbench.errors import ResumeError, SettingsError
from workbench.streaming.spans import Spans, packed, unpacked

MOST_WORKERS = 127
RANKS_A_HOST = 32
BYTES_OF_SPANS = 1 << 14
"""Room for what of one epoch was consumed before it began: some 5,000 pieces, and each worker leaves one. Shared memory
is taken whole when it is made (0.5 MiB for 32 ranks), and a container may have 64 MiB of it."""
_OWNER, _COMMAND, _EPOCH, _WORKERS, _BEGUN = range(5)
"""Columns of a row: the training process it is of, the number of the command that it knows, the epoch, the number of
workers of that pass, and whether the pass was begun. The first row of a rank holds the command itself."""


class Passes:
    """A small table in shared memory: per rank the epoch asked for, per worker the epoch that it was in.

    Workers that are started anew for every epoch know nothing of the last one, and workers that live on do not see
    what the training process sets. Both read this table. Every process writes only its own row (the training process
    the first one of its rank), and all workers of a rank begin every pass, so that they agree:

    * after ``ask(epoch)`` the next pass is ``epoch``;
    * otherwise each pass that was begun is followed by the next epoch, whether it was finished or abandoned;
    * in another training process, or with another number of workers than in the last pass, the epoch asked for last
      counts again.

    A worker that loads a state also leaves here what of the epoch after it other ranks had consumed, since the worker
    that reads that epoch may be another one, started by a process that never saw the state.

    Processes that are forked from one (ranks, trials) may share a table; rows of other processes count for nothing.
    Up to 32 ranks may do so at a time.
    """

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._table = _shared_zeros(torch.int64, RANKS_A_HOST, MOST_WORKERS + 1, 5)
        self._of_spans = _shared_zeros(torch.int64, RANKS_A_HOST, 3)
        self._spans = _shared_zeros(torch.uint8, RANKS_A_HOST, BYTES_OF_SPANS)

    def ask(self, rank: int, epoch: int) -> None:
        """Let the next pass of ``rank`` be ``epoch``; called in the training process."""
        self._epoch = epoch
        command = self._asked(rank)[0] + 1
        self._row(rank, None)[:] = torch.tensor([_training_process(), command, epoch, 0, 0])

    def begin(self, rank: int, worker: int, num_workers: int) -> int:
        """The epoch of the pass that begins now in this worker."""
        command, epoch = self._asked(rank)
        owner, seen, last, workers, begun = self._row(rank, worker).tolist()
        if (owner, seen, workers) == (_training_process(), command, num_workers):
            epoch = last + begun
        self._write(rank, worker, num_workers, epoch, begun=num_workers > 0)
        return epoch

    def began(self, rank: int, num_workers: int) -> None:
        """The pass of the training process itself has been asked for a sample."""
        if num_workers == 0:
            self._row(rank, 0)[_BEGUN] = 1

    def adopt(self, rank: int, worker: int, num_workers: int, epoch: int) -> None:
        """This worker goes on in ``epoch``, as a state says; the pass after it is the next epoch."""
        self._write(rank, worker, num_workers, epoch, begun=True)

    def last(self, rank: int) -> int:
        """The epoch asked for or begun last, as far as the first worker knows."""
        command, epoch = self._asked(rank)
        owner, seen, last, _, _ = self._row(rank, 0).tolist()
        return last if (owner, seen) == (_training_process(), command) else epoch

    def leave(self, rank: int, epoch: int, consumed: Spans) -> None:
        """Let every process of ``rank`` know what of ``epoch`` was ``consumed``; what was left before is forgotten.

        Raises:
            ResumeError: It is more than there is room for.
        """
        text = torch.frombuffer(bytearray(packed(consumed), "ascii"), dtype=torch.uint8) if consumed else ()
        if len(text) > BYTES_OF_SPANS:
            raise ResumeError(
                f"What other ranks had consumed of epoch {epoch} is in {len(consumed):,} pieces, {len(text):,} bytes "
                f"packed, and {BYTES_OF_SPANS:,} can be passed on: save states at an epoch's end to leave fewer pieces."
            )
        row = rank % RANKS_A_HOST
        if consumed:
            self._spans[row, : len(text)] = text
        self._of_spans[row] = torch.tensor([_training_process(), epoch, len(text)])

    def left(self, rank: int, epoch: int) -> Spans | None:
        """What was left of ``epoch``; None where nobody said anything about it."""
        row = rank % RANKS_A_HOST
        owner, known, length = self._of_spans[row].tolist()
        if (owner, known) != (_training_process(), epoch):
            return None
        return unpacked(bytes(self._spans[row, :length].tolist()).decode("ascii"))

    def _asked(self, rank: int) -> tuple[int, int]:
        """Number of the last command to this training process, and the epoch asked for."""
        owner, command, epoch, _, _ = self._row(rank, None).tolist()
        return (command, epoch) if owner == _training_process() else (0, self._epoch)

    def _write(self, rank: int, worker: int, num_workers: int, epoch: int, *, begun: bool) -> None:
        command = self._asked(rank)[0]
        row = torch.tensor([_training_process(), command, epoch, num_workers, int(begun)])
        self._row(rank, worker)[:] = row

    def _row(self, rank: int, worker: int | None) -> torch.Tensor:
        if worker is not None and worker >= MOST_WORKERS:
            raise SettingsError(f"num_workers above {MOST_WORKERS} cannot agree on an epoch: use fewer workers.")
        return self._table[rank % RANKS_A_HOST, 0 if worker is None else worker + 1]

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # a worker that is being spawned shares the table
            shared = {"_table": self._table, "_of_spans": self._of_spans, "_spans": self._spans}
            return {"epoch": self._epoch, "shared": shared}
        return {"epoch": self._epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["epoch"])
        self.__dict__.update(state.get("shared", {}))


def _shared_zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Zeros made where they are shared; a new piece of shared memory holds nothing else.

    `share_memory_()` would copy them there with all threads, which hangs in a forked process whose parent computed.
    """
    storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)


def _training_process() -> int:
    """The process that iterates the loader: this one, or the one that started this worker."""
    parent = multiprocessing.parent_process() if get_worker_info() is not None else None
    return os.getpid() if parent is None else parent.pid
