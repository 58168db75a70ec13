"""The report: one HTML page that needs no network, and a Markdown summary that a pull request can hold."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from workbench.errors import ExportError
from workbench.machine import format_bytes
from workbench.measure.statistics import RateEstimate
from workbench.notebook import formatting, palette, still, tables
from workbench.notebook.charts import VIEWS
from workbench.notebook.evidence import best_trial, recommendation_box, recommendation_text, starts_table
from workbench.notebook.palette import STATUS_WORDS, why
from workbench.tuning.exports.document import document_of
from workbench.tuning.results import Results

EVIDENCE_TRIALS = 12  # the fastest settings get their starts listed; the others are in the table
MOST_ROWS = 400
YOURS = "yours: shuffle, collate_fn, and what else you pass now"


def write_report(results: Results, path: str | Path) -> Path:
    """Write the whole sweep as one self-contained HTML page and return its path.

    The page holds plotly.js, every chart, the table, the recommendation, its evidence and where the numbers come from;
    it asks nothing of the network, follows light and dark, and prints.

    Args:
        results: What `Sweep.run` or `load_results` gave.
        path: File to write; it is replaced as a whole or not at all.

    Raises:
        ExportError: If the file cannot be written.
    """
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        part.write_text(render(results), encoding="utf-8")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True) if part.parent.is_dir() else None
        raise ExportError(
            f"cannot write the report to {str(target)!r}: {error.strerror or error}; give a path in a folder that "
            "exists and that you may write to"
        ) from error
    return target


def render(results: Results) -> str:
    """The HTML page of `write_report` as text, about 5 MB, nearly all of it plotly.js."""
    import plotly.offline

    title = f"Loader settings: {_name(results)}"
    figures = {name: _themed(view, results) for name, view in VIEWS.items()}
    css = static_text("style.css") + static_text("report.css").replace("FONT", palette.FONT)
    body = "".join(
        (
            _header(title, results),
            recommendation_box(results),
            _numbers(results),
            "<h2>Charts</h2>" + _chart_boxes(results),
            "<h2>Every settings</h2>" + _table(results),
            "<h2>Evidence</h2>" + _evidence(results),
            _failures(results),
            "<h2>Where these numbers come from</h2>" + _provenance(results),
        )
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{css}</style></head>'
        f'<body class="wb"><main>{body}</main><script>{plotly.offline.get_plotlyjs()}</script>'
        f'<script type="application/json" id="wb-figures">{_script_json(figures)}</script>'
        f'<script type="application/json" id="wb-config">{_script_json(palette.CONFIG)}</script>'
        f"<script>{static_text('report.js')}</script></body></html>"
    )


def markdown(results: Results) -> str:
    """The sweep in Markdown: recommendation, table, reasons, provenance; short enough for a pull request."""
    best = best_trial(results)
    lines = [f"### Loader settings: {_name(results)}", "", recommendation_text(results), ""]
    if best is not None:
        call = f"DataLoader(dataset, {_keywords(best.settings, results)}, **yours)"
        lines += ["```python", f"{call}  # {YOURS}", "```", ""]
    facts = "; ".join(f"{name}: {text}" for name, text in provenance(results))
    return "\n".join([*lines, tables.markdown_table(results), "", f"<sub>{escape(facts)}</sub>", ""])


def provenance(results: Results) -> list[tuple[str, str]]:
    """(name, text) pairs that say where, when and on what the numbers were measured; unknown ones are left out."""
    times = [run.started_at for trial in results.trials for run in trial.runs if run.started_at]
    facts = [("measured", _span(min(times), max(times)))] if times else []
    every, run = len(results.trials), sum(trial.status != "skipped" for trial in results.trials)
    settings = formatting.count(every, "settings", "settings") + ("" if run == every else f" ({run} of them run)")
    facts.append(("trials", f"{settings}, {formatting.count(results.starts, 'start')}"))
    machine = results.machine
    facts += [
        (name.removesuffix("_bytes").replace("_", " "), _machine_text(name, value))
        for name, value in machine.items()
        if value is not None
    ]
    return facts + _probe_facts(results.probe)


def static_text(name: str) -> str:
    """The text of one of the package's own scripts and style sheets."""
    return resources.files("workbench.notebook").joinpath("static", name).read_text(encoding="utf-8")


def _header(title: str, results: Any) -> str:
    when = next((text for name, text in provenance(results) if name == "measured"), "")
    return (
        f"<header><h1>{escape(title)}</h1><p>{escape('Measured ' + when if when else 'Nothing measured')}</p></header>"
    )


def _numbers(results: Results) -> str:
    best = best_trial(results)
    if best is None:
        return ""
    estimate = best.estimate
    rate = (
        formatting.rate(estimate.samples_per_second, estimate.low, estimate.high, "")
        if estimate
        else formatting.UNKNOWN
    )
    shown = (
        (rate.replace("  ", " "), f"samples/s{_over(estimate)}"),
        (format_bytes(best.peak_pss_bytes), "peak memory, shared pages counted once"),
        (formatting.seconds(best.first_batch_seconds), "to the first batch"),
        (formatting.seconds(best.epoch_edge_seconds), "between epochs"),
    )
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(meaning)}</span></div>" for value, meaning in shown)
    return f'<div class="wb-numbers">{boxes}</div>'


