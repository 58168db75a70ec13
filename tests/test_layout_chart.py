"""The chart that answers "which format for me": what it says is tested exactly, the figure is only drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import made_up_sweeps as made_up
from workbench.errors import WorkbenchError
from workbench.layouts.comparison import PreparedLayout
from workbench.notebook import palette, still
from workbench.notebook.layout_chart import layouts, layouts_figure, layouts_info, row_words


def settings(layout, workers=2):
    return made_up.settings(workers, 2 if workers else None, layout=layout)


def kept(layout, seconds, size=10**6):
    return PreparedLayout(layout, Path("copies") / layout, 1000, size, "d" * 32, seconds)


PREPARED = (kept("files", 9.0), kept("tar", 3.0, 2 * 10**6), kept("parquet", 30.0))


def sweep(*trials, current="files"):
    return made_up.results(*trials, current=settings(current))


def of_three(files=100, tar=400, parquet=200):
    rates = {"files": files, "tar": tar, "parquet": parquet}
    return sweep(*(made_up.trial(settings(name), rate) for name, rate in rates.items()))


def test_each_layout_is_shown_at_its_best_with_what_its_conversion_cost():
    results = sweep(
        made_up.trial(settings("tar"), 400),
        made_up.trial(settings("tar", 0), 300),
        made_up.trial(settings("files"), 100),
    )
    info = layouts_info(results, PREPARED)
    assert [(row.layout, round(row.point.samples_per_second)) for row in info.rows] == [("files", 100), ("tar", 400)]
    assert info.rows[1].bytes == 2 * 10**6 and info.rows[1].told_apart
    assert info.rows[1].payback.gained_seconds == pytest.approx(7.5)
    assert info.rows[1].payback.epochs == pytest.approx(0.4)
    assert info.rows[0].payback.never, "the layout in use gains nothing over itself"
    assert info.answer == "tar" and row_words(info.rows[1]) == "pays after 0.400 epochs"
    assert info.summary == (
        "use tar: 4.0 times the rate of files; converting took 3.00 s and pays after 0.400 epochs of loading"
    )


def test_what_cannot_be_told_apart_is_no_reason_to_convert():
    info = layouts_info(of_three(files=100, tar=101, parquet=40), PREPARED)
    assert info.answer == "files"
    assert info.summary == (
        "stay with files: nothing tried is faster for certain; tar cannot be told apart from it yet"
    )
    assert [row_words(row) for row in info.rows] == ["in use", "not told apart", "never pays"]
    assert info.rows[2].payback.never and info.rows[2].payback.gained_seconds == pytest.approx(-15.0)


def test_another_layout_can_be_the_one_in_use():
    info = layouts_info(of_three(), PREPARED, in_use="tar")
    assert (info.in_use, info.answer, info.rows[0].layout) == ("tar", "tar", "tar")


def test_a_layout_without_a_rate_says_why_and_never_wins():
    broken = made_up.broken(settings("tar"), "failed", "its shard is cut short")
    info = layouts_info(sweep(made_up.trial(settings("files"), 100), broken), PREPARED)
    assert info.answer == "files" and info.rows[1].point is None
    assert (
        info.rows[1].why_not == "its shard is cut short"
        and row_words(info.rows[1]) == "no answer"
        and info.rows[1].payback.epochs is None
    )
    nothing = layouts_info(sweep(broken, current="tar"))
    assert nothing.summary == "no layout gave a rate; the table has the reasons"
    rescued = layouts_info(sweep(broken, made_up.trial(settings("files"), 100), current="tar"))
    assert rescued.summary == "use files: tar gave no rate"


def test_costs_that_are_not_known_stay_unknown():
    info = layouts_info(of_three())
    assert info.answer == "tar" and info.rows[1].payback.epochs is None and info.rows[1].bytes is None
    assert info.summary == "use tar: 4.0 times the rate of files"


def test_sweeps_that_say_nothing_of_layouts_are_refused():
    with pytest.raises(WorkbenchError, match="did not vary the layout"):
        layouts_info(made_up.photos_like())
    with pytest.raises(WorkbenchError, match="in_use='zip'"):
        layouts_info(of_three(), in_use="zip")
    with pytest.raises(WorkbenchError, match="theme='sepia'"):
        layouts(of_three(), theme="sepia")


@pytest.mark.parametrize("theme", sorted(palette.THEMES))
def test_the_figure_draws_what_the_record_says(theme):
    broken = made_up.broken(settings("files"), "failed", "no files here")
    for results in (of_three(), sweep(broken, made_up.trial(settings("tar"), 5)), sweep(broken)):
        info = layouts_info(results, PREPARED)
        figure = layouts_figure(info, palette.THEMES[theme])
        drawn = {trace["name"].partition(":")[0]: trace["y"][0] for trace in figure["data"]}
        assert {k: v for k, v in drawn.items() if k != "the answer"} == {
            row.layout: row.point.samples_per_second for row in info.rows if row.point
        }
        assert "Which format for you" in still.svg(figure)
    assert "image/svg+xml" in layouts(of_three(), PREPARED, theme=theme).bundle()
