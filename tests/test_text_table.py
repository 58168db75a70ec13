"""The table of a sweep as plain text: aligned, as wide as it may be, with reasons that end at a word."""

from __future__ import annotations

import pytest

from tests import made_up_sweeps as made_up
from workbench.notebook import tables


@pytest.mark.parametrize("width", [200, 120, 80, 60])
def test_a_text_table_fits_its_width_and_ends_reasons_at_a_word(width):
    results = made_up.photos_like()
    lines = tables.text_table(results, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "samples/s" in lines[0] and ("RSS" in lines[0]) is (width > 150)
    assert lines[1].startswith("* 4 workers, prefetch 2") and "1,200" in lines[1]
    told = " ".join(" ".join(lines).partition("failed: ")[2].partition(" 8 workers")[0].split())
    words = results.trials[9].reason.split()
    assert told.removesuffix(" …").split() == words[: len(told.removesuffix(" …").split())]
    assert told == results.trials[9].reason or width == 120


def test_without_a_width_a_text_table_leaves_nothing_out():
    header = tables.text_table(made_up.photos_like()).splitlines()[0]
    assert all(column.heading in header for column in tables.COLUMNS)
    assert "no first batch after 60 s" in tables.text_table(made_up.photos_like())


def test_marks_and_headings_that_are_shown_are_explained_below():
    text = tables.text_table(made_up.photos_like())
    assert text.splitlines()[-1].startswith("* recommended; samples/s: steady rate with its 95 % interval; batch, p50")
    assert "RSS: peak, shared pages counted in each process" in text
    assert "RSS:" not in tables.text_table(made_up.photos_like(), width=80)
    assert "* recommended" not in tables.text_table(made_up.all_failed())


def test_settings_longer_than_the_line_end_at_a_word():
    long = made_up.settings(4, 2, persistent_workers=True, batch_on_worker=True, multiprocessing_context="forkserver")
    lines = tables.text_table(made_up.results(made_up.trial(long, 1200)), width=80).splitlines()
    assert max(map(len, lines)) <= 80 and "whole batches on the worker, …" in lines[1] and "1,200" in lines[1]


def test_words_that_do_not_fit_end_in_an_ellipsis():
    assert tables.shortened("one two three", 13) == "one two three"
    assert tables.shortened("one two three", 12) == "one two …"
    assert tables.shortened("onetwothree", 6) == "onetw…"
