"""Records a torch.profiler trace of a training loop over a real loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, schedule
from torch.profiler import profile as recorder

from workbench.errors import TraceError


def profile(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    path: str | os.PathLike[str],
    *,
    steps: int = 20,
    warmup: int = 3,
) -> Path:
    """Runs a training loop for a few steps under torch.profiler and writes its trace, which Perfetto opens as well.

    Args:
        loader: Iterable of batches; started again when it ends before enough steps are done.
        step: Called with each batch.
        path: Where the trace goes, `.json` or `.json.gz`; a file there is replaced once the new one is complete.
        steps: Steps recorded.
        warmup: Steps run before, so that start-up is not what is recorded.

    Raises:
        TraceError: If the loader yields no batch, or there is no such folder.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise TraceError(f"the trace cannot go to {target}: {target.parent} is no folder; make it, or name another")
    draft = target.with_name(f".{os.getpid()}.{target.name}")
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    activities += [ProfilerActivity.XPU] if torch.xpu.is_available() else []
    plan = schedule(wait=0, warmup=max(1, warmup), active=steps, repeat=1)
    try:
        with recorder(
            activities=activities, schedule=plan, on_trace_ready=lambda done: done.export_chrome_trace(str(draft))
        ) as running:
            _drive(loader, step, running.step, max(1, warmup) + steps)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _drive(loader: Iterable[Any], step: Callable[[Any], Any], advance: Callable[[], None], total: int) -> None:
    done = 0
    while done < total:
        before = done
        for batch in loader:
            step(batch)
            advance()
            done += 1
            if done >= total:
                return
        if done == before:
            raise TraceError(f"the loader yields no batch ({done} of {total} steps done); give one that does")
