"""What a person does at a panel and sees of it: the cell that makes one, its buttons, its status, its colours."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.browser import jupyter

SLOW_DATASET = """\
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(3, 8, 8)
"""
TUNING_CELL = f"""\
{SLOW_DATASET}
from workbench import SearchSpace, TuningPanel

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
# Of the panel's words, or of the nearest thing behind them that has a colour: 0 is black, 255 white.
BRIGHTNESS = """name => {
  let element = document.querySelector(".wb-panel h2");
  while (element && /rgba\\(0, 0, 0, 0\\)/.test(getComputedStyle(element)[name])) element = element.parentElement;
  const parts = getComputedStyle(element)[name].match(/[\\d.]+/g).slice(0, 3).map(Number);
  return (parts[0] + parts[1] + parts[2]) / 3;
}"""


def open_panel(page: Page, address: str, name: str) -> None:
    """Opens a notebook in JupyterLab, runs it, and waits for its panel."""
    jupyter.open_notebook(page, address, name)
    jupyter.run_all(page)
    page.wait_for_selector(".wb-panel .wb-primary")


def press(page: Page, label: str) -> None:
    """Clicks the first button with this label."""
    page.locator(".wb-panel button", has_text=label).first.click()


def status_becomes(page: Page, words: str) -> None:
    """Waits until the status line holds these words."""
    page.wait_for_function(f"() => document.querySelector('.wb-status').innerText.includes({words!r})")


def stop_within_seconds(page: Page) -> None:
    """Presses Stop while something runs, and prints how long the page needed to say that it has stopped."""
    seconds = page.evaluate(STOP) / 1000
    print(f"Stop was answered in {seconds:.2f} s")
    assert seconds < STOPPED_WITHIN_SECONDS


def ink(page: Page) -> float:
    """Brightness of the panel's words."""
    return page.evaluate(BRIGHTNESS, "color")


def paper(page: Page) -> float:
    """Brightness of what lies behind them."""
    return page.evaluate(BRIGHTNESS, "background-color")


def nothing_went_wrong(page: Page, seen: jupyter.Seen) -> None:
    """No warning in the panel, no error in its scripts, and no request that left this machine."""
    assert page.locator(".wb-alert").count() == 0
    assert seen.errors == []
    assert seen.foreign == []
