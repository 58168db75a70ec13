"""A person at the panel in JupyterLab: from Run to the exported file, and a sweep that its kernel does not outlive."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from tests.browser import jupyter
from workbench.notebook.points import points
from workbench.tuning.export import load_settings
from workbench.tuning.results import Results, load_results

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
# One second is promised, see tests/benchmarks/panel_speed.py; here other programs use the cores too.
STOPPED_WITHIN_SECONDS = 10.0
# Milliseconds by the page's own clock, from the click on Stop until the panel says so.
STOP = """() => new Promise((done) => {
  const panel = document.querySelector(".wb-panel");
  const button = [...panel.querySelectorAll("button")].find((one) => one.innerText === "Stop");
  const begun = performance.now();
  const watching = new MutationObserver(() => {
    if (!panel.querySelector(".wb-status").innerText.startsWith("Stopped")) return;
    watching.disconnect();
    done(performance.now() - begun);
  });
  watching.observe(panel, { subtree: true, childList: true, characterData: true });
  button.click();
})"""
# What JupyterLab itself logs when widgets of the kernel that was restarted still had something to send or to get.
OF_A_RESTART = ("canceled", "disposed", "cannot send")
# Of the panel's words, or of the nearest thing behind them that has a colour: 0 is black, 255 white.
BRIGHTNESS = """name => {
  let element = document.querySelector(".wb-panel h2");
  while (element && /rgba\\(0, 0, 0, 0\\)/.test(getComputedStyle(element)[name])) element = element.parentElement;
  const parts = getComputedStyle(element)[name].match(/[\\d.]+/g).slice(0, 3).map(Number);
  return (parts[0] + parts[1] + parts[2]) / 3;
}"""


def press(page: Page, label: str) -> None:
    page.locator(".wb-panel button", has_text=label).first.click()


def status_becomes(page: Page, words: str) -> None:
    page.wait_for_function(f"() => document.querySelector('.wb-status').innerText.includes({words!r})")


def open_panel(page: Page, address: str, name: str) -> None:
    jupyter.open_notebook(page, address, name)
    jupyter.run_all(page)
    page.wait_for_selector(".wb-panel .wb-primary")


@pytest.fixture
def notebook(work: Path) -> Path:
    jupyter.write_notebook(work / "panel.ipynb", CELL)
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


def ink(page: Page) -> float:
    return page.evaluate(BRIGHTNESS, "color")


def paper(page: Page) -> float:
    return page.evaluate(BRIGHTNESS, "background-color")


def stop_within_seconds(page: Page) -> None:
    """Presses Stop while something runs, and prints how long the page needed to say that it has stopped."""
    seconds = page.evaluate(STOP) / 1000
    print(f"Stop was answered in {seconds:.2f} s")
    assert seconds < STOPPED_WITHIN_SECONDS


def export_to(page: Page, name: str) -> None:
    press(page, "Export")
    page.get_by_label("to file").fill(name)
    page.get_by_label("to file").press("Tab")
    press(page, "Write file")
    page.wait_for_selector(".wb-done")


def nothing_went_wrong(page: Page, seen: jupyter.Seen) -> None:
    assert page.locator(".wb-alert").count() == 0
    assert seen.errors == []
    assert seen.foreign == []


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
