"""Who gets which positions of an epoch: what is left is cut among ranks, and each rank's share among its workers."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import SettingsError
from workbench.streaming.spans import Spans, cut, size

REMAINDERS = ("exact", "drop", "pad")


@dataclass(frozen=True)
class Seat:
    """Which worker of which rank a process is.

    Attributes:
        rank: This rank.
        world_size: Ranks in all.
        worker: This worker; 0 where the training process itself loads.
        num_workers: Workers of each rank; 0 loads in the training process.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 0

    @property
    def shares(self) -> int:
        """Shares that each rank's samples are cut into."""
        return max(1, self.num_workers)


def share_of_rank(left: Spans, rank: int, world_size: int, remainder: str) -> Spans:
    """The path of one rank through what is left of an epoch, one contiguous run of it.

    Args:
        left: What is left, as a set.
        rank: The rank.
        world_size: Ranks in all.
        remainder: ``exact`` gives every position to one rank, and ranks differ by at most one sample; ``drop`` gives
            every rank the same number and leaves out fewer than ``world_size`` samples; ``pad`` gives every rank the
            same number and repeats fewer than ``world_size`` samples.

    Raises:
        SettingsError: ``remainder`` is none of these.
    """
    total = size(left)
    if remainder == "exact":
        return cut(left, total * rank // world_size, total * (rank + 1) // world_size)
    if remainder == "drop":
        each = total // world_size
        return cut(left, each * rank, each * (rank + 1))
    if remainder == "pad":
        each = -(-total // world_size)
        path: Spans = ()
        begin = each * rank
        while total and size(path) < each:
            at = (begin + size(path)) % total
            path += cut(left, at, min(total, at + each - size(path)))
        return path
    raise SettingsError(f"remainder={remainder!r} is no policy: use one of {', '.join(REMAINDERS)}.")


def share_of_seat(left: Spans, seat: Seat, remainder: str, batch_size: int = 1) -> Spans:
    """The path of one worker: one contiguous run of its rank's share.

    Runs are cut at multiples of ``batch_size``, so that a rank forms one partial batch however many workers it has.
    """
    share = share_of_rank(left, seat.rank, seat.world_size, remainder)
    total = size(share)
    batches = -(-total // batch_size)
    begin, end = (batch_size * (batches * at // seat.shares) for at in (seat.worker, seat.worker + 1))
    return cut(share, begin, min(end, total))
