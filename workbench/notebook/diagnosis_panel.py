"""DiagnosisPanel: what holds training back, measured from the notebook, kept beside what it was before a change."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from workbench.errors import WorkbenchError
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.measure.diagnosis import Diagnosis, by_start
from workbench.notebook import diagnosis_watch, formatting, verdict
from workbench.notebook.bars import bars_html
from workbench.notebook.before_after import changes_html
from workbench.notebook.controls import ErrorBox, Frame, ProgressLine, button, heading, quieten
from workbench.notebook.diagnosis_choices import DiagnosisChoices, TimedStep
from workbench.notebook.diagnosis_watch import Examined, taken_in
from workbench.notebook.errand import Errand
from workbench.notebook.exporting import code_html
from workbench.notebook.folds import Fold
from workbench.notebook.gallery import pulse
from workbench.notebook.history import History
from workbench.notebook.pump import Pump
from workbench.notebook.succession import Newest, moved
from workbench.notebook.trace_view import TraceView
from workbench.tuning.control import Control
from workbench.tuning.sweep import running_sweeps

STANDS_FOR_PANEL = "Loader Workbench diagnosis: it needs a running kernel; what it found last is kept below."
HOW = "Loader, step and both are timed in turn, in processes of their own."
BEFORE = "What this panel finds will be kept here."
ONE_START = "These rates are from one start, which says nothing about the next: no verdict rests on them."
DISTURBED = "Something else is measuring in this kernel at the same time: both are disturbed."
ONLY_WAITS = "The step is known by its length alone: it waits, and what it would take from the cores is not seen."
TRACE_FILE, TRACED_STEPS = "step.json", 20

_newest: Newest[DiagnosisPanel] = Newest()


class DiagnosisPanel:
    """A panel that diagnoses one training loop: run, watch, read the verdict, change something, run again.

    Loader and step run in processes of their own, the kernel's copies are not touched. Running the cell again, after
    a change of the code, keeps what was found before beside what is found now.

    Args:
        loader: A DataLoader, a factory, or the name of one (see `LoaderSource.of`).
        step: A function of a batch, a (model, loss, optimiser) triple, "file.py:function", or the seconds that a step
            is known to take; None leaves it to be typed.
        settings: How the loader runs at first; None runs it as it is.
        starts: Most starts.
        seconds: Length of each stretch that is timed.
        samples_per_batch: How many samples a batch holds, where that cannot be seen.
        trace: A trace that torch.profiler recorded, to be shown at once.
        name: Panels of one name stand for each other; None takes the loader's.
        server_factory: Stands in for `TrialServer`.

    Attributes:
        found: The diagnosis as it stands; None before the second start of the first one has ended.
        widget: The panel itself, for use inside other layouts.

    Raises:
        SourceError: If the loader cannot be found or rebuilt.
        TraceError: If `trace` is no trace.
    """

    def __init__(
        self,
        loader: Any,
        step: Any = None,
        *,
        settings: LoaderSettings | None = None,
        starts: int = 4,
        seconds: float = 0.3,
        samples_per_batch: int | None = None,
        trace: str | Path | None = None,
        name: str | None = None,
        server_factory: Any = None,
    ) -> None:
        self.source = LoaderSource.of(loader)
        self.found: Diagnosis | None = None
        self._expression = repr(loader) if isinstance(loader, str) else "loader"
        self._name, self._samples, self._server_factory = name, samples_per_batch, server_factory
        self._errand: Errand | None = None
        self._earlier: Diagnosis | None = None
        self._traced: Path | None = None
        self._saved: Any = None
        self._drawing = threading.RLock()
        self._begun = time.monotonic()
        self._pump = Pump(self._show, self.show_error, taken_in, Examined(), tick=self._show_progress)
        self._build(step, settings or self.source.current or LoaderSettings(), starts, seconds)
        if trace is not None:
            self.show_trace(trace)
        self._take_the_place_of_another()
        self._changed()

    # -- what can be done by hand, and from code --

    @property
    def state(self) -> str:
        """ "idle", "running", "stopping", "done" or "failed"."""
        return self._errand.state if self._errand is not None else "idle"

    @property
    def before(self) -> Diagnosis | None:
        """The diagnosis that the present one is compared with, or None."""
        return self.history.chosen

    def run(self) -> None:
        """Starts a diagnosis of what is set; returns at once.

        Raises:
            WorkbenchError: If one runs already, there is no step, or what was typed makes no sense.
        """
        settings, starts, seconds = self.choices.settings, self.choices.starts, self.choices.seconds

        def job(server: Any, control: Control) -> None:
            for number, found in enumerate(by_start(server, settings, starts, seconds), 1):
                control.emit("start_finished", starts=number, found=found)
                if not control.may_go_on():
                    return

        self._begin(job, Examined(state="running", most_starts=starts))

    def stop(self) -> None:
        """Ends what runs; what is measured stays."""
        if self._errand is not None:
            self._errand.stop()

    def wait(self, timeout_seconds: float | None = None) -> Diagnosis | None:
        """Waits for the end and until it is shown; gives what was found. An interrupt stops it."""
        if self._errand is not None:
            self._errand.wait(timeout_seconds)
            self._pump.wait(timeout_seconds)
        return self.found

    def __await__(self) -> Generator[Any, None, Diagnosis | None]:
        """`await panel` waits without holding the notebook up."""
        import asyncio

        async def ended() -> Diagnosis | None:
            while self.state in ("running", "stopping"):
                await asyncio.sleep(0.1)
            return self.wait()

        yield from ended().__await__()
        return self.found

    def compare(self, other: Diagnosis | None) -> None:
        """Keeps another diagnosis beside this panel's own; None ends the comparison."""
        self.history.add(other, choose=True)
        self._draw_found()

    def record_trace(self, path: str | Path = TRACE_FILE, steps: int = TRACED_STEPS) -> None:
        """Records a trace of the loop in a process of its own, and shows it; returns at once.

        Raises:
            WorkbenchError: If something runs already, or there is no step.
        """
        settings, target = self.choices.settings, Path(path).absolute()

        def job(server: Any, control: Control) -> None:
            verdict_ = server.ask("trace", settings, path=str(target), steps=steps)
            if control.may_go_on():
                if not verdict_.get("done"):
                    error = verdict_.get("error") or {}
                    why = error.get("message") or f"the process ended as {verdict_.get('ended')!r}"
                    raise WorkbenchError(f"no trace was recorded: {error.get('type', '')} {why}".replace(":  ", ": "))
                control.emit("trace", path=str(target))

        self._begin(job, Examined(state="running", trace=True), traced=target)

    def show_trace(self, path: str | Path, first: int = 0) -> None:
        """Shows the steps of a trace from the `first` on.

        Raises:
            TraceError: If the file is no trace, or holds no such step.
        """
        self.trace.show(path, first)
        self._trace_fold.open()

    def code(self) -> str:
        """Python that does what the panel is set to do.

        Raises:
            SettingsError: If what was typed makes no sense.
        """
        typed = self.choices.typed_step
        arguments = ["step" if typed is None else repr(typed or "train.py:step")]
        if typed is not None and ":" not in typed and typed:
            arguments = [f"TimedStep({self.choices.step.seconds!r})"]
        settings = self.choices.settings
        if settings != self.source.current:
            plain = LoaderSettings().as_dict()
            changed = ", ".join(f"{knob}={v!r}" for knob, v in settings.as_dict().items() if v != plain[knob])
            arguments.append(f"wb.LoaderSettings({changed})")
        arguments += [f"starts={self.choices.starts}", f"seconds={self.choices.seconds:g}"]
        arguments += [f"samples_per_batch={self._samples}"] if self._samples is not None else []
        extra = "from workbench.notebook.diagnosis_choices import TimedStep\n" if "TimedStep" in arguments[0] else ""
        call = f"wb.diagnose({self._expression}, {', '.join(arguments)})"
        return f"import workbench as wb\n{extra}\nfound = {call}\nprint(found)\n"

    # -- building --

    def _build(self, step: Any, settings: LoaderSettings, starts: int, seconds: float) -> None:
        self.errors = ErrorBox()
        guard = self.errors.guarded
        self.choices = DiagnosisChoices(self.source, step, settings, starts, seconds, guard(self._changed))
        self.run_button = button("Run", "measure loader, step and both", guard(lambda _: self.run()))
        self.run_button.add_class("wb-primary")
        self.stop_button = button("Stop", "end it; what is measured stays", guard(lambda _: self.stop()))
        quieten(self.stop_button, True)
        self.progress = ProgressLine()
        self.history = History(guard(self._draw_found))
        self.trace = TraceView(guard(lambda _: self.record_trace(self.trace.path or TRACE_FILE)), guard)
        self._about, self._note, self._verdict, self._compared, self._code = (W.HTML() for _ in range(5))
        self._rates, self._stages = W.HTML(), W.HTML()
        buttons = W.Box([self.run_button, self.stop_button], layout=W.Layout(overflow="visible"))
        buttons.add_class("wb-buttons")
        toolbar = W.Box([buttons, self._about], layout=W.Layout(flex_flow="row wrap", overflow="visible"))
        toolbar.add_class("wb-toolbar")
        self.setting = Fold("What to run", self.choices.widget, opened=True)
        self._trace_fold = Fold("Timeline of single steps", self.trace.widget)
        self._cards = W.Box(
            [_card(self._rates), _card(self._stages)], layout=W.Layout(flex_flow="row wrap", overflow="visible")
        )
        self._cards.add_class("wb-gallery")
        self._pulse = pulse()
        self.widget = Frame(
            [
                heading(f"Diagnose {self.source.name}", f"{self.source.describe()}. {HOW}"),
                *([self._pulse] if self._pulse is not None else []),
                toolbar,
                self._note,
                self.progress.widget,
                self.errors.widget,
                self.setting.widget,
                self._verdict,
                self._cards,
                self.history.widget,
                self._compared,
                self._trace_fold.widget,
                Fold("As code", self._code).widget,
            ],
            STANDS_FOR_PANEL,
        )
        self._draw_found()

    def _take_the_place_of_another(self) -> None:
        old = _newest.take_place(self._name or self.source.name, self)
        if old is not None:
            old._retire()
            self.history.take_over(old.history, old.found)
            self._draw_found()

    def _retire(self) -> None:
        self.stop()
        self._pump.end()
        for live in (self.trace.live, self._pulse):
            if live is not None:
                live.close()
        self.widget.children = (moved(),)

    # -- what runs --

    def _begin(self, job: Any, seen: Examined, traced: Path | None = None) -> None:
        self.errors.clear()
        if self.state in ("running", "stopping"):
            raise WorkbenchError(f"a diagnosis is {self.state} already; wait for it, or stop it first")
        step = self.choices.step
        errand = Errand(
            self.source,
            step,
            job,
            samples_per_batch=self._samples,
            server_factory=self._server_factory,
        )
        notes = ([DISTURBED] if _others_measure(self) else []) + ([ONLY_WAITS] if isinstance(step, TimedStep) else [])
        self._note.value = f'<p class="wb-note">{" ".join(notes)}</p>' if notes else ""
        self._errand, self._traced, self._begun = errand, traced, time.monotonic()
        if not seen.trace:
            self._earlier, self.found = self.found, None
            self.history.add(self._earlier)
            self._draw_found()
        errand.on_event.append(self._pump.put)
        errand.start()
        self._pump.begin(seen)

    def _show(self, seen: Examined) -> None:
        """Called by the pump's thread, the only one that writes these widgets while something runs."""
        with self._drawing:
            quieten(self.run_button, seen.active)
            quieten(self.stop_button, not seen.active)
            self._show_progress(seen)
            if not seen.trace:
                self.found = seen.found or self.found
                self._draw_found(seen)
            if seen.error is not None:
                self.errors.show(seen.error)
            if not seen.active:
                self._ended(seen)

    def _show_progress(self, seen: Examined) -> None:
        total = 1 if seen.trace else seen.laps_in_all
        done = total if seen.state == "done" and not seen.stopped else len(seen.laps)
        told = [f"{verdict.NAMES[kind]} {verdict.rate_told(rate)}" for kind, rate in list(seen.rates.items())[-1:]]
        told.append(formatting.clock(time.monotonic() - self._begun))
        self.progress.show(done, total, diagnosis_watch.headline(seen), told if seen.active else [])

    def _ended(self, seen: Examined) -> None:
        if seen.trace and seen.state == "done" and not seen.stopped and self._traced is not None:
            self.show_trace(self._traced)
        if not seen.trace and not seen.laps and self._earlier is not None:  # nothing came in place of what was known
            self.history.forget(self._earlier)
            self.found = self._earlier
            self._draw_found()
        self._save()

    def _draw_found(self, seen: Examined | None = None) -> None:
        """Shows what is known: the diagnosis, or the rates of the one that runs while there is none yet."""
        found, before = self.found, self.history.chosen
        rates = seen.rates if seen is not None and found is None else {}
        self._cards.layout.display = None if found is not None or rates else "none"
        self._cards.children[1].layout.display = None if found is not None else "none"
        live = seen is not None and seen.active
        if found is not None:
            goes_on = '<p class="wb-note">So far; another start follows unless this is settled.</p>' if live else ""
            self._verdict.value = f"<h3>Verdict</h3>{verdict.verdict_html(found)}{goes_on}"
            self._rates.value = _titled("Samples per second", bars_html(verdict.rate_bars(found, before)))
            self._stages.value = _titled("Where a batch's time goes", verdict.stages_html(found))
        else:
            why = "" if live or not rates else f'<p class="wb-note">{ONE_START}</p>'
            self._verdict.value = ""
            self._rates.value = _titled("Samples per second so far", bars_html(verdict.live_bars(rates)) + why)
        self._compared.value = changes_html(found, before) if found is not None and before is not None else ""

    def _save(self) -> None:
        if self._saved is not None:
            self._saved.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        if self.found is None:
            return {"text/html": f'<div class="wb wb-saved"><p>{BEFORE}</p></div>', "text/plain": BEFORE}
        return verdict.bundle(self.found, self.history.chosen)

    def show_error(self, error: BaseException) -> None:
        """Shows an error in the panel."""
        self.errors.show(error)

    # -- callbacks --

    def _changed(self) -> None:
        try:
            settings, words = self.choices.settings, self.choices.step_words
            told = f"<b>{escape(settings.describe())}</b>" + (f", step {escape(words)}" if words else ", no step yet")
            about = formatting.about(diagnosis_watch.seconds_needed(self.choices.starts, self.choices.seconds))
            starts = formatting.count(self.choices.starts, "start")
            told += f"; at most {starts}, about {about} where one is quick"
            self._about.value = f'<span class="wb-size">{told}</span>'
            self._code.value = code_html(self.code())
        except WorkbenchError as error:
            self._about.value = f'<span class="wb-failed" role="alert">{escape(str(error))}</span>'

    # -- showing --

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.widget)
        self._saved = display(self._bundle(), raw=True, display_id=True)


def _card(child: Any) -> W.VBox:
    card = W.VBox([child], layout=W.Layout(flex="1 1 380px", min_width="min(280px, 100%)", width="auto"))
    card.add_class("wb-card")
    return card


def _titled(title: str, body: str) -> str:
    return f'<p class="wb-card-title">{escape(title)}</p>{body}'


def _others_measure(mine: DiagnosisPanel) -> bool:
    busy = (panel.state in ("running", "stopping") for panel in _newest.besides(mine))
    return bool(running_sweeps()) or any(busy)
