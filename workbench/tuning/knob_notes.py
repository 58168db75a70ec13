"""What knobs that no DataLoader argument sets ask of the user's own program, and when they are worth a try."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.loaders.settings import LoaderSettings
from workbench.measure.result import TrialResult

THREADS_AND_FORK = (
    "A forked worker that computes with several threads can hang for ever if the training process has itself computed "
    "with several threads before it forks: start workers by spawn or forkserver then."
)
OVERSUBSCRIBED = "oversubscribed:"  # how a run's note begins whose workers had more busy threads than cores


def knob_notes(settings: LoaderSettings) -> list[str]:
    """What the knobs that are no argument of DataLoader mean in a program, a sentence each."""
    threads, strategy, copies = settings.worker_threads, settings.sharing_strategy, settings.non_blocking
    notes = []
    if threads is not None:
        notes.append(
            f"worker_threads={threads} is torch.set_num_threads({threads}) in worker_init_fn, after what yours does."
        )
    if threads is not None and threads > 1 and settings.multiprocessing_context in (None, "fork"):
        notes.append(THREADS_AND_FORK)
    if strategy is not None:
        notes.append(
            f"sharing_strategy={strategy!r} is torch.multiprocessing.set_sharing_strategy({strategy!r}) before the "
            "loader is iterated, and in worker_init_fn too where workers are not forked."
        )
    if copies is not None:
        notes.append(
            f"non_blocking={copies} is batch.to(device, non_blocking={copies}) in the training step, not in the loader."
        )
    return notes


def threads_worth_a_try(trials: Iterable[TrialResult]) -> str:
    """Where workers crowded the cores with threads and fewer were not tried, how to try them; else empty."""
    trials = list(trials)
    crowded = [t for t in trials if any(note.startswith(OVERSUBSCRIBED) for note in t.notes)]
    if not crowded or any(trial.settings.worker_threads is not None for trial in trials):
        return ""
    return (
        f"Workers crowd the cores with threads of their own ({crowded[0].settings.describe()}): add "
        "worker_threads=[1] to the space to see whether one thread a worker is faster. It reaches torch and OpenCV; "
        "other libraries have settings of their own, such as OMP_NUM_THREADS."
    )
