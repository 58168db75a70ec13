"""What changed between two sweeps, on made-up sweeps whose every rate is chosen here; and the panel that shows it."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests import made_up_sweeps as made_up
from tests.made_up_sweeps import settings, trial
from workbench.measure.records import Probe
from workbench.notebook import comparison, figures, palette, views
from workbench.notebook.comparison import ALIKE, FASTER, SLOWER, compare, sentences

MACHINE = {"cpu": "made-up CPU", "torch": "2.13.0"}


def sweep(name, rates, **more):
    trials = [trial(chosen, rate) for chosen, rate in rates.items()]
    return made_up.results(*trials, **({"name": name, "machine": MACHINE, "source": "DataLoader over Photos"} | more))


BEFORE = sweep("monday", {settings(0): 100, settings(1, 2): 200, settings(2, 2): 400, settings(4, 2): 300})
NOW = sweep("tuesday", {settings(0): 101, settings(1, 2): 300, settings(2, 2): 200, settings(8, 2): 500})


def test_settings_of_both_are_compared_and_the_largest_change_leads():
    found = compare(NOW, BEFORE)
    assert [(one.settings, round(one.ratio.value, 2), one.verdict) for one in found.both] == [
        (settings(2, 2), 0.5, SLOWER),
        (settings(1, 2), 1.5, FASTER),
        (settings(0), 1.01, ALIKE),
    ]
    assert (found.only_now, found.only_before) == (1, 1)
    assert (found.best_before, found.best_now) == (settings(2, 2), settings(8, 2))
    assert found.conditions == ()


def test_a_change_states_its_interval_and_both_ends_contain_the_ratio():
    for one in compare(NOW, BEFORE).both:
        assert one.ratio.low < one.ratio.value < one.ratio.high


def test_the_words_say_what_changed():
    assert sentences(compare(NOW, BEFORE))[1:] == (
        "Recommended was 2 workers, prefetch 2 (4 batches in flight), and is 8 workers, prefetch 2 "
        "(16 batches in flight) now.",
        "1 settings measured only in this sweep.",
        "1 settings measured only in the earlier one.",
    )
    counted = sentences(compare(NOW, BEFORE))[0]
    assert counted.startswith("Of 3 settings measured in both, 1 is faster for certain, most of all 1 worker")
    assert "1.50 times the rate" in counted and "1 is slower for certain" in counted
    assert counted.endswith("1 cannot be told apart from before.")


def test_other_conditions_are_named_before_anything_else():
    probe = Probe(8, "first tensor", False, 800, 1, "Tensor[8, 3] float32", 4, 32, False, "fork")
    then = sweep("then", {settings(0): 100}, probe=probe, options={"step": "", "measure_seconds": 1.0})
    now = sweep(
        "now",
        {settings(0): 200},
        machine=MACHINE | {"torch": "2.14.0"},
        source="DataLoader over Pictures",
        probe=Probe(16, "first tensor", False, 800, 1, "Tensor[8, 3] float32", 4, 32, False, "fork"),
        options={"step": "train", "measure_seconds": 1.0},
    )
    found = compare(now, then)
    assert found.conditions == (
        "torch was 2.13.0, is 2.14.0",
        "the loader was 'DataLoader over Photos', is 'DataLoader over Pictures'",
        "samples per batch was 8, is 16",
        "step was none, is train",
    )
    assert sentences(found)[0].startswith("Not only the settings differ: torch was 2.13.0")


@pytest.mark.parametrize("now", [made_up.empty(), made_up.all_failed()])
def test_a_sweep_without_rates_is_compared_in_words(now):
    found = compare(now, BEFORE)
    assert "nothing to compare" in sentences(found)[0] and "This sweep recommends nothing." in sentences(found)
    assert "<table" not in comparison.comparison_html(found)


def test_the_page_is_well_formed_and_escapes_names():
    found = compare(NOW, sweep("<b>&", {settings(0): 10, settings(1, 2): 20}))
    text = comparison.comparison_html(found)
    root = ElementTree.fromstring(f"<div>{text}</div>")
    assert "Since sweep <b>& of " in "".join(root.itertext())
    assert [cell.attrib["scope"] for cell in root.iter("th")] == ["col"] * 5 + ["row"] * 2


def test_both_sweeps_are_in_the_same_chart():
    info = views.throughput_info(NOW, earlier=BEFORE)
    drawn = figures.throughput_figure(info, palette.LIGHT)
    earlier = [trace for trace in drawn["data"] if trace["name"] == figures.EARLIER]
    assert [trace["y"] for trace in earlier] == [pytest.approx([100, 200, 400, 300], rel=0.02)]
    assert "customdata" not in earlier[0], "a click on it would choose a trial of this sweep"
    assert drawn["layout"]["xaxis"]["tickvals"] == [0, 1, 2, 4, 8]
    front = figures.memory_figure(views.memory_info(NOW, earlier=BEFORE), palette.LIGHT)["data"][0]
    assert (front["name"], front["line"]["shape"]) == (figures.EARLIER, "hv")


def test_words_of_a_comparison_hold_no_markup_of_their_own():
    words = html.unescape(re.sub("<[^>]+>", " ", comparison.comparison_html(compare(NOW, BEFORE))))
    assert "faster" in words and "<" not in words