def _over(estimate: RateEstimate | None) -> str:
    if estimate is None:
        return ""
    return " in one start" if estimate.starts == 1 else ", 95 % interval"


def _themed(view: Any, results: Any) -> dict[str, Any]:
    info = view.info(results)
    return {name: view.figure(info, palette.THEMES[name]) for name in ("light", "dark")}


def _chart_boxes(results: Results) -> str:
    boxes = []
    for name, view in VIEWS.items():
        picture = still.svg(view.figure(view.info(results), palette.EITHER), title_id=f"wb-title-{name}")
        boxes.append(
            f'<div class="wb-chart" id="wb-chart-{name}" role="group" aria-label="Chart: {view.title}">{picture}</div>'
        )
    return f'<div class="wb-charts">{"".join(boxes)}</div>'


def _table(results: Results) -> str:
    caption = "Recommended first, then by rate. ± and intervals are at 95 %, over separate starts of the loader."
    table = tables.html_table(results, caption=caption, limit=MOST_ROWS)
    return f'<div class="wb-scroll" tabindex="0" role="region" aria-label="Every settings">{table}</div>'


def _evidence(results: Results) -> str:
    answered = [trial for _, trial in tables.ordered(results) if trial.estimate is not None and trial.status == "ok"]
    if not answered:
        return "<p>No settings gave a rate.</p>"
    parts = [f"<p>{escape(_how_measured(results))}</p>"]
    parts += [_trial_evidence(trial) for trial in answered[:EVIDENCE_TRIALS]]
    return "".join(parts)


def _trial_evidence(trial: Any) -> str:
    estimate = trial.estimate
    told = formatting.rate(estimate.samples_per_second, estimate.low, estimate.high)
    summary = f"<summary>{escape(trial.settings.describe())}: {escape(told)}</summary>"
    return f'<details>{summary}<div class="wb-scroll">{starts_table(trial)}</div></details>'


def _failures(results: Results) -> str:
    broken = [trial for _, trial in tables.ordered(results) if trial.status != "ok"]
    if not broken:
        return ""
    parts = []
    for trial in broken:
        text = "\n".join(run.traceback_text or run.output_tail for run in trial.runs).strip()
        more = f"<pre>{escape(text)}</pre>" if text else ""
        looks = "wb-waiting" if trial.status == "skipped" else "wb-failed"
        head = f'{escape(trial.settings.describe())}: <span class="{looks}">{STATUS_WORDS[trial.status]}</span>'
        parts.append(
            f"<details><summary>{head}</summary><p>{escape(why(trial.status, trial.reason))}</p>{more}</details>"
        )
    return "<h2>Settings without an answer</h2>" + "".join(parts)


def _provenance(results: Results) -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in provenance(results))
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes)
    return f'<dl class="wb-facts">{pairs}</dl>' + (f"<ul>{notes}</ul>" if notes else "")


def _how_measured(results: Results) -> str:
    starts = sorted(len(trial.runs) for trial in results.trials if trial.status == "ok")
    told = "Each settings below ran in processes of its own, {}. A start's rate counts steady windows only; {}."
    if starts[-1] == 1:
        return told.format("once", "how far separate starts lie apart was not seen")
    span = f"{starts[0]} to {starts[-1]}" if starts[0] != starts[-1] else str(starts[0])
    apart = "the interval covers how far separate starts lie apart, which is more than one start alone would show"
    return told.format(f"{span} times", apart)


def _probe_facts(probe: Any) -> list[tuple[str, str]]:
    if probe is None:
        return []
    facts = [("batch", probe.batch_structure)]
    if probe.samples_per_batch is not None:
        facts.append(("samples a batch", f"{probe.samples_per_batch:,} ({probe.samples_evidence})"))
    facts.append(("bytes a batch", format_bytes(probe.batch_bytes)))
    if probe.epoch_samples is not None:
        facts.append(("samples an epoch", f"{probe.epoch_samples:,}"))
    return facts


def _name(results: Results) -> str:
    return results.name or "sweep"


def _keywords(settings: Any, results: Results) -> str:
    """Arguments of a DataLoader, with the user's own batch size where none was tuned."""
    document = document_of(settings, results)
    known = settings.batch_size is None and document.batch_size is not None
    own = {"batch_size": document.batch_size} if known else {}
    return ", ".join(f"{name}={value!r}" for name, value in (own | document.loader_kwargs).items())


def _machine_text(name: str, value: Any) -> str:
    return format_bytes(value) if name.endswith("bytes") and isinstance(value, int) else str(value)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _span(first: float, last: float) -> str:
    return _date(first) if _date(first) == _date(last) else f"{_date(first)} to {_date(last)}"


def _script_json(value: Any) -> str:
    return json.dumps(value).replace("<", "\\u003c")
