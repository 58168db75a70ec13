"""Datasets that each go wrong in one way, for the tests of what a trial survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class TwoPartError(Exception):
    """Cannot be rebuilt from a message."""

    def __init__(self, shard: str, *, seconds: int) -> None:
        super().__init__(f"{shard} gave no answer in {seconds} s")


class Faulty(Dataset):
    """Samples 0, 1, 2 ...; sample `at` does `fault`, in a worker or in the process that loads.

    Args:
        fault: Name of a method of this class, or "" for none.
        at: Index at which it happens.
        only_in_worker: Whether the fault spares num_workers=0.
    """

    def __init__(self, fault: str = "", at: int = 40, only_in_worker: bool = False, length: int = 4000) -> None:
        self.fault, self.at, self.only_in_worker, self.length = fault, at, only_in_worker, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        spared = self.only_in_worker and get_worker_info() is None
        if self.fault and index == self.at and not spared:
            extra = getattr(self, self.fault)()
            if extra is not None:
                return extra
        return torch.tensor(float(index))

    def raises(self) -> None:
        raise ValueError("sample is broken")

    def raises_two_part(self) -> None:
        raise TwoPartError("shard-0007", seconds=5)

    def raises_unpicklable(self) -> None:
        class LocalError(Exception):
            pass

        raise LocalError("cannot be found by name")

    def interrupted(self) -> None:
        raise KeyboardInterrupt

    def interrupts_everyone(self) -> None:
        os.killpg(os.getpgrp(), signal.SIGINT)

    def runs_out_of_memory(self) -> None:
        raise MemoryError

    def exits(self) -> None:
        os._exit(3)

    def ends_quietly(self) -> None:
        os._exit(0)

    def leaves(self) -> None:
        sys.exit(5)

    def is_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def segfaults(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def aborts(self) -> None:
        os.abort()

    def hangs(self) -> None:
        time.sleep(10_000)

    def spins(self) -> None:
        while True:
            pass

    def stops(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def ignores_sigterm_and_hangs(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(10_000)

    def leaves_a_daemon(self) -> None:
        code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork() and os._exit(0); time.sleep(600)"
        subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)

    def prints_much(self) -> None:
        line = b"x" * 999 + b"\n"
        for _ in range(100_000):
            os.write(1, line)

    def runs_out_of_descriptors(self) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    def eats_memory(self) -> None:
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20) * 50))
            time.sleep(0.05)


class HangsAtStart(IterableDataset):
    """Never yields."""

    def __iter__(self) -> Any:
        time.sleep(10_000)
        yield torch.tensor(0.0)


class Handle:
    """Refuses to go to another process."""

    def __reduce__(self) -> Any:
        raise OSError("a handle cannot be sent")


def handles(samples: list[Any]) -> Any:
    """From sample 40 on, a batch that cannot be sent."""
    return Handle() if samples[0] >= 40 else torch.stack(samples)


class Holder(Dataset):
    """Holds a lock, which no started process can take."""

    def __init__(self) -> None:
        self.tools = {"lock": threading.Lock()}

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


def holder(num_workers: int = 0, multiprocessing_context: str | None = None) -> DataLoader:
    return DataLoader(Holder(), 4, num_workers=num_workers, multiprocessing_context=multiprocessing_context)


def not_with_workers(num_workers: int = 0) -> DataLoader:
    if num_workers:
        raise FileNotFoundError("index.json")
    return make()


def dies_unnoticed(num_workers: int = 0) -> Any:
    """With workers, one that ends at batch 10 while the process that loads waits and sees nothing of it."""

    def batches() -> Any:
        yield from torch.zeros(10, 4)
        if os.fork() == 0:
            os._exit(3)
        time.sleep(10_000)

    return batches() if num_workers else make()


def many_tensors(samples: list[Any]) -> list[Any]:
    return [[sample.clone() for _ in range(20)] for sample in samples]


def make(fault: str = "", *, at: int = 40, only_in_worker: bool = False, length: int = 4000, **kw: Any) -> DataLoader:
    """A loader over `Faulty`, batches of 4."""
    return DataLoader(Faulty(fault, at, only_in_worker, length), batch_size=4, **kw)
