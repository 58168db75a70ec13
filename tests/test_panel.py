"""The panel driven as a person drives it (boxes, buttons, fields), over a trial server that measures nothing."""

from __future__ import annotations

import base64
import copy
import html
import json
import re
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import nbformat
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from torch.utils.data import DataLoader, TensorDataset

from tests import made_up_sweeps as made_up
from tests.made_up_sweeps import settings
from workbench.errors import ProbeError, SettingsError, WorkbenchError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import MemoryReading, Probe, TrialRun
from workbench.notebook import changes, charts, durations, figures, gallery, panel, saved, selection, watch
from workbench.notebook.live import LiveChart, plotly_gzipped
from workbench.notebook.panel import TuningPanel
from workbench.notebook.pump import Pump
from workbench.notebook.succession import MOVED
from workbench.tuning.export import load_settings
from workbench.tuning.results import load_results
from workbench.tuning.space import SearchSpace

CHARTS = (charts.throughput, charts.memory, charts.heatmap, charts.first_batch)
SPACE = SearchSpace(num_workers=[0, 1, 2], prefetch_factor=[2, 4])


class MadeUpServer:
    """A trial server whose rates are 100 a worker; `gate` holds trials back until it is opened.

    After `shut_after` trials the gate shuts by itself, so that a sweep is caught in the middle at any speed.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.cancelled = threading.Event()
        self.probe_error: Exception | None = None
        self.ran: list[LoaderSettings] = []
        self.shut_after: int | None = None
        self.emit: Callable[[dict[str, Any]], None] = lambda event: None

    def __call__(self, source: Any, *, step: Any, samples_per_batch: Any, on_event: Any) -> MadeUpServer:
        self.emit = on_event
        return self

    def __enter__(self) -> MadeUpServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def probe(self) -> Probe:
        if self.probe_error is not None:
            raise self.probe_error
        return Probe(8, "first tensor", False, 800, 1, "Tensor[8, 3] float32", 4, 32, False, "fork")

    def run(self, chosen: LoaderSettings, plan: Any) -> TrialRun:
        self.cancelled.clear()
        self.emit({"kind": "phase", "phase": "warm-up", "settings": chosen})
        window = {"at_seconds": 1.0, "seconds": 0.5, "batches": 10, "samples": 50}
        self.emit({"kind": "window", "window": window, "settings": chosen})
        if self.shut_after is not None and len(self.ran) >= self.shut_after:
            self.gate.clear()
        while not self.gate.is_set():
            if self.cancelled.wait(0.01):
                return TrialRun(chosen, "killed", "stopped")
        self.ran.append(chosen)
        if chosen.num_workers == 1 and chosen.prefetch_factor == 4:
            return TrialRun(chosen, "failed", "worker <1> died", traceback_text="Traceback: <boom>")
        return made_up.run(chosen, 100.0 * (1 + chosen.num_workers))

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def server() -> MadeUpServer:
    return MadeUpServer()


@pytest.fixture
def make(server, tmp_path):
    made: list[TuningPanel] = []

    def build(loader: Any = None, **options: Any) -> TuningPanel:
        loader = loader if loader is not None else DataLoader(TensorDataset(torch.ones(32, 3)), batch_size=8)
        known = {"store": tmp_path / "sweeps.db", "space": SPACE, "strategy": "grid", "server_factory": server}
        made.append(TuningPanel(loader, **known | options))
        return made[-1]

    yield build
    server.gate.set()
    for one in made:
        one.stop()
        one._pump.wait(120)


def text_of(value: str) -> str:
    """The words of an HTML widget."""
    return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", value, flags=re.S)))


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 90
    while not true():
        assert time.monotonic() < give_up, "it did not come about within 90 s"
        time.sleep(0.01)


# -- what is set by hand --


def test_what_is_ticked_is_the_space_and_its_size_follows(make):
    one = make()
    assert one.space == SPACE
    assert "5 settings, yours among them" in " ".join(text_of(one._size.value).split()).replace(" ,", ",")
    one.choices.tick(num_workers=[0, 3], prefetch_factor=[])
    assert one.space == SearchSpace(num_workers=[0, 3])
    assert text_of(one._size.value).split()[:2] == ["2", "settings"]


def test_a_number_can_be_typed_and_nonsense_is_answered_beside_the_field(make):
    row = make().choices.rows["num_workers"]
    row._field.value = "3, 6"
    assert row.values == (0, 1, 2, 3, 6) and row._field.value == ""
    row._field.value = "many"
    assert "'many' is no whole number" in html.unescape(row.error.value) and 'role="alert"' in row.error.value
    row._field.value = "-2"
    assert "-2" in row.error.value and row.values == (0, 1, 2, 3, 6)


def test_nothing_ticked_is_said_and_refused(make):
    one = make()
    for row in one.choices.rows.values():
        row.tick()
    assert "no value is ticked" in one._size.value
    one.steering.run.click()
    assert "no value is ticked" in one.errors.widget.value
    assert one.state == "idle"


def test_the_estimate_says_what_it_rests_on_and_promises_no_most(make):
    one = make()
    said = text_of(one._size.value)
    assert "17 starts" in said and "a start is assumed to take 2.50 s until this loader has shown its own" in said
    assert "45 s" in said and "at most" not in said
    one.limits._budget.value = "90s"
    assert "The budget ends it after 1 min 30 s." in text_of(one._size.value)
    one.limits._budget.value = "45"
    assert "The budget ends it after 45 s." in text_of(one._size.value)


def test_the_estimate_uses_what_starts_took_also_those_in_the_store(make, monkeypatch):
    one = make()
    one.run()
    one.wait(120)
    assert "a start of this loader took" in text_of(one._size.value)
    monkeypatch.setattr(durations, "seconds_of", lambda run: 9.0)
    again = make()
    said = text_of(again._size.value)
    assert "17 starts, 3 min" in said and "a start of this loader took 9.00 s on average" in said
    assert "assumed" in text_of(make(measure_seconds=2.0)._size.value), "those measured for another time"


def test_what_is_left_follows_the_starts_while_a_sweep_runs(make, server):
    one = make()
    server.shut_after = 2
    one.steering.run.click()
    until(lambda: " left" in one.progress._numbers.value and "s, about" in one.progress._numbers.value)
    server.shut_after = None
    server.gate.set()
    one.wait(120)
    assert " left" not in one.progress._numbers.value


def test_a_nonsense_limit_is_said_and_refused(make):
    one = make(budget_seconds="90s")
    one.limits._memory.value = "lots"
    assert "'lots' is not a size" in html.unescape(one._size.value)
    one.steering.run.click()
    assert 'role="alert"' in one.errors.widget.value and one.sweep is None


def test_a_knob_that_the_loader_does_not_take_is_not_offered(make):
    loader = DataLoader(TensorDataset(torch.ones(8)), batch_sampler=[[0, 1], [2, 3, 4]])

    one = make(loader, space=SearchSpace(num_workers=[0, 1]))
    assert {"num_workers", "prefetch_factor"} < set(one.choices.rows)
    assert not {"batch_size", "layout"} & set(one.choices.rows)
    with pytest.raises(SettingsError, match="'batch_size' is not offered"):
        one.choices.tick(batch_size=[2])


def test_everything_set_by_hand_reads_back_as_code_that_makes_the_same_sweep(make, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("def step(batch):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    one = make(budget_seconds="2m", memory_limit="8GiB", name="photos", samples_per_batch=8, step="train.py:step")
    made = {}

    class Recorder:
        SearchSpace = SearchSpace

        @staticmethod
        def Sweep(loader, **arguments):
            made.update(arguments, loader=loader)
            return type("Done", (), {"run": lambda self: type("R", (), {"recommendation": ""})})()

    code = one.code().replace("import workbench as wb", "")
    exec(code, {"wb": Recorder, "loader": "the loader", "print": lambda text: None})
    assert made == {
        "loader": "the loader",
        "space": SPACE,
        "strategy": "grid",
        "budget_seconds": "2m",
        "memory_limit": "8GiB",
        "name": "photos",
        "store": str(one._store),
        "samples_per_batch": 8,
        "step": "train.py:step",
    }


# -- a sweep --


def test_run_shows_table_recommendation_progress_and_trials(make, server):
    one = make()
    one.steering.run.click()
    results = one.wait(120)
    assert len(results.trials) == 5 and results.best == settings(2, 2)
    assert "Finished." in text_of(one.progress._status.value)
    assert one.progress._bar.value == one.progress._bar.max == len(server.ran)
    table = text_of(one.inspector._table.value)
    assert "4 settings measured" in table and "worker <1> died" in table
    assert "Use 2 workers, prefetch 2" in text_of(one._verdict.value)
    assert len(one.inspector._picker.options) == 1 + 5
    assert one.errors.widget.value == ""
    drawn = {trace["name"] for trace in one.gallery.boxes[0].live.wb_figure["data"]}
    assert {"prefetch 2", "recommended", "failed"} <= drawn


def test_while_a_trial_runs_its_settings_and_rate_are_shown(make, server):
    one = make()
    server.gate.clear()
    one.steering.run.click()
    until(lambda: "Measuring" in one.progress._status.value and "100 samples/s" in one.progress._numbers.value)
    until(lambda: any(t["name"] == "measuring now" for t in one.gallery.boxes[0].live.wb_figure["data"]))
    assert 'role="status"' in one.progress._status.value


def test_stop_ends_the_running_trial_and_keeps_what_was_measured(make, server):
    one = make()
    server.shut_after = 2
    one.steering.run.click()
    until(lambda: len(server.ran) >= 2)
    until(lambda: one._pump.watched.running is not None)
    one.steering.stop.click()
    one.wait(120)  # the gate is shut: only a trial that was cancelled can end
    assert one.state == "done" and "Stopped." in text_of(one.progress._status.value)
    assert sum(len(trial.runs) for trial in one.results.trials if trial.status != "skipped") >= 2
    assert "So far" not in one._verdict.value


def test_pause_frees_the_machine_and_resume_goes_on(make, server):
    one = make()
    server.gate.clear()
    one.steering.run.click()
    until(lambda: one._pump.watched.running is not None)
    one.steering.pause.click()
    until(lambda: one.steering.pause.description == "Resume")
    assert "Paused" in text_of(one.progress._status.value)
    server.gate.set()
    ran = len(server.ran)
    time.sleep(0.2)
    assert len(server.ran) == ran
    one.steering.pause.click()
    assert len(one.wait(120).trials) == 5
    assert one.steering.pause.description == "Pause"


def test_a_second_run_while_one_runs_is_refused(make, server):
    one = make()
    server.gate.clear()
    one.steering.run.click()
    one.steering.run.click()
    assert "the sweep is running already" in one.errors.widget.value


def test_an_error_of_the_users_loader_is_shown_with_its_own_line(make, server):
    server.probe_error = ProbeError(
        "the loader fails with 0 workers: KeyError: 'x'",
        error_type="KeyError",
        traceback_text='File "cell", line 3\nKeyError: <x>',
    )
    one = make()
    one.steering.run.click()
    until(lambda: one.state == "failed" and one._pump.wait(0))
    shown = one.errors.widget.value
    assert 'role="alert"' in shown and "fails with 0 workers" in shown and "&lt;x&gt;" in shown
    assert "Ended with an error" in one.progress._status.value


class Locked(torch.utils.data.Dataset):
    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(3)


def test_a_loader_that_no_trial_can_be_sent_is_said_in_full_with_the_way_out_and_run_can_be_pressed_again(make):
    one = make(DataLoader(Locked()), server_factory=None)
    for _ in range(2):
        one.steering.run.click()
        until(lambda: one.state == "failed" and one._pump.wait(0))
        shown = text_of(one.errors.widget.value)
        assert "dataset.lock cannot be sent to a trial process (" in shown and "cannot pickle '_thread.lock'" in shown
        assert "open or create it in __getitem__, __iter__ or worker_init_fn, or hand over a function" in shown
        assert 'role="alert"' in one.errors.widget.value and "Traceback" not in shown
        assert "Ended with an error" in one.progress._status.value


def test_an_unexpected_error_in_a_callback_is_shown_with_its_traceback(make, monkeypatch):
    one = make()
    monkeypatch.setattr(one.inspector, "_draw", lambda: 1 / 0)
    one._pump_failed(ValueError("odd"))
    assert "ValueError: odd" in one.errors.widget.value
    monkeypatch.setattr(one, "stop", lambda: 1 / 0)
    one.steering.stop.click()
    assert "ZeroDivisionError" in one.errors.widget.value and "<details>" in one.errors.widget.value


def test_an_error_while_showing_does_not_end_the_sweep(make, monkeypatch):
    one = make()
    monkeypatch.setattr(one.inspector, "show", lambda results: 1 / 0)
    one.steering.run.click()
    assert len(one.wait(120).trials) == 5
    assert "ZeroDivisionError" in one.errors.widget.value


# -- trials, export --


def test_a_click_on_a_point_shows_its_trial_and_marks_it_everywhere(make):
    one = make()
    one.run()
    one.wait(120)
    key = next(key for key, trial in enumerate(one.results.trials) if trial.status == "failed")
    live = one.gallery.boxes[0].live
    live._handle_custom_msg({"kind": "select", "key": key}, [])
    details = text_of(one.inspector._details.value)
    assert "worker <1> died" in details and "Traceback: <boom>" in details
    assert one.inspector.trial.status == "failed"
    assert live.wb_figure["data"][-1]["name"] == "selected"
    assert 'aria-current="true"' in one.inspector._table.value
    one.inspector.choose(None)
    assert live.wb_figure["data"][-1]["name"] != "selected"


def test_details_state_windows_memory_and_intervals(make):
    one = make()
    one.run()
    one.wait(120)
    one.inspector.choose(next(k for k, t in enumerate(one.results.trials) if t.settings == settings(2, 2)))
    details = " ".join(text_of(one.inspector._details.value).split())
    for words in ("steady rate 300 samples/s", "95 % interval", "peak memory 400 MB", "300, 300, 300, 300"):
        assert words in details, words


def test_export_previews_and_writes_a_file_that_reads_back_equal(make, tmp_path):
    one = make()
    box = one.exporting
    box._write.click()
    assert "nothing to export yet" in one.errors.widget.value
    one.run()
    one.wait(120)
    assert "num_workers: 2" in box._preview.value
    box._file.value = str(tmp_path / "mine.yaml")
    box._write.click()
    assert str(tmp_path / "mine.yaml") in box._said.value and 'role="status"' in box._said.value
    assert load_settings(tmp_path / "mine.yaml") == one.results.best
    box._format.value = "python"
    assert box._file.value == str(tmp_path / "mine.py") and "LOADER_KWARGS" in box._preview.value


def test_the_chosen_trial_can_be_exported_too(make, tmp_path):
    one = make()
    one.run()
    one.wait(120)
    one.inspector.choose(next(k for k, t in enumerate(one.results.trials) if t.settings == settings(0)))
    one.exporting._which.value = "chosen"
    one.exporting._file.value = str(tmp_path / "zero.json")
    one.exporting._format.value = "json"
    one.exporting.write()
    assert load_settings(tmp_path / "zero.json") == settings(0)


def test_an_export_that_cannot_be_written_says_so(make, tmp_path):
    one = make()
    one.run()
    one.wait(120)
    one.exporting._file.value = str(tmp_path / "nowhere" / "x.yaml")
    one.exporting._write.click()
    assert "cannot be written" in one.errors.widget.value and one.exporting._said.value == ""


# -- other views of the same trials --


def test_the_heat_map_takes_any_two_knobs_that_vary_and_marks_the_chosen_trial(make):
    one = make(space=SearchSpace(num_workers=[0, 1, 2], prefetch_factor=[2], persistent_workers=[False, True]))
    one.run()
    one.wait(120)
    box = one.gallery.boxes[1]
    box._switch.value = "heatmap"
    assert list(box.knobs._up.options) == ["num_workers", "prefetch_factor", "persistent_workers"]
    box.knobs._up.value = "persistent_workers"
    (drawn,) = box.live.wb_figure["data"]
    assert box.live.wb_figure["layout"]["yaxis"]["ticktext"] == ["off", "on"] and len(drawn["z"]) == 2
    slower = next(k for k, t in enumerate(one.results.trials) if t.settings == settings(2, 2, persistent_workers=True))
    one.inspector.choose(slower)
    assert box.live.wb_figure["layout"]["shapes"][-1]["x0"] == pytest.approx(2 - 0.48)
    box.knobs._across.value = "persistent_workers"
    assert (box.knobs.x, box.knobs.y) == ("persistent_workers", "num_workers"), "the two trade places"


def test_an_earlier_sweep_is_compared_in_words_and_in_the_same_chart(make, server):
    one = make(name="mine")
    one.run()
    first = one.wait(120).name
    assert one.comparer.widget.layout.display == "none", "there is nothing to compare with yet"
    one.run()
    assert one.wait(120).name != first
    assert one.comparer.widget.layout.display is None
    one.comparer._picker.value = first
    words = " ".join(text_of(one.comparer._words.value).split())
    assert f"Since sweep {first} of " in words and "4 cannot be told apart from before" in words
    for box in one.gallery.boxes:
        assert figures.EARLIER in {trace["name"] for trace in box.live.wb_figure["data"]}
    one.comparer._picker.value = ""
    assert one.comparer._words.value == ""
    assert figures.EARLIER not in {trace["name"] for trace in one.gallery.boxes[0].live.wb_figure["data"]}


def test_drawing_that_takes_long_leaves_the_cores_to_the_trials_and_still_shows_the_end(make, monkeypatch):
    monkeypatch.setattr(panel, "SHARE_FOR_DRAWING", 1e-9)
    one = make()
    shown = []
    monkeypatch.setattr(one, "_show_news", lambda live, show=one._show_news: (shown.append(live), show(live)))
    one.run()
    assert len(one.wait(120).trials) == 5
    assert shown.count(True) <= 1 and shown[-1] is False
    assert "4 settings measured" in text_of(one.inspector._table.value)


# -- panels before and after --


def test_a_panel_made_anew_shows_the_last_sweep_of_the_store(make, server):
    first = make()
    first.run()
    results = first.wait(120)
    again = make()
    assert [t.settings for t in again.results.trials] == [t.settings for t in results.trials]
    assert f"From the store: sweep {results.name}" in again._note.value
    assert "Use 2 workers" in text_of(again._verdict.value)
    assert again._continue.layout.display == "none"


@pytest.mark.parametrize("name", [None, "mine"])
def test_a_sweep_of_another_loader_is_counted_and_offered_but_not_shown_as_this_ones(make, tmp_path, name):
    data = TensorDataset(torch.ones(32, 3))
    other = make(DataLoader(data, batch_size=8, drop_last=True), name=name)
    other.run()
    found = other.wait(120).name
    one = make(DataLoader(data, batch_size=8), name=name)
    assert one.source.describe() == other.source.describe(), "only their definition tells them apart"
    assert one.results is None and one._verdict.value == "" and one.gallery.widget.layout.display == "none"
    note = text_of(one._note.value)
    assert f"holds 1 other sweep (latest: {found})" in note and "of this loader as it is defined now" in note
    assert load_results(tmp_path / "sweeps.db", found).trials and f"'{found}') shows it" in note
    one.run()
    one.wait(120)
    (label,) = [label for label, value in one.comparer._picker.options if value == found]
    assert label.endswith(": another loader, described alike")
    assert make(DataLoader(data, batch_size=8), name=name).results.name == one.results.name


def test_a_store_without_sweeps_is_no_news(make):
    assert make()._note.value == ""


def test_a_sweep_that_was_stopped_can_be_gone_on_with_and_repeats_nothing(make, server):
    first = make()
    server.shut_after = 2
    first.run()
    until(lambda: len(server.ran) >= 2)
    first.stop()
    first.wait(120)
    kept = len(server.ran)
    server.shut_after = None
    server.gate.set()
    again = make()
    assert again._continue.layout.display is None and "it was stopped" in again._note.value
    again._continue.value = True
    again.run()
    results = again.wait(120)
    assert results.name == first.results.name and results.ending == "finished"
    assert sum(len(trial.runs) for trial in results.trials) == len(server.ran) > kept
    assert again._continue.layout.display == "none"


def test_running_the_cell_again_carries_the_sweep_over(make, server):
    data = TensorDataset(torch.ones(32, 3))
    first = make(DataLoader(data, batch_size=8))
    server.gate.clear()
    first.run()
    until(lambda: first._pump.watched.running is not None)
    again = make(DataLoader(data, batch_size=8))
    assert again.sweep is first.sweep and "running already" in again._note.value
    assert MOVED in first.widget.children[0].value
    server.gate.set()
    assert len(again.wait(120).trials) == 5
    assert "Finished." in text_of(again.progress._status.value)


def test_running_the_cell_with_another_loader_stops_the_old_sweep(make, server):
    first = make(name="mine")
    server.gate.clear()
    first.run()
    until(lambda: first._pump.watched.running is not None)
    again = make(DataLoader(TensorDataset(torch.ones(32, 3)), batch_size=8, drop_last=True), name="mine")
    assert again.sweep is None and "was stopped" in again._note.value
    until(lambda: first.state == "done")


def test_two_panels_sweep_at_once(make):
    one, two = make(name="one"), make(name="two")
    one.run()
    two.run()
    assert len(one.wait(120).trials) == len(two.wait(120).trials) == 5
    assert (one.results.name, two.results.name) == ("one", "two")
    assert any("measuring at the same time" in note for note in two.results.notes)


def test_a_damaged_store_is_said_and_left_alone(make, tmp_path):
    (tmp_path / "sweeps.db").write_bytes(b"not a database, but somebody's file " * 10)
    one = make()
    assert 'role="alert"' in one.errors.widget.value
    assert (tmp_path / "sweeps.db").read_bytes().startswith(b"not a database")


# -- the live chart --


def test_the_first_view_a_reload_and_a_missed_message_are_one_path(monkeypatch):
    chart = LiveChart()
    sent = []
    monkeypatch.setattr(chart, "send", lambda content, buffers=None: sent.append(content))
    full = figures.throughput_figure(gallery.VIEWS["throughput"].info(made_up.photos_like()), gallery.page_inks())
    chart.show(full)
    sent.clear()
    chart._handle_custom_msg({"kind": "ready", "have": -1}, [])
    assert chart.drawn and sent == [{"kind": "figure", "version": 1, "figure": full}]
    seen = copy.deepcopy(full)
    sent.clear()
    selected = selection.with_selection(full, 3)
    assert chart.show(selected) > 0
    (message,) = sent
    assert (message["since"], message["version"]) == (1, 2)
    carry_out(seen, message["changes"])
    assert seen == selected
    assert chart.show(selected) == 0 and len(sent) == 1


def test_the_chart_travels_small_and_plotly_once(make):
    chart = LiveChart()
    sent = []
    chart.send = lambda content, buffers=None: sent.append((content, buffers))
    chart._handle_custom_msg({"kind": "need_plotly"}, [])
    ((content, (script,)),) = sent
    assert content == {"kind": "plotly"} and script is plotly_gzipped() and len(script) < 2_000_000
    assert len(json.dumps(chart.get_state(), default=str)) < 20_000


class Drawn:
    """Stands for hypothesis' data where what it draws is given."""

    def __init__(self, value):
        self._value = value

    def draw(self, strategy):
        return self._value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


