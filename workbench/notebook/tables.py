"""The trials as a table: real HTML rows for screen readers and saved notebooks, and plain text for everything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.notebook import formatting
from workbench.notebook.palette import STATUS_WORDS
from workbench.tuning.results import Results


class Column(NamedTuple):
    """One column: its heading, what the heading means, and how a trial is written in it."""

    heading: str
    meaning: str
    text: Callable[[Any], str]


COLUMNS = (
    Column("samples/s", "steady rate with its 95 % interval", lambda trial: _rate(trial)),
    Column("batch, p50 / p95", "seconds between batches", lambda trial: _pair(trial)),
    Column("first batch", "from asking for an iterator", lambda t: formatting.seconds(t.first_batch_seconds)),
    Column("epoch edge", "last batch to next first", lambda t: formatting.seconds(t.epoch_edge_seconds)),
    Column("memory", "peak, shared pages counted once (PSS)", lambda t: format_bytes(t.peak_pss_bytes)),
    Column("RSS", "peak, shared pages counted in each process", lambda t: format_bytes(t.peak_rss_bytes)),
    Column("cores", "cores used on average", lambda t: formatting.cores(t.cpu_cores_used)),
)


def ordered(results: Results) -> list[tuple[int, Any]]:
    """(position in the sweep, trial) pairs: by rank, the recommended first, then those without an answer."""
    ranks = {trial.settings: rank for rank, trial in enumerate(results.ranking.order)}
    return sorted(enumerate(results.trials), key=lambda item: ranks.get(item[1].settings, len(ranks)))


def html_table(results: Results, *, caption: str = "", limit: int | None = None, selected: int | None = None) -> str:
    """The trials of `results` as one `<table>`, best first.

    Args:
        results: Anything with `trials`.
        caption: Text of the caption; everything in it and in the rows is escaped.
        limit: Most rows; what is left out is said in the last row.
        selected: Position of the trial whose row is marked.
    """
    rows = ordered(results)
    shown = rows[:limit] if limit is not None else rows
    best, mine = results.best, results.current
    body = [_row(key, trial, best, mine, key == selected) for key, trial in shown]
    if not rows:
        body = [f'<tr><td colspan="{len(COLUMNS) + 1}">Nothing measured yet.</td></tr>']
    if len(shown) < len(rows):
        left = f"and {len(rows) - len(shown)} more, slower or without an answer; results.frame has them all"
        body.append(f'<tr><td colspan="{len(COLUMNS) + 1}">{left}</td></tr>')
    heads = "".join(
        f'<th scope="col" title="{escape(column.meaning)}">{escape(column.heading)}</th>' for column in COLUMNS
    )
    return (
        f'<table class="wb-table"><caption>{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">settings</th>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


def settings_html(settings: LoaderSettings) -> str:
    """A settings in words, with what only explains it in a quieter colour."""
    return re.sub(r"\([^)]*\)", lambda part: f'<span class="wb-part">{part[0]}</span>', escape(settings.describe()))


def text_table(results: Results, *, limit: int = 20) -> str:
    """The trials as aligned plain text, best first, at most `limit` rows."""
    rows = ordered(results)
    header = ["settings", "status", *(column.heading for column in COLUMNS)]
    lines = [header] + [_text_row(trial, results.best) for _, trial in rows[:limit]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return text + (f"\nand {len(rows) - limit} more" if len(rows) > limit else "")


def markdown_table(results: Results, *, limit: int = 30) -> str:
    """The trials as a Markdown table, best first, at most `limit` rows."""
    rows = ordered(results)
    header = ["settings", *(column.heading for column in COLUMNS), "status"]
    lines = [header, ["---", *["---:"] * len(COLUMNS), "---"]]
    for _, trial in rows[:limit]:
        mark = " **recommended**" if trial.settings == results.best else ""
        told = STATUS_WORDS[trial.status] + (f": {trial.reason}" if trial.reason else "")
        lines.append([trial.settings.describe() + mark, *(column.text(trial) for column in COLUMNS), told])
    text = "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)
    return text + (f"\n\nand {len(rows) - limit} more" if len(rows) > limit else "")


def badges(trial: Any, best: Any, current: Any) -> Sequence[str]:
    """The words that mark a row: recommended, yours, or what went wrong."""
    marks = ["recommended"] if best is not None and trial.settings == best else []
    marks += ["your settings"] if current is not None and trial.settings == current else []
    return marks


def _row(key: int, trial: Any, best: Any, current: Any, selected: bool) -> str:
    marks = "".join(f' <span class="wb-badge">{mark}</span>' for mark in badges(trial, best, current))
    state = ' class="wb-best"' if marks and trial.settings == best else ""
    state += ' aria-current="true"' if selected else ""
    head = f'<th scope="row">{settings_html(trial.settings)}{marks}</th>'
    if trial.status == "ok":
        cells = "".join(_cell(column.text(trial)) for column in COLUMNS)
        return f"<tr{state}>{head}{cells}</tr>"
    looks = "wb-waiting" if trial.status == "skipped" else "wb-failed"
    told = f'<span class="{looks}">{STATUS_WORDS[trial.status]}</span> {escape(_first_line(trial.reason))}'
    return f'<tr{state}>{head}<td colspan="{len(COLUMNS)}" class="wb-reason"><div>{told}</div></td></tr>'


def _cell(text: str) -> str:
    """One cell; a pair of numbers may stand on two lines, with each number beside its unit."""
    if " / " not in text:
        return f"<td>{escape(text)}</td>"
    return (
        f'<td class="wb-pair">{"&nbsp;/ ".join(escape(part).replace(" ", "&nbsp;") for part in text.split(" / "))}</td>'
    )


def _text_row(trial: Any, best: Any) -> list[str]:
    mark = "* " if best is not None and trial.settings == best else "  "
    cells = [column.text(trial) if trial.status == "ok" else formatting.UNKNOWN for column in COLUMNS]
    told = trial.status + (f": {_first_line(trial.reason)[:60]}" if trial.reason else "")
    return [mark + trial.settings.describe(), told, *cells]


def _rate(trial: Any) -> str:
    estimate = trial.estimate
    return (
        formatting.rate(estimate.samples_per_second, estimate.low, estimate.high, "").replace("  ", " ").strip()
        if (estimate)
        else formatting.UNKNOWN
    )


def _pair(trial: Any) -> str:
    return f"{formatting.seconds(trial.batch_seconds_p50)} / {formatting.seconds(trial.batch_seconds_p95)}"


def _first_line(text: str, most: int = 300) -> str:
    first = next(iter(text.splitlines()), "")
    return first if len(first) <= most else first[: most - 1] + "…"


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
