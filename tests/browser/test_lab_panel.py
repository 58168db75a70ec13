"""A person at the panel in JupyterLab: from Run to the exported file, and a sweep that its kernel does not outlive."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from tests.browser import jupyter
from tests.browser.at_the_panel import (
    DRAWN,
    FITS,
    RATED,
    TUNING_CELL,
    ink,
    nothing_went_wrong,
    open_panel,
    paper,
    press,
    status_becomes,
    stop_within_seconds,
)
from workbench.notebook.points import points
from workbench.tuning.export import load_settings
from workbench.tuning.results import Results, load_results

# What JupyterLab itself logs when widgets of the kernel that was restarted still had something to send or to get.
OF_A_RESTART = ("canceled", "disposed", "cannot send")


@pytest.fixture
def notebook(work: Path) -> Path:
    jupyter.write_notebook(work / "panel.ipynb", TUNING_CELL)
    return work / "panel.ipynb"


def test_from_run_to_an_exported_file(notebook: Path) -> None:
    with jupyter.lab(notebook.parent) as address, jupyter.page() as (page, seen):
        open_panel(page, address, notebook.name)
        press(page, "Run")
        status_becomes(page, "Measuring")
        page.wait_for_function(RATED)
        page.wait_for_function(FITS)
        press(page, "Pause")
        status_becomes(page, "Paused")
        press(page, "Resume")
        status_becomes(page, "Measuring")
        stop_within_seconds(page)
        results = load_results(notebook.parent / "sweeps.db")
        assert results.ending == "stopped"
        click_a_point(page, results)
        assert page.locator(".wb-panel .wb-windows tbody tr").count() >= 1
        export_to(page, "mine.yaml")
        assert load_settings(notebook.parent / "mine.yaml") == results.best
        page.keyboard.press("Control+s")
        wait_until_saved(notebook)
        nothing_went_wrong(page, seen)


def test_a_sweep_outlives_its_kernel_and_is_compared_with_the_next_in_the_dark(notebook: Path) -> None:
    store = notebook.parent / "sweeps.db"
    with jupyter.lab(notebook.parent, dark=True) as address, jupyter.page(dark=True) as (page, seen):
        open_panel(page, address, notebook.name)
        assert paper(page) < 60 < 160 < ink(page)
        press(page, "Run")
        page.wait_for_function(RATED)
        jupyter.restart_kernel(page)
        kept = load_results(store)
        assert kept.ending == "" and kept.best is not None

        jupyter.run_all(page)
        page.wait_for_selector(f".wb-panel:has-text('sweep {kept.name}')")
        page.get_by_label("go on with the sweep that ended early").check()
        press(page, "Run")
        status_becomes(page, "Measuring")
        stop_within_seconds(page)
        assert load_results(store).name == kept.name
        assert runs_of(load_results(store)) >= runs_of(kept)

        page.get_by_label("go on with the sweep that ended early").uncheck()
        press(page, "Run")
        status_becomes(page, "Measuring")
        page.wait_for_function(RATED)
        stop_within_seconds(page)
        page.get_by_label("Compare with").select_option(label=label_of(page, kept.name))
        page.wait_for_selector(f".wb-panel .wb-verdict:has-text('Since sweep {kept.name}')")
        page.wait_for_function(f"() => {DRAWN}[0].data.some(trace => trace.name === 'earlier sweep')")
        errors = [error for error in seen.errors if not any(words in error.lower() for words in OF_A_RESTART)]
        assert (errors, seen.foreign) == ([], [])


def runs_of(results: Results) -> int:
    return sum(len(trial.runs) for trial in results.trials if trial.status != "skipped")


def label_of(page: Page, name: str) -> str:
    options = page.get_by_label("Compare with").locator("option").all_inner_texts()
    return next(label for label in options if label.startswith(f"{name},"))


def export_to(page: Page, name: str) -> None:
    press(page, "Export")
    page.get_by_label("to file").fill(name)
    page.get_by_label("to file").press("Tab")
    press(page, "Write file")
    page.wait_for_selector(".wb-done")


def click_a_point(page: Page, results: Results) -> None:
    """Clicks the first rated point of the chart, which plotly only takes after the pointer hovered over it."""
    rated = next(point for point in points(results) if point.measured)
    page.locator(".wb-live").first.scroll_into_view_if_needed()
    place = page.evaluate(
        f"""key => {{
          const chart = {DRAWN}[0], box = chart.getBoundingClientRect(), {{xaxis, yaxis}} = chart._fullLayout;
          for (const trace of chart.data) {{
            const at = (trace.customdata || []).indexOf(key);
            if (at >= 0 && trace.yaxis !== 'y2')
              return [box.x + xaxis._offset + xaxis.d2p(trace.x[at]), box.y + yaxis._offset + yaxis.d2p(trace.y[at])];
          }}
        }}""",
        rated.key,
    )
    page.mouse.move(place[0] - 3, place[1])
    page.mouse.move(*place, steps=3)
    page.wait_for_selector(".wb-live .hoverlayer .hovertext")
    page.mouse.click(*place)
    page.wait_for_function(
        "words => [...document.querySelectorAll('.wb-panel h3')].some(h => h.innerText === words)",
        arg=rated.settings.describe(),
    )


def wait_until_saved(notebook: Path) -> None:
    """Waits for the file, and checks that it holds the results and stays small."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        outputs = nbformat.read(notebook, as_version=4).cells[0].get("outputs", [])
        kept = [str(output.get("data", {}).get("text/html", "")) for output in outputs]
        if any("wb-saved" in text and "samples/s" in text for text in kept):
            assert notebook.stat().st_size < 50_000
            return
        time.sleep(0.2)
    raise AssertionError("the saved notebook does not hold the results")