def carry_out(value, found):
    """Carries out changes in place, as the view in the browser does."""
    for change in found:
        node = value
        for step in change["path"][:-1]:
            node = node[step]
        last = change["path"][-1]
        if isinstance(node, list) and last == len(node):
            node.append(change["value"])
        else:
            node[last] = change["value"]


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4), st.data())
@example({"": [False, False]}, Drawn({"": [False, 0]}))
@example({"": [[1], {"a": 1}]}, Drawn({"": [[1], {"a": True}]}))
def test_changes_lead_from_any_figure_to_any_other(before, data):
    after = data.draw(st.dictionaries(st.sampled_from([*before, "new"]) if before else st.just("new"), json_values))
    found = changes.changes(before, after)
    if found is None:
        assert set(before) - set(after), "only a key that went away needs the whole figure"
        return
    value = copy.deepcopy(before)
    carry_out(value, found)
    assert value == after
    assert json.dumps(value, sort_keys=True) == json.dumps(after, sort_keys=True)


def test_one_more_point_is_a_few_changes():
    before = {"data": [{"x": list(range(1000)), "y": list(range(1000))}], "layout": {"title": "a"}}
    after = copy.deepcopy(before)
    after["data"][0]["x"].append(1000)
    after["data"][0]["y"].append(7)
    after["layout"]["title"] = "b"
    assert changes.changes(before, after) == [
        {"path": ["data", 0, "x", 1000], "value": 1000},
        {"path": ["data", 0, "y", 1000], "value": 7},
        {"path": ["layout", "title"], "value": "b"},
    ]


