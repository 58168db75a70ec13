"""`workbench check`: are exported settings still right for this loader, on this machine, today?

They are right while they run, deliver the right data, stay within the memory limit, and are not slower for certain than
what the loader has now. Both are measured again, start by start in turns, so that a machine that slows down slows both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from workbench import machine
from workbench.cli import endings
from workbench.errors import SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.result import TrialResult
from workbench.tuning.trials import surely_slower, trials_of

SECONDS_A_RUN = 2.5  # assumed of a quick loader until a run has shown its own
LEAST_STARTS = 2  # an interval of one start says nothing about another start


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is as it should be, and a sentence with the numbers."""

    right: bool
    said: str


def check(arguments: argparse.Namespace) -> int:
    """Measures the exported and the current settings, prints each finding; 1 when one of them is wrong."""
    from workbench.tuning.export import load_settings

    if arguments.starts < LEAST_STARTS:
        raise SettingsError(f"--starts {arguments.starts} is too few to compare with; give {LEAST_STARTS} or more")
    limit = None if arguments.memory_limit is None else machine.parse_bytes(arguments.memory_limit)
    exported, current = _measured_in_turns(arguments.loader, load_settings(arguments.exported), arguments.starts, limit)
    findings = judge(exported, current)
    right = all(finding.right for finding in findings)
    if arguments.json:
        print(json.dumps(_document(exported, current, findings, right), allow_nan=False))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.right else 'NO '} {finding.said}")
    return endings.DONE if right else endings.ANSWER_IS_NO


def judge(exported: TrialResult, current: TrialResult | None) -> tuple[Finding, ...]:
    """What the measurements say about exported settings.

    Args:
        exported: The trial of the exported settings.
        current: The trial of the loader's own settings; None when they are the same.
    """
    name = exported.settings.describe()
    if exported.status != "ok" or exported.estimate is None:
        why = exported.reason or "nothing could be measured"
        return (Finding(False, f"the exported settings, {name}, no longer work: {exported.status}, {why}"),)
    findings = [Finding(True, f"the exported settings, {name}, run at {_rate(exported)}{_memory(exported)}")]
    if current is None:
        findings.append(Finding(True, "they are the settings that the loader has"))
    elif current.status != "ok" or current.estimate is None:
        findings.append(Finding(True, f"the loader's own settings do not work: {current.status}, {current.reason}"))
    else:
        findings.append(_compared(exported, current))
    return tuple(findings)


def _compared(exported: TrialResult, current: TrialResult) -> Finding:
    assert exported.estimate is not None and current.estimate is not None
    own = f"the loader's own settings, {current.settings.describe()}, at {_rate(current)}{_memory(current)}"
    if surely_slower(exported.estimate, current.estimate):
        return Finding(False, f"{own}, are faster: sweep again")
    if surely_slower(current.estimate, exported.estimate):
        return Finding(True, f"{own}, are slower")
    return Finding(True, f"{own}, are not faster for certain")


def _measured_in_turns(
    loader: str, exported: LoaderSettings, starts: int, memory_limit_bytes: int | None
) -> tuple[TrialResult, TrialResult | None]:
    """Trials of the exported and of the loader's own settings; None for the second when they are the same here."""
    from workbench.measure.trial import TrialPlan, TrialServer

    runs = []
    with TrialServer(loader) as server:
        print("importing torch and looking at the loader", file=sys.stderr)
        current = server.current
        exported = exported.replaced(non_blocking=None)  # the training step's own, and none runs here
        if "pin_memory" in getattr(exported, "left_out", ()):  # exported where nothing could pin: stays as it is
            exported = exported.replaced(pin_memory=current.pin_memory)
        if not machine.accelerator().pins:  # pinning means nothing here, so it makes no difference
            exported, current = exported.replaced(pin_memory=False), current.replaced(pin_memory=False)
        pending, took = list(dict.fromkeys((exported, current))), SECONDS_A_RUN
        for start in range(starts):
            if not pending:
                break
            _say_start(start, starts, took * len(pending))
            begun = time.monotonic()
            plan = TrialPlan(
                memory_limit_bytes=memory_limit_bytes, check_data=start == 0, fill_queue=start == 0, seed=start
            )
            done = [server.run(settings, plan) for settings in pending]
            runs += done
            took = (time.monotonic() - begun) / len(done)
            pending = [run.settings for run in done if run.status == "ok"]
        trials = trials_of(runs, server.cores)
    return trials[exported], trials[current] if current != exported else None


def _say_start(start: int, starts: int, seconds_each: float) -> None:
    """Says which start begins and about how long the rest takes, as long as the one before took."""
    from workbench.notebook import formatting

    left = formatting.seconds(float(round((starts - start) * seconds_each)))
    print(f"start {start + 1} of {starts}, about {left} left", file=sys.stderr)


def _document(
    exported: TrialResult, current: TrialResult | None, findings: tuple[Finding, ...], right: bool
) -> dict[str, Any]:
    return {
        "right": right,
        "findings": [{"right": finding.right, "said": finding.said} for finding in findings],
        "exported": exported.row(),
        "current": current.row() if current else None,
    }


def _rate(trial: TrialResult) -> str:
    from workbench.notebook import formatting

    return formatting.rate(trial.samples_per_second, trial.samples_per_second_low, trial.samples_per_second_high)


def _memory(trial: TrialResult) -> str:
    return f" and {machine.format_bytes(trial.peak_pss_bytes)}" if trial.peak_pss_bytes is not None else ""
