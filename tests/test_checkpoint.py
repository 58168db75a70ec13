"""Beside the model: two gloo ranks save, are killed with SIGKILL, and one or three ranks go on where they were."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.errors import ResumeError
from workbench.streaming.checkpoint import LoaderCheckpoint
from workbench.streaming.loader import StreamLoader
from workbench.streaming.stream import ShardStream

SAMPLES, BATCH, STEPS = 120, 5, 4

TRAINING = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as distributed
import torch.distributed.checkpoint as checkpoint
from workbench.streaming.checkpoint import LoaderCheckpoint
from workbench.streaming.loader import StreamLoader
from workbench.streaming.stream import ShardStream

folder, steps, num_workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
distributed.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
stream = ShardStream([range(at, at + 20) for at in range(0, 120, 20)], seed=5, window=8)
loader = StreamLoader(stream, batch_size=5, num_workers=num_workers)
saved = {"model": model.state_dict(), "loader": LoaderCheckpoint(loader)}
if (folder / "checkpoint" / ".metadata").exists():
    checkpoint.load(saved, checkpoint_id=folder / "checkpoint")
for step, batch in enumerate(loader, 1):
    with open(folder / f"seen-{distributed.get_world_size()}-{distributed.get_rank()}", "a") as seen:
        print(*batch.tolist(), file=seen)
    if step == steps:
        checkpoint.save(saved, checkpoint_id=folder / "checkpoint")
        (folder / f"saved-{distributed.get_rank()}").touch()
        time.sleep(600)
"""


def start_ranks(folder: Path, ranks: int, steps: int, num_workers: int) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TRAINING, str(folder), str(steps), str(num_workers)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            start_new_session=True,
        )
        for rank in range(ranks)
    ]


def seen(folder: Path) -> list[int]:
    return sorted(int(word) for file in folder.glob("seen-*") for word in file.read_text().split())


@pytest.mark.parametrize(("ranks_after", "workers_after"), [(1, 2), (3, 0)])
def test_two_ranks_are_killed_and_other_numbers_go_on(tmp_path, ranks_after, workers_after):
    processes = start_ranks(tmp_path, 2, STEPS, 1)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("saved-*"))) < 2 and time.monotonic() < deadline:
        assert all(process.poll() is None for process in processes), "a rank ended early"
        time.sleep(0.1)
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(seen(tmp_path)) == 2 * STEPS * BATCH
    for process in start_ranks(tmp_path, ranks_after, 0, workers_after):
        assert process.wait(timeout=120) == 0
    assert seen(tmp_path) == list(range(SAMPLES))


def test_without_a_process_group_it_is_one_rank():
    loader = StreamLoader(ShardStream([range(20)]), batch_size=4)
    iterator = iter(loader)
    before = next(iterator).tolist()
    state = LoaderCheckpoint(loader).state_dict()
    other = StreamLoader(ShardStream([range(20)]), batch_size=4)
    with pytest.raises(ResumeError, match="holds no states"):
        LoaderCheckpoint(other).load_state_dict({"model": 1})
    LoaderCheckpoint(other).load_state_dict(state)
    assert sorted([*before, *(sample for batch in other for sample in batch.tolist())]) == list(range(20))
