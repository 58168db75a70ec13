"""`workbench diagnose` and `trace`: what holds training back, measured here or read from a profiler trace."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from workbench.cli import endings


def diagnose(arguments: argparse.Namespace) -> int:
    """Measures loader, step and both, and prints the verdict with its evidence; 1 when the evidence is too thin."""
    from workbench.measure.diagnosis import diagnose as diagnosis
    from workbench.notebook.diagnosis_line import DiagnosisLine
    from workbench.tuning.steps import step_of

    step = step_of(arguments.step)
    print("Measuring the loader, the step, and both, in turn", file=sys.stderr)
    with DiagnosisLine(arguments.starts) as line:
        found = diagnosis(
            arguments.loader,
            step,
            starts=arguments.starts,
            seconds=arguments.seconds,
            samples_per_batch=arguments.samples_per_batch,
            on_event=line.put,
        )
    print(json.dumps(found.as_dict(), allow_nan=False) if arguments.json else found)
    return endings.ANSWER_IS_NO if found.bound == "unknown" else endings.DONE


def trace(arguments: argparse.Namespace) -> int:
    """Reads a trace and prints its verdict with the evidence; 1 when the trace cannot tell what bounds the run."""
    from workbench.measure.trace import read_trace

    report = read_trace(arguments.trace)
    print(json.dumps(dataclasses.asdict(report), allow_nan=False) if arguments.json else report)
    return endings.ANSWER_IS_NO if report.bound == "unknown" else endings.DONE
