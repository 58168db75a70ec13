"""The panel in JupyterLab and in Voila, opened once for the tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import jupyter


@pytest.fixture(autouse=True)
def a_browser_is_there() -> None:
    assert jupyter.chromium_path(), "these tests need Chromium; install the package chromium"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder for a server to serve; what the server itself writes lies beside it."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
