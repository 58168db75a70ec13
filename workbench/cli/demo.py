"""`workbench demo`: the whole job without a notebook, on the sample photographs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from workbench.cli import endings
from workbench.cli.sweeps import document, print_results
from workbench.tuning.results import Results

LOADER = "sample:photos"
BUDGET_SECONDS = 120.0  # the whole command is promised within 3 minutes on 2 cores
INK_LIGHT, INK_DARK = "#1f2328", "#e6e9ec"  # a picture in a file of its own inherits none from its page


def demo(arguments: argparse.Namespace) -> int:
    """Sweeps the sample photographs, prints what to use, and writes chart, report and settings into one folder."""
    from workbench import machine
    from workbench.tuning.space import SearchSpace, default_worker_counts
    from workbench.tuning.sweep import Sweep

    # Few settings, measured well: workers that stay alive between epochs cost nothing that a photograph would notice.
    workers = default_worker_counts(machine.usable_cores())
    space = SearchSpace(num_workers=workers, prefetch_factor=[2, 4], persistent_workers=[True])
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "sweeps.db"
    print(
        f"Measuring {LOADER} under different settings for at most {BUDGET_SECONDS:.0f} s; Ctrl-C keeps what is done.",
        file=sys.stderr,
    )
    results = Sweep(LOADER, space, budget_seconds=BUDGET_SECONDS, store=store).run()
    written = [*write_charts(results, folder), *_write_report_and_settings(results, folder)]
    if arguments.json:
        files = {"files": [str(path) for path in written]}
        print(json.dumps(document(results, str(store)) | files, allow_nan=False))
    else:
        _print(results, store, written)
    if results.ending == "interrupted":
        return endings.INTERRUPTED
    return endings.DONE if results.best else endings.ANSWER_IS_NO


def write_charts(results: Results, folder: Path) -> list[Path]:
    """Writes throughput against workers as `chart.html`, which needs no network, and as `chart.svg`."""
    from workbench.notebook import charts, palette

    page, image = folder / "chart.html", folder / "chart.svg"
    charts.throughput(results).write_html(page, include_plotlyjs=True, config=palette.CONFIG)
    image.write_text(picture(results), encoding="utf-8")
    return [page, image]


def picture(results: Results) -> str:
    """Throughput against workers as SVG for a file of its own, with ink for light and for dark pages."""
    from workbench.notebook import charts, still

    drawn = still.svg(charts.throughput(results).to_plotly_json())
    ink = f"<style>:root{{color:{INK_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{color:{INK_DARK}}}}}</style>"
    head, end_of_tag, rest = drawn.partition(">")
    return head + end_of_tag + ink + rest


def _write_report_and_settings(results: Results, folder: Path) -> list[Path]:
    from workbench.notebook.report import write_report
    from workbench.tuning.export import export

    written = [write_report(results, folder / "report.html")]
    if results.best is not None:
        settings = folder / "loader.yaml"
        export(results, settings)
        written.append(settings)
    return written


def _print(results: Results, store: Path, written: list[Path]) -> None:
    print_results(results)
    print()
    for path in written:
        print(f"wrote {path}")
    print(f"Every run is kept in {store}: workbench show {store}")
