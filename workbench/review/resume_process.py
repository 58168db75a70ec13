"""Inside a resume test's processes: iterate the user's loader, save states on the way, and wait to be killed.

One process imports what all need and forks another for each job; the loader is unpacked in the latter, so that no job
sees what another has left in memory.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.loaders.counting import count_samples
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.shipping import load
from workbench.measure.digests import sample_digests
from workbench.measure.processes import die_with_parent

_KEPT = (
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
FOREVER = 10**9
"""A snapshot interval that no run reaches."""
_COST_BATCHES = 100
_COST_SECONDS = 1.5
"""Length of each of the four stretches from which the cost of snapshots is taken."""


@dataclass(frozen=True)
class Job:
    """What one process does.

    Attributes:
        kind: ``run``, ``late`` (load a state while iterating) or ``cost``.
        num_workers: Workers of the loader.
        seed: Seed of Python's, NumPy's and torch's global generators.
        batches: Batches after which it ends.
        state: File with the state to go on from; None starts anew.
        save_after: Batches after which a state is saved, in rising order.
        wait: After the last state, go on taking batches until killed.
        reseed: Seed the generators anew after the first batch: the order has been drawn by then, augmentation has not.
    """

    kind: str
    num_workers: int
    seed: int
    batches: int
    state: str | None = None
    save_after: tuple[int, ...] = ()
    wait: bool = False
    reseed: int | None = None


def serve() -> None:
    """Fork a process for the job in each folder that is named on stdin, a line each; end with stdin."""
    die_with_parent(os.getppid())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # jobs that ended leave no zombie
    for line in sys.stdin:
        if os.fork() == 0:
            do(Path(line.strip()))
            os._exit(0)


def do(folder: Path) -> None:
    """Do the job that lies in ``folder``; say what happens in ``folder/events``, one JSON object a line."""
    parent = os.getppid()
    os.setsid()
    die_with_parent(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _redirect(folder / "stderr")
    with open(folder / "events", "w", buffering=1) as events:
        _events.append(events)
        say(event="started", pid=os.getpid())
        try:
            job: Job = _read(folder / "job.pickle")
            with open(folder.parent / "loader.pickle", "rb") as file:
                source, _ = load(file)
            _seed(job.seed)
            loader = with_state(source.build(LoaderSettings(num_workers=job.num_workers)))
            KINDS[job.kind](loader, job, folder)
        except Exception as error:  # whatever the user's loader raises is the answer
            deliberate = _is_deliberate(error)
            say(event="failed", error=type(error).__name__, text=str(error)[-4_000:], deliberate=deliberate)


def with_state(loader: Any) -> Any:
    """The loader itself, or the ``StatefulDataLoader`` that replaces a plain ``DataLoader``, which keeps no state."""
    if type(loader) is not DataLoader:
        return loader
    arguments = {name: getattr(loader, name) for name in _KEPT}
    if loader.num_workers:
        arguments |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    if loader.batch_size is None and loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if type(loader.sampler) is RandomSampler and not loader.sampler.replacement:
            arguments["shuffle"] = True
        elif not isinstance(loader.dataset, IterableDataset):
            arguments["sampler"] = loader.sampler
    say(event="replaced")
    return StatefulDataLoader(**arguments)


def run(loader: Any, job: Job, folder: Path) -> None:
    """Take batches, note their digests, save states."""
    if not _keeps_state(loader):
        return
    if not job.save_after and hasattr(loader, "snapshot_every_n_steps"):
        loader.snapshot_every_n_steps = FOREVER  # nobody asks for these states, and large ones would take minutes
    begun = time.perf_counter()
    if job.state is not None:
        loader.load_state_dict(_read(Path(job.state)))
    batches: Iterator[Any] = iter(loader)
    with open(folder / "batches.pickle", "wb") as log:
        if 0 in job.save_after:
            _save(loader, folder, 0)
        count = 0
        for batch in itertools.islice(batches, None if job.wait else job.batches):
            if not count:
                say(event="first", seconds=time.perf_counter() - begun)
            count += 1
            pickle.dump(sample_digests(batch, count_samples(batch, _hint(loader)).samples), log)
            log.flush()
            if count in job.save_after:
                _save(loader, folder, count)
            if count == 1 and job.reseed is not None:
                _seed(job.reseed)
    while job.wait:
        time.sleep(0.05)
    say(event="ended", batches=count, complete=count < job.batches)


def late(loader: Any, job: Job, folder: Path) -> None:
    """Load a state while an iterator is in use, and go on with that iterator."""
    if not _keeps_state(loader):
        return
    batches = iter(loader)
    first = next(batches)
    loader.load_state_dict(_read(Path(job.state)))
    following = next(batches, None)
    with open(folder / "batches.pickle", "wb") as log:
        for batch in (first, *([] if following is None else [following])):
            pickle.dump(sample_digests(batch, count_samples(batch, _hint(loader)).samples), log)
    say(event="ended", batches=2, complete=False)


def cost(loader: Any, job: Job, folder: Path) -> None:
    """Time a step with and without snapshots, in turn, and one call of ``state_dict``."""
    if not _keeps_state(loader):
        return
    usual = getattr(loader, "snapshot_every_n_steps", None)
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for which in ("with", "without", "without", "with"):
        if usual is not None:
            loader.snapshot_every_n_steps = 1 if which == "with" else FOREVER
        seconds[which].append(_step_seconds(loader))
    if usual is not None:
        loader.snapshot_every_n_steps = usual
    batches, calls = iter(loader), []
    for _ in range(5):
        if next(batches, None) is None:
            break
        begun = time.perf_counter()
        state = loader.state_dict()
        calls.append(time.perf_counter() - begun)
    say(
        event="cost",
        with_snapshots=min(seconds["with"]),
        without_snapshots=min(seconds["without"]),
        state_dict_seconds=statistics.median(calls) if calls else None,
        state_bytes=len(pickle.dumps(state)) if calls else None,
        snapshot_every_n_steps=usual,
    )


KINDS: dict[str, Callable[[Any, Job, Path], None]] = {"run": run, "late": late, "cost": cost}


def say(**event: Any) -> None:
    """Tell the process that watches."""
    _events[-1].write(json.dumps(event) + "\n")


_events: list[IO[str]] = []


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _redirect(path: Path) -> None:
    """The user's prints go nowhere, and what comes on stderr into a file."""
    with open(os.devnull, "r+b") as nothing, open(path, "wb") as errors:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
        os.dup2(errors.fileno(), 2)


