"""What a sweep is told by hand beside its knobs, the buttons that steer it, and the lines that say how it goes."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets as W

from workbench import machine
from workbench.errors import WorkbenchError
from workbench.notebook.report import static_text
from workbench.tuning.strategies import STRATEGIES

FIELD = {"width": "auto", "flex": "1 1 220px", "min_width": "200px"}
STRATEGY_WORDS = {
    "race": "race: time goes where it may matter",
    "grid": "grid: all, equally well",
    "guided": "guided: one knob at a time",
    "forecast": "forecast: few measured, rest predicted",
}


class ErrorBox:
    """Where errors of callbacks are shown: nothing else in a notebook would show them."""

    def __init__(self) -> None:
        self.widget = W.HTML()

    def show(self, error: BaseException) -> None:
        """Shows an error: our own in a sentence, any other one with its traceback to open."""
        text = str(error) or type(error).__name__
        more = ""
        if not isinstance(error, WorkbenchError):
            text = f"{type(error).__name__}: {text}"
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            more = f"<details><summary>Traceback</summary><pre>{escape(lines)}</pre></details>"
        elif getattr(error, "traceback_text", ""):
            more = f"<details open><summary>Traceback</summary><pre>{escape(error.traceback_text)}</pre></details>"
        self.widget.value = f'<div role="alert" class="wb-alert"><p>{escape(text)}</p>{more}</div>'

    def clear(self) -> None:
        """Shows nothing."""
        if self.widget.value:
            self.widget.value = ""

    def guarded(self, action: Callable[..., Any]) -> Callable[..., None]:
        """`action` as a callback whose errors end up in this box."""

        @functools.wraps(action)
        def call(*args: Any, **kwargs: Any) -> None:
            try:
                action(*args, **kwargs)
            except Exception as error:  # a callback has no caller that would see it
                self.show(error)

        return call


class Limits:
    """Strategy, budget and memory limit, as fields that take what the Python arguments take."""

    def __init__(self, strategy: str, budget: Any, memory: Any, changed: Callable[[], None]) -> None:
        options = [(STRATEGY_WORDS.get(name, name), name) for name in STRATEGIES]
        self._strategy = W.Dropdown(options=options, value=strategy, layout=W.Layout(**FIELD))
        self._budget = W.Text(value=_text(budget), placeholder="none, or 90s, 5m", layout=W.Layout(**FIELD))
        self._memory = W.Text(value=_text(memory), placeholder="none, or 8GiB", layout=W.Layout(**FIELD))
        for field in (self._strategy, self._budget, self._memory):
            field.observe(lambda _: changed(), "value")
        self.widget = W.Box(
            [
                labelled("Strategy", self._strategy),
                labelled("Time budget", self._budget),
                labelled("Memory limit", self._memory),
            ],
            layout=W.Layout(flex_flow="row wrap", overflow="visible"),
        )
        self.widget.add_class("wb-fields")

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self._strategy.value

    @property
    def budget_seconds(self) -> float | None:
        """The time budget, or None.

        Raises:
            SettingsError: If the text is no time.
        """
        text = self._budget.value.strip()
        return machine.parse_seconds(text) if text else None

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit, or None.

        Raises:
            SettingsError: If the text is no size.
        """
        text = self._memory.value.strip()
        return machine.parse_bytes(text) if text else None

    def arguments(self) -> dict[str, Any]:
        """The limits as arguments of `Sweep`, as they were typed and without those that were left empty."""
        typed = {"budget_seconds": self._budget.value.strip(), "memory_limit": self._memory.value.strip()}
        return {"strategy": self.strategy} | {name: text for name, text in typed.items() if text}


class Frame(W.VBox):
    """The box around a panel, which says what it is where only its text can be shown.

    Args:
        children: What is in it.
        stands_for: That text.
    """

    def __init__(self, children: Sequence[Any] = (), stands_for: str = "", **options: Any) -> None:
        self.wb_stands_for = stands_for
        super().__init__(children, **options)
        self.add_class("wb")
        self.add_class("wb-panel")

    def __repr__(self) -> str:
        return self.wb_stands_for


def heading(title: str, about: str) -> W.HTML:
    """The top of a panel: the look of all of it, its title, and a sentence about it."""
    css = static_text("style.css") + static_text("panel.css")
    return W.HTML(f'<style>{css}</style><h2>{escape(title)}</h2><p class="wb-sub">{escape(about)}</p>')


class Steering:
    """Run, Pause or Resume, and Stop; never disabled, since that would take the keyboard's focus away.

    Args:
        run: Called by Run.
        pause: Called by Pause and by Resume.
        stop: Called by Stop.
    """

    def __init__(self, run: Callable[[Any], None], pause: Callable[[Any], None], stop: Callable[[Any], None]) -> None:
        self.run = button("Run", "start a sweep over the ticked values", run)
        self.pause = button("Pause", "free the machine; what is measured stays", pause)
        self.stop = button("Stop", "end the sweep; what is measured stays", stop)
        self.run.add_class("wb-primary")
        self.widget = W.Box(
            [self.run, self.pause, self.stop], layout=W.Layout(flex_flow="row wrap", overflow="visible")
        )
        self.widget.add_class("wb-buttons")

    def show(self, state: str) -> None:
        """Says by their looks which buttons do something in this state."""
        self.pause.description = "Resume" if state == "paused" else "Pause"
        active = state in ("running", "paused")
        quieten(self.run, active or state == "stopping")
        quieten(self.pause, not active)
        quieten(self.stop, not active)


class ProgressLine:
    """A bar, a sentence for all readers, and numbers that change too often to be read out."""

    def __init__(self) -> None:
        self._bar = W.IntProgress(value=0, min=0, max=1, layout=W.Layout(width="100%", height="8px", margin="0"))
        self._bar.add_class("wb-bar")
        self._status = W.HTML(_status("Ready."))
        self._numbers = W.HTML()
        words = W.Box([self._status, self._numbers], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        words.add_class("wb-progress")
        self.widget = W.VBox([self._bar, words])

    def show(self, done: int, total: int, status: str, numbers: Sequence[str] = ()) -> None:
        """Shows how far something is; only what differs is sent.

        Args:
            done: Parts that are done.
            total: Parts in all.
            status: What it is doing, in a sentence.
            numbers: What changes often; empty ones are left out.
        """
        self._bar.max = max(total, 1)
        self._bar.value = done
        self._status.value = _status(status)
        told = " · ".join(text for text in numbers if text)
        self._numbers.value = f'<span class="wb-numbers-now">{escape(told)}</span>'


def _status(text: str) -> str:
    return f'<span role="status" aria-live="polite" class="wb-status">{escape(text)}</span>'


def labelled(label: str, field: Any) -> Any:
    """The field with its label, as all fields of a panel have it."""
    field.description = label
    field.style.description_width = "auto"
    return field


def button(label: str, meaning: str, action: Callable[[Any], None]) -> W.Button:
    """A button with a word on it, and its meaning as a tooltip."""
    made = W.Button(description=label, tooltip=meaning, layout=W.Layout(width="auto", min_width="92px"))
    made.on_click(action)
    return made


def quieten(pressed: W.Button, quiet: bool) -> None:
    """Says by its looks that a button does nothing now, or that it does again."""
    if quiet:
        pressed.add_class("wb-quiet")
    else:
        pressed.remove_class("wb-quiet")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
