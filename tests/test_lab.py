"""The lab's answers against sums made by hand, and its faults against what they claim to do."""

import collections
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from workbench import lab
from workbench.errors import SettingsError
from workbench.lab import loaders, steps, work


def truth(workers=0, cores=2.0, **switches):
    return lab.loader(batch_size=10, length=1000, **switches).truth(workers, cores=cores)


def seen(loader):
    return sorted(
        int(sample[0]) for batch in loader for sample in (batch["data"] if isinstance(batch, dict) else batch)
    )


@pytest.fixture
def slept(monkeypatch):
    """The sleeps asked for; none is slept, and the clock goes on by them alone."""
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + sum(naps))
    return naps


# -- answers --


@pytest.mark.parametrize(
    "workers, cores, rate, bound",
    [
        (0, 8, 500, "workers"),
        (1, 8, 500, "workers"),
        (4, 8, 2000, "workers"),
        (4, 2, 1000, "cores"),
        (0, 0.5, 250, "cores"),
    ],
)
def test_cpu_is_bounded_by_workers_and_cores(workers, cores, rate, bound):
    for switch in ("decode_cpu_seconds", "collate_cpu_seconds"):
        found = truth(workers, cores, **{switch: 0.002})
        assert (found.samples_per_second, found.bound) == (pytest.approx(rate), bound)


def test_waiting_goes_beyond_the_cores():
    assert [truth(w, 2, storage_seconds=0.004).samples_per_second for w in (0, 1, 8)] == pytest.approx([250, 250, 2000])
    mixed = truth(8, 2, storage_seconds=0.006, decode_cpu_seconds=0.002)  # 8 / 8 ms, and 2 cores / 2 ms
    assert mixed.samples_per_second == pytest.approx(1000)


def test_bandwidth_is_shared():
    switches = {"storage_seconds": 0.001, "storage_bytes": 10_000, "storage_bytes_per_second": 10_000_000.0}
    assert truth(0, **switches).samples_per_second == pytest.approx(500)
    found = truth(8, **switches)
    assert (found.samples_per_second, found.bound) == (pytest.approx(1000), "bandwidth")


def test_nothing_wrong_is_unknown_not_zero():
    found = truth(2)
    assert (found.samples_per_second, found.epoch_seconds, found.bound, found.status) == (None, None, "nothing", "ok")


def test_threads_share_the_decoding():
    assert truth(1, 4, decode_cpu_seconds=0.008, threads=4).samples_per_second == pytest.approx(500)
    found = truth(4, 4, decode_cpu_seconds=0.008, threads=4)
    assert (found.samples_per_second, found.computing_threads) == (pytest.approx(500), 16)


def test_shards():
    found = truth(4, storage_seconds=0.001, shards=2)
    assert (found.active_workers, found.idle_workers, found.samples_per_second) == (2, 2, pytest.approx(2000))
    assert truth(0, storage_seconds=0.001, shards=2).idle_workers == 0
    uneven = truth(4, storage_seconds=0.001, shards=4, largest_shard=0.7)
    assert uneven.epoch_seconds == pytest.approx(0.7) and uneven.samples_per_second == pytest.approx(4000)
    assert truth(4, storage_seconds=0.001, shards=4).epoch_seconds == pytest.approx(0.25)


@pytest.mark.parametrize(
    "switches, workers, samples, wrong",
    [
        ({"split": "none"}, 0, 1000, False),
        ({"split": "none"}, 1, 1000, False),
        ({"split": "none"}, 3, 3000, True),
        ({"split": "floor"}, 2, 1000, False),
        ({"split": "floor"}, 3, 999, True),
        ({"corrupt_every": 100}, 0, 1000, False),
        ({"corrupt_every": 100}, 1, 1000, True),
        ({"corrupt_every": 1001}, 1, 1000, False),
        ({"shards": 3}, 2, 1000, False),
    ],
)
def test_wrong_data_is_what_comes_out(switches, workers, samples, wrong):
    pipeline = lab.loader(batch_size=10, length=1000, **switches)
    found = pipeline.truth(workers)
    assert (found.epoch_samples, found.wrong_data) == (samples, wrong)
    assert found.status == ("wrong_data" if wrong else "ok")
    got = seen(pipeline(num_workers=workers))
    assert len(got) == samples and (got == list(range(1000))) is not wrong


