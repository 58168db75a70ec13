"""`%load_ext workbench` in a shell of its own: what is asked for, what a cell gives, and one sweep to the end."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from workbench.errors import SettingsError
from workbench.notebook import magics
from workbench.tuning.space import SearchSpace

LOADER = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
CELL = LOADER + "loader = DataLoader(TensorDataset(torch.ones(64, 3)), batch_size=8)\n"


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.user_ns["__name__"] = "__main__"
    made.run_line_magic("load_ext", "workbench")
    yield made
    made.history_manager.end_session()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("line", "space"),
    [
        ("", None),
        ("num_workers=0,1 in_order=true,off", SearchSpace(num_workers=[0, 1], in_order=[True, False])),
        ("multiprocessing_context=none,spawn", SearchSpace(multiprocessing_context=[None, "spawn"])),
    ],
)
def test_knobs_are_a_space(line, space):
    assert magics.parse(line).space == space


def test_options_may_stand_between_knobs():
    asked = magics.parse("num_workers=0 --budget 90s prefetch_factor=2 --memory-limit 8GiB --into found  # a remark")
    assert (asked.budget, asked.memory_limit, asked.into) == ("90s", "8GiB", "found")
    assert asked.space == SearchSpace(num_workers=[0], prefetch_factor=[2])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("workers=1", "'workers=1' is no knob"),
        ("num_workers", "is no knob with values"),
        ("num_workers=-1", "-1"),
        ("--bugdet 3", "--bugdet"),
        ("--into 3x", "'3x' is no name"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(line, words):
    with pytest.raises(SettingsError, match=words):
        magics.parse(line)


@pytest.mark.parametrize(
    "cell", ["x = 1\nx + 1", "x = 2", "x: int = 2", "def two():\n    return 2", "class two: pass", "%time 1\n2"]
)
def test_a_cell_gives_the_value_of_its_last_line(shell, cell):
    value = magics.value_of(shell, cell)
    assert value == 2 or value is shell.user_ns["two"]


@pytest.mark.parametrize("cell", ["", "pass", "import math", "x, y = 1, 2", "None"])
def test_a_cell_that_gives_nothing_is_refused(shell, cell):
    with pytest.raises(SettingsError, match="gives no loader"):
        magics.value_of(shell, cell)


def test_an_error_of_the_cell_is_the_cells_own(shell):
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("loader_sweep", "", "1 / 0")


def test_our_own_errors_are_one_line(shell):
    with pytest.raises(UsageError, match="is no knob"):
        shell.run_cell_magic("loader_sweep", "workers=2", CELL)
    with pytest.raises(UsageError, match="takes a loader and a step"):
        shell.run_line_magic("diagnose", "loader")


def test_a_sweep_from_a_cell_keeps_its_results_and_shows_them(shell):
    with capture_output() as captured:
        shell.run_cell_magic("loader_sweep", "num_workers=0 --strategy grid --budget 60s --into found", CELL)
    assert shell.user_ns["found"].best.num_workers == 0
    (shown,) = captured.outputs
    assert "samples/s" in shown.data["text/html"] and shown.data["text/plain"].startswith(("Keep", "Use"))


def test_a_diagnosis_of_a_real_loop_is_kept_and_shown(shell):
    shell.run_cell(
        LOADER + "import time\nfrom torch.utils.data import Dataset\n"
        "class Slow(Dataset):\n"
        "    def __len__(self):\n        return 4000\n"
        "    def __getitem__(self, index):\n        time.sleep(0.002)\n        return torch.ones(8)\n"
        "def train(batch):\n    time.sleep(0.002)\n"
        "loader = DataLoader(Slow(), batch_size=4, num_workers=1)\n"
    )
    with capture_output() as captured:
        shell.run_line_magic("diagnose", "loader train")
    found = shell.user_ns["diagnosis"]
    assert (found.bound, found.settings.num_workers) == ("input", 1)
    assert found.loader_samples_per_second < 500 < found.step_samples_per_second
    (shown,) = captured.outputs
    assert "holds the training back" in shown.data["text/html"] and "data:image/svg+xml" in shown.data["text/html"]
    assert shown.data["text/plain"] == str(found)


def test_a_step_that_fails_is_one_line_and_leaves_no_diagnosis(shell):
    shell.run_cell(CELL + "def train(batch):\n    raise KeyError('weights')\n")
    with pytest.raises(UsageError, match=r"KeyError.*weights"):
        shell.run_line_magic("diagnose", "loader train")
    assert "diagnosis" not in shell.user_ns
