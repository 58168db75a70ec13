"""The timeline of a trace: its bars, its sentence, and a picture that needs no script."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from workbench.errors import TraceError
from workbench.measure.trace_recording import profile
from workbench.measure.trace_timeline import Lane, Timeline
from workbench.notebook import palette
from workbench.notebook.timeline import svg, timeline, timeline_figure, title_of

SHOWN = Timeline(
    7, (0.0, 0.04), 0.08, (Lane("loader", (0.0, 0.04), (0.03, 0.02)), Lane("device idle", (0.0,), (0.031,)))
)


def test_bars_are_the_lanes_in_milliseconds():
    figure = timeline_figure(SHOWN, palette.LIGHT)
    loader, idle = figure["data"]
    assert (loader["base"], loader["x"]) == ([0.0, 40.0], [30.0, 20.0])
    assert idle["marker"]["color"] == palette.LIGHT.alert and set(idle["y"]) == {"device idle"}
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [0.0, 40.0]


def test_the_title_says_how_much_was_the_loader():
    assert "62" in title_of(SHOWN) or "63" in title_of(SHOWN)
    assert "no loader spans" in title_of(Timeline(0, (0.0,), 1.0, ()))


def test_the_still_picture_is_valid_and_holds_every_bar():
    tree = ElementTree.fromstring(svg(SHOWN))
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}rect")) == 3
    assert "step 7" in tree.find("{http://www.w3.org/2000/svg}title").text


def test_a_recorded_loop_is_shown(tmp_path):
    loader = torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=8)
    path = profile(loader, lambda batch: batch @ batch.T, tmp_path / "loop.json", steps=6)
    bundle = timeline(path, first=1, steps=3).bundle()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "image/svg+xml", "text/plain"}
    lanes = [trace["name"] for trace in bundle["application/vnd.plotly.v1+json"]["data"]]
    assert lanes[:2] == ["loader", "operators"] and "3 steps" in bundle["text/plain"]
    with pytest.raises(TraceError, match="there is no step 40"):
        timeline(path, first=40)