def test_a_tail_holds_up_the_batches_behind_it():
    slow = {"storage_seconds": 0.001, "tail_seconds": 0.1}
    both = lab.LoaderFaults(tail_every=10, **slow)  # batches of 10: each has a slow sample, no worker waits for another
    assert lab.truth(both, 2, 1, 10, 40, cores=2).samples_per_second == pytest.approx(2 / 0.011)
    # Batches of 5, one ahead: 1 and 3 are slow, and worker 1's. It needs 105 ms for each; worker 0 idles meanwhile.
    one = lab.truth(both, 2, 1, 5, 20, cores=2)
    assert (one.epoch_seconds, one.bound) == (pytest.approx(0.210), "tail")
    early = lab.LoaderFaults(tail_every=4, **slow)
    # Batches of 2: 0 -> 2, 1 -> 102 ms; 2 is asked for at 2 -> 4 ms; 3 at 102 -> 204; 4 at 102 -> 104; 5 at 204 -> 306.
    assert lab.truth(early, 2, 1, 2, 12, cores=2).epoch_seconds == pytest.approx(0.306)
    mean = truth(0, tail_every=400, tail_seconds=0.15, storage_seconds=0.001)
    assert mean.samples_per_second == pytest.approx(400 / 0.55)
    assert both.without("tail_every", "tail_seconds") == lab.LoaderFaults(storage_seconds=0.001)


def test_counts_of_what_a_batch_carries():
    found = truth(1, tensors=5, objects=3, leak_bytes=4096)
    assert (found.tensors_per_batch, found.objects_per_batch) == (6, 30)
    assert found.growth_bytes_per_1000_samples == 4_096_000
    assert truth(first_item_seconds=0.5, storage_seconds=0.001).first_batch_seconds == pytest.approx(0.51)


def test_cold_and_warm(tmp_path):
    lab.cold_files(tmp_path, 5)
    found = truth(1, cold_directory=str(tmp_path), cold_seconds=0.009, storage_seconds=0.001)
    assert (found.samples_per_second, found.warm_samples_per_second) == (pytest.approx(100), pytest.approx(1000))


@pytest.mark.parametrize(
    "load, workers, step, combined, wait, bound",
    [
        (0.004, 0, {"device_seconds": 0.020, "synchronise": True}, 1 / 0.024, 4 / 24, "compute"),
        (0.004, 1, {"device_seconds": 0.020, "synchronise": True}, 1 / 0.020, 0.0, "compute"),
        (0.004, 0, {"device_seconds": 0.020}, 1 / 0.020, 4 / 20, "compute"),
        (0.030, 1, {"device_seconds": 0.020}, 1 / 0.030, 1 / 3, "input"),
        (0.030, 2, {"device_seconds": 0.020}, 1 / 0.020, 0.0, "compute"),
        (0.020, 1, {"device_seconds": 0.020}, 1 / 0.020, 0.0, "balanced"),
        (0.004, 1, {"device_seconds": 0.010, "launch_seconds": 0.010, "synchronise": True}, 1 / 0.020, 0.0, "sync"),
        (0.004, 1, {"device_seconds": 0.010, "launch_seconds": 0.010}, 1 / 0.010, 0.0, "compute"),
        (0.010, 0, {}, 1 / 0.010, 1.0, "input"),
        (0.004, 1, {"device_seconds": 0.010, "copy_seconds": 0.008}, 1 / 0.010, 0.0, "compute"),
        (0.004, 1, {"device_seconds": 0.010, "copy_seconds": 0.020}, 1 / 0.020, 0.0, "transfer"),
        (0.004, 1, {"device_seconds": 0.010, "copy_seconds": 0.008, "pageable": True}, 1 / 0.018, 0.0, "transfer"),
        (0.050, 1, {"device_seconds": 0.010, "copy_seconds": 0.008, "pageable": True}, 1 / 0.050, 0.64, "input"),
        (0.004, 0, {"device_seconds": 0.010, "copy_seconds": 0.008, "pageable": True}, 1 / 0.018, 4 / 18, "transfer"),
    ],
)
def test_loader_and_step_together(load, workers, step, combined, wait, bound):
    loader = lab.loader(batch_size=10, length=1000, storage_seconds=load / 10).truth(workers, cores=2)
    found = lab.combined(loader, lab.StepFaults(**step), workers, 10)
    assert found.combined_samples_per_second == pytest.approx(10 * combined)
    assert (found.input_wait_fraction, found.bound) == (pytest.approx(wait), bound)
    if step:
        assert found.headroom == pytest.approx(found.step_samples_per_second / found.combined_samples_per_second)