def test_without_anywidget_the_charts_are_pictures(make, monkeypatch):
    monkeypatch.setattr(gallery, "live_chart", lambda selected: None)
    one = make()
    assert "install anywidget" in one.gallery.note.value
    one.run()
    one.wait(120)
    assert "<svg" in one.gallery.boxes[0]._picture.value and "prefetch 2" in one.gallery.boxes[0]._picture.value


def test_a_view_that_does_not_come_gets_pictures_and_one_that_comes_late_gets_live_charts(make):
    one = make()
    one.run()
    one.wait(120)
    one.gallery.settle(False)
    assert "pip install anywidget" in one.gallery.note.value and "<svg" in one.gallery.boxes[1]._picture.value
    one.gallery.boxes[0].live._handle_custom_msg({"kind": "ready", "have": -1}, [])
    assert one.gallery.note.value == "" and one.gallery.boxes[1]._picture.value == ""


# -- what the events say, what is saved --


def test_the_record_of_events_follows_a_sweep():
    seen = watch.Watched()
    window = {"seconds": 0.5, "samples": 50}
    for event in (
        {"kind": "state", "state": "running"},
        {"kind": "phase", "phase": "probing"},
        {"kind": "plan", "settings": (settings(0), settings(1, 2))},
        {"kind": "something new", "value": 1},
        {"kind": "run_started", "settings": settings(1, 2)},
        {"kind": "window", "window": window},
        {"kind": "window", "window": window | {"samples": 100}},
        {"kind": "memory", "cost_bytes": 5_000_000, "rss_bytes": 9_000_000},
    ):
        seen = watch.taken_in(seen, event)
    assert (seen.running, seen.rate, seen.planned) == (settings(1, 2), 150.0, 2)
    assert watch.headline(seen) == "Measuring 1 worker, prefetch 2 (2 batches in flight)"
    assert watch.running_numbers(seen) == "150 samples/s · 5.0 MB"
    seen = watch.taken_in(seen, {"kind": "run_finished", "runs_done": 1, "runs_left": 5})
    assert (seen.running, seen.rate) == (None, None)
    assert watch.progress_text(seen) == "1 of about 6 starts, 2 settings"
    seen = watch.taken_in(seen, {"kind": "state", "state": "done"})
    assert not seen.active and watch.headline(seen, "budget").startswith("The time budget ended")


