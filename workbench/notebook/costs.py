"""The stages of a loading process as bars: CPU, waiting, and time in which no core was free."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.notebook import formatting, palette
from workbench.notebook.bars import Bar, Part, bars_html, legend_html

CPU_INK, WAIT_INK, STARVED_INK = palette.COLOURS[0], palette.COLOURS[4], palette.COLOURS[3]
INKS_OF_TIME = ((CPU_INK, "CPU"), (WAIT_INK, "waiting"), (STARVED_INK, "no core free"))
WORTH_SAYING = 0.05  # a share of waiting below it is noise


def costs_html(costs: Any) -> str:
    """The stages of one loading process from `StageCosts` alone, as bars."""
    busy = costs.worker_busy_fraction
    told = f"{formatting.seconds(costs.worker_seconds_per_batch)} for a batch in one loading process"
    told += f", which is busy {formatting.percent(busy)} of the time" if busy is not None else ""
    return f"<p>{escape(told)}.</p>{bars_html(worker_bars(costs))}{legend_html(INKS_OF_TIME)}"


def worker_bars(costs: Any) -> tuple[Bar, ...]:
    """Each stage of a loading process, in seconds for a batch."""
    where = "in a worker" if costs.hand_over is not None else "in the loop"
    return tuple(_stage_bar(stage, where) for stage in costs.stages)


def _stage_bar(stage: Any, where: str) -> Bar:
    starved = min(stage.starved_seconds or 0.0, max(0.0, stage.wall_seconds - stage.cpu_seconds))
    split = (
        (CPU_INK, "CPU", min(stage.cpu_seconds, stage.wall_seconds)),
        (WAIT_INK, "waiting", stage.waiting_seconds),
        (STARVED_INK, "no core free", starved),
    )
    parts = tuple(Part(length, ink, f"{words}: {formatting.seconds(length)}") for ink, words, length in split)
    told = formatting.seconds(stage.wall_seconds)
    waits = stage.waiting_seconds / stage.wall_seconds if stage.wall_seconds > 0 else 0.0
    if waits >= WORTH_SAYING:
        told += f", {formatting.percent(waits)} waiting"
    return Bar(f"{stage.name}, {where}", told, parts)
