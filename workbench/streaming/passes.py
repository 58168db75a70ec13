"""Which epoch a pass over the stream is: agreed by all workers of a rank, old and new, without a message."""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen

import torch

from workbench.errors import SettingsError

MOST_WORKERS = 127
RANKS_A_HOST = 32
_COMMAND, _EPOCH = 0, 2  # columns of the first row of a rank: number of the command, epoch it asked for
_SEEN, _WORKERS, _BEGUN = 0, 1, 3  # columns of a worker's row, beside _EPOCH


class Passes:
    """A small table in shared memory: per rank the epoch asked for, per worker the epoch that it was in.

    Workers that are started anew for every epoch know nothing of the last one, and workers that live on do not see
    what the training process sets. Both read this table. Every process writes only its own row (the training process
    the first one of its rank), and all workers of a rank begin every pass, so that they agree:

    * after ``ask(epoch)`` the next pass is ``epoch``;
    * otherwise each pass that was begun is followed by the next epoch, whether it was finished or abandoned;
    * under another number of workers than the last pass had, the epoch asked for last counts again.

    Up to 32 ranks of one host may share a table (ranks that were forked from one process do).
    """

    def __init__(self, epoch: int = 0) -> None:
        self._table = torch.zeros(RANKS_A_HOST, MOST_WORKERS + 1, 4, dtype=torch.int64).share_memory_()
        self._table[:, 0, _COMMAND] = 1
        self._table[:, 0, _EPOCH] = epoch

    def ask(self, rank: int, epoch: int) -> None:
        """Let the next pass of ``rank`` be ``epoch``; called in the training process."""
        row = self._row(rank, None)
        row[_EPOCH] = epoch
        row[_COMMAND] += 1

    def begin(self, rank: int, worker: int, num_workers: int) -> int:
        """The epoch of the pass that begins now in this worker."""
        asked, row = self._row(rank, None), self._row(rank, worker)
        same = bool(row[_SEEN] == asked[_COMMAND]) and bool(row[_WORKERS] == num_workers)
        epoch = int(row[_EPOCH] + row[_BEGUN]) if same else int(asked[_EPOCH])
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
        asked, row = self._row(rank, None), self._row(rank, 0)
        return int(row[_EPOCH] if row[_SEEN] == asked[_COMMAND] else asked[_EPOCH])

    def _write(self, rank: int, worker: int, num_workers: int, epoch: int, *, begun: bool) -> None:
        command = int(self._row(rank, None)[_COMMAND])
        self._row(rank, worker)[:] = torch.tensor([command, num_workers, epoch, int(begun)])

    def _row(self, rank: int, worker: int | None) -> torch.Tensor:
        if worker is not None and worker >= MOST_WORKERS:
            raise SettingsError(f"num_workers above {MOST_WORKERS} cannot agree on an epoch: use fewer workers.")
        return self._table[rank % RANKS_A_HOST, 0 if worker is None else worker + 1]

    def __getstate__(self) -> dict[str, object]:
        if get_spawning_popen() is not None:
            return {"table": self._table}
        asked, first = self._table[:, 0], self._table[:, 1]
        begun = first[:, _SEEN] == asked[:, _COMMAND]
        return {"epochs": torch.where(begun, first[:, _EPOCH], asked[:, _EPOCH]).tolist()}

    def __setstate__(self, state: dict[str, object]) -> None:
        if "table" in state:
            self._table = state["table"]
        else:
            self.__init__()
            self._table[:, 0, _EPOCH] = torch.tensor(state["epochs"])
