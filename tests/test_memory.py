"""Memory of a process tree: parsers on text with known answers, and a real tree with known holdings."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from workbench.measure import memory
from workbench.measure.growth import Held, growth
from workbench.measure.output import Output
from workbench.measure.plan import floor_bytes

ROLLUP = """55d0-7ffd ---p 00000000 00:00 0    [rollup]
Rss:               2000 kB
Pss:               1500 kB
Pss_Anon:           900 kB
Pss_File:           400 kB
Pss_Shmem:          200 kB
Private_Dirty:      700 kB
"""
STAT = "cpu  100 20 30 9999 50 4 6 40 11 12\ncpu0 1 1 1 1\n"


def test_a_rollup_is_read_in_bytes():
    assert memory.parse_rollup(ROLLUP) == {
        "Rss": 2_048_000, "Pss": 1_536_000, "Pss_Anon": 921_600, "Pss_File": 409_600, "Pss_Shmem": 204_800,
        "Private_Dirty": 716_800,
    }  # fmt: skip
    assert memory.parse_rollup("") == {}


def test_busy_time_counts_steal_and_leaves_out_idle_iowait_and_guests():
    assert memory.busy_seconds(STAT) == (100 + 20 + 30 + 4 + 6 + 40) / memory.TICKS_PER_SECOND


HOLDER = """
import mmap, os, sys, time
fd = os.open("/dev/shm/workbench-test-" + str(os.getpid()), os.O_CREAT | os.O_RDWR)
os.unlink("/dev/shm/workbench-test-" + str(os.getpid()))
block = b"x" * (1 << 20)
for _ in range(32):
    os.write(fd, block)
heap = bytearray(os.urandom(1 << 20) * 64)
if os.fork() == 0:
    heap[0] = 1
    print("ready", flush=True)
    time.sleep(60)
time.sleep(60)
"""


@pytest.fixture
def holder():
    """A process and its forked child that share 64 MiB of heap and hold 32 MiB of unmapped shared memory open."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield process.pid
    for pid in memory.tree(process.pid)[::-1]:
        os.kill(pid, 9)
    process.wait()
    process.stdout.close()


def test_a_tree_counts_shared_pages_once_and_unmapped_shared_memory_once(holder):
    pids = memory.tree(holder)
    assert len(pids) == 2
    cost = memory.exact_cost(pids)
    assert cost.shm_bytes == 32 << 20
    assert cost.shared_bytes == 32 << 20
    assert (96 << 20) < cost.cost_bytes < (130 << 20)
    assert cost.rss_bytes > (128 << 20)
    assert cost.descriptors >= 4


def test_pages_shared_with_the_server_count_once_and_its_private_ones_do_not(holder):
    parent, child = memory.tree(holder)
    alone = memory.exact_cost([child], server=parent)
    assert (64 << 20) + (32 << 20) < alone.cost_bytes < (130 << 20)


def smaps(*mappings: tuple[str, str, int, int, int]) -> str:
    """Text of /proc/PID/smaps: (name, inode, Rss, Pss and Anonymous in kB) each, all on one device, at offset 0."""
    parts = [
        f"7f01-7f02 r--p 00000000 fe:00 {inode} {name}\nSize: 9 kB\nRss: {rss} kB\nPss: {pss} kB\n"
        f"Pss_Dirty: 0 kB\nAnonymous: {anonymous} kB\nVmFlags: rd mr\n"
        for name, inode, rss, pss, anonymous in mappings
    ]
    return "".join(parts)


def test_a_library_that_programs_outside_the_tree_map_as_well_counts_whole_and_once():
    library = ("/lib/libtorch.so", "7", 100, 25, 0)  # two processes of the tree, two outside it
    assert memory.file_bytes([smaps(library), smaps(library)]) == 100 << 10


def test_other_pages_of_a_file_in_each_process_add_up():
    data = ("/data/images.npy", "8", 60, 55, 0)  # 10 of 60 pages are the other's as well
    assert memory.file_bytes([smaps(data), smaps(data)]) == 110 << 10


