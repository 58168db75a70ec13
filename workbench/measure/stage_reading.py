"""Inside a trial: clocks on a loader's workers and on the loop that takes from it, read off as costs of a batch."""

from __future__ import annotations

import array
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.loaders.counting import batch_bytes, count_tensors, make_counter
from workbench.loaders.settings import LoaderSettings
from workbench.measure.channel import Channel, progress_counter
from workbench.measure.stage_clock import (
    COLUMN,
    FIELDS,
    RING,
    TRANSFORM_FIELDS,
    WIDTH,
    Rows,
    StageInit,
    Starvation,
    start_clocks,
    transform_names,
)
from workbench.measure.stage_costs import Stage, StageCosts
from workbench.measure.stream import EmptyLoaderError, Stream, why_empty

Row = array.array

SLOW_TIMES = 4.0
"""A round that takes this many times the lower quartile of the rounds is a slow one (as in `causes.TAIL_TIMES`)..."""
WEIGHS = 0.05
"""... when it takes this share of a lap as well: smaller ones cannot shift its rate by more than that."""
SLOW_ROUNDS = 3
FEWEST_ROUNDS = 2
LONGEST_TIMES = 8.0
LOOK_AGAIN_TIMES = 1.25
"""A lap is prolonged to hold `SLOW_ROUNDS` slow rounds, two cycles, but to no more than so many times its length."""


@dataclass(frozen=True)
class Lap:
    """What the loop spent in one stretch.

    Attributes:
        at_seconds: CLOCK_MONOTONIC at its begin.
        seconds: Its length.
        batches: Batches taken.
        samples: Samples in them.
        next_seconds: Wall time in `next()`.
        next_cpu_seconds: CPU of the main thread there.
        transfer_seconds: Wall time of moving batches to the device, on the host.
        step_seconds: Wall time in the step, on the host.
        starved_seconds: Time for which the main thread had no core.
        edges: Epochs that ended in it, or were running out at its end.
        whole_seconds: Length before it was cut to whole cycles (see `whole_cycles`).
        holds_epochs: Whether it holds as many batches as one or more epochs have, and so each of their stretches.
    """

    at_seconds: float
    seconds: float
    batches: int
    samples: int
    next_seconds: float = 0.0
    next_cpu_seconds: float = 0.0
    transfer_seconds: float = 0.0
    step_seconds: float = 0.0
    starved_seconds: float = 0.0
    edges: int = 0
    whole_seconds: float = 0.0
    holds_epochs: bool = False


