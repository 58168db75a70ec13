"""The diagnosis panel driven as a person drives it, over a loop of known rates, and once over a real one."""

from __future__ import annotations

import base64
import html
import json
import re
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from torch.utils.data import DataLoader, TensorDataset

import workbench
from tests.made_up_diagnoses import diagnosis
from workbench.errors import ProbeError, SettingsError, WorkbenchError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.stage_reading import Lap
from workbench.measure.trace_recording import profile
from workbench.notebook import before_after, diagnosis_watch, trace_view
from workbench.notebook.bars import Bar, Part, bars_html, picture
from workbench.notebook.diagnosis_choices import TimedStep, step_from
from workbench.notebook.diagnosis_line import DiagnosisLine
from workbench.notebook.diagnosis_panel import DiagnosisPanel
from workbench.notebook.diagnosis_watch import Examined, headline, taken_in
from workbench.notebook.succession import MOVED

KINDS = ("loader", "step", "combined")


class MadeUpLoop:
    """A trial server whose loader yields 100 samples/s a worker and whose step takes 250; `gate` holds it back."""

    def __init__(self) -> None:
        self.gate, self.cancelled = threading.Event(), threading.Event()
        self.gate.set()
        self.cores, self.asked, self.error = 2, [], None
        self.hold_from = 10**6
        self.emit: Callable[[dict[str, Any]], None] = lambda event: None

    def __call__(self, source: Any, *, step: Any, samples_per_batch: Any, on_event: Any) -> MadeUpLoop:
        self.step, self.emit = step, on_event
        return self

    def __enter__(self) -> MadeUpLoop:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def probe(self) -> None:
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled.set()

    def ask(self, kind: str, settings: LoaderSettings, plan: Any = None, **details: Any) -> dict[str, Any]:
        self.asked.append((kind, settings, details))
        if kind == "trace":
            profile(torch.ones(64, 3).split(8), lambda batch: batch @ batch.T, details["path"], steps=details["steps"])
            return {"done": {"path": details["path"]}}
        number = len(self.asked)
        loader = 100.0 * max(1, settings.num_workers) * (1 + 0.002 * (number % 3))
        rates = {"loader": loader, "step": 250.0, "combined": min(loader, 250.0)}
        laps, windows = [], []
        for name in KINDS * 2:
            if number >= self.hold_from and len(laps) == 2:
                self.gate.clear()
            while not self.gate.is_set():
                if self.cancelled.wait(0.01):
                    return {"ended": "cancelled", "phase": "measure", "output": ""}
            window = {"at_seconds": 1.0, "seconds": 1.0, "batches": 10, "samples": round(rates[name])}
            self.emit({"kind": "phase", "phase": "measure", "part": name, "settings": settings})
            self.emit({"kind": "window", "window": window, "settings": settings})
            waits = max(0.0, 1 - rates[name] / 250.0) if name == "combined" else 0.0
            lap = Lap(1.0, 1.0, 10, window["samples"], next_seconds=waits, step_seconds=0.4)
            laps.append({"kind": name, "lap": asdict(lap), "costs": None})
            windows.append(window | {"foreign_cores": 0.0})
        done = {"laps": laps, "sync": None, "copy": None, "first_batch_seconds": 0.1, "memory_pressure": 0.0}
        done |= {"device_seen": False, "copies_pinned": None}
        return {"done": done, "windows": windows}


@pytest.fixture
def server() -> MadeUpLoop:
    return MadeUpLoop()


@pytest.fixture
def make(server, request):
    made: list[DiagnosisPanel] = []

    def build(step: Any = len, **options: Any) -> DiagnosisPanel:
        loader = DataLoader(TensorDataset(torch.ones(32, 3)), batch_size=8)
        options = {"name": request.node.name, "server_factory": server} | options
        made.append(DiagnosisPanel(loader, step, **options))
        return made[-1]

    yield build
    server.gate.set()
    for one in made:
        one.stop()
        one.wait(60)


def text_of(value: str) -> str:
    """The words of an HTML widget."""
    words = html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", value, flags=re.S)))
    return " ".join(words.split())


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 90
    while not true():
        assert time.monotonic() < give_up, "it did not come about within 90 s"
        time.sleep(0.01)


# -- one diagnosis --


def test_run_shows_verdict_bars_and_how_sure_it_is(make, server):
    one = make()
    one.run_button.click()
    found = one.wait(60)
    assert found is one.found and found.bound == "input"
    words = text_of(one._verdict.value)
    assert "The loader holds the training back" in words and "confidence high" in words
    assert "It would be wrong if:" in words and "Next:" in words
    rates = text_of(one._rates.value)
    assert "loader alone 100 samples/s" in rates and "step alone 250 samples/s" in rates and "±" in rates
    assert "cannot be looked into" in text_of(one._stages.value)
    assert f"after {found.starts} starts" in text_of(one.progress._status.value)
    assert one.progress._bar.value == one.progress._bar.max
    assert one.errors.widget.value == ""


