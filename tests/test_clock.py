"""Warm-up and windows of one start: what is read when, against loaders whose answer is known."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from workbench.loaders.settings import LoaderSettings
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
