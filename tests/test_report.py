"""The report holds everything it shows, in one file that asks nothing of the network."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from tests import made_up_sweeps as made_up
from workbench.errors import ExportError
from workbench.notebook import report


class Page(HTMLParser):
    """Collects tags, their attributes and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.blocks: dict[str, str] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = dict(attrs).get("id", tag) if tag == "script" else tag

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in ("style", "script"):
            return
        if self._open.startswith("wb-"):
            self.blocks[self._open] = self.blocks.get(self._open, "") + data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(report.render(made_up.photos_like()))


def test_the_report_loads_nothing_from_anywhere(page):
    loading = [(tag, attrs) for tag, attrs in page.tags if {"src", "href", "data", "srcset"} & set(attrs)]
    assert loading == []


def test_the_report_holds_recommendation_numbers_table_reasons_and_provenance(page):
    for words in (
        "Use 4 workers, prefetch 2 (8 batches in flight).",
        "1,200 ± 5 % samples/s, 95 % interval",
        "780 MB peak memory, shared pages counted once",
        "Can't pickle <lambda> at cell 3 line 12",
        "PicklingError: <lambda>",
        "Each settings below ran in processes of its own, 3 times.",
        "made-up CPU",
        "32 (first tensor)",
        "2026-09-21 14:13 UTC",
    ):
        assert words in page.text, words


def test_a_single_start_is_not_given_an_interval_between_starts():
    settings = made_up.settings(2, 2)
    text = Page(report.render(made_up.results(made_up.TrialResult(settings, (made_up.run(settings, 100),))))).text
    assert "samples/s in one start" in text
    assert "in processes of its own, once." in text
    assert "how far separate starts lie apart was not seen" in text


def test_the_report_draws_every_chart_in_both_themes_and_keeps_a_picture_for_pages_without_scripts(page):
    drawn = json.loads(page.blocks["wb-figures"])
    assert set(drawn) == {"throughput", "memory", "heatmap", "first_batch"}
    assert all(set(themes) == {"light", "dark"} for themes in drawn.values())
    assert json.loads(page.blocks["wb-config"])["plotlyServerURL"] == ""
    assert sum(tag == "svg" for tag, _ in page.tags) == 4
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))


def test_what_never_ran_is_no_start_in_the_report():
    waiting = made_up.broken(made_up.settings(4, 2), "skipped", "not run: not looked at")
    told = dict(report.provenance(made_up.results(made_up.trial(made_up.settings(2, 2), 100), waiting)))
    assert told["trials"] == "2 settings (1 of them run), 3 starts"
    assert dict(report.provenance(made_up.photos_like()))["trials"] == "12 settings, 30 starts"


def test_a_users_words_cannot_end_the_script_that_holds_the_figures():
    evil = made_up.results(made_up.broken(made_up.settings(1, 2), "failed", "</script><img src=x onerror=alert(1)>"))
    page = Page(report.render(evil))
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert "</script><img src=x onerror=alert(1)>" in page.text


@pytest.mark.parametrize("results", [made_up.empty(), made_up.all_failed()], ids=["empty", "failed"])
def test_a_sweep_without_an_answer_still_has_a_report(results):
    page = Page(report.render(results))
    assert "No recommendation" in page.text
    assert results.reason in page.text
    assert "No recommendation: No recommendation" not in page.text


def test_the_file_is_replaced_as_a_whole_or_left_alone(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    assert report.write_report(made_up.photos_like(), target) == target
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(ExportError, match=r"cannot write the report to .*nowhere.*give a path in a folder"):
        report.write_report(made_up.photos_like(), tmp_path / "nowhere" / "report.html")


def test_the_markdown_has_recommendation_code_and_a_row_for_every_settings():
    text = report.markdown(made_up.photos_like())
    assert text.startswith("### Loader settings: photos\n\nUse 4 workers, prefetch 2")
    assert "DataLoader(dataset, batch_size=32, num_workers=4," in text
    assert ", **yours)  # yours: shuffle, collate_fn," in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 12
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert "&lt;lambda>" in text


def test_the_markdown_keeps_a_pipe_in_a_reason_inside_its_cell():
    results = made_up.results(made_up.broken(made_up.settings(1, 2), "failed", "a | b\nc"))
    assert "failed: a \\| b c |" in report.markdown(results)
