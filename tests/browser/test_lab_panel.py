"""A person at the panel in JupyterLab: Run, points arrive, Pause, Resume, Stop, a click, Export, the saved file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from tests.browser import jupyter
from workbench.notebook.points import points
from workbench.tuning.export import load_settings
from workbench.tuning.results import load_results

CELL = """\
import time, torch
from torch.utils.data import DataLoader, Dataset
from workbench import SearchSpace, TuningPanel

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(3, 8, 8)

loader = DataLoader(Slow(), batch_size=4, collate_fn=lambda samples: torch.stack(samples))
panel = TuningPanel(loader, space=SearchSpace(num_workers=[0, 1, 2], prefetch_factor=[2]), strategy="grid",
                    measure_seconds=0.2)
panel
"""
DRAWN = "[...document.querySelectorAll('.wb-live .js-plotly-plot')]"
RATED = f"""() => {DRAWN}.some(chart => chart.data.some(
  trace => /^(prefetch|0 workers)/.test(trace.name) && trace.y.length))"""
FITS = f"() => {DRAWN}.every(chart => Math.abs(chart._fullLayout.width - chart.parentElement.clientWidth) <= 1)"
STATUS = "() => document.querySelector('.wb-status').innerText"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "panel.ipynb"
    jupyter.write_notebook(path, CELL)
    return path


@pytest.fixture(autouse=True)
def a_browser_is_there() -> None:
    assert jupyter.chromium_path(), "these tests need Chromium; install the package chromium"


@pytest.fixture
def opened(notebook: Path) -> Iterator[tuple[Page, jupyter.Seen]]:
    with jupyter.lab(notebook.parent) as address, jupyter.page() as (page, seen):
        jupyter.open_notebook(page, address, notebook.name)
        jupyter.run_all(page)
        page.wait_for_selector(".wb-panel .wb-primary")
        yield page, seen


def press(page: Page, label: str) -> None:
    page.locator(".wb-panel button", has_text=label).first.click()


def status_becomes(page: Page, words: str) -> None:
    page.wait_for_function(f"() => document.querySelector('.wb-status').innerText.includes({words!r})")


def test_from_run_to_an_exported_file(opened: tuple[Page, jupyter.Seen], notebook: Path) -> None:
    page, seen = opened
    press(page, "Run")
    status_becomes(page, "Measuring")
    page.wait_for_function(RATED)
    page.wait_for_function(FITS)

    press(page, "Pause")
    status_becomes(page, "Paused")
    press(page, "Resume")
    status_becomes(page, "Measuring")

    press(page, "Stop")
    status_becomes(page, "Stopped")

    results = load_results(notebook.parent / "sweeps.db")
    assert results.ending == "stopped"
    click_a_point(page, results)
    assert page.locator(".wb-panel .wb-windows tbody tr").count() >= 1

    press(page, "Export")
    page.get_by_label("to file").fill("mine.yaml")
    page.get_by_label("to file").press("Tab")
    press(page, "Write file")
    page.wait_for_selector(".wb-done")
    assert load_settings(notebook.parent / "mine.yaml") == results.best

    page.keyboard.press("Control+s")
    wait_until_saved(notebook)
    assert page.locator(".wb-alert").count() == 0
    assert seen.errors == []
    assert seen.foreign == []


def click_a_point(page: Page, results: object) -> None:
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
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        outputs = nbformat.read(notebook, as_version=4).cells[0].get("outputs", [])
        kept = [str(output.get("data", {}).get("text/html", "")) for output in outputs]
        if any("wb-saved" in text and "samples/s" in text for text in kept):
            assert notebook.stat().st_size < 50_000
            return
        time.sleep(0.2)
    raise AssertionError("the saved notebook does not hold the results")
