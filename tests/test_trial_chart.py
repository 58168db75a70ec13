"""Trials beside one another: what the chart shows is tested exactly, the figure is only drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from tests import made_up_sweeps as made_up
from workbench.errors import WorkbenchError
from workbench.notebook import palette, still
from workbench.notebook.trial_chart import trials, trials_figure


def journey():
    return {
        "as it was": made_up.trial(made_up.settings(0), 100),
        "<shards>": made_up.broken(made_up.settings(0), "failed", "no such shard"),
        "workers": made_up.trial(made_up.settings(2, 2), 250),
    }


def test_each_trial_stands_in_its_place_with_its_interval():
    figure = trials_figure(journey(), "Steps", palette.LIGHT, None, "")
    (marks,) = figure["data"]
    first, last = (journey()[name] for name in ("as it was", "workers"))
    assert marks["x"] == [0, 2] and marks["y"] == [first.samples_per_second, last.samples_per_second]
    up, down = marks["error_y"]["array"][1], marks["error_y"]["arrayminus"][1]
    assert last.samples_per_second + up == pytest.approx(last.samples_per_second_high) and up > 0
    assert last.samples_per_second - down == pytest.approx(last.samples_per_second_low) and down > 0
    assert marks["hovertext"][0] == "<b>as it was</b>: 100 samples/s ± 10 %"
    assert figure["layout"]["xaxis"]["ticktext"] == ["as it was", "&lt;shards&gt;", "workers"]


def test_a_trial_without_a_known_spread_has_no_bar():
    run = made_up.run(made_up.settings(0), 48)
    one = made_up.TrialResult(run.settings, (replace(run, windows=run.windows[:1]),))
    (marks,) = trials_figure({"once": one}, "Steps", palette.LIGHT, None, "")["data"]
    assert one.samples_per_second_low is None
    assert marks["error_y"]["array"] == marks["error_y"]["arrayminus"] == [0.0]
    assert marks["hovertext"] == ["<b>once</b>: 48.0 samples/s"]


def test_the_most_there_can_be_is_a_line_over_all_places():
    _, line = trials_figure(journey(), "Steps", palette.DARK, 300.0, "the step alone")["data"]
    assert line["y"] == [300.0, 300.0] and line["x"] == [-0.5, 2.5] and line["name"] == "the step alone"


def test_without_any_rate_the_chart_says_so():
    figure = trials_figure({"it": journey()["<shards>"]}, "Steps", palette.LIGHT, 300.0, "the step alone")
    assert figure["data"] == [] and figure["layout"]["annotations"][0]["text"]


def test_it_is_drawn_by_plotly_and_as_a_picture():
    bundle = trials(journey(), "After each step", most=300.0).bundle()
    picture = ET.fromstring(bundle["image/svg+xml"])
    words = {text.text for text in picture.iter() if text.text}
    assert {"After each step", "as it was", "<shards>", "workers", "the most there can be"} <= words
    assert bundle["text/plain"] == "After each step"
    assert still.svg(trials_figure(journey(), "A & B", palette.LIGHT, None, ""))


@pytest.mark.parametrize(("named", "theme", "said"), [({}, "auto", "no trials"), (journey(), "grey", "theme='grey'")])
def test_what_cannot_be_drawn_is_refused(named, theme, said):
    with pytest.raises(WorkbenchError, match=said):
        trials(named, "Steps", theme=theme)
