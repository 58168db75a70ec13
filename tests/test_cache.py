"""CachedDataset: decoded once, augmented every time, within its budget, shared by workers, whole after a kill."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from workbench.errors import CacheError, SettingsError
from workbench.streaming.cache import CachedDataset

SAMPLES = 24


class Counted(Dataset):
    """Samples of 1,000 floats that equal their index; every decode leaves a line in a file."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(self.log, "a") as log:
            log.write(f"{index}\n")
        return {"pixels": torch.full((1_000,), float(index)), "label": index}

    def decoded(self) -> list[int]:
        return sorted(map(int, self.log.read_text().split())) if self.log.exists() else []


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "log")


def cached(counted: Counted, **options: Any) -> CachedDataset:
    return CachedDataset(counted, counted.log.with_name("cache"), **{"budget_bytes": 10**7, **options})


def files_of(cache: CachedDataset) -> list[Path]:
    return sorted(cache.folder.rglob("*.sample"))


def test_a_sample_is_decoded_once_and_comes_back_equal(counted):
    cache = cached(counted)
    for _ in range(3):
        for index in range(SAMPLES):
            sample = cache[index]
            assert sample["label"] == index and torch.equal(sample["pixels"], torch.full((1_000,), float(index)))
    assert counted.decoded() == list(range(SAMPLES))
    status = cache.status()
    assert (status.hits, status.misses, status.turned_away) == (2 * SAMPLES, SAMPLES, 0)
    assert status.used_bytes == sum(file.stat().st_size for file in files_of(cache))
    assert cache[-1]["label"] == SAMPLES - 1 and len(cache) == SAMPLES


def test_augmentation_runs_after_the_cache_every_time(counted):
    cache = cached(counted, transform=lambda sample: sample["pixels"] + torch.rand(1))
    assert not torch.equal(cache[3], cache[3]) and counted.decoded() == [3]


def test_the_budget_is_kept_and_what_is_kept_stays(counted):
    size = cached(counted, budget_bytes=10**7)
    size[0]
    one = size.status().used_bytes
    cache = cached(counted, budget_bytes=one * 5 + one // 2)
    for _ in range(2):
        for index in range(SAMPLES):
            cache[index]
    status = cache.status()
    assert len(files_of(cache)) == 5 and status.used_bytes <= cache.budget_bytes
    assert status.turned_away == 2 * (SAMPLES - 5)
    assert [index for index in range(SAMPLES) if counted.decoded().count(index) == 1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_share_it_and_keep_the_budget_together(counted, persistent):
    cache = cached(counted)
    loader = DataLoader(cache, batch_size=4, num_workers=2, persistent_workers=persistent, shuffle=True)
    for _ in range(2):
        labels = sorted(label for batch in loader for label in batch["label"].tolist())
        assert labels == list(range(SAMPLES))
    assert counted.decoded() == list(range(SAMPLES))
    assert cache.status().used_bytes == sum(file.stat().st_size for file in files_of(cache))


def test_two_processes_that_decode_the_same_sample_keep_it_once(counted):
    caches = [pickle.loads(pickle.dumps(cached(counted))) for _ in range(2)]
    sample = (counted[0],)
    for cache in caches:
        cache.misses = 1
        cache._keep(0, sample)
    assert len(files_of(caches[0])) == 1
    assert caches[0].status().used_bytes == files_of(caches[0])[0].stat().st_size


def fill(cache: CachedDataset) -> None:
    while True:
        for index in range(SAMPLES):
            cache[index]
            for file in files_of(cache)[:2]:
                file.unlink(missing_ok=True)


@pytest.mark.parametrize("after_seconds", [0.02, 0.05, 0.1])
def test_a_kill_leaves_samples_whole_or_absent_and_the_next_one_sweeps_up(counted, after_seconds):
    child = multiprocessing.get_context("fork").Process(target=lambda: fill(cached(counted)))
    child.start()
    time.sleep(after_seconds)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    folder = counted.log.with_name("cache")
    (folder / "00").mkdir(parents=True, exist_ok=True)
    (folder / "00" / "half-written").write_bytes(b"x" * 100)
    cache = cached(counted)
    assert not (folder / "00" / "half-written").exists()
    assert cache.status().used_bytes == sum(file.stat().st_size for file in files_of(cache))
    assert [cache[index]["label"] for index in range(SAMPLES)] == list(range(SAMPLES))


def test_a_damaged_file_is_decoded_again(counted):
    cache = cached(counted)
    cache[5]
    path = files_of(cache)[0]
    path.write_bytes(path.read_bytes()[:200])
    assert cache[5]["label"] == 5 and counted.decoded() == [5, 5]
    assert cache[5]["label"] == 5 and counted.decoded() == [5, 5]


def test_what_is_half_written_is_left_alone_while_another_uses_the_cache(counted):
    first = cached(counted)
    first[0]
    half = first.folder / "00" / "half-written"
    half.write_bytes(b"x")
    cached(counted)
    assert half.exists()


def test_another_data_set_a_budget_of_nothing_and_samples_that_cannot_be_kept_are_refused(counted):
    cached(counted, version="224 px")
    with pytest.raises(CacheError, match=r"caches another data set .*224 px.*320 px"):
        cached(counted, version="320 px")
    with pytest.raises(SettingsError, match="budget_bytes=0"):
        cached(counted, budget_bytes=0)
    other = CachedDataset([object()], counted.log.with_name("other"), budget_bytes=10**6)
    with pytest.raises(CacheError, match="Sample 0 cannot be kept"):
        other[0]
