"""A JupyterLab or Voila of its own, in folders of its own, and a page of headless Chromium that looks at it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Page, sync_playwright

TOKEN = "browser-test"
CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
QUIET_LAB = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
DARK_LAB = {"@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Dark"}}
KERNEL_IDLE = r"() => /\) \| Idle/.test(document.querySelector('#jp-main-statusbar')?.innerText || '')"
WAIT_MS = 60_000


@dataclass
class Seen:
    """What a page did that it should not: errors in its scripts, and requests that leave this machine."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def chromium_path() -> str | None:
    """The system's Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook with these code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


@contextlib.contextmanager
def lab(folder: Path, *, dark: bool = False) -> Iterator[str]:
    """The address of a JupyterLab over `folder`, which ends with the block."""
    settings = QUIET_LAB | (DARK_LAB if dark else {})
    environment = _own_folders(folder.parent / "jupyter", settings)
    port = _free_port()
    options = [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    address = f"http://127.0.0.1:{port}"
    with _served(["-m", "jupyterlab", *options], environment, folder, f"{address}/api"):
        yield address


@contextlib.contextmanager
def voila(notebook: Path) -> Iterator[str]:
    """The address of a Voila that serves `notebook`, which ends with the block."""
    environment = _own_folders(notebook.parent.parent / "jupyter", {})
    port = _free_port()
    options = [str(notebook), "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    address = f"http://127.0.0.1:{port}"
    with _served(["-m", "voila", *options], environment, notebook.parent, f"{address}/voila/static/"):
        yield address


@contextlib.contextmanager
def page(width: int = 1280, height: int = 1600, *, dark: bool = False) -> Iterator[tuple[Page, Seen]]:
    """An empty page, and the record of what goes wrong on it."""
    seen = Seen()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_OPTIONS))
        opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        opened.set_default_timeout(WAIT_MS)
        opened.on("pageerror", lambda error: seen.errors.append(str(error)))
        opened.on("request", lambda request: _note_foreign(request.url, seen))
        opened.on("websocket", lambda socket: _note_foreign(socket.url, seen))
        try:
            yield opened, seen
        finally:
            browser.close()


def open_notebook(opened: Page, address: str, name: str) -> None:
    """Opens a notebook in JupyterLab and waits until its kernel can take a cell."""
    opened.goto(f"{address}/lab/tree/{name}?token={TOKEN}&reset")
    opened.wait_for_selector(".jp-Notebook .jp-Cell")
    opened.wait_for_function(KERNEL_IDLE)


def run_all(opened: Page) -> None:
    """Runs every cell of the notebook, from the keyboard."""
    opened.click(".jp-Notebook .jp-Cell >> nth=0")
    count = opened.locator(".jp-Notebook .jp-Cell").count()
    for _ in range(count):
        opened.keyboard.press("Shift+Enter")


def restart_kernel(opened: Page) -> None:
    """Restarts the kernel as its menu does, and waits until the panel has noticed and the new kernel is there."""
    opened.locator(".lm-MenuBar-item", has_text="Kernel").click()
    opened.locator(".lm-Menu-item[data-command='kernelmenu:restart']").click()
    opened.locator(".jp-Dialog button.jp-mod-accept").click()
    opened.wait_for_selector(".wb-lost:has-text('The kernel no longer answers')")
    opened.wait_for_function(KERNEL_IDLE)


def _own_folders(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTERLAB_WORKSPACES_DIR")
    own = {name: str(folder / name.lower()) for name in names}
    for path in own.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    overrides = Path(own["JUPYTER_CONFIG_DIR"]) / "labconfig"
    overrides.mkdir(exist_ok=True)
    (overrides / "default_setting_overrides.json").write_text(json.dumps(settings))
    return os.environ | own


@contextlib.contextmanager
def _served(command: list[str], environment: dict[str, str], folder: Path, alive: str) -> Iterator[None]:
    log = (folder.parent / "server.log").open("w+b")
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _wait_for(alive, process, log)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def _wait_for(alive: str, process: subprocess.Popen[bytes], log: Any) -> None:
    give_up = time.monotonic() + WAIT_MS / 1000
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with urllib.request.urlopen(alive, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"the server did not come up; it said:\n{log.read().decode(errors='replace')[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _note_foreign(url: str, seen: Seen) -> None:
    local = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:")
    if not url.startswith(local):
        seen.foreign.append(url)
