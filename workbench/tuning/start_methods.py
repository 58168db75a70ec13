"""What the way in which workers are started asks of the user's own program, in one sentence. Pure functions."""

from __future__ import annotations

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult

BY_PICKLING = ("spawn", "forkserver")


def start_method_of(settings: LoaderSettings, trial: TrialResult | None) -> str:
    """How the workers of these settings were started; empty without workers, or when nothing says so."""
    if not settings.num_workers:
        return ""
    started = (run.start_method for run in trial.runs if run.start_method) if trial else iter(())
    return settings.multiprocessing_context or next(started, "")


def pickling_problem(method: str, probe: Probe | None) -> str:
    """What plain pickling cannot send to a worker started by `method`, or by any other than fork; empty for nothing."""
    problems = probe.pickle_problems if probe else {}
    asked = (method,) if method in BY_PICKLING else BY_PICKLING
    return next((text for name in asked if (text := problems.get(name))), "")


def start_method_note(settings: LoaderSettings, trial: TrialResult | None, probe: Probe | None) -> str:
    """Where these settings run only with fork, or need more than a trial did; empty where any start method does.

    Args:
        settings: What is recommended or exported.
        trial: Its result; says which method "the default" was.
        probe: Says what plain pickling cannot send.
    """
    method = start_method_of(settings, trial)
    problem = pickling_problem(method, probe)
    if not method or not problem:
        return ""
    if method == "fork":
        return (
            "This relies on fork, which is not the default on macOS, on Windows and on Linux from Python 3.14 on: "
            f"with spawn or forkserver, {problem}."
        )
    return (
        f"Trials send code to workers by value; in a program of your own torch pickles it for {method}, and {problem}."
    )
