"""What a chosen trial shows beside its rate: memory over time and stages, also from stores that hold neither."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests import made_up_sweeps as made_up
from tests.made_up_sweeps import settings
from tests.scripted import costs_of
from workbench.errors import StoreError
from workbench.measure.records import MemoryReading, run_from_json, to_json
from workbench.measure.stage_costs import Stage
from workbench.measure.trial import measure
from workbench.measure.watch import thinned
from workbench.notebook import palette, still
from workbench.notebook.evidence import trial_details
from workbench.notebook.memory_over_time import memory_over_time_figure, memory_over_time_info
from workbench.notebook.panel import TuningPanel
from workbench.tuning.results import load_results
from workbench.tuning.store import SweepStore

READINGS = (
    MemoryReading(10.0, 100_000_000),
    MemoryReading(11.0, 300_000_000, 250_000_000),
    MemoryReading(12.5, 2 * 10**8),
)
COSTS = costs_of((0.010, 0.001, 0.002), transforms=(Stage("Resize", 0.020, 0.020),))


def run_with(**more):
    return dataclasses.replace(made_up.run(settings(1, 2), 100.0), **more)


def trial_with(*runs):
    return dataclasses.replace(made_up.trial(settings(1, 2), 100.0), runs=runs)


def test_a_record_with_memory_and_stages_reads_back_equal():
    run = run_with(memory_over_time=READINGS, stages=COSTS)
    assert run_from_json(json.loads(json.dumps(to_json(run)))) == run


def test_a_record_of_an_older_version_has_neither():
    old = to_json(run_with())
    del old["memory_over_time"], old["stages"]
    read = run_from_json(json.loads(json.dumps(old)))
    assert (read.memory_over_time, read.stages) == ((), None)


def test_thinning_keeps_the_highest_of_each_stretch_and_every_exact_reading():
    many = [MemoryReading(float(n), n % 10, 5 if n == 502 else None) for n in range(1000)]
    kept = thinned(many, 50)
    assert len(kept) == 51 and many[502] in kept
    assert [reading.rss_bytes for reading in kept if reading.pss_bytes is None] == [9] * 50
    assert thinned(many[:50], 50) == many[:50]


def test_memory_is_shown_from_the_begin_of_each_start():
    info = memory_over_time_info(trial_with(run_with(memory_over_time=READINGS), run_with()))
    (line,) = info.lines
    assert line.seconds == (0.0, 1.0, 2.5) and line.exact == ((1.0, 250_000_000),)
    assert "300 MB" in info.summary and "1 start of 2" in info.summary
    figure = memory_over_time_figure(info, palette.EITHER)
    assert figure["data"][0]["y"] == [100.0, 300.0, 200.0] and figure["data"][1]["y"] == [250.0]
    assert ElementTree.fromstring(still.svg(figure)) is not None


def test_details_show_memory_stages_and_reasons_where_they_are_known():
    told = trial_details(trial_with(run_with(memory_over_time=READINGS, stages=COSTS)))
    assert "Memory over time" in told and "Resize, in a worker" in told and "70 % waiting" in told
    bare = trial_details(trial_with(run_with()))
    assert "Memory over time" not in bare and "in a worker" not in bare
    broken = made_up.broken(settings(1, 2), "over_memory", "memory reached 1 GB <so>")
    broken = dataclasses.replace(broken, runs=(dataclasses.replace(broken.runs[0], memory_over_time=READINGS),))
    told = trial_details(broken)
    assert "memory reached 1 GB &lt;so&gt;" in told and "Memory over time" in told


def test_a_real_run_says_how_its_memory_went():
    result = measure(DataLoader(TensorDataset(torch.ones(4096, 3)), batch_size=8), starts=1, measure_seconds=0.2)
    readings = result.runs[0].memory_over_time
    assert len(readings) >= 2 and all(reading.rss_bytes > 0 for reading in readings)
    assert any(reading.pss_bytes for reading in readings)
    assert [r.at_seconds for r in readings] == sorted(r.at_seconds for r in readings)
    assert max(reading.rss_bytes for reading in readings) == result.peak_rss_bytes


def test_stages_are_added_to_the_latest_record_of_their_settings(tmp_path):
    with SweepStore(tmp_path / "sweeps.db") as store:
        known = {
            "source": "loader",
            "fingerprint": "f",
            "machine": {},
            "current": None,
            "strategy": "grid",
            "options": {},
        }
        sweep = store.create_sweep("mine", candidates=[settings(1, 2), settings(2, 2)], **known)
        for chosen in (settings(1, 2), settings(2, 2), settings(1, 2)):
            store.finish_run(store.begin_run(sweep, chosen), made_up.run(chosen, 100.0))
        store.save_stages("mine", settings(1, 2), COSTS)
        first, other, latest = store.runs(sweep)
        assert (first.stages, other.stages) == (None, None)
        assert latest.stages == dataclasses.replace(COSTS, batch_walls=())
        assert latest.windows == first.windows
        with pytest.raises(StoreError, match="has no run of 7 workers"):
            store.save_stages("mine", settings(7, 2), COSTS)


@pytest.fixture
def panel(tmp_path):
    from workbench.tuning.space import SearchSpace

    loader = DataLoader(TensorDataset(torch.ones(4096, 3)), batch_size=8)
    space = SearchSpace(num_workers=[0, 1])
    made = TuningPanel(loader, store=tmp_path / "sweeps.db", space=space, strategy="grid", measure_seconds=0.1)
    made.run()
    made.wait(120)
    return made


def test_stages_of_a_chosen_trial_are_measured_on_demand_and_kept_in_the_store(panel, tmp_path):
    assert panel.inspector._asking.layout.display == "none", "no trial is chosen"
    key = next(k for k, trial in enumerate(panel.results.trials) if trial.settings.num_workers == 1)
    panel.inspector.choose(key)
    assert panel.inspector._asking.layout.display is None
    panel.inspector._look.click()
    assert panel.stage_look.wait(60) and panel.errors.widget.value == ""
    assert "fetch, in a worker" in panel.inspector._details.value
    assert panel.inspector._asking.layout.display == "none"
    kept = load_results(tmp_path / "sweeps.db")
    assert kept.trials[key].runs[-1].stages.fetch.wall_seconds > 0
    assert kept.trials[key].estimate == panel.results.trials[key].estimate


def test_a_store_whose_records_lack_memory_and_stages_still_opens(panel, tmp_path):
    with sqlite3.connect(tmp_path / "sweeps.db") as db:
        for number, record in db.execute("SELECT id, record FROM runs").fetchall():
            old = {k: v for k, v in json.loads(record).items() if k not in ("memory_over_time", "stages")}
            db.execute("UPDATE runs SET record = ? WHERE id = ?", [json.dumps(old), number])
    results = load_results(tmp_path / "sweeps.db")
    assert results.best is not None and results.trials[0].runs[0].memory_over_time == ()
    assert "steady rate" in trial_details(results.trials[0])
