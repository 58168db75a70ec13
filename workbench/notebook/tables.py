"""The trials as a table: real HTML rows for screen readers and saved notebooks, and plain text for everything else."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.notebook import formatting
from workbench.notebook.palette import STATUS_WORDS, why
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


LEAST_IMPORTANT_FIRST = ("RSS", "cores", "epoch edge", "batch, p50 / p95", "first batch", "memory")
GAP = 2  # spaces between the columns of plain text
SHORTEST_SETTINGS = 20  # characters that settings have however narrow the table may be
LINES_OF_A_REASON = 3  # below its settings
LONGEST_REASON = 300  # characters
MARKDOWN_ROWS = 30
ROOM_FOR_A_REASON = 40  # characters beside a settings from which on its reason can be read there


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


def text_table(results: Results, *, limit: int = 20, width: int | None = None) -> str:
    """The trials as aligned plain text, best first, at most `limit` rows.

    A trial without an answer has its reason in place of figures, ended at a word where it is too long. What marks and
    headings mean stands below.

    Args:
        results: Anything with `trials`.
        limit: Most rows.
        width: Characters of a line; the columns that matter least are left out to fit. None has no limit.
    """
    rows = ordered(results)
    names = [_named(trial, results.best) for _, trial in rows[:limit]]
    if width is not None and _too_wide(["settings", *names], COLUMNS, rows[:limit], width):
        names = [re.sub(r" \([^)]*\)", "", name) for name in names]
    columns = list(COLUMNS)
    for heading in LEAST_IMPORTANT_FIRST:
        if width is not None and _too_wide(["settings", *names], columns, rows[:limit], width):
            columns = [column for column in columns if column.heading != heading]
    if width is not None:
        room = max(SHORTEST_SETTINGS, width - sum(GAP + one for one in _widths(columns, [t for _, t in rows[:limit]])))
        names = [name[:2] + shortened(name[2:], room - 2) for name in names]
    text = "\n".join(_lines(names, columns, [trial for _, trial in rows[:limit]], width))
    text += f"\nand {len(rows) - limit} more" if len(rows) > limit else ""
    return f"{text}\n{_legend(columns, results, width)}" if rows else text


def _legend(columns: Sequence[Column], results: Results, width: int | None) -> str:
    told = ["* recommended"] if results.best is not None else []
    told += [f"{column.heading}: {column.meaning}" for column in columns]
    return textwrap.fill("; ".join(told), width) if width is not None else "; ".join(told)


def _lines(names: list[str], columns: Sequence[Column], trials: list[Any], width: int | None) -> list[str]:
    """Header and rows; a reason stands beside its settings where that leaves room, else below them."""
    first = max(map(len, ["settings", *names]))
    widths = _widths(columns, trials)
    room = sum(widths) + GAP * (len(widths) - 1)
    if width is not None:
        room = max(room, width - first - GAP)
    lines = [_aligned(["settings", *(column.heading for column in columns)], [first, *widths])]
    for name, trial in zip(names, trials, strict=True):
        if trial.status == "ok":
            lines.append(_aligned([name, *(column.text(trial) for column in columns)], [first, *widths]))
            continue
        told = trial.status + (f": {_first_line(trial.reason)}" if trial.reason else "")
        if room >= ROOM_FOR_A_REASON:
            lines.append(_aligned([name, shortened(told, room)], [first, room]))
        else:
            below = textwrap.wrap(told, (width or room) - 4, max_lines=LINES_OF_A_REASON, placeholder=" …")
            lines += [name, *(" " * 4 + line for line in below)]
    return lines


def _aligned(cells: list[str], widths: list[int]) -> str:
    return (" " * GAP).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _widths(columns: Sequence[Column], trials: list[Any]) -> list[int]:
    able = [trial for trial in trials if trial.status == "ok"]
    return [max(len(column.heading), *(len(column.text(one)) for one in able), 0) for column in columns]


def _too_wide(names: list[str], columns: Sequence[Column], rows: list[tuple[int, Any]], width: int) -> bool:
    return max(map(len, names)) + sum(GAP + one for one in _widths(columns, [trial for _, trial in rows])) > width


def shortened(text: str, width: int) -> str:
    """`text`, or as many of its words as fit in `width` characters with an ellipsis; a long first word is cut."""
    if len(text) <= width:
        return text
    return textwrap.shorten(text, max(width, 2), placeholder=" …") if " " in text[:width] else text[: width - 1] + "…"


def markdown_table(results: Results) -> str:
    """The trials as a Markdown table, best first, at most `MARKDOWN_ROWS` of them."""
    rows = ordered(results)
    header = ["settings", *(column.heading for column in COLUMNS), "status"]
    lines = [header, ["---", *["---:"] * len(COLUMNS), "---"]]
    for _, trial in rows[:MARKDOWN_ROWS]:
        mark = " **recommended**" if trial.settings == results.best else ""
        told = STATUS_WORDS[trial.status] + (f": {why(trial.status, trial.reason)}" if trial.reason else "")
        lines.append([trial.settings.describe() + mark, *(column.text(trial) for column in COLUMNS), told])
    text = "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)
    return text + (f"\n\nand {len(rows) - MARKDOWN_ROWS} more" if len(rows) > MARKDOWN_ROWS else "")


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
    reason = escape(_first_line(why(trial.status, trial.reason)))
    told = f'<span class="{looks}">{STATUS_WORDS[trial.status]}</span> {reason}'
    return f'<tr{state}>{head}<td colspan="{len(COLUMNS)}" class="wb-reason"><div>{told}</div></td></tr>'


def _cell(text: str) -> str:
    """One cell; a pair of numbers may stand on two lines, with each number beside its unit."""
    if " / " not in text:
        return f"<td>{escape(text)}</td>"
    return (
        f'<td class="wb-pair">{"&nbsp;/ ".join(escape(part).replace(" ", "&nbsp;") for part in text.split(" / "))}</td>'
    )


def _named(trial: Any, best: Any) -> str:
    return ("* " if best is not None and trial.settings == best else "  ") + trial.settings.describe()


def _rate(trial: Any) -> str:
    estimate = trial.estimate
    return (
        formatting.rate(estimate.samples_per_second, estimate.low, estimate.high, "").replace("  ", " ").strip()
        if (estimate)
        else formatting.UNKNOWN
    )


def _pair(trial: Any) -> str:
    return f"{formatting.seconds(trial.batch_seconds_p50)} / {formatting.seconds(trial.batch_seconds_p95)}"


def _first_line(text: str) -> str:
    first = next(iter(text.splitlines()), "")
    return first if len(first) <= LONGEST_REASON else first[: LONGEST_REASON - 1] + "…"


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
