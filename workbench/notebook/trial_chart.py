"""Several trials beside one another under names of their own, as `measure` returns them: a pipeline step by step."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from workbench.errors import WorkbenchError
from workbench.measure.result import TrialResult
from workbench.notebook import formatting, palette
from workbench.notebook.charts import Chart
from workbench.notebook.marks import HOVER, Figure, finished, subtitle
from workbench.notebook.palette import Theme


def trials(
    named: Mapping[str, TrialResult],
    title: str,
    *,
    most: float | None = None,
    most_name: str = "the most there can be",
    theme: str = "auto",
) -> Chart:
    """The rate of each trial with its 95 % interval, in the order given.

    Args:
        named: Trials by the name to be shown; one without a rate keeps its place and has no mark.
        title: What they have in common.
        most: Samples per second that no trial can exceed, such as the step's own; None draws no line.
        most_name: What that line is called.
        theme: "light", "dark", or "auto" for inks that read on both.

    Raises:
        WorkbenchError: There is no trial, or the theme is unknown.
    """
    if not named:
        raise WorkbenchError("no trials to show: give at least one, by name.")
    if theme not in palette.THEMES:
        raise WorkbenchError(f"theme={theme!r} is not known; choose from {', '.join(palette.THEMES)}")
    return Chart(trials_figure(named, title, palette.THEMES[theme], most, most_name))


def trials_figure(
    named: Mapping[str, TrialResult], title: str, theme: Theme, most: float | None, most_name: str
) -> Figure:
    """A mark a trial with its interval, joined in their order, below the line of what can be reached."""
    shown = [(place, name, trial) for place, (name, trial) in enumerate(named.items()) if trial.samples_per_second]
    ends = [-0.5, len(named) - 0.5]
    data = [_marks(shown)] if shown else []
    if shown and most is not None:
        data.append(_line(ends, most, most_name, theme))
    layout = palette.layout(
        theme,
        escape(title),
        subtitle("bars: 95 % intervals"),
        xaxis=palette.axis(theme, "", tickvals=list(range(len(named))), ticktext=[*map(escape, named)], range=ends),
        yaxis=palette.axis(theme, "samples/s", rangemode="tozero", tickformat=",~r", nticks=7),
    )
    return finished(data, layout, theme, False, bool(shown))


def _marks(shown: list[tuple[int, str, TrialResult]]) -> Figure:
    arms = [_arms(trial) for _, _, trial in shown]
    ink = palette.colour(0)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "measured",
        "x": [place for place, _, _ in shown],
        "y": [trial.samples_per_second for _, _, trial in shown],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [up for _, up in arms],
            "arrayminus": [down for down, _ in arms],
            "thickness": 1.5,
            "width": 4,
        },
        "hovertext": [f"<b>{escape(name)}</b>: {_rate(trial)}" for _, name, trial in shown],
        "hovertemplate": HOVER,
        "line": {"color": ink, "width": 2, "dash": "dot"},
        "marker": {"symbol": palette.marker(0), "size": 10, "color": ink},
    }


def _line(ends: list[float], most: float, name: str, theme: Theme) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape(name),
        "x": ends,
        "y": [most, most],
        "hovertext": [f"{escape(name)}: {formatting.rate(most)}"] * 2,
        "hovertemplate": HOVER,
        "line": {"color": theme.muted, "width": 1.5, "dash": "dash"},
        "marker": {"symbol": "circle", "size": 0, "color": theme.muted},
    }


def _arms(trial: TrialResult) -> tuple[float, float]:
    """Length of the interval's lower and upper bar; none where it is not known."""
    rate, low, high = trial.samples_per_second, trial.samples_per_second_low, trial.samples_per_second_high
    known = formatting.half_width(rate, low, high) is not None
    return (rate - low, high - rate) if known else (0.0, 0.0)


def _rate(trial: TrialResult) -> str:
    return formatting.rate(trial.samples_per_second, trial.samples_per_second_low, trial.samples_per_second_high)
