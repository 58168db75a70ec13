"""How large the ticked space is and how long it takes at most, in one line under the buttons."""

from __future__ import annotations

from workbench import machine
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.notebook import formatting
from workbench.notebook.controls import Limits
from workbench.tuning.space import SearchSpace
from workbench.tuning.strategies import Progress, strategy_named

SECONDS_BESIDE_MEASURING = 1.5  # start, warm-up and end of one start, until this loader has shown its own


def size_html(
    space: SearchSpace, source: LoaderSource, current: LoaderSettings | None, limits: Limits, measure_seconds: float
) -> str:
    """ "7 settings, yours among them; at most about 40 s."

    Args:
        space: What is ticked.
        source: The loader.
        current: Its settings now, where they are known.
        limits: Strategy, budget and memory limit.
        measure_seconds: Measuring time of one start.

    Raises:
        SettingsError: If what was typed makes no sense.
    """
    found = space.resolve(source, machine.accelerator().pins, current)
    starts = strategy_named(limits.strategy).runs_left(Progress(found.settings, current=found.current))
    seconds, budget = starts * (measure_seconds + SECONDS_BESIDE_MEASURING), limits.budget_seconds
    limits.memory_limit_bytes  # noqa: B018  raises where the text is no size
    cut = f", cut by the budget at {formatting.seconds(budget)}" if budget is not None and budget < seconds else ""
    size = formatting.count(len(found.settings), "settings", "settings")
    yours = ", yours among them" if found.current is not None else ""
    return f'<p class="wb-size"><b>{size}</b>{yours}; at most about {formatting.about(seconds)}{cut}.</p>'


def problem_html(error: BaseException) -> str:
    """What is wrong with what was ticked or typed, in the same place."""
    from html import escape

    return f'<p class="wb-size"><span class="wb-failed">{escape(str(error))}</span></p>'
