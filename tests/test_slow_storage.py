"""Storage at a distance: reads wait as long as was asked, and what comes is what is there."""

from __future__ import annotations

import pickle
import threading

import pytest

from workbench import lab
from workbench.errors import SettingsError
from workbench.lab import storage
from workbench.layouts import KEY, convert, open_remote


class Clock:
    """Time that passes only by sleeping; each thread has its own, as threads that sleep do so at once."""

    def __init__(self):
        self.own = threading.local()

    def monotonic(self):
        return getattr(self.own, "now", 0.0)

    def sleep(self, seconds):
        self.own.now = self.monotonic() + seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(storage, "time", made)
    return made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ten.bin").write_bytes(bytes(range(10)))
    return tmp_path


def test_each_read_waits_for_its_round_trip_and_its_bytes(folder, clock):
    far = lab.slow_storage(folder, round_trip_seconds=0.5, bytes_per_second=5)
    assert far.read("ten.bin", 0, None) == bytes(range(10)) and clock.monotonic() == pytest.approx(0.5 + 2.0)
    assert far.read("ten.bin", 3, 8) == bytes([3, 4, 5, 6, 7]) and clock.monotonic() == pytest.approx(2.5 + 0.5 + 1.0)
    assert far.requests == 2


def test_requests_at_once_share_the_line_and_not_the_wait(folder, clock):
    far = lab.slow_storage(folder, round_trip_seconds=0.5, bytes_per_second=5)
    ended = []
    readers = [
        threading.Thread(target=lambda: (far.read("ten.bin", 0, None), ended.append(clock.monotonic())))
        for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(ended) == pytest.approx([2.5, 4.5, 6.5])


def test_without_a_line_only_the_round_trip_counts(folder, clock):
    far = pickle.loads(pickle.dumps(lab.slow_storage(folder, round_trip_seconds=0.25)))
    far.read("ten.bin", 0, None)
    assert clock.monotonic() == pytest.approx(0.25) and far.requests == 1


def test_it_stands_before_another_store_and_tells_what_is_missing(folder, clock):
    far = lab.slow_storage(lab.slow_storage(folder, round_trip_seconds=0.25), round_trip_seconds=1.0)
    assert far.read("ten.bin", 9, None) == bytes([9])
    assert clock.monotonic() == pytest.approx(1.0), "the nearer one answered while the farther one was waited for"
    with pytest.raises(FileNotFoundError):
        far.read("eleven.bin", 0, None)


def test_a_data_set_is_read_through_it(tmp_path):
    made = [{KEY: f"s{n}", "jpg": bytes([n]) * 2000} for n in range(6)]
    convert(made, tmp_path / "data", "tar", shards=2, processes=1)
    far = lab.slow_storage(tmp_path / "data", round_trip_seconds=0.0)
    reader = open_remote("far://data", store=far, cache_directory=tmp_path / "cache")
    assert [sample["jpg"] for sample in (reader[n] for n in range(6))] == [one["jpg"] for one in made]
    assert far.requests >= 3, "the manifest and two shards"


@pytest.mark.parametrize(
    ("behind", "numbers", "words"),
    [
        ("nowhere", {}, "no folder"),
        (".", {"round_trip_seconds": -1}, "round_trip_seconds=-1"),
        (".", {"bytes_per_second": 0}, "bytes_per_second=0"),
    ],
)
def test_nonsense_is_refused(behind, numbers, words):
    with pytest.raises(SettingsError, match=words):
        lab.slow_storage(behind, **numbers)
