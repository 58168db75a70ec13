"""Every lesson runs from a clean kernel, and what is stored in it reads well without one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
STATIC = {"text/html", "image/png", "image/svg+xml", "text/markdown"}
LARGEST_STORED_BYTES = 1_500_000
HANGS_AFTER_SECONDS = 600
LONGEST_CELL_LINES = 24  # more does not fit on a screen beside its output
ANSWER = re.compile(r"^## The answer$", re.MULTILINE)
EXERCISE = re.compile(r"your turn|No answer yet")
RIGHT = re.compile(r"^right\b", re.MULTILINE | re.IGNORECASE)
SOLUTION = re.compile(r"^```python\n(.*?)^```|`(\w+ = [^`]*)`", re.MULTILINE | re.DOTALL)
OF_THIS_MACHINE = re.compile(r"/(?:tmp|home|root|work|Users)/|VBox\(|HBox\(")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell) -> bool:
    return bool(cell.outputs)


def said(cell) -> str:
    """What a code cell shows, in the kinds that a page without a kernel can show."""
    texts = [output.get("text", "") for output in cell.outputs]
    kinds = [output.get("data", {}) for output in cell.outputs]
    return "\n".join([*texts, *(str(data[kind]) for data in kinds for kind in data if kind.startswith("text/"))])


def solved(exercise: str, solution: str) -> str:
    """The cell of an exercise with the answer of the folded solution below it in the place of the learner's."""
    fenced, inline = SOLUTION.search(solution).groups()
    code = (fenced or inline).strip()
    of_class = re.match(r"class (\w+)", code)
    learners = rf"class {of_class[1]}\b.*\n(?:[ ]+.*\n|\n(?=[ ]))*" if of_class else rf"{code.split()[0]} = .*\n"
    if fenced and not of_class:
        learners = r"\w+ = (?:None|\.\.\.).*\n"
    answered, places = re.subn(f"^{learners}", lambda _: f"{code}\n", exercise, count=1, flags=re.MULTILINE)
    assert places == 1, f"the solution answers nothing that the exercise asks: {solution}"
    return answered


def with_solutions(notebook) -> list[nbformat.NotebookNode]:
    """Puts a cell with its solution behind each exercise, and gives these cells."""
    added = []
    for number in reversed(range(len(notebook.cells))):
        cell = notebook.cells[number]
        if cell.cell_type == "code" and EXERCISE.search(cell.source):
            texts = (after.source for after in notebook.cells[number:] if "Solution</summary>" in after.source)
            added.append(nbformat.v4.new_code_cell(solved(cell.source, next(texts))))
            notebook.cells.insert(number + 1, added[-1])
    return added


def test_there_is_a_lesson_for_every_number():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02d}" for number in range(9)]


def test_the_readme_lists_every_lesson():
    readme = (NOTEBOOKS[0].parent.parent / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d\d [^]]*\]\(notebooks/([^)]*)\)", readme, flags=re.MULTILINE) == [
        path.name for path in NOTEBOOKS
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_runs_from_a_clean_kernel_and_takes_its_own_solutions_for_right(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.from_dict(stored)
    for cell in code_cells(fresh):
        cell.outputs = []
    lesson = code_cells(fresh)
    answered = with_solutions(fresh)
    NotebookClient(fresh, timeout=HANGS_AFTER_SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    lacking = [
        cell.source for cell, kept in zip(lesson, code_cells(stored), strict=True) if shown(cell) and not shown(kept)
    ]
    assert lacking == [], "these cells show something when run, and nothing is stored: run the lesson and save it"
    assert [said(cell) for cell in answered if not RIGHT.search(said(cell))] == []


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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_ends_with_an_answer_and_checks_its_exercises(path):
    notebook = nbformat.read(path, as_version=4)
    (answer,) = (number for number, cell in enumerate(notebook.cells) if ANSWER.search(cell.source))
    answers = [cell for cell in notebook.cells[answer:] if cell.cell_type == "code"]
    assert answers and said(answers[-1]), "the last code cell answers the question of the first cell"
    exercises = [cell for cell in code_cells(notebook) if EXERCISE.search(cell.source)]
    assert exercises and all(EXERCISE.search(said(cell)) for cell in exercises), "stored with no answer given"
    solutions = sum("<summary>Solution</summary>" in cell.source for cell in notebook.cells)
    assert solutions >= len(exercises)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_is_short_of_breath_and_tells_nothing_of_this_machine(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert len(cell.source.splitlines()) <= LONGEST_CELL_LINES, cell.source
        assert not OF_THIS_MACHINE.search(json.dumps(cell.outputs)), said(cell)