def test_heaps_shared_memory_and_written_pages_are_no_pages_of_files():
    library = ("/lib/libc.so", "9", 50, 50, 20)
    others = [
        ("[heap]", "0", 70, 70, 70),
        ("/memfd:queue (deleted)", "5", 30, 30, 0),
        ("/dev/zero (deleted)", "6", 8, 8, 0),
    ]
    assert memory.file_bytes([smaps(library, *others)]) == 30 << 10
    assert memory.file_bytes(["", smaps()]) == 0


MAPPER = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(mapped[i] for i in range(0, len(mapped), 4096))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_file_costs_the_same_whoever_else_maps_it(tmp_path):
    path = tmp_path / "library.bin"
    path.write_bytes(os.urandom(32 << 20))
    started = []
    try:
        for _ in range(3):
            started.append(subprocess.Popen([sys.executable, "-c", MAPPER, path], stdout=subprocess.PIPE, text=True))
            assert started[-1].stdout.readline() == "ready\n"
        first, second, outside = (process.pid for process in started)
        alone = memory.exact_cost([first], server=outside)
        both = memory.exact_cost([first, second])
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert (32 << 20) < alone.file_bytes < (48 << 20)
    assert both.file_bytes == pytest.approx(alone.file_bytes, abs=1 << 20)
    assert alone.cost_bytes <= alone.rss_bytes