def test_what_goes_on_before_the_first_number_is_said_until_the_probe_has_ended():
    seen = watch.taken_in(watch.Watched(), {"kind": "state", "state": "running"})
    told = []
    for phase in ("starting", "probing", "first batch", "epoch length", "reference"):
        seen = watch.taken_in(seen, {"kind": "phase", "phase": phase})
        told.append(watch.headline(seen))
    assert told[2] == "Running: reading a few batches with 0 workers to learn sizes and times"
    assert len(set(told)) == 5 and watch.time_text(seen, 7.9, 2.5) == "7 s"
    probe = Probe(8, "first tensor", False, 800, 1, "", 4, 32, False, "fork", batch_seconds=0.5)
    seen = watch.taken_in(seen, {"kind": "probe", "probe": probe})
    seen = watch.taken_in(seen, {"kind": "phase", "phase": "first batch"})
    assert watch.headline(seen) == "Running" and seen.batch_seconds == 0.5


def test_what_is_left_is_told_from_what_a_start_takes_and_ends_with_the_budget():
    seen = watch.Watched(state="running", runs_done=5, runs_left=10)
    assert watch.time_text(seen, 62.7, 9.0) == "1 min 2 s, about 2 min left"
    assert watch.time_text(seen, 62.7, 9.0, budget_seconds=80.0) == "1 min 2 s, about 20 s left"
    assert watch.time_text(watch.Watched(state="paused", runs_left=3), 5.0, 1.0) == ""
    seen = watch.taken_in(seen, {"kind": "run_finished", "runs_done": 6, "runs_left": 9, "seconds": 4.0})
    seen = watch.taken_in(seen, {"kind": "run_finished", "runs_done": 7, "runs_left": 8, "seconds": None})
    assert seen.run_seconds == (4.0,), "a settings that is passed over takes no time"