def test_while_it_runs_the_stretch_and_its_rate_are_shown(make, server):
    one = make()
    server.hold_from = 1
    one.run()
    until(lambda: "Start 1 of at most 4" in one.progress._status.value and "step alone" in one._rates.value)
    assert one.progress._bar.value == 2 and one.progress._bar.max == 24
    assert "so far" in one._rates.value and one._verdict.value == ""
    with pytest.raises(WorkbenchError, match="running already"):
        one.run()


def test_stop_in_the_first_start_keeps_its_rates_and_claims_nothing(make, server):
    one = make()
    server.hold_from = 1
    one.run()
    until(lambda: "step alone" in one._rates.value)
    one.stop_button.click()
    assert one.wait(60) is None and one.state == "done"
    assert diagnosis_watch.STOPPED in text_of(one.progress._status.value)
    assert "100 samples/s" in text_of(one._rates.value) and "no verdict rests on them" in one._rates.value
    assert one.errors.widget.value == ""


def test_stop_in_a_later_start_keeps_the_diagnosis_so_far(make, server, monkeypatch):
    monkeypatch.setattr("workbench.measure.diagnosis._precise", lambda found: False)
    one = make()
    server.hold_from = 3
    one.run()
    until(lambda: "So far" in one._verdict.value)
    one.stop()
    assert one.wait(60).starts == 2 and "So far" not in one._verdict.value


def test_a_run_that_measured_nothing_leaves_what_was_known(make, server):
    one = make()
    one.run()
    found = one.wait(60)
    server.error = ProbeError("the loader fails", error_type="", traceback_text="")
    one.run()
    one.wait(60)
    assert one.found is found and one.before is None and "Verdict" in one._verdict.value
    assert "the loader fails" in one.errors.widget.value


def test_an_error_of_the_users_code_is_shown_with_its_traceback(make, server):
    server.error = ProbeError("the loader fails: KeyError: 'x'", error_type="KeyError", traceback_text="line 3 <x>")
    one = make()
    one.run_button.click()
    one.wait(60)
    assert one.state == "failed" and "Ended with an error" in one.progress._status.value
    assert "the loader fails" in one.errors.widget.value and "line 3 &lt;x&gt;" in one.errors.widget.value
    server.error = ValueError("odd")
    one.run_button.click()
    one.wait(60)
    assert "ValueError: odd" in one.errors.widget.value and "<summary>Traceback" in one.errors.widget.value


# -- what is set by hand --


def test_a_step_is_a_function_a_name_or_its_length():
    assert step_from(len) is len
    assert step_from(0.04).seconds == step_from("40 ms").seconds == 0.04
    assert isinstance(step_from("40ms"), TimedStep)
    for nothing in (None, ""):
        with pytest.raises(SettingsError, match="no step is given"):
            step_from(nothing)
    with pytest.raises(SettingsError, match="'fast' is not a time"):
        step_from("fast")


def test_without_a_step_run_says_what_is_missing_and_a_typed_length_will_do(make, server):
    one = make(None)
    assert "no step yet" in one._about.value and "at most 4 starts, about 15 s where one is quick" in one._about.value
    one.run_button.click()
    assert "no step is given" in one.errors.widget.value and one.state == "idle"
    one.choices._typed.value = "40 ms"
    one.run_button.click()
    assert one.wait(60) is not None and server.step.seconds == 0.04
    assert "known by its length alone" in one._note.value


def test_knobs_of_the_panel_are_what_runs_and_nonsense_is_answered(make, server):
    one = make()
    one.choices.knobs["num_workers"].value = 2
    one.choices.knobs["persistent_workers"].value = True
    assert "2 workers" in one._about.value
    one.choices._seconds.value = "soon"
    assert "'soon' is not a time" in html.unescape(one._about.value) and 'role="alert"' in one._about.value
    one.choices._seconds.value = "100 ms"
    one.run()
    one.wait(60)
    (kind, settings, details), *_ = server.asked
    assert (kind, settings.num_workers, settings.persistent_workers) == ("diagnose", 2, True)
    assert details == {"seconds": 0.1}


