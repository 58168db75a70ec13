"""Inside the isolated process of one trial: makes it ready, does the task, and turns whatever is raised into text.

Nothing here judges. What was seen goes to the warden as JSON lines; statistics and verdicts are made elsewhere.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing.process
import os
import random
import signal
import sys
from typing import Any

from workbench.measure.channel import Channel
from workbench.measure.failures import describe_error
from workbench.measure.processes import tie_future_forks
from workbench.measure.step_copies import step_under

TASKS = {
    "probe": "workbench.measure.probing:probe",
    "measure": "workbench.measure.measuring:measure",
    "diagnose": "workbench.measure.diagnosing:diagnose",
    "stages": "workbench.measure.stage_reading:stages",
    "trace": "workbench.measure.tracing:trace",
}
"""What a trial can do: a function of (task, channel, source, step) that returns a JSON-ready dict."""


def run(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> int:
    """Does the task, reports what happens, and returns the exit code of this process."""
    channel.send(hello=os.getpid(), phase="build")
    _settle(task)
    try:
        module, function = TASKS[task["kind"]].split(":")
        perform = getattr(importlib.import_module(module), function)
        step = step_under(step if task["use_step"] else None, task.get("settings", {}).get("non_blocking"))
        channel.send(done=perform(task, channel, source, step))
        return 0
    except BaseException as error:  # whatever the user's code raises is a result
        _ignore_children()
        channel.send(error=describe_error(error, channel.workers, getattr(channel.stream, "loader", None)))
        return 1


def _settle(task: dict[str, Any]) -> None:
    """Makes this process ready: crash traces, workers tied to it, temporary files, sharing and seeds of its own."""
    import torch

    faulthandler.enable()
    tie_future_forks()
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    os.makedirs(task["temporary"], exist_ok=True)
    multiprocessing.process.current_process()._config["tempdir"] = task["temporary"]
    if strategy := task.get("settings", {}).get("sharing_strategy"):
        torch.multiprocessing.set_sharing_strategy(strategy)
    torch.manual_seed(task["seed"])
    random.seed(task["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(task["seed"] % 2**32)


def _ignore_children() -> None:
    """Takes off torch's SIGCHLD handler, which raises in whatever line the main thread happens to be."""
    while True:
        with contextlib.suppress(RuntimeError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
