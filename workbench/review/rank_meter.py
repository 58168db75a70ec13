"""Samples per second of every rank: which one is slow, and whether it is always the same.

    meter = RankMeter(loader, path="rates.jsonl")
    for batch in meter:                 # or: with RankMeter() as meter: ... meter.step(len(batch))
        train(batch)
    print(meter.report())

A rank that stays the slowest has a slow host or a heavy shard; a slowest rank that changes from time to time says
that loading as a whole is not fast enough. All ranks of a synchronous job run at the pace of the slowest, so it is
not the rate that tells them apart but the time that each spends without waiting for the others: getting its batches.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.errors import SettingsError

EVERY_STEPS = 100
FEWEST_ROUNDS = 4
"""Gatherings from which it is said whether a straggler stays: with fewer, one of few ranks is the slowest by chance."""
STAYS = 0.75
"""Share of the gatherings in which the same rank is the straggler for it to be called one that stays. By chance the
same of two ranks is so in 3 of 4 gatherings now and then; so `STRAGGLES` asks that it be slow each time as well."""
STRAGGLES = 1.10
"""A rank straggles when getting its samples takes this many times the median of the ranks; starts of one loader on one
host differ by 2 to 6 %."""
WAITS = 0.05
"""Share of its time that a rank must spend getting batches for its loader to matter at all."""


@dataclass(frozen=True)
class RankRate:
    """What one rank has done since the gathering before.

    Attributes:
        rank: Its number.
        host: Its host's name, and the shard or other label that the caller gave.
        steps: Steps it did.
        samples: Samples in them; 0 when they could not be counted.
        seconds: Wall time.
        input_seconds: Time spent getting batches; None when only steps were told.
    """

    rank: int
    host: str
    steps: int
    samples: int
    seconds: float
    input_seconds: float | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Rate; None when samples could not be counted."""
        return self.samples / self.seconds if self.samples and self.seconds > 0 else None

    @property
    def slowness(self) -> float:
        """Seconds that count as this rank's own for each step: those of getting batches, or all when not known."""
        spent = self.seconds if self.input_seconds is None else self.input_seconds
        return spent / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Standing:
    """What the gatherings so far say.

    Attributes:
        rounds: How many there were.
        samples_per_second: Of all ranks together in the last; None when not known.
        slowest: Rank that straggled last; None when none did.
        verdict: "even", "straggler stays", "straggler moves" or "too early".
        sentence: The same for people, with the host where one stays.
    """

    rounds: int
    samples_per_second: float | None
    slowest: int | None
    verdict: str
    sentence: str


