"""`workbench manifest`, `verify` and `resume-test`: which data, is it whole, and does the loader resume?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from workbench.cli import endings
from workbench.cli.arguments import numbers
from workbench.cli.progress import Bar
from workbench.errors import SettingsError
from workbench.machine import format_bytes


def manifest(arguments: argparse.Namespace) -> int:
    """Writes the manifest of a data set, or reads the one it has, and prints its digest."""
    from workbench.review.manifest import make_manifest

    with Bar("file") as bar:
        made = make_manifest(arguments.folder, overwrite=arguments.overwrite, on_file=bar.show)
    facts = {
        "layout": made.layout,
        "samples": made.samples,
        "bytes": made.bytes,
        "files": len(made.files),
        "digest": made.digest(),
    }
    if arguments.json:
        print(json.dumps(facts))
    else:
        print(f"{made.samples:,} samples in {len(made.files):,} files of {made.layout}, {format_bytes(made.bytes)}")
        print(f"digest {made.digest()}")
    return endings.DONE


def verify(arguments: argparse.Namespace) -> int:
    """Checks a data set against its manifest; 1 when a file is missing, changed or unexpected."""
    from workbench.review.manifest import verify as verification

    with Bar("file") as bar:
        found = verification(arguments.folder, sample=_part(arguments.sample), on_file=bar.show)
    print(json.dumps(dataclasses.asdict(found)) if arguments.json else found.text)
    return endings.DONE if found.ok else endings.ANSWER_IS_NO


def resume_test(arguments: argparse.Namespace) -> int:
    """Kills and resumes a loader and compares with an uninterrupted run; 1 when anything was lost or repeated."""
    from workbench.review.resume import resume_test as test

    report = test(
        arguments.loader,
        num_workers=numbers(arguments.num_workers, "--num-workers"),
        cut_points=numbers(arguments.cut, "--cut") if arguments.cut else None,
        on_event=lambda line: print(line, file=sys.stderr),
    )
    print(json.dumps(report.as_dict()) if arguments.json else report.describe())
    return endings.DONE if report.ok else endings.ANSWER_IS_NO


def _part(text: str | None) -> int | float | None:
    """How much of the data to read: "100" files, "0.1" or "10%" of them; None for all.

    Raises:
        SettingsError: If it is no number.
    """
    if text is None:
        return None
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise SettingsError(f"--sample {text!r} is no number; write how many files, or a share: 100, 10%") from None