def test_shared_memory_with_a_name_is_no_file():
    path = f"/dev/shm/workbench-test-{os.getpid()}"
    with open(path, "wb") as file:
        file.write(os.urandom(16 << 20))
    try:
        with subprocess.Popen([sys.executable, "-c", MAPPER, path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            cost = memory.exact_cost([process.pid])
            process.kill()
    finally:
        os.unlink(path)
    assert cost.file_bytes < 14 << 20
    assert cost.shared_bytes >= 16 << 20


def test_reading_follows_processes_and_their_threads(holder):
    reading = memory.read(memory.tree(holder))
    assert reading.threads == 2
    assert reading.rss_bytes > (128 << 20)
    assert {pid for pid, _ in reading.cpu_seconds} == set(memory.tree(holder))


def test_a_process_that_is_gone_reads_as_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory.exact_cost([process.pid]).cost_bytes == 0
    assert memory.read([process.pid]).rss_bytes == 0


ENDS = """
import os, sys, time
def spend():
    while time.process_time() < 0.3:
        pass
    os._exit(0)
for line in sys.stdin:
    if os.fork() == 0:
        spend()
    os.wait()
    print("waited", flush=True)
"""


def test_what_a_process_used_that_came_and_went_between_two_readings_is_counted():
    with subprocess.Popen([sys.executable, "-c", ENDS], stdin=-1, stdout=-1, text=True, bufsize=1) as parent:
        before = memory.read([parent.pid])
        parent.stdin.write("go\n")
        assert parent.stdout.readline() == "waited\n"
        after = memory.read([parent.pid])
        parent.stdin.close()
    assert memory.ended_seconds(before, after) == pytest.approx(0.3, abs=0.05)


def test_what_was_seen_of_a_process_before_it_ended_is_not_counted_twice():
    def reading(cpu: dict[tuple[int, int], float], reaped: dict[int, float]) -> memory.Reading:
        return memory.Reading(0.0, 0, len(cpu), cpu, reaped, 0.0, tuple({pid for pid, _ in cpu}))

    before = reading({(1, 1): 5.0, (2, 2): 0.75, (2, 3): 0.25}, {1: 4.0, 2: 0.5})
    after = reading({(1, 1): 5.5, (4, 4): 0.25}, {1: 4.0 + 1.0 + 0.5 + 0.25, 4: 0.0})
    assert memory.ended_seconds(before, after) == pytest.approx(0.25)
    assert memory.ended_seconds(after, after) == 0.0


SPIKE = """
import time
input()
block = bytearray(80 << 20)
for i in range(0, len(block), 4096):
    block[i] = 1
del block
print("spiked", flush=True)
time.sleep(60)
"""


def test_a_peak_between_two_readings_shows_in_the_high_water_mark():
    process = subprocess.Popen([sys.executable, "-c", SPIKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(0.3)
    memory.reset_high_water([process.pid])
    assert memory.high_water_bytes([process.pid]) < 8 << 20
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    assert 72 << 20 < memory.high_water_bytes([process.pid]) < 90 << 20
    assert memory.high_water_bytes([process.pid], mapped_bytes=96 << 20) == 0
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


MIB = 1 << 20


def held(samples: int, private_mib: float, resident_mib: float = 500, main_mib: float = 60) -> Held:
    """A reading of a tree of two processes, one worker, batches of 10."""
    return Held(samples, samples / 10, int(private_mib * MIB), int(main_mib * MIB), int(resident_mib * MIB), 2)


def test_growth_needs_two_readings_with_samples_between_them():
    assert growth([]) is None
    assert growth([held(10, 100)]) is None
    assert growth([held(10, 100), held(10, 200)]) is None


def test_growth_after_the_warm_up_is_growth():
    found = growth([held(10, 100), held(200, 180), held(5200, 280)])
    assert (found.established, found.kind, found.in_workers, found.samples) == (True, "anonymous", True, 5000)
    assert found.bytes_per_1000_samples == pytest.approx(20 * MIB)


def test_growth_in_the_main_process_is_told_apart():
    assert growth([held(10, 100), held(200, 100), held(5200, 200, main_mib=160)]).in_workers is False


def test_what_fills_during_the_warm_up_is_start_up():
    assert not growth([held(10, 100, 300), held(200, 180, 380), held(5200, 182, 382)]).established


def test_private_pages_without_a_larger_resident_set_are_copies_on_write():
    found = growth([held(10, 100), held(3000, 140), held(9000, 141)])
    assert (found.established, found.kind, found.samples) == (True, "copy-on-write", 8990)


def test_workers_that_started_anew_are_compared_by_their_own_samples():
    found = growth([held(10, 100), held(3000, 140), held(50, 104)])
    assert (found.established, found.samples) == (True, 2990)


def test_too_few_rounds_or_too_few_bytes_establish_nothing():
    assert not growth([held(10, 100), held(20, 100), held(60, 300)]).established
    assert not growth([held(10, 100), held(200, 100), held(9000, 109)]).established


def test_heaps_that_come_and_go_by_some_batches_are_no_growth():
    swings = [held(10, 293), held(200, 302), held(1448, 451, resident_mib=700)]

    assert growth(swings).established  # where a batch is small, 149 MiB more are
    assert not growth(swings, batch_bytes=40 * MIB).established
    assert growth([*swings[:2], held(1448, 802, resident_mib=1000)], batch_bytes=40 * MIB).established


def test_a_loader_that_keeps_every_batch_grows_by_more_than_heaps_do_over_the_least_rounds():
    kept = [held(samples, 100 + samples // 10 * 40, 500 + samples // 10 * 40) for samples in (10, 20, 120)]

    assert growth(kept, batch_bytes=40 * MIB).established


@pytest.mark.parametrize(
    ("limit_file", "used_file"),
    [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_what_a_container_leaves_is_what_is_available(limit_file, used_file, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 88888888 kB\n")
    (tmp_path / limit_file).write_text(f"{4096 * MIB}\n")
    (tmp_path / used_file).write_text(f"{3000 * MIB}\n")
    assert memory.available_bytes(tmp_path) == 1096 * MIB
    (tmp_path / limit_file).write_text(f"{1 << 62}\n")
    assert memory.available_bytes(tmp_path) == 88_888_888 * 1024


def test_a_small_container_keeps_less_free_than_a_large_machine():
    gib = 1 << 30
    assert [floor_bytes(total) for total in (0, gib, 8 * gib, 16 * gib, 64 * gib)] == [
        gib, gib // 8, gib, gib, int(64 * gib * 0.05),
    ]  # fmt: skip


def test_output_keeps_its_beginning_and_its_end():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    output = Output()
    os.write(write_fd, b"first line\n")
    for _ in range(200):
        os.write(write_fd, b"y" * 1023 + b"\n")
        output.drain(read_fd)
    os.write(write_fd, b"Too many open files\n")
    output.drain(read_fd)
    assert output.text().startswith("first line") and output.text().endswith("Too many open files\n")
    assert "bytes not kept" in output.text()
    assert output.total == 11 + 200 * 1024 + 20
    assert output.has_clue()
    os.close(read_fd)
    os.close(write_fd)
