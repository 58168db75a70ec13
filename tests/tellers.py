"""A dataset whose samples tell what their worker was told; light to import, since spawned workers do."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, get_worker_info


class Telling(Dataset):
    """Sample i is [threads of the worker, whether it shares by file_system, what worker_init_fn left behind]."""

    mark = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        by_name = torch.multiprocessing.get_sharing_strategy() == "file_system"
        return torch.tensor([torch.get_num_threads(), int(by_name), self.mark])


def leave_a_mark(worker_id):
    """A user's own worker_init_fn, which also asks for threads of its own."""
    torch.set_num_threads(2)
    get_worker_info().dataset.mark = 7