class Tap:
    """A loader with clocks on its workers, and batches taken from it with clocks around `next()`.

    Args:
        task: The trial's task: settings, temporary folder, samples a batch.
        source: Builds the loader.
        channel: Told about phases; given the workers.
    """

    def __init__(self, task: dict[str, Any], source: Any, channel: Channel) -> None:
        self.settings = LoaderSettings.from_dict(task["settings"])
        loader = source.build(self.settings)
        self._path = os.path.join(task["temporary"], "stages")
        self.rows = _put_clocks_on(loader, self._path)
        self.pin = _PinClock()
        self.batch: Any = None
        given = task["samples_per_batch"]
        self._stream = channel.stream = Stream(loader, lambda batch: given or 0, self._hold, progress_counter(task))
        channel.send(phase="first batch")
        try:
            self.first_seconds, _ = self._stream.start()
        except StopIteration:
            raise EmptyLoaderError(why_empty(loader)) from None
        self.tensors, self.bytes = count_tensors(self.batch), batch_bytes(self.batch)
        if given is None:
            self._stream.count = make_counter(self.batch, task["batch_size_hint"])
            self._stream.samples = self._stream.count(self.batch)
        self._starved = Starvation()
        self._slow_rounds_come = False

    def _hold(self, batch: Any) -> None:
        self.batch = batch

    @property
    def round(self) -> int:
        """Batches come in rounds of this many."""
        return max(1, self.settings.num_workers)

    def discard(self, most_seconds: float, use: Callable[[Any], Any] | None = None) -> float:
        """Takes the queue and one round, at most for `most_seconds` after that round; returns the seconds taken."""
        begun = time.perf_counter()
        for taken in range(self.settings.batches_in_flight + self.round):
            if taken >= self.round and time.perf_counter() - begun > most_seconds:
                break
            self._stream.take()
            if use is not None:
                use(self.batch)
        return time.perf_counter() - begun

    def fill_queue(self, rate: float) -> None:
        """Waits until the workers have filled the queue, at so many batches per second, and fall idle."""
        self._stream.fill_queue(self.settings.batches_in_flight, rate)

    def lap(
        self,
        seconds: float,
        *,
        transfer: Callable[[Any], Any] | None = None,
        step: Callable[[Any], Any] | None = None,
        finish: Callable[[], None] | None = None,
        rounds: int = 1,
    ) -> Lap:
        """Takes whole rounds for at least `seconds` and so many `rounds`; longer, and cut, where some take far longer.

        Where epochs are so short that a lap can hold whole ones, it does: as many batches in a row as an epoch has hold
        its edge and each of its stretches once, wherever they begin.

        Args:
            seconds: Least length.
            transfer: Moves a batch to the device.
            step: Called with each batch, after the transfer.
            finish: Waits for the device; called at both borders, never in between.
            rounds: Least number of rounds.
        """
        stream, clock, cpu = self._stream, time.perf_counter, time.thread_time
        if finish is not None:
            finish()
        spent = [0.0] * 4  # next, its CPU, transfer, step
        ended, samples, batches, starved = stream.epochs_ended, stream.samples, 0, self._starved()
        begun = now = clock()
        marks, look_at, epochs = [(begun, 0, samples, *spent)], begun + seconds, 0
        while batches != epochs if epochs else batches % self.round or batches < rounds * self.round or now < look_at:
            spent_cpu = cpu()
            stream.take()
            after_cpu, after = cpu(), clock()
            spent[0] += after - now
            spent[1] += after_cpu - spent_cpu
            batches += 1
            batch, now = self.batch, after
            if transfer is not None:
                batch = transfer(batch)
                now = clock()
                spent[2] += now - after
            if step is not None:
                before = now
                step(batch)
                now = clock()
                spent[3] += now - before
            if batches % self.round == 0 or batches == epochs:
                marks.append((now, batches, stream.samples, *spent))
            if batches % self.round == 0 and now >= look_at and not epochs:
                look = now - begun < LONGEST_TIMES * seconds
                if look and is_unsettled([mark[0] for mark in marks], expected=self._slow_rounds_come):
                    look_at = begun + LOOK_AGAIN_TIMES * (now - begun)
                elif batches >= rounds * self.round:
                    epochs = self._whole_epochs(batches, now - begun, LONGEST_TIMES * seconds)
        first, last = (0, len(marks) - 1) if epochs else whole_cycles([mark[0] for mark in marks])
        self._slow_rounds_come |= first > 0
        if finish is not None:
            finish()
            if first == 0:  # from an idle device to an idle one; cut ends have it equally far behind
                marks[-1] = (clock(), *marks[-1][1:])
        edges = stream.epochs_ended - ended + stream.is_running_out(self.settings.batches_in_flight, self.round)
        counted = [b - a for a, b in zip(marks[first], marks[last], strict=True)]
        return Lap(marks[first][0], *counted, starved_seconds=self._starved() - starved,
                   edges=edges, whole_seconds=marks[-1][0] - begun, holds_epochs=epochs > 0)  # fmt: skip

    def _whole_epochs(self, batches: int, seconds: float, longest_seconds: float) -> int:
        """Batches of the fewest whole epochs that hold so many, at the pace so far; 0 where they would take longer."""
        epoch = self._stream.epoch_batches
        if not epoch:
            return 0
        whole = math.ceil(batches / epoch) * epoch
        return whole if whole * seconds <= batches * longest_seconds else 0

    def samples_of(self, batch: Any) -> int:
        """How many samples a batch holds."""
        return self._stream.count(batch)

    def snapshot(self) -> list[Row]:
        """What the workers have counted so far."""
        return self.rows.snapshot() if self.rows is not None else []

    def costs(self, before: list[Row], after: list[Row], lap: Lap) -> StageCosts | None:
        """Costs of a batch between two snapshots; None when no batch was seen in detail."""
        return costs_between(before, after, lap, transform_names(self._path), self.settings.num_workers,
                             self.bytes, self.tensors, self.pin.seconds_per_batch)  # fmt: skip

    def close(self) -> None:
        """Ends the workers."""
        self.batch = None
        self._stream.shut_down()