def test_what_is_set_by_hand_reads_back_as_code(make):
    one = make(settings=LoaderSettings(num_workers=2, prefetch_factor=4), starts=3)
    asked = []

    class Recorder:
        pass

    Recorder.LoaderSettings = LoaderSettings
    Recorder.diagnose = staticmethod(lambda *given, **more: asked.append((given, more)))
    code = one.code().replace("import workbench as wb", "")
    exec(code, {"wb": Recorder, "loader": "the loader", "step": "the step", "print": lambda text: None})
    ((given, more),) = asked
    assert given == ("the loader", "the step", LoaderSettings(num_workers=2, prefetch_factor=4))
    assert more == {"starts": 3, "seconds": 0.3}


# -- before and after --


def test_the_diagnosis_before_is_kept_beside_the_one_after_a_change(make):
    one = make()
    one.run()
    first = one.wait(60)
    assert one.before is None and one._compared.value == ""
    one.choices.knobs["num_workers"].value = 2
    one.run()
    second = one.wait(60)
    assert one.before is first and second is not first
    words = text_of(one._compared.value)
    assert "num_workers: 0, now 2" in words and "2.0 times its speed before" in words
    assert "before: 100 samples/s" in text_of(one._rates.value)
    one.history._picker.value = -1
    assert one._compared.value == "" and "before:" not in one._rates.value


def test_any_other_diagnosis_can_stand_beside_it(make):
    one = make()
    one.run()
    one.wait(60)
    other = diagnosis(bound="compute", combined_samples_per_second=50.0, intervals={"combined": (49.0, 51.0)})
    one.compare(other)
    assert one.before is other and "It was: the step sets the pace" in text_of(one._compared.value)
    one.run()
    one.wait(60)
    assert one.before is other, "what was chosen by hand stays"
    one.compare(None)
    assert one.before is None


def test_running_the_cell_again_keeps_what_was_found_and_ends_the_old_panel(make, server):
    old = make()
    old.run()
    found = old.wait(60)
    server.hold_from = len(server.asked) + 1
    old.run()
    until(lambda: old.state == "running" and "so far" in old._rates.value)
    new = make()
    assert MOVED in old.widget.children[0].value
    until(lambda: old.state == "done")
    assert new.before is found and new.found is None


def test_a_difference_within_both_intervals_is_none():
    before = diagnosis()
    now = diagnosis(combined_samples_per_second=104.0, intervals=before.intervals | {"combined": (95.0, 113.0)})
    change = {one.name: one for one in before_after.rate_changes(now, before)}["combined"]
    assert change.verdict == before_after.ALIKE and change.low < 1 < change.high
    faster = diagnosis(combined_samples_per_second=190.0, intervals=before.intervals | {"combined": (180.0, 200.0)})
    change = {one.name: one for one in before_after.rate_changes(faster, before)}["combined"]
    assert change.verdict == before_after.FASTER and change.ratio == pytest.approx(190 / 99)
    assert "moved" not in {one.name for one in before_after.rate_changes(now, before)}


# -- traces --


def test_a_recorded_trace_is_shown_as_a_timeline_with_its_sentences(make, server, tmp_path):
    one = make()
    one.record_trace(tmp_path / "loop.json", steps=6)
    one.wait(60)
    assert one.errors.widget.value == "" and (tmp_path / "loop.json").exists()
    assert "The trace is recorded" in one.progress._status.value
    assert "steps of" in text_of(one.trace._words.value)
    drawn = [trace["name"] for trace in one.trace.live.wb_figure["data"]]
    assert "operators" in drawn and one._trace_fold.opened
    one.trace.settle(False)
    assert "<svg" in one.trace._picture.value and one.trace.live.layout.display == "none"


def test_a_trace_that_is_none_is_said(make, tmp_path):
    one = make()
    (tmp_path / "no.json").write_text("{}")
    one.trace._file.value = str(tmp_path / "no.json")
    next(child for child in one.trace.widget.children[0].children if child.description == "Show").click()
    assert 'role="alert"' in one.errors.widget.value and "no.json" in one.errors.widget.value


def test_without_anywidget_the_timeline_is_a_picture(make, monkeypatch, tmp_path):
    monkeypatch.setattr(trace_view, "live_chart", lambda selected, height: None)
    one = make()
    path = profile(torch.ones(64, 3).split(8), lambda batch: batch @ batch.T, tmp_path / "loop.json", steps=4)
    one.show_trace(path)
    assert "<svg" in one.trace._picture.value


# -- pictures, events, what is saved --


