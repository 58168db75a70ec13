"""The recommendation, and what a trial rests on, as HTML that panel, report and saved output share."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.machine import format_bytes
from workbench.notebook import formatting, palette, still
from workbench.notebook.costs import costs_html
from workbench.notebook.memory_over_time import memory_over_time_figure, memory_over_time_info
from workbench.notebook.palette import STATUS_WORDS, why
from workbench.tuning.results import Results

NO_RECOMMENDATION = "No recommendation"
NOTHING_MEASURED = "nothing was measured."
MEMORY_WIDTH, MEMORY_HEIGHT = 560, 280  # of the picture's own units
MOST_OUTPUT = 4000  # characters of a trial's own words that are shown


def best_trial(results: Results) -> Any:
    """The trial that is recommended, or None."""
    return results.trial(results.best) if results.best is not None else None


def recommendation_text(results: Results) -> str:
    """The recommendation in words, or why there is none."""
    if best_trial(results) is not None:
        return results.recommendation
    return f"{NO_RECOMMENDATION}: {results.reason}"


def recommendation_box(results: Results) -> str:
    """The recommendation as a box with its first line as heading."""
    text = recommendation_text(results).removeprefix(f"{NO_RECOMMENDATION}: ")
    head, *lines = [line for line in text.splitlines() if line.strip()] or [NOTHING_MEASURED]
    state = ""
    if best_trial(results) is None:
        head, lines, state = NO_RECOMMENDATION, [head, *lines], " wb-none"
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<div class="wb-verdict{state}"><strong>{escape(head)}</strong>{paragraphs}</div>'


def starts_table(trial: Any) -> str:
    """A table with one row for each start: its windows' rates, first batch, memory, and notes."""
    rows = [_start_row(number, run) for number, run in enumerate(trial.runs, 1)]
    names = ("start", "samples/s in each window", "first batch", "peak memory", "notes")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    caption = f"<caption>{formatting.count(len(trial.runs), 'start')}, each in a process of its own</caption>"
    return (
        f'<table class="wb-table wb-windows">{caption}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def trial_details(trial: Any) -> str:
    """Everything known about one settings: rate, waits, memory by kind, starts, and its own words if it failed."""
    parts = [f"<h3>{escape(trial.settings.describe())}</h3>"]
    if trial.status != "ok":
        parts.append(
            f'<div class="wb-verdict wb-none"><strong>{STATUS_WORDS[trial.status]}</strong>'
            f"<p>{escape(why(trial.status, trial.reason))}</p></div>"
        )
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(trial))
    parts.append(f'<dl class="wb-facts">{pairs}</dl>')
    if any(run.windows for run in trial.runs) or len(trial.runs) > 1:
        parts.append(
            f'<div class="wb-scroll" tabindex="0" role="region" aria-label="Starts">{starts_table(trial)}</div>'
        )
    return "".join(parts) + _over_time(trial) + _stages(trial) + _words(trial)


def facts(trial: Any) -> list[tuple[str, str]]:
    """(name, value with unit) pairs of what is known about a trial; what is unknown is left out."""
    estimate, last = trial.estimate, trial.runs[-1]
    memory = last.memory
    known = [
        ("steady rate", estimate and formatting.rate(estimate.samples_per_second, estimate.low, estimate.high)),
        ("95 % interval", estimate and f"{formatting.interval(estimate.low, estimate.high)} samples/s"),
        ("between batches", _between(trial)),
        ("first batch", _seconds(trial.first_batch_seconds)),
        ("epoch edge", _seconds(trial.epoch_edge_seconds)),
        ("shutdown", _seconds(trial.shutdown_seconds)),
        ("peak memory", _bytes(trial.peak_pss_bytes, "shared pages counted once")),
        ("peak RSS", _bytes(trial.peak_rss_bytes, "shared pages counted in every process")),
        ("memory by kind", _kinds(memory)),
        ("growth", _growth(memory)),
        ("cores used", trial.cpu_cores_used is not None and formatting.cores(trial.cpu_cores_used)),
        (
            "measured",
            trial.measured_seconds and f"{formatting.seconds(trial.measured_seconds)} in {trial.windows} windows",
        ),
    ]
    return [(name, text) for name, text in known if text]


def _start_row(number: int, run: Any) -> str:
    rates = ", ".join(formatting.number(window.samples_per_second) for window in run.windows)
    told = (["files not cached"] if run.cold else []) + (["other programs ran"] if run.noisy else []) + list(run.notes)
    cells = (
        rates or formatting.UNKNOWN,
        formatting.seconds(run.first_batch_seconds),
        format_bytes(run.memory.peak_pss_bytes),
        "; ".join(told) or STATUS_WORDS[run.status],
    )
    return f'<tr><th scope="row">{number}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def stages_of(trial: Any) -> Any:
    """Where a batch's time goes in this trial, or None where that was not looked into."""
    return next((run.stages for run in reversed(trial.runs) if run.stages is not None), None)


def _over_time(trial: Any) -> str:
    info = memory_over_time_info(trial)
    if not info.lines:
        return ""
    drawn = still.svg(memory_over_time_figure(info, palette.EITHER), MEMORY_WIDTH, MEMORY_HEIGHT)
    return f"<div>{drawn}</div>"


def _stages(trial: Any) -> str:
    costs = stages_of(trial)
    return "" if costs is None else f"<h3>Where a batch's time goes</h3>{costs_html(costs)}"


def _words(trial: Any) -> str:
    parts = []
    for run in trial.runs:
        for name, text in (("Traceback", run.traceback_text), ("Output", run.output_tail)):
            if text.strip() and (trial.status == "ok" or run.status != "ok"):
                parts.append(f"<details><summary>{name}</summary><pre>{escape(text[-MOST_OUTPUT:])}</pre></details>")
    return "".join(dict.fromkeys(parts))


def _between(trial: Any) -> str:
    if trial.batch_seconds_p50 is None:
        return ""
    most = max((run.batch_seconds_max for run in trial.runs if run.batch_seconds_max is not None), default=None)
    longest = "" if most is None else f", longest {formatting.seconds(most)}"
    within = formatting.seconds(trial.batch_seconds_p95)
    return f"{formatting.seconds(trial.batch_seconds_p50)} (95 % within {within}{longest})"


def _seconds(value: float | None) -> str:
    return "" if value is None else formatting.seconds(value)


def _bytes(value: int | None, meaning: str) -> str:
    return "" if value is None else f"{format_bytes(value)}, {meaning}"


def _kinds(memory: Any) -> str:
    kinds = (
        ("anonymous", memory.anonymous_bytes),
        ("file-backed", memory.file_bytes),
        ("shared", memory.shared_bytes),
        ("batches in flight", memory.peak_shm_bytes),
    )
    return ", ".join(f"{format_bytes(value)} {name}" for name, value in kinds if value)


def _growth(memory: Any) -> str:
    if memory.growth_bytes_per_1000_samples is None:
        return ""
    sure = {True: "established", False: "not established", None: "one reading"}[memory.growth_established]
    return f"{format_bytes(memory.growth_bytes_per_1000_samples)} per 1,000 samples ({sure})"