def _step_seconds(loader: Any) -> float:
    batches = iter(loader)
    next(batches, None)
    begun, count = time.perf_counter(), 0
    for _ in itertools.islice(batches, _COST_BATCHES):
        count += 1
        if time.perf_counter() - begun > _COST_SECONDS:
            break
    return (time.perf_counter() - begun) / max(count, 1)


def _keeps_state(loader: Any) -> bool:
    kept = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    if not kept:
        say(event="stateless", type=type(loader).__name__)
    return kept


def _save(loader: Any, folder: Path, count: int) -> None:
    begun = time.perf_counter()
    raw = pickle.dumps(loader.state_dict())
    seconds = time.perf_counter() - begun
    temporary = folder / "state.tmp"
    temporary.write_bytes(raw)
    os.replace(temporary, folder / f"state-{count}.pickle")
    say(event="saved", after=count, bytes=len(raw), seconds=seconds)


def _read(path: Path) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def _hint(loader: Any) -> int | None:
    hint = getattr(loader, "batch_size", None)
    return hint if isinstance(hint, int) else None


def _is_deliberate(error: Exception) -> bool:
    """Whether the loader refused with a sentence meant for people; otherwise it broke."""
    return not isinstance(error, AssertionError | KeyError | TypeError | IndexError | AttributeError | StopIteration)


if __name__ == "__main__":
    from workbench.review import resume_process  # under its own name, which pickled jobs refer to

    resume_process.serve()
