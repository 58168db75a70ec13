"""What to do where the loader alone is not what is slow: the step, its device, copies, or two that share the cores.

Pure functions, each from its numbers to a `Cause`.
"""

from __future__ import annotations

from workbench.loaders.settings import workers
from workbench.measure.causes import Cause, Scene, duration


def compute_cause(scene: Scene | None, num_workers: int, headroom: float) -> Cause:
    """What to do when the step is the slower part."""
    refuted = "training gets faster when the same batches are kept and only the loader is replaced by cached ones"
    if not num_workers and headroom > 1.1:
        return Cause(
            "no overlap",
            f"without workers the loop loads and computes in turn: loading beside the step gives up to {headroom:.2f}x",
            "set num_workers=1, so that the next batch is loaded while the step runs",
            "the combined rate with num_workers=1 is no higher",
        )
    return Cause(
        "step", "the step takes longer than loading", "leave the loader alone and make the step faster", refuted
    )


def sync_cause(host_seconds: float, waited_seconds: float, gain: float) -> Cause:
    """What to do when the step waits for its device."""
    return Cause(
        "host synchronisation",
        f"a step on an idle device returns only when the device is done ({duration(host_seconds)}, "
        f"{duration(waited_seconds)} of it waiting): launching ahead could make it up to {gain:.2f}x faster",
        "take .item(), .cpu(), print(loss) and the like out of the step, or do them every 50th step",
        "the step is as slow without them",
    )


def transfer_cause(copy_seconds: float, host_seconds: float, lost_seconds: float, unpinned: bool) -> Cause:
    """What to do when the copy to the device holds the loop back."""
    advice = (
        "set pin_memory=True and copy with non_blocking=True: both are needed for a copy to overlap"
        if unpinned
        else "copy the next batch on a stream of its own while the step runs, or send smaller types (uint8)"
    )
    return Cause(
        "unpinned copies" if unpinned else "transfer",
        f"copying a batch to an idle device takes {duration(copy_seconds)} and keeps the host for "
        f"{duration(host_seconds)} of it; in the loop a batch takes {duration(lost_seconds)} longer than in the slower "
        "of loader and step",
        advice,
        "the loop is as slow on batches that are already on the device",
    )


def starvation_cause(alone: float, together: float, step_slowdown: float, cores: int, num_workers: int) -> Cause:
    """What to do when step and workers take cores from each other."""
    fewer = max(1, min(num_workers, cores) - 1)
    return Cause(
        "mutual starvation",
        f"step and {workers(num_workers)} share {cores} cores: alone the slower of both would do {alone:.0f} "
        f"samples/s, together they do {together:.0f}, and a step takes {step_slowdown:.2f} times as long as alone",
        f"leave the step its cores: num_workers={fewer}, and torch.set_num_threads({max(1, cores - fewer)}) in the "
        "main process",
        "the combined rate does not change with fewer workers or threads",
    )


def balanced_cause() -> Cause:
    """What to do when nothing dominates."""
    return Cause(
        "balanced",
        "loader and step take equally long",
        "speed up both or neither: a faster step alone would wait for input at once",
        "either of them is found more than a tenth slower in a longer measurement",
    )
