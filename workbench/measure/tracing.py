"""The task "trace" inside a trial: some steps of the user's loop under torch.profiler, written to a file."""

from __future__ import annotations

from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.channel import Channel, progress_counter
from workbench.measure.diagnosing import accelerator_of
from workbench.measure.trace_recording import profile


def trace(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> dict[str, Any]:
    """Records `task["steps"]` steps to `task["path"]`; batches are moved to the accelerator as in a diagnosis."""
    copy, _ = accelerator_of(step)
    progress = progress_counter(task)
    loader = source.build(LoaderSettings.from_dict(task["settings"]))

    def moved(batch: Any) -> None:
        progress[0] += 1
        step(batch if copy is None else copy(batch))

    channel.send(phase="measure")
    return {"path": str(profile(loader, moved, task["path"], steps=task["steps"]))}
