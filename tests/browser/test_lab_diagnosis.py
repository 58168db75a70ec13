"""A person at the diagnosis panel in JupyterLab, light and dark: run, stop, change, compare, look at steps."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.browser import jupyter
from tests.browser.at_the_panel import (
    SLOW_DATASET,
    ink,
    nothing_went_wrong,
    open_panel,
    paper,
    press,
    status_becomes,
    stop_within_seconds,
)

CELL = f"""\
{SLOW_DATASET}
from workbench import DiagnosisPanel

def train(batch):
    time.sleep(0.004)

panel = DiagnosisPanel(DataLoader(Slow(), batch_size=4), train, seconds=0.2)
panel
"""
SPILLS = """() => {
  const panel = document.querySelector(".wb-panel"), edge = panel.getBoundingClientRect().right + 1;
  return [...panel.querySelectorAll("*")].filter(
    (one) => one.getBoundingClientRect().right > edge && !one.closest(".wb-scroll, .js-plotly-plot, .wb-code")
  ).map((one) => one.className.toString() || one.tagName);
}"""
HAS_TIMELINE = "() => [...document.querySelectorAll('.wb-live .js-plotly-plot')].some(c => c.data.length > 1)"


@pytest.fixture
def notebook(work: Path) -> Path:
    jupyter.write_notebook(work / "diagnosis.ipynb", CELL)
    return work / "diagnosis.ipynb"


def test_from_run_to_before_and_after_and_single_steps(notebook: Path) -> None:
    with jupyter.lab(notebook.parent) as address, jupyter.page() as (page, seen):
        open_panel(page, address, notebook.name)
        press(page, "Run")
        status_becomes(page, "timing the")
        stop_within_seconds(page)
        press(page, "Run")
        status_becomes(page, "Finished")
        assert page.locator(".wb-panel .wb-verdict strong").first.inner_text() != ""
        assert page.locator(".wb-panel .wb-bar-row").count() >= 3 + 3
        page.get_by_label("Workers", exact=True).fill("2")
        page.keyboard.press("Tab")
        press(page, "Run")
        status_becomes(page, "Start 1")
        status_becomes(page, "Finished")
        page.wait_for_selector(".wb-panel h3:has-text('Before and after')")
        press(page, "Timeline of single steps")
        press(page, "Record")
        page.wait_for_function(HAS_TIMELINE)
        assert (notebook.parent / "step.json").exists()
        page.keyboard.press("Control+s")
        page.wait_for_selector(".jp-mod-dirty", state="detached")
        kept = [str(o.get("data", {}).get("text/html", "")) for o in _outputs(notebook)]
        assert any("wb-saved" in text and "Before and after" in text for text in kept)
        nothing_went_wrong(page, seen)
        jupyter.restart_kernel(page)


def test_a_narrow_window_in_the_dark_cuts_nothing(notebook: Path) -> None:
    with jupyter.lab(notebook.parent, dark=True) as address, jupyter.page(700, dark=True) as (page, seen):
        open_panel(page, address, notebook.name)
        assert paper(page) < 60 < 160 < ink(page)
        press(page, "Run")
        status_becomes(page, "Finished")
        assert page.evaluate(SPILLS) == []
        page.get_by_label("Time each").fill("soon")
        page.keyboard.press("Tab")
        press(page, "Run")
        page.wait_for_selector(".wb-panel .wb-alert:has-text(\"'soon' is not a time\")")
        assert (seen.errors, seen.foreign) == ([], [])


def _outputs(notebook: Path) -> list:
    return nbformat.read(notebook, as_version=4).cells[0].get("outputs", [])