def test_what_a_start_takes_is_measured_else_probed_else_assumed():
    assert durations.start_seconds((), None, 1.0) == durations.StartSeconds(2.5, "assumed")
    assert durations.start_seconds((), 0.5, 1.0) == durations.StartSeconds(8.5, "probed")
    assert durations.start_seconds((4.0, 8.0), 0.5, 1.0) == durations.StartSeconds(6.0, "measured")
    assert durations.seconds_of(made_up.run(settings(0), 100.0)) == pytest.approx(0.5 + 4 * 0.25 + 0.05)
    assert durations.seconds_of(TrialRun(settings(0), "failed")) is None
    over = tuple(MemoryReading(at, 1) for at in (100.0, 104.0, 112.5))
    assert durations.seconds_of(TrialRun(settings(0), "ok", memory_over_time=over)) == 12.5


def test_a_clock_ticks_while_no_event_comes_and_an_error_in_it_does_not_end_it(monkeypatch):
    monkeypatch.setattr("workbench.notebook.pump.SECONDS_BETWEEN_TICKS", 0.0)
    ticks, failed = [], []

    def tick(watched):
        ticks.append(watched.state)
        if len(ticks) == 1:
            raise ValueError("odd")

    pump = Pump(lambda watched: None, failed.append, tick=tick)
    pump.begin(watch.Watched(state="running"))
    until(lambda: len(ticks) >= 2)
    pump.put({"kind": "state", "state": "done"})
    assert pump.wait(60) and len(failed) == 1


