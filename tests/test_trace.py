"""A trace is read for what it says and no more: traces made by hand with known shares, damaged ones, and a real one."""

import gzip
import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from workbench.errors import TraceError
from workbench.measure.intervals import Spans
from workbench.measure.trace import NO_LOADER_SPANS, read_trace
from workbench.measure.trace_recording import profile
from workbench.measure.trace_timeline import MAX_BARS, timeline

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MAIN = (100, 100)
DAY = 8.64e10  # microseconds: traces do not begin at 0


def event(name, start_ms, length_ms, thread=MAIN, cat="user_annotation", **args):
    """A complete event; times in milliseconds from the start of the trace."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": thread[0], "tid": thread[1],
        "ts": DAY + start_ms * 1e3, "dur": length_ms * 1e3, "args": args,
    }  # fmt: skip


def kernel(start_ms, length_ms, name="gemm", stream=7, device=0):
    return event(name, start_ms, length_ms, (device, stream), "kernel", device=device, stream=stream)


def upload(start_ms, length_ms, kind="Pageable", bytes=1000, stream=7):
    name = f"Memcpy HtoD ({kind} -> Device)"
    return event(name, start_ms, length_ms, (0, stream), "gpu_memcpy", device=0, stream=stream, bytes=bytes)


def step(k, start_ms, length_ms):
    return event(f"ProfilerStep#{k}", start_ms, length_ms)


def steps(n=100, wait_ms=30.0, length_ms=40.0, first=0, at_ms=0.0, numbered=True):
    """n steps that wait for the loader first and use an operator for the rest."""
    found = []
    for k in range(n):
        start = at_ms + k * length_ms
        found += [step(first + k, start, length_ms)] if numbered else []
        found += [event(LOADER, start, wait_ms)] if wait_ms else []
        found += [event("aten::mm", start + wait_ms, length_ms - wait_ms, cat="cpu_op")]
    return found


def write(path, events, header=None):
    path.write_text(json.dumps({"schemaVersion": 1, **(header or {}), "traceEvents": events}))
    return path


def read(tmp_path, events, **header):
    return read_trace(write(tmp_path / "trace.json", events, header))


@pytest.mark.parametrize("numbered", [True, False])
def test_waiting_30_of_40_ms_is_input_bound_at_75_percent(tmp_path, numbered):
    report = read(tmp_path, steps(numbered=numbered))
    assert report.input_wait_fraction == pytest.approx(0.75, rel=1e-6)
    assert report.step_seconds == pytest.approx(0.040, rel=1e-6)
    assert report.steps == (100 if numbered else 99)
    assert report.bound == "input"
    assert any("perfect loading would give at most 4.00x" in sentence for sentence in report.evidence)
    assert report.device_idle_fraction is None
    assert report.idle_in_loader_fraction is None
    assert isinstance(json.dumps(report.step_seconds), str)


def test_no_loader_spans_is_an_answer_and_zero_is_not(tmp_path):
    report = read(tmp_path, steps(wait_ms=0.0))
    assert report.input_wait_fraction is None
    assert NO_LOADER_SPANS in report.evidence
    assert report.bound == "unknown"
    assert read(tmp_path, steps(wait_ms=1.0)).bound == "compute"


@pytest.mark.parametrize(("wait_ms", "bound"), [(2.0, "compute"), (6.0, "balanced"), (12.0, "input")])
def test_the_verdict_follows_the_wait(tmp_path, wait_ms, bound):
    assert read(tmp_path, steps(wait_ms=wait_ms)).bound == bound


def test_two_ranges_and_the_gap_between_them(tmp_path):
    ranges = steps(20) + steps(20, first=35, at_ms=20 * 40 + 5000)
    report = read(tmp_path, ranges)
    assert (report.steps, report.bound) == (40, "input")
    assert report.input_wait_fraction == pytest.approx(0.75, rel=1e-6)
    assert report.step_seconds == pytest.approx(0.040)


def test_a_loader_called_between_two_step_ranges_belongs_to_the_step(tmp_path):
    events = []
    for k in range(50):
        events += [event(LOADER, 40 * k, 30), step(k, 40 * k + 30, 10)]
    report = read(tmp_path, events)
    assert report.input_wait_fraction == pytest.approx(0.75, rel=0.02)
    assert report.step_seconds == pytest.approx(0.040, rel=0.02)


def test_overlapping_and_nested_spans_count_once(tmp_path):
    extra = []
    for k in range(100):
        extra += [event(LOADER, 40 * k, 20), event(LOADER, 40 * k + 5, 5), event(LOADER, 40 * k + 10, 20)]
        extra += [event("torch/utils/data/dataloader.py(700): __next__", 40 * k, 39, cat="python_function")]
    assert read(tmp_path, steps() + extra).input_wait_fraction == pytest.approx(0.75, rel=1e-6)


def test_python_frames_stand_in_where_the_annotation_is_missing(tmp_path):
    frames = [
        event("torch/utils/data/dataloader.py(700): __next__", 40 * k, 10, cat="python_function") for k in range(100)
    ]
    assert read(tmp_path, steps(wait_ms=0.0) + frames).input_wait_fraction == pytest.approx(0.25, rel=1e-6)


def test_a_loader_on_another_thread_is_not_the_steps_wait(tmp_path):
    events = [step(k, 40 * k, 40) for k in range(10)] + [event(LOADER, 40 * k, 39, (100, 101)) for k in range(10)]
    report = read(tmp_path, events)
    assert report.input_wait_fraction is None
    assert any("another thread" in sentence for sentence in report.evidence)


def test_the_first_wait_of_starting_workers_is_set_apart(tmp_path):
    events = [step(0, 0, 2010), event(LOADER, 0, 2000), *steps(20, wait_ms=2.0, first=1, at_ms=2010)]
    report = read(tmp_path, events)
    assert report.first_wait_seconds == pytest.approx(2.0)
    assert report.input_wait_fraction == pytest.approx(0.05, rel=1e-6)
    assert (report.steps, report.bound) == (20, "compute")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_steps_give_no_verdict(tmp_path, count):
    report = read(tmp_path, steps(count))
    assert report.bound == "unknown"
    assert report.step_seconds is None or report.steps < 3


# --- devices ---------------------------------------------------------------------------------------------------------


def device_steps(work, n=20, wait_ms=0.5, length_ms=10.0):
    """n steps of 10 ms whose device work is `work(start)`, a list of events."""
    found = []
    for k in range(n):
        start = k * length_ms
        found += [step(k, start, length_ms), event(LOADER, start, wait_ms), *work(start)]
    return found


def test_an_input_bound_run_on_a_device(tmp_path):
    report = read(tmp_path, device_steps(lambda t: [kernel(t + 6, 2), kernel(t + 8, 2, stream=9)], wait_ms=6.0))
    assert report.bound == "input"
    assert report.device_idle_fraction == pytest.approx(0.6)
    assert report.idle_in_loader_fraction == pytest.approx(0.6)
    assert report.compute_fraction == pytest.approx(0.4)
    assert report.gaps_per_step == pytest.approx(1.0)
    assert report.longest_gap_seconds == pytest.approx(0.006)


def test_a_wait_that_the_device_sleeps_through_working_is_compute(tmp_path):
    report = read(tmp_path, device_steps(lambda t: [kernel(t, 10)], wait_ms=8.0))
    assert report.input_wait_fraction == pytest.approx(0.8)
    assert (report.bound, report.device_idle_fraction, report.idle_in_loader_fraction) == ("compute", 0.0, 0.0)


def test_streams_are_united_and_devices_kept_apart(tmp_path):
    def work(t):
        return [kernel(t, 6), kernel(t + 3, 6, stream=8), kernel(t + 4, 1, stream=9), kernel(t, 1, device=1)]

    assert read(tmp_path, device_steps(work)).device_idle_fraction == pytest.approx(0.1)


@pytest.mark.parametrize(("kind", "pageable"), [("Pageable", 1.0), ("Pinned", 0.0), ("Host", None)])
def test_copies_that_nothing_overlaps_are_transfer(tmp_path, kind, pageable):
    report = read(tmp_path, device_steps(lambda t: [upload(t + 1, 5, kind), kernel(t + 6, 4)]))
    assert report.bound == "transfer"
    assert report.copy_fraction == pytest.approx(0.5)
    assert report.exposed_copy_fraction == pytest.approx(0.5)
    assert report.pageable_fraction == pageable


def test_copies_under_kernels_cost_nothing(tmp_path):
    report = read(tmp_path, device_steps(lambda t: [upload(t + 1, 5, "Pinned", stream=20), kernel(t, 10)]))
    assert (report.bound, report.copy_fraction) == ("compute", pytest.approx(0.5))
    assert report.exposed_copy_fraction == pytest.approx(0.0, abs=1e-9)


def test_the_copy_of_old_and_of_rocm_traces_is_known_by_its_other_names(tmp_path):
    def work(t):
        old = upload(t + 1, 4)
        copy = event("CopyHostToDevice", t + 5, 2, (0, "stream 7"), "Memcpy", stream=7)
        return [{**old, "cat": "Memcpy", "ts": str(old["ts"])}, copy, {**kernel(t + 7, 3), "cat": "Kernel"}]

    report = read(tmp_path, device_steps(work))
    assert report.copy_fraction == pytest.approx(0.6)
    assert report.compute_fraction == pytest.approx(0.3)


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "hipStreamSynchronize", "cudaDeviceSynchronize"])
def test_synchronising_calls_that_let_the_device_run_dry(tmp_path, name):
    def work(t):
        found = []
        for part in range(4):
            at = t + 0.5 + part * 2.3
            found += [kernel(at, 1.2), event(name, at + 0.1, 1.15, cat="cuda_runtime")]
        return found

    report = read(tmp_path, device_steps(work))
    assert report.bound == "sync"
    assert report.syncs_per_step == pytest.approx(4)
    assert report.idle_after_sync_fraction == pytest.approx(0.47)
    without = device_steps(lambda t: [e for e in work(t) if e["cat"] == "kernel"])
    assert read(tmp_path, without).bound == "compute"


def test_one_call_at_the_end_of_a_busy_step_is_no_fault(tmp_path):
    def work(t):
        return [kernel(t, 9.9), event("cudaStreamSynchronize", t + 1, 8.95, cat="cuda_runtime")]

    report = read(tmp_path, device_steps(work, wait_ms=0.01))
    assert (report.bound, report.syncs_per_step) == ("compute", 1.0)
    assert report.sync_wait_fraction == pytest.approx(0.895)


def test_the_call_inside_a_pageable_copy_is_transfer_and_not_sync(tmp_path):
    def work(t):
        call = event("cudaStreamSynchronize", t + 1, 5.02, cat="cuda_runtime")
        return [upload(t + 1, 5), call, kernel(t + 6.5, 3.5)]

    report = read(tmp_path, device_steps(work))
    assert (report.bound, report.sync_wait_fraction) == ("transfer", 0.0)


def test_a_blocking_copy_to_the_host_is_transfer_and_a_scalar_read_is_sync(tmp_path):
    def large(t):
        copy = event("Memcpy DtoH (Device -> Pageable)", t + 3, 4, (0, 7), "gpu_memcpy", device=0)
        return [kernel(t + 0.5, 2.5), copy, event("cudaMemcpyAsync", t + 3, 4.01, cat="cuda_runtime"), kernel(t + 8, 1)]

    def scalar(t):
        tiny = [event("Memcpy DtoH (Device -> Pinned)", t + k + 0.7, 0.002, (0, 7), "gpu_memcpy") for k in range(9)]
        calls = [event("cudaStreamSynchronize", t + k + 0.69, 0.02, cat="cuda_runtime") for k in range(9)]
        return tiny + calls + [kernel(t + k + 0.2, 0.5) for k in range(9)]

    assert read(tmp_path, device_steps(large)).bound == "transfer"
    report = read(tmp_path, device_steps(scalar))
    assert (report.bound, report.syncs_per_step) == ("sync", 9)


def test_collectives_are_busy_but_not_compute(tmp_path):
    report = read(tmp_path, device_steps(lambda t: [kernel(t, 4), kernel(t + 4, 6, "ncclDevKernel_AllReduce")]))
    assert (report.device_idle_fraction, report.compute_fraction) == (0.0, pytest.approx(0.4))
    assert report.collective_fraction == pytest.approx(0.6)


def test_annotations_on_the_device_are_no_work(tmp_path):
    ghost = [event("ProfilerStep#3", 0, 400, (0, 7), "gpu_user_annotation")]
    report = read(tmp_path, device_steps(lambda t: [kernel(t, 5)]) + ghost)
    assert (report.device_idle_fraction, report.steps) == (pytest.approx(0.5), 20)


def test_device_work_without_steps_or_loader_still_tells_idleness(tmp_path):
    report = read(tmp_path, [kernel(k * 10, 4) for k in range(11)])
    assert report.device_idle_fraction == pytest.approx(60 / 104)
    assert (report.steps, report.input_wait_fraction, report.sync_wait_fraction, report.bound) == (
        None, None, None, "unknown",
    )  # fmt: skip


def test_a_timeline_shows_some_steps_as_bars(tmp_path):
    def work(t):
        call = event("cudaStreamSynchronize", t + 8, 1, cat="cuda_runtime")
        return [upload(t + 1, 1), kernel(t + 2, 3), kernel(t + 4, 3, stream=9), call]

    path = write(tmp_path / "t.json", device_steps(work))
    shown = timeline(path, first=5, steps=2)
    assert (shown.first_step, shown.step_starts) == (5, pytest.approx((0.0, 0.010)))
    assert shown.seconds == pytest.approx(0.020)
    bars = {lane.name: list(zip(lane.starts, lane.lengths, strict=True)) for lane in shown.lanes}
    assert bars.keys() == {"loader", "synchronising", "copies", "kernels", "device idle"}
    assert bars["kernels"] == [pytest.approx((0.002, 0.005)), pytest.approx((0.012, 0.005))]
    assert bars["device idle"][1] == pytest.approx((0.007, 0.004))
    with pytest.raises(TraceError, match="holds 20 recorded steps"):
        timeline(path, first=20)


def test_a_timeline_stays_small(tmp_path):
    path = write(tmp_path / "t.json", device_steps(lambda t: [kernel(t + i / 1000, 5e-4) for i in range(8000)], n=1))
    (kernels,) = [lane for lane in timeline(path).lanes if lane.name == "kernels"]
    assert len(kernels.starts) <= MAX_BARS
    assert sum(kernels.lengths) == pytest.approx(0.008, rel=0.01)


# --- damage ----------------------------------------------------------------------------------------------------------


def indented(events):
    """Text as Kineto lays it out."""
    return json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}, indent=1, ensure_ascii=False)


def test_control_characters_and_bytes_that_are_no_utf8(tmp_path):
    text = indented(steps()).replace("aten::mm", "aten::\x01mm\n\t")
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode().replace(b"aten", b"at\xff\xfeen", 50))
    report = read_trace(path)
    assert report.input_wait_fraction == pytest.approx(0.75, rel=1e-6)
    assert (report.skipped_events, report.truncated, report.events) == (0, False, 300)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.333])
@pytest.mark.parametrize("by_kind", [False, True])
def test_a_cut_file_gives_what_it_has(tmp_path, share, by_kind):
    events = sorted(steps(), key=lambda e: e["name"][:1], reverse=True) if by_kind else steps()
    text = indented(events)
    path = tmp_path / "trace.json"
    path.write_text(text[: int(len(text) * share)])
    report = read_trace(path)
    assert report.truncated
    assert 0 < report.events < 300
    assert any("ends early" in sentence for sentence in report.evidence)
    assert report.input_wait_fraction == pytest.approx(0.75, rel=0.02)
    assert report.bound == "input"


def test_a_zipped_file_whatever_its_name_and_a_cut_one(tmp_path):
    packed = gzip.compress(indented(steps()).encode())
    (tmp_path / "trace.json.gz").write_bytes(packed)
    (tmp_path / "other.json").write_bytes(packed)
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) * 9 // 10])
    for name in ("trace.json.gz", "other.json", "cut.json.gz"):
        report = read_trace(tmp_path / name)
        assert report.input_wait_fraction == pytest.approx(0.75, rel=0.02)
        assert report.truncated == name.startswith("cut")


def test_broken_events_are_mended_or_counted(tmp_path):
    events = steps()
    text = indented(events)
    text = text.replace('"args": {}', '"args": {"bandwidth (GB/s)": -inf, "load": nan, "file": "C:\\new\\_x"}', 30)
    at = text.index("aten::mm", len(text) // 2)
    text = text[:at] + 'says "hello", {' + text[at:]
    path = tmp_path / "trace.json"
    path.write_text(text)
    report = read_trace(path)
    assert (report.events, report.skipped_events, report.truncated) == (299, 1, False)
    assert report.input_wait_fraction == pytest.approx(0.75, rel=0.02)
    assert "1 damaged events were skipped" in report.evidence


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_stops_the_reader(tmp_path, seed):
    rng = random.Random(seed)
    data = bytearray(indented(steps()).encode())
    for _ in range(15):
        data[rng.randrange(200, len(data))] = rng.randrange(256)
    path = tmp_path / "trace.json"
    path.write_bytes(bytes(data))
    report = read_trace(path)
    assert 270 < report.events <= 300
    assert report.input_wait_fraction == pytest.approx(0.75, rel=0.05)


def test_nonsense_events_are_passed_over(tmp_path):
    odd = [
        None, 3, [1], "text", {}, {"ph": "X"}, {"ph": "X", "name": 5, "ts": "x", "dur": 1}, {"ph": "M", "name": "n"},
        event(LOADER, 0, -5), {**event("k", 0, 1, cat="kernel"), "args": None}, {**event("k", 0, 1), "cat": None},
    ]  # fmt: skip
    report = read(tmp_path, odd + steps())
    assert report.input_wait_fraction == pytest.approx(0.75, rel=1e-6)
    assert report.skipped_events == 3


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("\ufeff" + json.dumps(steps()))
    assert read_trace(path).input_wait_fraction == pytest.approx(0.75, rel=1e-6)


@pytest.mark.parametrize("text", ["", "{}", "hello", '{"a": [1, 2]}', "\x00" * 100])
def test_what_is_no_trace_is_refused_by_name(tmp_path, text):
    path = tmp_path / "notes.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"notes\.json is no profiler trace.*export_chrome_trace"):
        read_trace(path)
    with pytest.raises(TraceError, match="holds no profiler trace"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "absent.json")


def test_a_folder_holds_one_trace_a_rank(tmp_path):
    for rank, wait in enumerate((4.0, 20.0, 2.0)):
        write(tmp_path / f"w{rank}.pt.trace.json", steps(20, wait), {"distributedInfo": {"rank": rank}})
    (tmp_path / "notes.json").write_text("{}")
    report = read_trace(tmp_path)
    assert [r.rank for r in report.ranks] == [0, 1, 2]
    assert (report.bound, report.steps) == ("input", 20)
    assert report.input_wait_fraction == pytest.approx((4 + 20 + 2) / 120)
    assert any("5.0% to 50.0%" in sentence and "rank 1" in sentence for sentence in report.evidence)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "trace.json"
    one = [json.dumps(e) for e in device_steps(lambda t: [kernel(t + i / 10, 0.05) for i in range(98)], n=100)]
    with open(path, "w") as file:
        file.write('{"traceEvents": [')
        file.write(",".join(one * 20))
        file.write("]}")
    code = (
        "import resource, sys; from workbench.measure.trace import read_trace\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used(); report = read_trace(sys.argv[1]); print(report.events, used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    events, grown_kilobytes = map(int, done.stdout.split())
    assert events == 200_000
    assert path.stat().st_size > 25e6
    assert grown_kilobytes < 50_000  # 2 million events: below 500 MB


# --- a real one ------------------------------------------------------------------------------------------------------


class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return torch.ones(8)


@pytest.mark.parametrize(("item_ms", "step_ms", "workers"), [(4, 12, 0), (1, 20, 0), (6, 6, 2)])
def test_a_recorded_trace_says_what_a_clock_says(tmp_path, item_ms, step_ms, workers):
    waits, work = [], []

    class Timed:
        """Times each call of the loader from outside."""

        def __init__(self):
            self.loader = DataLoader(Slow(item_ms / 1e3), batch_size=4, num_workers=workers)

        def __iter__(self):
            iterator = iter(self.loader)
            while True:
                opened = time.perf_counter()
                batch = next(iterator)
                waits.append(time.perf_counter() - opened)
                yield batch

    def train(batch):
        opened = time.perf_counter()
        (batch @ torch.ones(8)).sum()
        time.sleep(step_ms / 1e3)
        work.append(time.perf_counter() - opened)

    report = read_trace(profile(Timed(), train, tmp_path / "trace.json.gz", steps=15, warmup=4))
    waited, worked = sum(waits[4:19]), sum(work[4:19])
    assert report.steps == 15
    assert report.input_wait_fraction == pytest.approx(waited / (waited + worked), rel=0.05)
    assert report.step_seconds >= step_ms / 1e3
    assert not list(tmp_path.glob(".*"))


def test_a_loader_shorter_than_the_recording_starts_again_and_an_empty_one_is_refused(tmp_path):
    data = torch.arange(8.0)
    path = profile(DataLoader(data, batch_size=2), lambda batch: batch.sum(), tmp_path / "t.json", steps=10, warmup=1)
    assert read_trace(path).steps == 10
    with pytest.raises(TraceError, match="yields no batch"):
        profile([], lambda batch: None, tmp_path / "none.json")
    with pytest.raises(TraceError, match="nowhere is no folder; make it"):
        profile([], lambda batch: None, tmp_path / "nowhere" / "none.json")
    assert not (tmp_path / "none.json").exists()


# --- intervals -------------------------------------------------------------------------------------------------------


def test_unions_overlaps_and_gaps_agree_with_counting_points():
    rng = np.random.default_rng(0)
    grid = np.arange(200)
    for _ in range(50):
        a = Spans.union(s := rng.integers(0, 180, 12), s + rng.integers(0, 15, 12))
        b = Spans.union(s := rng.integers(0, 180, 6), s + rng.integers(0, 25, 6))
        in_a, in_b = (np.any((grid[:, None] >= x.starts) & (grid[:, None] < x.ends), axis=1) for x in (a, b))
        assert a.length == in_a.sum()
        assert a.within(b).length == (in_a & in_b).sum()
        assert a.gaps(b).length == (in_b & ~in_a).sum()
        assert a.lengths_in(b.starts, b.ends).sum() == pytest.approx((in_a & in_b).sum())
