"""The panel as an app: Voila serves it without a line of code in sight, and it runs, draws and stops."""

from __future__ import annotations

from pathlib import Path

from tests.browser import jupyter
from tests.browser.at_the_panel import FITS, RATED, TUNING_CELL, press, status_becomes, stop_within_seconds

# Voila's own page asks this host for its icon font; offline the icons are missing and the words stay.
VOILAS_ICONS = "https://cdn.jsdelivr.net/npm/@fortawesome"


def test_the_panel_runs_as_an_app(work: Path) -> None:
    jupyter.write_notebook(work / "app.ipynb", TUNING_CELL)
    with jupyter.voila(work / "app.ipynb") as address, jupyter.page() as (page, seen):
        page.goto(address)
        page.wait_for_selector(".wb-panel .wb-primary")
        assert page.locator("text=TuningPanel(").count() == 0
        press(page, "Run")
        status_becomes(page, "Measuring")
        page.wait_for_function(RATED)
        page.wait_for_function(FITS)
        stop_within_seconds(page)
        assert page.locator(".wb-panel .wb-table tbody tr").count() >= 3
        assert page.locator(".wb-alert").count() == 0
        assert [url for url in seen.foreign if not url.startswith(VOILAS_ICONS)] == []
        assert seen.errors == []
