"""An example to run and to read: two ranks save loader and model, are killed, and one rank, or three, go on.

    python -m workbench.streaming.checkpoint_example

``train`` is what a training script holds; the rest plays the cluster: it starts ranks, and waits for their death.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as distributed
import torch.distributed.checkpoint as checkpoint

from workbench.streaming.checkpoint import LoaderCheckpoint
from workbench.streaming.loader import StreamLoader
from workbench.streaming.stream import ShardStream

SAMPLES, BATCH_SIZE = 120, 5
SAVE_AFTER, DIE_AFTER = 4, 6
"""Steps: two are lost with the outage, by the model and by the loader alike."""


class Model(torch.nn.Module):
    """Learns one thing of every sample: how often it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times_seen", torch.zeros(SAMPLES, dtype=torch.int64))
        self._by_this_rank = torch.zeros(SAMPLES, dtype=torch.int64)

    def step(self, batch: torch.Tensor) -> None:
        """Train on a batch of sample numbers."""
        self._by_this_rank += torch.bincount(batch, minlength=SAMPLES)

    def synchronise(self) -> None:
        """Bring together what all ranks have learned; every rank calls it."""
        distributed.all_reduce(self._by_this_rank)
        self.times_seen += self._by_this_rank
        self._by_this_rank.zero_()


def train(folder: Path, num_workers: int, *, outage: bool) -> torch.Tensor:
    """One epoch on one rank, from the checkpoint in ``folder`` if there is one.

    Args:
        folder: Where the checkpoint is, or will be.
        num_workers: Workers of this run; the one that saved may have had others.
        outage: Die two steps after the checkpoint, with batches in flight.

    Returns:
        How often the model was trained on each sample, shape ``[SAMPLES]``.
    """
    distributed.init_process_group("gloo")
    model = Model()
    shards = [range(at, at + 20) for at in range(0, SAMPLES, 20)]
    loader = StreamLoader(ShardStream(shards, seed=5, window=8), batch_size=BATCH_SIZE, num_workers=num_workers)
    saved = {"model": model.state_dict(), "loader": LoaderCheckpoint(loader)}
    if (folder / ".metadata").exists():  # written last
        checkpoint.load(saved, checkpoint_id=folder)  # into the model's own tensors, and before iter(loader)
    for step, batch in enumerate(loader, 1):
        model.step(batch)
        if outage and step == SAVE_AFTER:
            model.synchronise()
            checkpoint.save(saved, checkpoint_id=folder)
        if outage and step == DIE_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
    model.synchronise()
    distributed.destroy_process_group()
    return model.times_seen


def run(folder: Path, ranks: int, num_workers: int, *, outage: bool) -> list[int]:
    """Start ``ranks`` processes on this machine, and return how each of them ended (-9: killed)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, str(folder), "--num-workers", str(num_workers)]
    command += ["--outage"] if outage else []
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, env={**os.environ, **group, "RANK": str(rank)}) for rank in range(ranks)]
    return [process.wait() for process in processes]


def show() -> bool:
    """Two ranks with a worker each are killed; one with two workers, and three with none, go on; True if right."""
    right = True
    with tempfile.TemporaryDirectory() as name:
        saved = Path(name) / "saved"
        ended = run(saved, 2, 1, outage=True)
        print(f"2 ranks of 1 worker: saved after {SAVE_AFTER} steps, ended with {ended} after {DIE_AFTER}.")
        for ranks, num_workers in ((1, 2), (3, 0)):
            folder = Path(name) / f"{ranks}"
            shutil.copytree(saved, folder)
            ended = run(folder, ranks, num_workers, outage=False)
            seen = torch.load(folder / "seen.pt") if not any(ended) else torch.zeros(SAMPLES)
            once = bool((seen == 1).all())
            right = right and once
            print(f"{ranks} rank(s) of {num_workers} workers went on: every sample exactly once: {once}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="train as the rank that the environment says; see run()")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--outage", action="store_true", help="save, go on, and die")
    arguments = parser.parse_args()
    if arguments.folder is None:
        return 0 if show() else 1
    seen = train(arguments.folder, arguments.num_workers, outage=arguments.outage)
    if os.environ["RANK"] == "0":
        torch.save(seen, arguments.folder / "seen.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