# -- switches --


def test_nonsense_is_refused():
    for wrong in (
        {"decode_cpu_seconds": -1.0}, {"decode_cpu_seconds": "fast"}, {"decode_cpu_seconds": float("nan")},
        {"tensors": 1.5}, {"leak_bytes": True}, {"split": "half"}, {"tail_every": 5}, {"cold_seconds": 0.1},
        {"threads": 2}, {"shards": 0}, {"largest_shard": 0.5}, {"largest_shard": 1.5, "shards": 2},
        {"storage_bytes": 5}, {"speed": 1}, {"batch_size": 0}, {"corrupt_every": 2, "shards": 2},
        {"storage_bytes_per_second": 0.0, "storage_bytes": 5},
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            lab.loader(**wrong)
    for wrong in ({"device_seconds": -1}, {"synchronise": 1}, {"speed": 1}, {"pageable": True}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            lab.step(**wrong)
    with pytest.raises(SettingsError, match="speed"):
        lab.loader().without("speed")
    with pytest.raises(SettingsError, match="cold_files"):
        lab.loader(cold_directory="/no/such", cold_seconds=1.0)()


def test_switching_off_is_healthy():
    pipeline = lab.loader(decode_cpu_seconds=0.001, tensors=3)
    assert pipeline.faults.named() == {"decode_cpu_seconds": 0.001, "tensors": 3}
    assert pipeline.without("decode_cpu_seconds", "tensors") == lab.loader()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_faults_reach_workers(method):
    pipeline = pickle.loads(pickle.dumps(lab.loader(batch_size=4, length=8, tensors=2, objects=3, sample_bytes=16)))
    loader = pipeline(num_workers=1, multiprocessing_context=method, prefetch_factor=3)
    first, second = loader
    assert first["data"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]] and second["data"][0].tolist() == [4, 4]
    assert [tensor.item() for tensor in first["tensors"]] == [0, 1] and [len(o) for o in first["objects"]] == [3] * 4
    assert loader.prefetch_factor == 3


def test_knobs_are_the_dataloaders():
    loader = lab.loader()(num_workers=1, persistent_workers=True, in_order=False, batch_size=5)
    assert (loader.num_workers, loader.persistent_workers, loader.in_order, loader.batch_size) == (1, True, False, 5)
    assert {"num_workers", "prefetch_factor", "pin_memory"} <= set(inspect.signature(lab.loader()).parameters)


# -- on any loader --


class Squares(Dataset):
    epoch = 7

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index * index


class Fetched(Squares):
    def __getitems__(self, indices):
        return [-index for index in indices]


class Counted(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_faults_keep_what_a_loader_does():
    order = [5, 0, 3]
    loader = DataLoader(Squares(), batch_size=2, sampler=order, drop_last=True, collate_fn=tuple)
    faulty = lab.put_on(loader, lab.LoaderFaults(storage_seconds=1e-4, leak_bytes=10))
    assert list(faulty) == list(loader) == [(25, 0)]
    assert faulty.sampler is order and faulty.dataset.epoch == 7 and len(faulty) == 1
    assert len(faulty.dataset.work._here.kept) == 2
    off = lab.put_on(DataLoader(Squares(), batch_size=None), lab.LoaderFaults())
    assert list(off) == [0, 1, 4, 9, 16, 25]
    batches = [[0, 1, 2], [5]]
    assert [len(b) for b in lab.put_on(DataLoader(Squares(), batch_sampler=batches), lab.LoaderFaults())] == [3, 1]
    assert [b.tolist() for b in lab.put_on(DataLoader(Fetched(), batch_size=4), lab.LoaderFaults())] == [
        [0, -1, -2, -3], [-4, -5],
    ]  # fmt: skip
    assert [b.tolist() for b in lab.put_on(DataLoader(Counted(), batch_size=3), lab.LoaderFaults())] == [
        [0, 1, 2],
        [3, 4],
    ]
    with pytest.raises(SettingsError, match="stream already"):
        lab.put_on(DataLoader(Counted()), lab.LoaderFaults(shards=2))
    with pytest.raises(SettingsError, match="no DataLoader"):
        lab.put_on(5, lab.LoaderFaults())


def test_faults_keep_the_class_of_a_loader():
    from torchdata.stateful_dataloader import StatefulDataLoader

    faulty = lab.put_on(StatefulDataLoader(Squares(), snapshot_every_n_steps=3), lab.LoaderFaults(tensors=1))
    next(iter(faulty))
    assert faulty.snapshot_every_n_steps == 3 and faulty.state_dict()

    class Own(DataLoader):
        def __init__(self):
            super().__init__(Squares())

    with pytest.raises(SettingsError, match="Own"):
        lab.put_on(Own(), lab.LoaderFaults())


def test_faults_go_on_a_factory():
    def factory(num_workers=0, start=0):
        return DataLoader(range(start, 4), num_workers=num_workers)

    faulty = lab.put_on(factory, lab.LoaderFaults(shards=2))
    assert list(inspect.signature(faulty).parameters) == ["num_workers", "start"]
    assert sorted(batch.item() for batch in faulty(num_workers=2, start=1)) == [1, 2, 3]


# -- what the faults do --


def test_burning_takes_the_threads_own_cpu():
    before = time.thread_time()
    lab.burn(0.02)
    assert time.thread_time() - before >= 0.02


def test_threads_burn_what_was_asked_on_average(monkeypatch):
    clock = [0.0]

    def hashed(_):
        clock[0] += 0.3

    monkeypatch.setattr(work.time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(work.hashlib, "sha256", hashed)
    monkeypatch.setattr(work, "MOST_MADE_UP_SECONDS", 1.0)
    threads = work.Threads(1)
    for _ in range(10):
        threads.burn(1.0)
    assert clock[0] == pytest.approx(10.0, abs=0.3)  # and not 12, ten times four hashes


def test_threads_burn_on_threads_of_their_own():
    before, others = time.thread_time(), time.process_time()
    pool = work.Threads(3)
    pool.burn(0.03)
    assert time.process_time() - others >= 0.03 and time.thread_time() - before < 0.03
    assert sum(thread.name.startswith("ThreadPool") for thread in threading.enumerate()) >= 3


def test_waits_are_right_on_average(monkeypatch):
    clock = [0.0]

    def oversleep(seconds):
        clock[0] += seconds + 0.0001

    monkeypatch.setattr(time, "sleep", oversleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    pace = work.Pace()
    for _ in range(100):
        pace.wait(0.001)
    assert clock[0] == pytest.approx(0.1, abs=0.00011)
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds + 1.0))
    pace.wait(0.001)
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    pace.wait(0.002)
    assert clock[0] > 1.1  # a second lost to the machine is not made up


def test_tail_and_first_item_wait_where_they_say(slept):
    list(lab.loader(batch_size=5, length=10, tail_every=4, tail_seconds=2.0, first_item_seconds=7.0)())
    assert slept == [7.0, 2.0, 2.0]
    slept.clear()
    list(lab.loader(batch_size=5, length=10, storage_seconds=1.0, tail_every=4, tail_seconds=2.0)())
    assert slept == [1, 1, 1, 3, 1, 1, 1, 3, 1, 1]


def test_a_line_serves_one_at_a_time(slept):
    free_at = torch.zeros(1, dtype=torch.float64)
    line, other = work.SharedLine(1, free_at), work.SharedLine(1, free_at)
    line.use(2.0)
    free_at += 5.0  # another process is in front
    other.use(2.0)
    assert slept == [2.0, 7.0]


def test_a_line_is_shared_by_workers_and_survives_pickling():
    pipeline = lab.loader(batch_size=2, length=8, storage_bytes=1, storage_bytes_per_second=10_000.0)
    loader = pickle.loads(pickle.dumps(pipeline(num_workers=2)))
    free_at = loader.dataset.work.line[1]
    begin = time.monotonic()
    assert len(list(loader)) == 4 and free_at.is_shared()
    assert begin < free_at.item() <= time.monotonic() + 0.001  # the workers wrote into this process's memory


def test_two_processes_do_not_hold_a_line_together():
    code = (
        "import os, sys, time, torch; from workbench.lab.work import SharedLine; import fcntl\n"
        "line = SharedLine(2**50 + 3, torch.zeros(1)); line._lock(fcntl.F_WRLCK); print(flush=True); sys.stdin.read()"
    )
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipe) as holder:
        holder.stdout.readline()
        taken = threading.Event()
        mine = work.SharedLine(2**50 + 3, torch.zeros(1, dtype=torch.float64))
        waiter = threading.Thread(target=lambda: (mine.use(0.0), taken.set()), daemon=True)
        waiter.start()
        assert not taken.wait(0.3)
        holder.send_signal(signal.SIGKILL)
        assert taken.wait(20)
        waiter.join()


def test_leaks_stay_in_the_process_that_loads():
    loader = lab.loader(batch_size=4, length=8, leak_bytes=1000)()
    list(loader)
    assert sum(map(len, loader.dataset.work._here.kept)) == 8000
    assert pickle.loads(pickle.dumps(loader.dataset)).work._here is None


def test_only_cold_files_wait(tmp_path, slept, monkeypatch):
    lab.cold_files(tmp_path, 3)
    asked = []
    monkeypatch.setattr(loaders, "is_warm", lambda path: asked.append(path) or asked.count(path) > 1)
    list(lab.loader(batch_size=2, length=8, cold_directory=str(tmp_path), cold_seconds=9.0)())
    assert slept == [9.0, 9.0, 9.0] and len(asked) == 8 and len(set(asked)) == 3


def test_files_are_warm_once_read_and_cold_once_chilled(tmp_path):
    path = lab.cold_files(tmp_path, 1) / "000000.bin"
    in_memory = subprocess.check_output(["stat", "-f", "-c", "%T", str(path)], text=True).strip() == "tmpfs"
    assert lab.is_warm(path) is in_memory
    assert len(path.read_bytes()) == work.COLD_FILE_BYTES and lab.is_warm(path) is True
    lab.chill(tmp_path)
    assert lab.is_warm(path) is in_memory
    assert lab.is_warm(path) is in_memory  # asking does not warm
    assert lab.is_warm(tmp_path / "nothing") is None


def test_imbalance_deals_shards_of_the_right_size():
    stream = loaders.Stream(range(100), lab.LoaderFaults(shards=4, largest_shard=0.7))
    assert stream.sizes == [70, 10, 10, 10] and list(stream) == list(range(100))
    dealt = [list(stream._indices(mine, 3)) for mine in range(3)]
    assert [len(part) for part in dealt] == [80, 10, 10] and sorted([*dealt[0], *dealt[1], *dealt[2]]) == list(
        range(100)
    )


def test_a_device_works_ahead_until_its_queue_is_full(slept):
    step = lab.step(device_seconds=1.0)
    for _ in range(7):
        step()
    assert slept == [1.0, 1.0, 1.0]  # four go ahead, each later one waits for one to finish
    step.synchronize()
    assert sum(slept) == 7.0


def test_a_synchronising_step_waits_each_time(slept):
    step = lab.step(device_seconds=1.0, synchronise=True)
    for _ in range(3):
        step(None)
    assert slept == [1.0, 1.0, 1.0]
    assert step.without("synchronise").faults == lab.StepFaults(device_seconds=1.0)


def test_pinned_copies_run_beside_the_device_and_pageable_ones_after_it(slept):
    pinned = lab.step(device_seconds=1.0, copy_seconds=1.0)
    for _ in range(3):
        pinned("batch")
    assert slept == []  # the device's queue is not full yet
    pinned.synchronize()
    assert sum(slept) == 4.0  # the first copy, then three batches, each beside the next copy
    slept.clear()
    pageable = lab.step(device_seconds=1.0, copy_seconds=0.5, pageable=True)
    for _ in range(3):
        pageable("batch")
    pageable.synchronize()
    assert slept == [0.5, 1.5, 1.5, 1.0]
    assert pageable.without("pageable").faults == lab.StepFaults(device_seconds=1.0, copy_seconds=0.5)


def test_a_batch_on_the_device_is_not_copied_again(slept):
    step = lab.step(device_seconds=1.0, copy_seconds=0.5, pageable=True)
    there = step.to_device("batch")
    assert slept == [0.5] and there.batch == "batch"
    step(there)
    assert slept == [0.5]
    assert lab.step(device_seconds=1.0).to_device is None


def test_pageable_batches_come_from_any_loader_that_pins():
    bare = DataLoader(Squares(), batch_size=2, pin_memory=True)
    assert lab.put_on(bare, lab.LoaderFaults()).pin_memory is True
    assert lab.put_on(bare, lab.LoaderFaults(pageable=True)).pin_memory is False
    assert lab.loader(pageable=True)(pin_memory=True).pin_memory is False


def test_a_step_travels_without_its_device(slept):
    step = lab.step(device_seconds=1.0)
    step()
    copy = pickle.loads(pickle.dumps(step))
    assert isinstance(copy, steps.LabStep) and copy.faults == step.faults and copy._free_at == 0.0


# -- neighbour --


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_a_neighbour_burns_and_ends():
    with pytest.raises(ZeroDivisionError), lab.noisy_neighbour(2) as pids:
        assert len(set(pids)) == 2
        assert all(eventually(lambda pid=pid: cpu_ticks(pid) > 10) for pid in pids)
        _ = 1 / 0
    assert not any(alive(pid) for pid in pids)
    with pytest.raises(SettingsError, match="cores"), lab.noisy_neighbour(0):
        pass


def test_a_neighbour_ends_with_a_killed_process():
    code = (
        "import sys; from workbench.lab.neighbour import noisy_neighbour\n"
        "with noisy_neighbour(1) as pids: print(pids[0], flush=True); sys.stdin.read()"
    )
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipe) as host:
        burner = int(host.stdout.readline())
        assert alive(burner)
        os.kill(host.pid, signal.SIGKILL)
    assert eventually(lambda: not alive(burner))


def test_a_neighbour_ends_in_time():
    with lab.noisy_neighbour(1, longest_seconds=0.1) as pids:
        assert eventually(lambda: not alive(pids[0]))


def test_the_table_names_every_switch():
    switches = [*inspect.signature(lab.LoaderFaults).parameters, *inspect.signature(lab.StepFaults).parameters]
    assert [name for name in switches if name not in lab.__doc__] == []
    assert collections.Counter(lab.__all__) == collections.Counter(set(lab.__all__))