def test_bars_are_as_long_as_their_values_and_fit_any_width():
    bars = (
        Bar("short", "1 s", (Part(0.5, "#111", "CPU"), Part(0.5, "#222", "waiting")), 0.9, 1.1),
        Bar("long", "2 <s>", (Part(2.0, "#333", "all"),), earlier=1.5, earlier_told="1.5 s"),
    )
    drawn = bars_html(bars, most=4.0)
    shares = [float(width) for width in re.findall(r'width="([\d.]+)%" height="14" fill="#\d', drawn)]
    assert shares == [12.5, 12.5, 50.0]
    assert "2 &lt;s&gt;" in drawn and "before: 1.5 s" in drawn
    root = ElementTree.fromstring(picture(bars, "Times", (("#111", "CPU"),)))
    assert root.find("{http://www.w3.org/2000/svg}title").text == "Times: short 1 s; long 2 <s>"


def test_the_record_of_events_follows_a_diagnosis():
    seen = Examined(state="running", most_starts=3)
    window = {"samples": 50, "seconds": 0.5}
    for event in (
        {"kind": "phase", "phase": "measure", "part": "loader"},
        {"kind": "window", "window": window},
        {"kind": "window", "window": window | {"samples": 150}},
        {"kind": "something new"},
    ):
        seen = taken_in(seen, event)
    assert seen.rates == {"loader": 200.0} and seen.laps_in_all == 18
    assert headline(seen) == "Start 1 of at most 3: timing the loader alone"
    assert "before anything" in headline(taken_in(Examined(state="stopping", stopped=True), _state("done")))
    seen = taken_in(taken_in(seen, {"kind": "start_finished", "starts": 2, "found": None}), _state("stopping"))
    assert headline(taken_in(seen, _state("done"))) == diagnosis_watch.STOPPED


def test_what_goes_on_before_the_first_start_is_said_until_the_probe_has_ended():
    seen, told = Examined(state="running", phase="probing", most_starts=4), []
    phases = ("first batch", "epoch length", "reference", "first batch", "warm-up", "shutdown", "first batch")
    for phase in phases:
        seen = taken_in(seen, {"kind": "phase", "phase": phase})
        told.append(headline(seen))
    assert told[0] == "Running: reading a few batches with 0 workers to learn sizes and times"
    assert told[3] == "Start 1 of at most 4: starting the loader and filling its queue" == told[5]
    assert told[6].startswith("Start 2 of at most 4") and len(set(told[:4])) == 4


def test_a_line_says_what_a_diagnosis_is_doing_and_for_how_long_and_goes(capsys):
    with DiagnosisLine(most_starts=3) as line:
        line.put({"kind": "phase", "phase": "first batch"})
        told = headline(line.seen)
        line.draw()
    err = capsys.readouterr().err
    assert f"{told} [00:00]" in err and "learn sizes and times" in err and err.endswith("\r")


def _state(name: str) -> dict[str, Any]:
    return {"kind": "state", "state": name}


def test_what_is_saved_needs_no_kernel_and_stays_small(make):
    one = make()
    one.run()
    one.wait(60)
    one.run()
    one.wait(60)
    bundle = one._bundle()
    assert sum(len(part.encode()) for part in bundle.values()) < 50_000
    (image,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])
    assert "loader alone" in ElementTree.fromstring(base64.b64decode(image)).find("./{*}title").text
    assert "Before and after" in bundle["text/html"] and "<script" not in bundle["text/html"]
    assert bundle["text/plain"].startswith("Bound: input")


def test_a_real_loop_is_diagnosed_and_kept_in_a_notebook_without_a_browser(tmp_path):
    cells = [
        "import time, torch\nfrom torch.utils.data import DataLoader, Dataset\nimport workbench as wb\n"
        "class Slow(Dataset):\n"
        "    def __len__(self): return 4000\n"
        "    def __getitem__(self, index):\n        time.sleep(0.002)\n        return torch.ones(8)\n"
        "panel = wb.DiagnosisPanel(DataLoader(Slow(), batch_size=4, num_workers=1), '2 ms', seconds=0.1)\npanel",
        "panel.run()\nfound = panel.wait()\nassert found is not None, panel.errors.widget.value\n"
        "assert found.bound == 'input', str(found)\nassert 'fetch, in a worker' in panel._stages.value\n"
        "panel.record_trace('loop.json', steps=5)\npanel.wait()\n"
        "assert 'steps of' in panel.trace._words.value, panel.errors.widget.value",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    kept = [o for o in notebook.cells[0].outputs if "wb-saved" in str(o.get("data", {}).get("text/html"))]
    assert len(kept) == 1 and "The loader holds the training back" in kept[0]["data"]["text/html"]
    assert notebook.cells[1].outputs == []
    assert len(json.dumps(notebook.cells)) < 60_000


def test_it_is_offered_by_name():
    assert workbench.DiagnosisPanel is DiagnosisPanel
