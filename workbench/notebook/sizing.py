"""How large the ticked space is and about how long it takes, with what that rests on, in one line under the buttons."""

from __future__ import annotations

from workbench import machine
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.notebook import formatting
from workbench.notebook.controls import Limits
from workbench.notebook.durations import StartSeconds
from workbench.tuning.space import SearchSpace
from workbench.tuning.strategies import Progress, strategy_named

BASIS_WORDS = {
    "measured": "a start of this loader took {0} on average",
    "probed": "a start is taken to need {0}, from what a batch took with 0 workers",
    "assumed": "a start is assumed to take {0} until this loader has shown its own; a slow one takes longer",
}


def size_html(
    space: SearchSpace, source: LoaderSource, current: LoaderSettings | None, limits: Limits, start: StartSeconds
) -> str:
    """ "7 settings, yours among them; about 16 starts, 40 s (a start of this loader took 2.41 s on average)."

    Args:
        space: What is ticked.
        source: The loader.
        current: Its settings now, where they are known.
        limits: Strategy, budget and memory limit.
        start: What one start takes, and how that is known.

    Raises:
        SettingsError: If what was typed makes no sense.
    """
    found = space.resolve(source, machine.accelerator().pins, current)
    starts = strategy_named(limits.strategy).runs_left(Progress(found.settings, current=found.current))
    budget = limits.budget_seconds
    limits.memory_limit_bytes  # noqa: B018  raises where the text is no size
    cut = f" The budget ends it after {formatting.chosen(budget)}." if budget is not None else ""
    size = formatting.count(len(found.settings), "settings", "settings")
    yours = ", yours among them" if found.current is not None else ""
    took = BASIS_WORDS[start.basis].format(formatting.seconds(start.seconds))
    about = f"about {formatting.count(starts, 'start')}, {formatting.about(starts * start.seconds)} ({took})"
    return f'<p class="wb-size"><b>{size}</b>{yours}; {about}.{cut}</p>'


def problem_html(error: BaseException) -> str:
    """What is wrong with what was ticked or typed, in the same place."""
    from html import escape

    return f'<p class="wb-size"><span class="wb-failed">{escape(str(error))}</span></p>'
