"""Warm-up and windows of one start: what is read when, against loaders whose answer is known."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.loaders.settings import LoaderSettings
from workbench.measure.clock import Clock
from workbench.measure.stream import Stream
from workbench.measure.trial import TrialPlan, TrialServer

BATCH_BYTES = 8 << 20


class SlowAndLarge(Dataset):
    """A batch of 8 MiB every 0.16 s from each worker."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.full((BATCH_BYTES // 8 // 4,), float(index))


def slow_and_large(**knobs: Any) -> DataLoader:
    return DataLoader(SlowAndLarge(), batch_size=8, **knobs)


def test_a_settings_first_run_reads_memory_with_a_full_queue_and_later_ones_need_not_wait_for_it():
    settings = LoaderSettings(num_workers=2, prefetch_factor=4)
    quick = {"measure_seconds": 0.5, "check_data": False, "measure_edge": False, "measure_growth": False}
    with TrialServer(slow_and_large) as server:
        server.probe()
        full = server.run(settings, TrialPlan(**quick))
        unfilled = server.run(settings, TrialPlan(**quick, fill_queue=False))
    assert full.status == unfilled.status == "ok"
    assert full.memory.peak_shm_bytes >= (settings.batches_in_flight - 1) * BATCH_BYTES
    assert unfilled.memory.peak_shm_bytes <= settings.batches_in_flight / 2 * BATCH_BYTES


class Gated(Dataset):
    """The first sample comes at once, the others once the gate is open."""

    def __init__(self, gate: Any, samples: int) -> None:
        self.gate, self.samples = gate, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        assert index == 0 or self.gate.wait(60)
        return torch.tensor([index])


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize(("samples", "waiting"), [(64, 4), (3, 2)], ids=["long", "nearly ended"])
def test_a_queue_is_full_once_everything_that_workers_were_asked_for_is_finished(kind, samples, waiting):
    gate = multiprocessing.get_context("fork").Event()
    knobs = {"num_workers": 2, "prefetch_factor": 2, "multiprocessing_context": "fork"}
    stream = Stream(kind(Gated(gate, samples), batch_size=1, **knobs), len, None, [0] * 4)
    stream.start()
    assert stream.is_full() is False
    gate.set()
    ends = time.monotonic() + 60
    while not stream.is_full() and time.monotonic() < ends:
        time.sleep(0.01)
    assert stream.is_full() and stream.banked() == waiting
    stream.shut_down()


def test_nobody_can_look_into_the_queue_of_a_loader_without_workers():
    stream = Stream(DataLoader(SlowAndLarge(), batch_size=1), len, None, [0] * 4)
    stream.start()
    assert stream.is_full() is None and stream.banked() is None


class OwnQueue:
    """A loader without workers of its own kind: a thread makes a batch every 2 ms and keeps up to 400 ready."""

    def __iter__(self):
        ready = self.ready = queue.Queue()
        ended = threading.Event()

        def fill() -> None:
            while not ended.wait(0.002):
                if ready.qsize() < 400:
                    ready.put([0.0] * 4)

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            while True:
                yield ready.get()
        finally:
            ended.set()
            thread.join()


class SlowToAnswer:
    """A warden that takes its time to read memory."""

    def send(self, **_: Any) -> None:
        pass

    def wait_for_go(self) -> None:
        time.sleep(0.4)


def test_what_a_loader_with_a_queue_of_its_own_banks_during_a_pause_is_used_up_before_the_windows():
    loader, plan = OwnQueue(), {"warmup_seconds": 0.2, "max_measure_seconds": 2.0, "window_seconds": 0.02}
    stream = Stream(loader, len, None, [0] * 4)
    stream.start()
    clock = Clock(stream, LoaderSettings(), plan, SlowToAnswer())
    clock.first_round()
    clock.warm_up()
    clock.read_memory()
    banked = loader.ready.qsize()
    clock.drain()
    left = loader.ready.qsize()
    stream.iterator.close()
    assert banked > 40 and left < banked / 4


class Iterator:
    """Stands for torch's with workers: gives a batch at once and says that so many more are finished."""

    def __init__(self, batches: int, banked: int) -> None:
        self.batches, self._task_info = iter(range(batches)), {}
        self._data_queue = self._worker_result_queue = queue.Queue()
        for _ in range(banked):
            self._data_queue.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        next(self.batches)
        return [0.0] * 4


class ShortEpochs:
    """A loader of epochs of so many batches, which may say that there are more or fewer."""

    num_workers = 4

    def __init__(self, batches: int, banked: int, told: int | None = None) -> None:
        self.batches, self.banked, self.told = batches, banked, told

    def __iter__(self):
        return Iterator(self.batches, self.banked)

    def __len__(self) -> int:
        if self.told is None:
            raise TypeError("its length is not known")
        return self.told


class Windows:
    """A warden to whom so many windows suffice; keeps where in its epoch each of them ended, and how long it was."""

    def __init__(self, most: int) -> None:
        self.most, self.stream, self.seen = most, None, []

    def send(self, window: tuple[float, float, int, int] | None = None, **_: Any) -> None:
        if window is not None:
            self.seen.append((self.stream.epochs_ended, self.stream.in_epoch, window[2]))

    def stopped(self) -> bool:
        return len(self.seen) >= self.most


