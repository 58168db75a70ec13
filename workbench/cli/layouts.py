"""`workbench convert`: a data set into another layout, with a progress bar, to be stopped and gone on with at will."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from workbench import machine
from workbench.cli import endings
from workbench.cli.progress import Bar
from workbench.errors import SettingsError

if TYPE_CHECKING:
    from workbench.layouts import Conversion


def convert(arguments: argparse.Namespace) -> int:
    """Converts a data set and says what was written."""
    from workbench.layouts import convert as conversion

    with Bar("sample") as bar:
        try:
            done = conversion(
                arguments.source,
                arguments.destination,
                arguments.layout,
                transform=_transform(arguments),
                processes=arguments.processes,
                overwrite=arguments.overwrite,
                on_error="skip" if arguments.skip_errors else "raise",
                duplicates=arguments.duplicates,
                progress=lambda progress: bar.show(progress.samples, progress.total_samples),
                world_size=arguments.world_size,
                num_workers=arguments.num_workers,
                **_shard_size(arguments),
            )
        except KeyboardInterrupt:
            print("workbench convert: stopped; the same command goes on where it was", file=sys.stderr)
            return endings.INTERRUPTED
    print(json.dumps(_document(done)) if arguments.json else _told(done))
    return endings.DONE


def _transform(arguments: argparse.Namespace) -> Any:
    from workbench.layouts import resize_images, tokenise

    if arguments.resize and arguments.tokenizer:
        raise SettingsError("--resize is for photographs and --tokenizer for text; give one of them")
    if arguments.resize:
        return resize_images(arguments.resize)
    return tokenise(arguments.tokenizer) if arguments.tokenizer else None


def _shard_size(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"shard_bytes": machine.parse_bytes(arguments.shard_bytes)} if arguments.shard_bytes else {}


def _document(done: Conversion) -> dict[str, Any]:
    return {
        "path": str(done.path),
        "layout": done.manifest.layout,
        "samples": done.manifest.samples,
        "shards": len(done.manifest.shards),
        "shards_written": done.shards_written,
        "shards_reused": done.shards_reused,
        "samples_dropped": done.samples_dropped,
        "samples_failed": done.samples_failed,
        "failures": list(done.failures),
        "seconds": done.seconds,
    }


def _told(done: Conversion) -> str:
    facts = _document(done)
    reused = f", {facts['shards_reused']} of them from an earlier run" if facts["shards_reused"] else ""
    lines = [f"{facts['path']}: {facts['samples']:,} samples in {facts['shards']} {facts['layout']} shards{reused}"]
    if facts["samples_dropped"]:
        lines.append(f"{facts['samples_dropped']:,} samples were dropped by the transform")
    if facts["samples_failed"]:
        lines.append(f"{facts['samples_failed']:,} samples failed and were left out: {'; '.join(facts['failures'])}")
    return "\n".join(lines)