def whole_cycles(ends: Sequence[float]) -> tuple[int, int]:
    """The first and the last of the ends of rounds between which a rate is taken: all, or from slow one to slow one.

    A lap that begins and ends anywhere holds up to one slow round too many or too few; from the end of one to the end
    of another it holds as many as come with what lies between them (the cycles of a renewal process).
    """
    slow = _slow_rounds(ends)
    if len(slow) < 2 or 2 * (ends[slow[-1]] - ends[slow[0]]) < ends[-1] - ends[0]:
        return 0, len(ends) - 1
    return slow[0], slow[-1]


def is_unsettled(ends: Sequence[float], *, expected: bool = False) -> bool:
    """Whether single rounds still weigh so much that a longer lap would say something else.

    Args:
        ends: Of the rounds, seconds.
        expected: Whether laps before had slow rounds, so that one without any is a quiet stretch.
    """
    slow = len(_slow_rounds(ends))
    return slow < SLOW_ROUNDS and (expected or slow > 0)


def _slow_rounds(ends: Sequence[float]) -> list[int]:
    lengths = [later - earlier for earlier, later in itertools.pairwise(ends)]
    if len(lengths) < FEWEST_ROUNDS:
        return []
    least = max(SLOW_TIMES * sorted(lengths)[len(lengths) // 4], WEIGHS * (ends[-1] - ends[0]))
    return [number + 1 for number, length in enumerate(lengths) if length > least]


def stages(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> dict[str, Any]:
    """The task "stages": a `StageCosts` as a dict under "costs", None when the workers could not be looked into."""
    tap = Tap(task, source, channel)
    use = step if task["paced"] else None
    channel.send(phase="warm-up")
    tap.discard(task["plan"]["max_measure_seconds"], use)
    channel.send(phase="measure")
    before = tap.snapshot()
    lap = tap.lap(task["seconds"], step=use, rounds=2)
    after = tap.snapshot()
    costs = tap.costs(before, after, lap)
    channel.send(phase="shutdown")
    tap.close()
    return {"costs": asdict(costs) if costs else None}


def costs_between(
    before: Sequence[Row],
    after: Sequence[Row],
    lap: Lap,
    names: Sequence[str],
    num_workers: int,
    bytes_per_batch: int,
    tensors: int,
    pin_seconds: float | None = None,
) -> StageCosts | None:
    """Costs of a batch from the workers' rows before and after a lap; a pure function."""
    grown = [[b - a for a, b in zip(old, new, strict=True)] for old, new in zip(before, after, strict=True)]
    total = {name: sum(row[at] for row in grown) for name, at in COLUMN.items()}
    detailed, formed = total["detailed"], total["batches"]
    if detailed < 1:
        return None
    transforms = _transform_stages(grown, names, detailed)
    inside = [sum(getattr(stage, f"{part}_seconds") for stage in transforms) for part in ("wall", "cpu", "starved")]
    fetched = (total[f"fetch_{part}"] / detailed for part in ("wall", "cpu", "starved"))
    fetch = Stage("fetch", *(max(0.0, whole - part) for whole, part in zip(fetched, inside, strict=True)))
    collate = Stage("collate", *(total[f"collate_{part}"] / detailed for part in ("wall", "cpu", "starved")))
    handed = total["handed"]
    hand_over = Stage("hand-over", total["hand_wall"] / handed, total["hand_cpu"] / handed) if handed else None
    busy, whole = total["busy_seconds"] / formed, lap.whole_seconds or lap.seconds
    hand_cpu = hand_over.cpu_seconds if hand_over else 0.0
    process, thread = total["process_cpu"] / formed, total["thread_cpu"] / formed
    return StageCosts(
        fetch=fetch,
        transforms=transforms,
        collate=collate,
        hand_over=hand_over,
        worker_seconds_per_batch=busy,
        worker_cpu_seconds_per_batch=process if num_workers else fetch.cpu_seconds + inside[1] + collate.cpu_seconds,
        other_threads_cpu_seconds=max(0.0, process - thread - hand_cpu) if num_workers else 0.0,
        worker_busy_fraction=min(1.0, total["busy_seconds"] / (whole * num_workers)) if num_workers else None,
        main_seconds_per_batch=lap.next_cpu_seconds / lap.batches,
        queue_wait_seconds=max(0.0, lap.next_seconds - lap.next_cpu_seconds) / lap.batches,
        next_seconds=lap.next_seconds / lap.batches,
        pin_seconds=pin_seconds,
        bytes_per_batch=bytes_per_batch,
        pickled_bytes_per_batch=total["hand_bytes"] / handed if handed else None,
        tensors_per_batch=tensors,
        samples_per_batch=lap.samples / lap.batches,
        batches=lap.batches,
        batches_detailed=int(detailed),
        seconds=lap.seconds,
        samples_per_second=lap.samples / lap.seconds,
        worker_batches=tuple(int(row[COLUMN["batches"]]) for row in grown),
        threads_per_worker=int(max(row[COLUMN["threads"]] for row in after)) or None,
        batch_walls=_recent(before, after),
        first_batch_seconds=max((row[COLUMN["first_seconds"]] for row in after), default=None),
        transfer_seconds=lap.transfer_seconds / lap.batches if lap.transfer_seconds else None,
        step_seconds=lap.step_seconds / lap.batches if lap.step_seconds else None,
    )


def _transform_stages(grown: Sequence[Sequence[float]], names: Sequence[str], detailed: float) -> tuple[Stage, ...]:
    found = []
    for number, name in enumerate(names):
        at = len(FIELDS) + number * TRANSFORM_FIELDS
        spent = [sum(row[at + part] for row in grown) / detailed for part in range(TRANSFORM_FIELDS)]
        if any(spent):
            found.append(Stage(name, *(max(0.0, part) for part in spent)))  # its clocks' own time is taken off
    return tuple(found)


def _recent(before: Sequence[Row], after: Sequence[Row]) -> tuple[float, ...]:
    """Times of the batches that each worker formed between the snapshots, as far as its ring reaches back."""
    walls: list[float] = []
    for old, new in zip(before, after, strict=True):
        first, last = int(old[COLUMN["batches"]]), int(new[COLUMN["batches"]])
        walls += [new[WIDTH - RING + number % RING] for number in range(max(first, last - RING), last)]
    return tuple(walls)


def _put_clocks_on(loader: Any, path: str) -> Rows | None:
    """Has the loader's workers, or this process when there are none, count; None for what is no DataLoader."""
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        return None
    workers = loader.num_workers
    rows = Rows(path, workers)
    if workers:
        loader.worker_init_fn = StageInit(loader.worker_init_fn, path, workers)
    else:
        start_clocks(path, 0, 0, loader.dataset)
    return rows


class _PinClock:
    """Times whole batches in the pin thread, where there is one."""

    def __init__(self) -> None:
        module = sys.modules.get("torch.utils.data._utils.pin_memory")
        self._original = getattr(module, "pin_memory", None)
        self._inside = threading.local()
        self._seconds, self._batches = 0.0, 0
        if self._original is not None:
            module.pin_memory = self._timed

    def _timed(self, data: Any, *args: Any) -> Any:
        if getattr(self._inside, "now", False):  # parts of a batch that is being timed
            return self._original(data, *args)
        self._inside.now, begun = True, time.perf_counter()
        try:
            return self._original(data, *args)
        finally:
            self._inside.now = False
            self._seconds += time.perf_counter() - begun
            self._batches += 1

    @property
    def seconds_per_batch(self) -> float | None:
        """Mean so far; None when nothing was pinned."""
        return self._seconds / self._batches if self._batches else None
