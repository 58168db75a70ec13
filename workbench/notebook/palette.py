"""One look for every chart and page: colours that colour-blind readers tell apart, marks that need no colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# M. Okabe and K. Ito, "Color Universal Design" (2008), less black and yellow: one vanishes on dark paper, one on light.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon")
RECOMMENDED_MARK, CURRENT_MARK = "star", "square-open"  # in every chart, and nothing else is a star
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SEQUENTIAL = "Cividis"  # J. R. Nuñez et al., PLoS ONE 13(7) e0199239: reads alike with and without colour vision

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
FONT_SIZE = 13
LEGEND_WORDS_PX = 92  # "measuring now": columns of one width, as many as the plot has room for

# What a settings that gave no answer looks like: a shape of its own, in the colour of warnings.
STATUS_MARKERS = {
    "failed": "x",
    "timed_out": "hourglass",
    "killed": "x-thin",
    "over_memory": "triangle-up",
    "wrong_data": "diamond-x",
    "skipped": "circle-open",
}
STATUS_WORDS = {
    "ok": "measured",
    "failed": "failed",
    "timed_out": "timed out",
    "killed": "killed",
    "over_memory": "over the memory limit",
    "wrong_data": "wrong data",
    "skipped": "not run",
}
STATUS_SHORT = STATUS_WORDS | {"over_memory": "over memory"}  # for legends and cells


@dataclass(frozen=True)
class Theme:
    """Colours of one background, as CSS colours.

    Attributes:
        text: Words and numbers.
        muted: Secondary words, axis titles.
        grid: Grid lines and borders.
        paper: The page behind a chart; charts themselves are transparent.
        panel: Boxes on the page.
        alert: Failures.
    """

    text: str
    muted: str
    grid: str
    paper: str
    panel: str
    alert: str


LIGHT = Theme("#1f2328", "#59636e", "#d9dee3", "#ffffff", "#f5f7f9", "#b42318")
DARK = Theme("#e6e9ec", "#a3adb8", "#3a424b", "#14181d", "#1e242b", "#ff8f80")
# For a figure whose background is not known: at least 4:1 against white and against JupyterLab's dark grey alike.
EITHER = Theme("#767676", "#767676", "rgba(128,128,128,0.35)", "rgba(0,0,0,0)", "rgba(128,128,128,0.12)", "#d9534f")
THEMES = {"light": LIGHT, "dark": DARK, "auto": EITHER}

CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud", "lasso2d", "select2d", "autoScale2d"],
    "responsive": True,
}


def why(status: str, reason: str) -> str:
    """A reason as it stands beside the words for its status, without saying them again."""
    return reason.removeprefix(f"{STATUS_WORDS[status]}: ")


def colour(index: int) -> str:
    """The colour of the `index`-th line; after six they come again, with other marks and dashes."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker of the `index`-th line."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def dash(index: int) -> str:
    """The dash of the `index`-th line."""
    return DASHES[(index + index // len(COLOURS)) % len(DASHES)]


def axis(theme: Theme, title: str, **more: Any) -> dict[str, Any]:
    """One axis in the house style, as plotly layout."""
    return {
        "title": {"text": title, "font": {"color": theme.muted, "size": FONT_SIZE}, "standoff": 10},
        "gridcolor": theme.grid,
        "linecolor": theme.grid,
        "tickfont": {"color": theme.muted, "size": FONT_SIZE - 1},
        "zeroline": False,
        "automargin": True,
        **more,
    }


def layout(theme: Theme, title: str, subtitle: str = "", **more: Any) -> dict[str, Any]:
    """The plotly layout that every chart starts from: transparent paper, one type, legend above the plot."""
    heading = f"<b>{title}</b>" + (f"<br><span style='font-size:12px'>{subtitle}</span>" if subtitle else "")
    return {
        "title": {
            "text": heading,
            "x": 0.02,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14},
            "font": {"color": theme.text, "size": FONT_SIZE + 2},
        },
        "font": {"family": FONT, "size": FONT_SIZE, "color": theme.text},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 64, "r": 20, "t": 50 + 17 * (subtitle.count("<br>") + 1 if subtitle else 0), "b": 56},
        "legend": {
            "orientation": "h",
            "x": 0.02,
            "xref": "container",
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "entrywidthmode": "pixels",
            "entrywidth": LEGEND_WORDS_PX,
            "font": {"color": theme.muted, "size": FONT_SIZE - 1},
        },
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": FONT_SIZE - 1}},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.muted, "activecolor": theme.text},
        "uirevision": "kept",
        **more,
    }
