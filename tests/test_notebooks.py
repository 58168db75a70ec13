"""Every lesson runs from a clean kernel, and what is stored in it reads well without one."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
STATIC = {"text/html", "image/png", "image/svg+xml", "text/markdown"}
LARGEST_STORED_BYTES = 1_500_000
HANGS_AFTER_SECONDS = 600


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell) -> bool:
    return bool(cell.outputs)


def test_there_are_lessons():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_runs_from_a_clean_kernel(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.from_dict(stored)
    for cell in code_cells(fresh):
        cell.outputs = []
    NotebookClient(fresh, timeout=HANGS_AFTER_SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    lacking = [
        cell.source
        for cell, kept in zip(code_cells(fresh), code_cells(stored), strict=True)
        if shown(cell) and not shown(kept)
    ]
    assert lacking == [], "these cells show something when run, and nothing is stored: run the lesson and save it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_lesson_reads_well_without_a_kernel(path):
    assert path.stat().st_size < LARGEST_STORED_BYTES
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown" and "?" in notebook.cells[0].source, (
        "a lesson opens with a question"
    )
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "stored from one run, top to bottom"
    assert any(shown(cell) for cell in code_cells(notebook))
    for cell in code_cells(notebook):
        assert all(output.output_type != "error" for output in cell.outputs)
        rich = {kind for output in cell.outputs for kind in output.get("data", {})} - {"text/plain"}
        assert not rich or rich & STATIC, f"only a live widget or script would show this: {sorted(rich)}"