def test_a_page_made_of_the_notebook_asks_other_hosts_for_nothing_on_our_behalf():
    def hosts(*outputs):
        cell = nbformat.v4.new_code_cell("panel", outputs=list(outputs))
        page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
        return set(re.findall(r"""(?:src|href)=["'](https?://[^"']+)|["'](https?://[^"']+\.m?js[^"']*)["']""", page))

    results = made_up.photos_like()
    bundles = [saved.bundle(results), saved.bundle(None), *(chart(results).bundle() for chart in CHARTS)]
    ours = [nbformat.v4.new_output("display_data", data=bundle) for bundle in bundles]
    assert hosts(*ours) == hosts() != set(), "the page's own template asks for MathJax and the like"


def test_what_is_saved_is_complete_small_and_needs_nothing():
    trials = [made_up.trial(settings(w, p), 100.0 * w + p) for w in range(1, 31) for p in (2, 4, 8)]
    bundle = saved.bundle(made_up.results(*trials))
    assert sum(len(part.encode()) for part in bundle.values()) < 50_000
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])
    assert all(ElementTree.fromstring(base64.b64decode(picture)) is not None for picture in pictures)
    assert len(pictures) == 2 and "more, slower or without an answer" in bundle["text/html"]
    assert "<script" not in bundle["text/html"] and "http" not in bundle["text/html"]
    assert bundle["text/plain"].startswith("Use ") and "samples/s" in bundle["text/plain"]
    many = [made_up.broken(settings(w, p, batch_size=9), "failed", "x" * 250) for w in range(1, 31) for p in (2, 4, 8)]
    assert sum(len(part.encode()) for part in saved.bundle(made_up.results(*trials, *many)).values()) < 50_000
    assert saved.BEFORE in saved.bundle(None)["text/plain"]


def test_a_notebook_run_without_a_browser_keeps_the_results(tmp_path):
    cells = [
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nimport workbench as wb\n"
        "loader = DataLoader(TensorDataset(torch.ones(64, 3)), batch_size=8)\n"
        "panel = wb.TuningPanel(loader, space=wb.SearchSpace(num_workers=[0, 1]), measure_seconds=0.1)\npanel",
        "panel.run()\nresults = panel.wait()\nassert results.trials, panel.errors.widget.value",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    kept = [
        output for output in notebook.cells[0].outputs if "wb-saved" in str(output.get("data", {}).get("text/html"))
    ]
    assert len(kept) == 1 and "samples/s" in kept[0]["data"]["text/html"]
    assert notebook.cells[1].outputs == []
    assert len(json.dumps(notebook.cells)) < 50_000


def test_errors_of_our_own_are_one_sentence():
    box = panel.ErrorBox()
    box.show(WorkbenchError("x=3 is wrong; write 4"))
    assert text_of(box.widget.value).strip() == "x=3 is wrong; write 4"
