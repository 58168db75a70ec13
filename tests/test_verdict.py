"""A diagnosis as HTML: every number with its interval, every word of the user's escaped, bars as long as the rates."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree

from tests.made_up_diagnoses import diagnosis
from tests.scripted import costs_of
from workbench.measure.stage_costs import Stage
from workbench.notebook import verdict

COSTS = costs_of((0.010, 0.001, 0.002), transforms=(Stage("Resize", 0.020, 0.020),))


def test_the_box_says_what_binds_how_much_there_is_to_gain_and_what_to_do():
    root = ElementTree.fromstring(f"<div>{verdict.verdict_html(diagnosis())}</div>")
    words = " ".join("".join(root.itertext()).split())
    assert "The loader holds the training back: CPU in <decode>" in words
    assert "at most 2.0 times the speed (95 %: 1.90 to 2.10); confidence high" in words
    assert "It would be wrong if: more workers do not help" in words
    assert "Next: use more workers" in words and "<no accelerator>" in words


def test_bars_are_as_long_as_the_rates_and_leave_out_what_is_not_known():
    bars = verdict.rate_bars(diagnosis())
    assert [bar.reach for bar in bars] == [105.0, 210.0, 108.0]
    assert (bars[0].parts[0].length, bars[0].low, bars[0].high) == (100.0, 95.0, 105.0)
    assert bars[0].told == "100 samples/s ± 5 %" and "loader and copy" not in {bar.name for bar in bars}
    moved = verdict.rate_bars(diagnosis(moved_samples_per_second=90.0))
    assert moved[1].name == "loader and copy" and moved[1].low is None


def test_an_earlier_diagnosis_is_a_line_below_each_bar():
    bars = verdict.rate_bars(diagnosis(), diagnosis(loader_samples_per_second=50.0))
    assert [bar.earlier for bar in bars] == [50.0, 200.0, 99.0] and bars[1].earlier_told == "200 samples/s ± 5 %"


def test_what_is_kept_holds_images_and_no_script():
    bundle = verdict.bundle(diagnosis())
    assert bundle["text/html"].count("data:image/svg+xml;base64,") == 1 and "<script" not in bundle["text/html"]
    assert bundle["text/plain"].startswith("Bound: input")


def test_stages_are_told_apart_and_without_workers_nobody_waits_for_a_batch():
    workers = diagnosis(stages=COSTS, stages_combined=COSTS)
    assert [bar.name for bar in verdict.stage_bars(workers)] == [
        "fetch, in a worker",
        "Resize, in a worker",
        "collate, in a worker",
        "hand-over, in a worker",
        "the loop waits for a batch",
        "the loop's own work in next()",
        "the step, alone",
    ]
    fetch, *_, step = verdict.stage_bars(workers)
    assert [round(part.length, 6) for part in fetch.parts] == [0.001, 0.007, 0.002] and step.told == "80.0 ms"
    alone = dataclasses.replace(COSTS, hand_over=None)
    names = [bar.name for bar in verdict.stage_bars(diagnosis(stages=alone, stages_combined=alone))]
    assert names == ["fetch, in the loop", "Resize, in the loop", "collate, in the loop", "the step, alone"]
    assert "cannot be looked into" in verdict.stages_html(diagnosis())


def test_every_bound_has_a_headline():
    for bound in ("input", "compute", "transfer", "sync", "balanced", "unknown"):
        assert f"<strong>{verdict.HEADLINES[bound]}</strong>" in verdict.verdict_html(
            diagnosis(bound=bound, cause=None)
        )
