"""The one line of caution that ends a recommendation: what it does not rest on, and the way out as a command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.measure.result import TrialResult
from workbench.tuning.ranking import is_checked
from workbench.tuning.rounds import Progress

if TYPE_CHECKING:
    from workbench.tuning.results import Results

LEAST_BATCHES = 20  # in windows; a rate that rests on fewer is a first impression
MOST_NAMED = 4  # settings that a sentence lists before it only counts them
MORE_BUDGET = 2.0  # times the budget that was not enough
LEAST_MORE_SECONDS = 120.0
GRID_STARTS = 3  # `grid.Grid` starts again what is not precise until it has so many
LONGER_RUNS = 4.0  # times as long halves what one run leaves open
ENDED_EARLY = {
    "budget": "the time budget ended",
    "stopped": "the sweep was stopped",
    "interrupted": "the sweep was interrupted",
    "failed": "the sweep ended with an error",
}
COMMAND = "workbench sweep ..."  # stands for the user's own command; who knows that one can put it there


def caution(results: Results) -> Iterator[str]:
    """All that leaves the recommendation open, in one line; what it holds for where nothing does."""
    found = [*_unsettled(results), *thin(results.ranking.order[0])]
    if not found:
        yield (
            "It holds for this loader and this machine; measure again when data, transforms, batch size or machine "
            "change."
        )
        return
    if results.ranking.rival is not None:  # the first line says how to go on
        yield f"Not certain yet: {'; '.join(found)}."
    else:
        yield f"Not certain yet: {'; '.join(found)}. What would tell: {way_out(results)}."


def way_out(results: Results) -> str:
    """How the sweep goes on, as a command: resumed where it was cut short, else anew with longer runs."""
    quiet = " on a quiet machine" if any(run.noisy for run in results.ranking.order[0].runs) else ""
    if not results.ending:
        return "more time"
    if results.ending not in ENDED_EARLY and _grid_starts_more(results):
        return (
            f'`{COMMAND} --resume --strategy grid` (in Python: the same sweep with strategy="grid", and '
            f"run(resume=True)){quiet}"
        )
    if results.ending not in ENDED_EARLY:
        seconds = LONGER_RUNS * float(results.options.get("measure_seconds") or 1.0)
        return f"`wb.Sweep(..., measure_seconds={seconds:g}).run()`, a new sweep with longer runs{quiet}"
    budget = results.options.get("budget_seconds")
    if budget is None:
        return f"`{COMMAND} --resume` (in Python: the same sweep, with run(resume=True)){quiet}"
    minutes = math.ceil(max(LEAST_MORE_SECONDS, MORE_BUDGET * float(budget)) / 60)
    return (
        f"`{COMMAND} --resume --budget {minutes}m` (in Python: the same sweep with a larger budget, and "
        f"run(resume=True)){quiet}"
    )


def _grid_starts_more(results: Results) -> bool:
    """Whether resuming a finished search as a grid would start again what is in question."""
    ranking = results.ranking
    asked = [ranking.order[0], *ranking.unsettled, *([ranking.rival] if ranking.rival is not None else [])]
    return results.strategy != "grid" and any(len(trial.runs) < GRID_STARTS for trial in asked)


def listed(trials: Sequence[TrialResult]) -> str:
    """Settings with their rates, the first few by name."""
    named = "; ".join(
        f"{trial.settings.describe()} at {number(trial.samples_per_second or 0)}/s" for trial in trials[:MOST_NAMED]
    )
    return named + (f"; and {len(trials) - MOST_NAMED} more" if len(trials) > MOST_NAMED else "")


def number(rate: float) -> str:
    """A rate with three figures, or as a whole number."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _unsettled(results: Results) -> Iterator[str]:
    """What other settings may still turn out to be."""
    ranking = results.ranking
    if results.ending in ENDED_EARLY:
        waiting = [t for t in results.trials if t.status == "skipped" and t.reason.startswith("not run")]
        yield f"{ENDED_EARLY[results.ending]} first" + (
            f", and {len(waiting)} of the settings got no turn" if waiting else ""
        )
    if open_ := [trial for trial in ranking.unsettled if trial is not ranking.rival]:
        yield f"not settled, may still be faster: {listed(open_)}{_why_over(results)}"
    looked_at = [] if ranking.kept_current else [trial for trial in ranking.tied if not is_checked(trial)]
    if looked_at:
        yield f"may be as good, from short looks that check neither data nor memory: {listed(looked_at)}"


def _why_over(results: Results) -> str:
    """Why a race that ended by itself starts nothing more although something is open."""
    if results.strategy != "race" or results.ending != "finished":
        return ""
    from workbench.tuning.race import Race

    started = {t.settings: t for t in results.trials if not (t.status == "skipped" and t.reason.startswith("not run"))}
    progress = Progress(
        tuple(trial.settings for trial in results.trials),
        started,
        results.current,
        probe=results.probe,
        cores=float(results.machine.get("usable_cores") or 1),
        paced=bool(results.options.get("step")),
    )
    why = Race().why_over(progress)
    early = " before its time was up" if results.options.get("budget_seconds") else ""
    return f" (the search ended by itself{early}: {why})" if why else ""


def thin(best: TrialResult) -> Iterator[str]:
    """What the chosen settings were not given."""
    batches = sum(window.batches for run in best.runs for window in run.windows)
    if batches < LEAST_BATCHES:
        yield f"too few batches to rest on, only {batches} {'was' if batches == 1 else 'were'} timed"
    if not is_checked(best):
        every = {1: "the only start", 2: "both starts"}.get(len(best.runs), f"all {len(best.runs)} starts")
        looks = "was a short look" if len(best.runs) == 1 else "were short looks"
        unchecked = "in which neither the data that come out nor growing memory are checked"
        yield f"{every} of the chosen settings {looks}, {unchecked}"
    if all(run.cold for run in best.runs):
        yield "it was measured only once, on files that may not have been in memory yet"
    if any(run.noisy for run in best.runs):
        yield "other programs used the cores meanwhile, so that a quiet machine gives other numbers"