class RankMeter:
    """Counts steps, samples and input time of this rank, and gathers them over all ranks now and then.

    Wrapped around a loader it times `next()`; as a context manager, `step(samples)` is told after each step.
    Gathering is a collective call: every rank must do the same number of steps between two of them.

    Args:
        loader: Iterable of batches; None when `step` is called by hand.
        every: Steps between gatherings.
        samples: Says how many samples a batch holds; None counts them from the first batch on.
        label: Named with the host in verdicts, for instance the shards of this rank.
        path: JSON-lines file that rank 0 appends to; None for none.
        tensorboard: Folder for TensorBoard, written by rank 0 when TensorBoard is installed; None for none.
        console: Called by rank 0 with a line for every gathering; None is silent.
        group: Process group to gather over; None takes the default one. It should be a gloo group where the default
            one is not: numbers then need no device.

    Raises:
        SettingsError: If `every` is not a whole number of at least 1.
    """

    def __init__(
        self,
        loader: Iterable[Any] | None = None,
        *,
        every: int = EVERY_STEPS,
        samples: Callable[[Any], int] | None = None,
        label: str = "",
        path: str | os.PathLike[str] | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
        console: Callable[[str], None] | None = print,
        group: Any = None,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SettingsError(f"every={every!r} must be a whole number of steps of at least 1")
        self.loader, self.every, self._count, self._group = loader, every, samples, group
        self.host = socket.gethostname() + (f" ({label})" if label else "")
        self._path, self._console = Path(path) if path is not None else None, console
        self._writer = _tensorboard_writer(tensorboard) if tensorboard is not None and _rank() == 0 else None
        self.history: list[tuple[RankRate, ...]] = []
        self._hosts: list[str] | None = None
        self._steps = self._samples = self._all_steps = 0
        self._input: float | None = None if loader is None else 0.0
        self._since = time.perf_counter()

    # -- around a loop --

    def __iter__(self) -> Iterator[Any]:
        """The loader's batches, each counted as a step when the next is asked for."""
        if self.loader is None:
            raise SettingsError("this RankMeter has no loader to iterate: pass one, or call step() after each step")
        clock, batches = time.perf_counter, iter(self.loader)
        while True:
            begun = clock()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._input += clock() - begun
            count = self._count or self._counter(batch)
            samples = count(batch)
            yield batch
            self.step(samples)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        """What the meter does not have is the loader's."""
        if name.startswith("_") or self.__dict__.get("loader") is None:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.loader, name)

    def __enter__(self) -> RankMeter:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, samples: int = 0) -> None:
        """Counts one step of this many samples; every `every` steps, gathers over all ranks."""
        self._steps += 1
        self._samples += samples
        if self._steps >= self.every:
            self.gather()

    def gather(self) -> Standing:
        """Gathers from all ranks now (all of them must call it), logs on rank 0, and returns what is known so far."""
        self._all_steps += self._steps
        if self._hosts is None:
            self._hosts = _hosts(self.host, self._group)
        spent = math.nan if self._input is None else self._input
        numbers = _numbers([self._steps, self._samples, time.perf_counter() - self._since, spent], self._group)
        self.history.append(tuple(map(_rate, range(len(numbers)), self._hosts, numbers)))
        standing = standing_of(self.history)
        if _rank() == 0:
            self._log(standing)
        self._steps = self._samples = 0
        self._input = None if self.loader is None else 0.0
        self._since = time.perf_counter()
        return standing

    def report(self) -> str:
        """What the gatherings so far say, as text."""
        return report(self.history)

    def close(self) -> None:
        """Closes what logs go to; steps since the last gathering are dropped, as ranks may differ in them."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # -- inside --

    def _counter(self, batch: Any) -> Callable[[Any], int]:
        from workbench.loaders.counting import make_counter

        size = getattr(self.loader, "batch_size", None)
        self._count = make_counter(batch, size if isinstance(size, int) else None)
        return self._count

    def _log(self, standing: Standing) -> None:
        ranks = self.history[-1]
        if self._console is not None:
            self._console(f"step {self._all_steps}: {standing.sentence}")
        if self._path is not None:
            told = [asdict(rank) | {"samples_per_second": rank.samples_per_second} for rank in ranks]
            known = {"verdict": standing.verdict, "slowest": standing.slowest, "ranks": told}
            line = {"at": time.time(), "step": self._all_steps} | known
            with open(self._path, "a") as file:
                file.write(json.dumps(line) + "\n")
        if self._writer is not None:
            for rank in ranks:
                if rank.samples_per_second is not None:
                    self._writer.add_scalar(
                        f"samples_per_second/rank_{rank.rank}", rank.samples_per_second, self._all_steps
                    )


def straggler(ranks: Sequence[RankRate]) -> int | None:
    """The rank whose own time a step is clearly above the others' median; None when none is or it is no matter."""
    if len(ranks) < 2:
        return None
    slowest = max(ranks, key=lambda rank: rank.slowness)
    others = sorted(rank.slowness for rank in ranks if rank is not slowest)
    typical = others[len(others) // 2]
    matters = slowest.slowness * slowest.steps >= WAITS * slowest.seconds
    return slowest.rank if matters and slowest.slowness >= STRAGGLES * typical else None


def standing_of(history: Sequence[Sequence[RankRate]]) -> Standing:
    """What a history of gatherings says; a pure function."""
    if not history:
        return Standing(0, None, None, "too early", "nothing gathered yet")
    last = history[-1]
    rates = [rank.samples_per_second for rank in last]
    total = sum(rates) if all(rate is not None for rate in rates) else None
    found = [straggler(ranks) for ranks in history]
    told = f"{total:.0f} samples/s over {len(last)} ranks" if total is not None else f"{len(last)} ranks"
    verdict, sentence = _verdict(found, last)
    return Standing(len(history), total, found[-1], verdict, f"{told}; {sentence}")


def _verdict(found: Sequence[int | None], last: Sequence[RankRate]) -> tuple[str, str]:
    if len(last) < 2:
        return "even", "one rank alone has nobody to wait for"
    slow = [rank for rank in found if rank is not None]
    if len(found) < FEWEST_ROUNDS:
        seen = f"rank {found[-1]} is the slowest so far" if found[-1] is not None else "no rank straggles so far"
        return "too early", f"{seen}; {len(found)} of {FEWEST_ROUNDS} gatherings needed to say whether that stays"
    if len(slow) < len(found) / 2:
        return "even", "no rank straggles"
    rank, times = Counter(slow).most_common(1)[0]
    if times >= STAYS * len(found):
        host = next(entry.host for entry in last if entry.rank == rank)
        return "straggler stays", (
            f"rank {rank} on {host} was the slowest in {times} of {len(found)} gatherings: look at that host, or "
            "at the size of its shards"
        )
    return "straggler moves", (
        f"the slowest rank changes ({len(set(slow))} different in {len(found)} gatherings): no host is at fault, "
        "loading as a whole is not fast enough"
    )


def report(history: Sequence[Sequence[RankRate]]) -> str:
    """A table of the ranks over all gatherings, and the verdict."""
    lines = ["rank  samples/s  getting batches  host"]
    for rank in range(len(history[0]) if history else 0):
        rows = [entry for ranks in history for entry in ranks if entry.rank == rank]
        seconds, samples = sum(row.seconds for row in rows), sum(row.samples for row in rows)
        waits = [row.input_seconds for row in rows if row.input_seconds is not None]
        rate = f"{samples / seconds:9.0f}" if samples and seconds else f"{'–':>9}"
        share = f"{sum(waits) / seconds:15.0%}" if waits and seconds else f"{'–':>15}"
        lines.append(f"{rank:4d}  {rate}  {share}  {rows[-1].host}")
    return "\n".join([*lines, standing_of(history).sentence])


def _distributed() -> Any:
    """torch.distributed where a group has been initialised, else None."""
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


def _rank() -> int:
    dist = _distributed()
    return dist.get_rank() if dist else 0


def _hosts(mine: str, group: Any) -> list[str]:
    dist = _distributed()
    everyone = [mine]
    if dist is not None:
        everyone *= dist.get_world_size(group)
        dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _numbers(mine: list[float], group: Any) -> list[list[float]]:
    """The numbers of every rank; one small tensor each, which costs a tenth of gathering objects."""
    dist = _distributed()
    if dist is None:
        return [mine]
    import torch

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    sent = torch.tensor(mine, dtype=torch.float64, device=device)
    everyone = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, sent, group=group)
    return [received.tolist() for received in everyone]


def _rate(rank: int, host: str, numbers: Sequence[float]) -> RankRate:
    steps, samples, seconds, spent = numbers
    return RankRate(rank, host, int(steps), int(samples), seconds, None if math.isnan(spent) else spent)


def _tensorboard_writer(folder: str | os.PathLike[str]) -> Any:
    """A writer, or None where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