def windows_of(loader: ShortEpochs, most: int = 6) -> tuple[str, list[tuple[int, int, int]]]:
    """Mode and windows, from a measurement that begins after the warm-up: 4 workers, 32 batches in flight."""
    channel = Windows(most)
    plan = {"warmup_seconds": 0.0, "max_measure_seconds": 60.0, "window_seconds": 0.0}
    stream = channel.stream = Stream(loader, len, None, [0] * 4)
    stream.start()
    clock = Clock(stream, LoaderSettings(num_workers=4, prefetch_factor=8), plan, channel)
    clock.warm_up()
    clock.measure()
    return clock.mode, channel.seen


@pytest.mark.parametrize("told", [100, None])
def test_windows_end_where_nothing_more_is_asked_for_and_batches_wait(told):
    mode, seen = windows_of(ShortEpochs(100, banked=20, told=told))
    assert mode == "steady"
    later = [(ended, batches) for epoch, ended, batches in seen if epoch > 0 or told]
    assert later and all(ended <= 100 - 32 and ended - batches >= 4 + 20 for ended, batches in later)


def test_windows_go_on_to_the_last_round_where_the_workers_set_the_pace():
    mode, seen = windows_of(ShortEpochs(100, banked=0, told=100))
    assert mode == "steady" and max(ended for _, ended, _ in seen) > 100 - 32
    assert all(ended <= 100 - 4 for _, ended, _ in seen)


def test_epochs_with_no_room_for_a_window_are_measured_whole():
    mode, seen = windows_of(ShortEpochs(64, banked=28, told=64), most=3)
    assert mode == "epochs"
    assert [ended for _, ended, _ in seen] == [1, 1, 1] and [batches for *_, batches in seen] == [64, 64, 64]


def test_what_waits_at_the_start_of_a_short_epoch_is_counted_so_that_slow_batches_leave_room_for_a_window():
    mode, seen = windows_of(ShortEpochs(64, banked=2, told=64))
    assert mode == "steady" and {batches for *_, batches in seen} == {16}


@pytest.mark.parametrize("told", [7, 10_000])
def test_a_loader_that_tells_a_wrong_length_is_measured_all_the_same(told):
    mode, seen = windows_of(ShortEpochs(200, banked=20, told=told))
    assert mode == "steady" and len(seen) == 6


class LateNowAndThen(Iterator):
    """Every 24th batch is late, and the 23 that follow it have come before it."""

    taken = 0

    def __next__(self):
        batch = super().__next__()
        self._task_info = {task: (0, None) for task in range(23 - self.taken % 24)}
        self.taken += 1
        return batch


class LoaderWithLateOnes(ShortEpochs):
    def __iter__(self):
        return LateNowAndThen(self.batches, self.banked)


def test_a_window_counts_what_was_handed_over_in_it_and_not_what_a_late_batch_had_held_back():
    _, seen = windows_of(LoaderWithLateOnes(2000, banked=0), most=12)
    handed_over = [ended - (ended - 1) % 24 for _, ended, _ in seen]
    counted = list(itertools.accumulate(batches for *_, batches in seen))
    for total, truth in zip(counted, handed_over, strict=True):
        assert abs(total - counted[0] - (truth - handed_over[0])) < 4
    assert all(batches > 0 and batches % 4 == 0 for *_, batches in seen)
    assert [batches for *_, batches in seen[1:]] != [after[1] - before[1] for before, after in itertools.pairwise(seen)]


class OneIsLate(Dataset):
    """Sample 1 waits until it is let go."""

    def __init__(self) -> None:
        self.open = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        while index == 1 and self.open[0] == 0:
            time.sleep(0.001)
        return index


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_batches_that_wait_are_counted_in_the_queue_and_behind_a_late_one(kind):
    dataset = OneIsLate()
    stream = Stream(kind(dataset, batch_size=1, num_workers=2, prefetch_factor=4), len, None, [0] * 4)
    assert (stream.left, stream.banked()) == (64, None)
    stream.start()
    try:
        until(lambda: stream.banked() == 4)  # all that the other worker was asked for: batch 1 keeps this one
        dataset.open[0] = 1
        stream.take()
        until(lambda: stream.banked() == 8)
        assert stream.left == 62
    finally:
        stream.shut_down()


class TellsTooFew(IterableDataset):
    """Yields 12 samples where it tells of 4."""

    def __iter__(self):
        return iter(range(12))

    def __len__(self) -> int:
        return 4


def test_a_stream_is_not_asked_for_its_length_of_which_torch_would_then_warn(recwarn):
    stream = Stream(DataLoader(TellsTooFew(), batch_size=2), len, None, [0] * 4)
    stream.start()
    assert stream.left is None
    while stream.epochs_ended == 0:
        stream.take()
    assert stream.left == 5 and not recwarn.list


def until(condition: Any) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
