"""Shipping: what is typed into a notebook works in the trial process and in every kind of worker, and what cannot
be sent is named."""

from __future__ import annotations

import io
import json
import multiprocessing
import subprocess
import sys
import threading

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from workbench.errors import SourceError
from workbench.loaders import shipping, unpicklable
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource

NOTEBOOK = """
import sys, dataclasses, torch
from torch.utils.data import DataLoader, Dataset
from beside_the_notebook import shift          # a module in the notebook's folder

OFFSET = 100

@dataclasses.dataclass
class Pair:
    left: torch.Tensor

class TooFar(Exception):
    pass

class Rows(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        if i == 5:
            raise TooFar(f"{i} is beyond 4")
        return torch.tensor(i + OFFSET)

def make():
    scale = 2
    def started(worker):
        torch.manual_seed(worker)
    return DataLoader(Rows(), batch_size=2, collate_fn=lambda rows: Pair(shift(torch.stack(rows)) * scale),
                      worker_init_fn=started)

from workbench.loaders.shipping import ship
from workbench.loaders.source import LoaderSource
with open(sys.argv[1], "wb") as file:
    print(ship(LoaderSource.of(make()), lambda batch: batch.left.sum(), file).bytes)
"""
TRIAL = """
import json, os, sys

def main():
    from workbench.loaders.settings import LoaderSettings
    from workbench.loaders.shipping import install_by_value_pickling, load, pickle_problem
    with open(sys.argv[1], "rb") as file:
        source, step = load(file)
    install_by_value_pickling()
    told = {"cwd": os.getcwd(), "plain": pickle_problem(source.build(LoaderSettings(0)), "spawn")}
    for method in (None, "fork", "spawn", "forkserver"):
        settings = LoaderSettings(0) if method is None else LoaderSettings(1, multiprocessing_context=method)
        seen, error = [], None
        try:
            for batch in source.build(settings):
                seen.append([type(batch).__name__, batch.left.tolist(), step(batch).item()])
        except Exception as caught:
            error = type(caught).__name__
        told[str(method)] = [seen, error]
    print(json.dumps(told))

if __name__ == "__main__":
    main()
"""


SCRIPT = """
import sys
from torch.utils.data import DataLoader
from workbench.loaders.shipping import ship
from workbench.loaders.source import LoaderSource

class Rows(list):
    def total(self):
        return 1

if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        ship(LoaderSource.of(DataLoader(Rows([1, 2]))), None, file)
    print("written")
"""
READ = """
import os
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.shipping import load, pickle_problem
with open({file!r}, "rb") as file:
    source, step = load(file)
loader = source.build(LoaderSettings(0))
print(pickle_problem(loader, "spawn"), os.path.basename(type(loader.dataset).total.__code__.co_filename))
"""


def in_python(folder, *arguments, code=None):
    """What a fresh interpreter prints; `code` comes on standard input, as an interactive session's would."""
    command = [sys.executable, "-W", "ignore", *(["-"] if code else []), *map(str, arguments)]
    done = subprocess.run(command, input=code, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_notebook_defines_runs_in_the_trial_and_in_every_kind_of_worker(tmp_path):
    notebook, elsewhere = tmp_path / "notebook", tmp_path / "trial"
    notebook.mkdir()
    elsewhere.mkdir()
    (notebook / "beside_the_notebook.py").write_text("def shift(rows):\n    return rows + 1\n")
    (elsewhere / "trial_stub.py").write_text(TRIAL)
    written = in_python(notebook, tmp_path / "shipped", code=NOTEBOOK)
    assert int(written) == (tmp_path / "shipped").stat().st_size
    told = json.loads(in_python(elsewhere, elsewhere / "trial_stub.py", tmp_path / "shipped"))
    assert told["cwd"] == str(notebook)
    batches = [["Pair", [202, 204], 406], ["Pair", [206, 208], 414]]
    for method in ("None", "fork", "spawn", "forkserver"):
        assert told[method] == [batches, "TooFar"], method
    assert told["plain"].startswith("dataset: class Rows lives in __main__ and cannot be pickled")


def shipped(source, step=None):
    file = io.BytesIO()
    report = shipping.ship(source, step, file)
    file.seek(0)
    return report, file


def test_round_trip_keeps_source_and_step_and_reports_the_bytes(monkeypatch, tmp_path):
    source = LoaderSource.of(DataLoader(TensorDataset(torch.arange(10)), batch_size=4))
    before, path = list(sys.path), str(tmp_path)
    monkeypatch.chdir(tmp_path)
    report, file = shipped(source, len)
    assert report.bytes == len(file.getvalue()) and report.globals_named == () and report.notes == ()
    monkeypatch.chdir("/")
    back, step = shipping.load(file)
    assert [b[0].tolist() for b in back.build(source.current)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert step is len and shipping.os.getcwd() == path
    assert [entry for entry in before if entry not in sys.path and entry] == []


def test_a_loader_in_use_is_shipped_without_its_workers():
    loader = DataLoader(list(range(8)), batch_size=2, num_workers=1, persistent_workers=True)
    running = iter(loader)
    assert next(running).tolist() == [0, 1]
    _, file = shipped(LoaderSource.of(loader))
    back, _ = shipping.load(file)
    assert [b.tolist() for b in back.build(back.current.replaced(num_workers=0))] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert next(running).tolist() == [2, 3]
    running._shutdown_workers()


class Locked(Dataset):
    def __init__(self):
        self.storage = {"open": [1, threading.Lock()]}

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


def test_what_cannot_be_sent_is_named_down_to_the_attribute():
    source = LoaderSource.of(DataLoader(Locked()))
    with pytest.raises(
        SourceError, match=r"dataset\.storage\['open'\]\[1\] cannot be sent.*cannot pickle '_thread\.lock'"
    ):
        shipped(source)
    lock = threading.Lock()
    with pytest.raises(SourceError, match=r"<lambda>'s variable lock cannot be sent"):
        shipped(LoaderSource.of(lambda num_workers=0: [lock]))
    with pytest.raises(SourceError, match=r"^step's variable lock cannot be sent"):
        shipped(LoaderSource.of(DataLoader([1])), lambda batch: lock)


def test_globals_that_come_along_are_named_when_the_whole_is_large(monkeypatch):
    monkeypatch.setattr(shipping, "LARGE_BYTES", 2**20)
    scope = {"__name__": "__main__", "TABLE": np.zeros(2**18), "SMALL": 3, "np": np}
    exec("def make(num_workers=0):\n    return [np.sum(TABLE) + SMALL]", scope)
    report, _ = shipped(LoaderSource.of(scope["make"]))
    ((name, size),) = report.globals_named
    assert name == "TABLE" and 2**21 <= size < 2**21 + 1000 <= report.bytes + 1000
    assert any("global TABLE (2 MB) is sent along" in note for note in report.notes)
    assert any("a function that builds the dataset" in note for note in report.notes)


def test_a_module_that_only_this_process_has_is_sent_by_value(tmp_path):
    file = tmp_path / "loaded_by_hand.py"
    file.write_text(
        "class Rows:\n    def __len__(self):\n        return 4\n    def __getitem__(self, i):\n        return -i\n"
    )
    code = (
        "import sys, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('loaded_by_hand', {str(file)!r})\n"
        "module = importlib.util.module_from_spec(spec); sys.modules['loaded_by_hand'] = module\n"
        "spec.loader.exec_module(module)\n"
        "from torch.utils.data import DataLoader\n"
        "from workbench.loaders.shipping import ship\nfrom workbench.loaders.source import LoaderSource\n"
        "with open(sys.argv[1], 'wb') as out:\n"
        "    print(*ship(LoaderSource.of(DataLoader(module.Rows(), batch_size=2)), None, out).notes)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "module loaded_by_hand exists only in this process" in in_python(elsewhere, tmp_path / "out", code=code)
    with open(tmp_path / "out", "rb") as shipped_file:
        source, _ = shipping.load(shipped_file)
    assert [b.tolist() for b in source.build(source.current)] == [[0, -1], [-2, -3]]
    assert type(source._target.dataset).__module__ == "loaded_by_hand"


def test_an_attribute_named_like_a_module_of_torch_is_no_obstacle():
    code = """
import torch
class Folder(torch.utils.data.Dataset):
    def __init__(self):
        self.classes, self.ops, self.backends = ["cat", "dog"], ["flip"], ["pil"]
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.ones(2), len(self.classes) + len(self.ops) + len(self.backends), torch.ops.aten is not None
"""
    main: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "cell", "exec"), main)
    loader = DataLoader(main["Folder"](), batch_size=2)
    file = io.BytesIO()
    shipping.ship(LoaderSource.of(loader), None, file)
    file.seek(0)
    arrived, _ = shipping.load(file)
    assert next(iter(arrived.build(LoaderSettings())))[1].tolist() == [4, 4]
    assert unpicklable.why_not_by_value(torch.ops.aten) is None


def test_unpacking_failures_say_what_is_missing():
    scope = {"__name__": "gone_module"}
    exec("class Rows(list):\n    pass", scope)
    module = type(sys)("gone_module")
    module.Rows = scope["Rows"]
    sys.modules["gone_module"] = module
    file = io.BytesIO()
    cloudpickle.dump(shipping._environment(), file)
    cloudpickle.dump((module.Rows(), None), file)
    del sys.modules["gone_module"]
    file.seek(0)
    with pytest.raises(
        SourceError, match=r"could not be unpacked .*ModuleNotFoundError: No module named 'gone_module'"
    ):
        shipping.load(file)


class Fine(Dataset):
    def __init__(self):
        self.table = torch.zeros(4)
        self.lock = multiprocessing.get_context("spawn").Lock()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.table[index]


def test_plain_pickling_problems_are_sentences_with_file_and_line():
    def local(rows):
        return rows

    class Local(Fine):
        pass

    line = local.__code__.co_firstlineno
    problem = shipping.pickle_problem
    assert problem(DataLoader(Fine()), "spawn") is None
    assert problem(DataLoader(Fine(), collate_fn=local), "fork") is None
    assert problem(["no", "loader"], "spawn") is None
    text = problem(DataLoader(Fine(), collate_fn=local), "forkserver")
    assert text.startswith(f"collate_fn local at test_shipping.py:{line} cannot be pickled; move it")
    text = problem(DataLoader(Fine(), worker_init_fn=lambda worker: None), "spawn")
    assert text.startswith("worker_init_fn <lambda> at test_shipping.py:")
    text = problem(DataLoader(Local()), "spawn")
    assert text.startswith("dataset: class Local, defined inside a function, cannot be pickled")
    text = problem(DataLoader(Locked()), "spawn")
    assert text.startswith("dataset.storage['open'][1] cannot be pickled (TypeError: cannot pickle '_thread.lock'")


def test_looking_for_problems_shares_and_copies_nothing():
    data = Fine()
    assert shipping.pickle_problem(DataLoader(data), "spawn") is None
    assert not data.table.is_shared()


def test_a_class_of_the_users_script_is_no_problem_and_one_of_a_notebook_is(monkeypatch):
    scope = {"__name__": "__main__"}
    source = "class Rows(list):\n    def total(self):\n        return 1"
    exec(compile(source, "/home/user/train.py", "exec"), scope)
    monkeypatch.setattr(sys.modules["__main__"], "Rows", scope["Rows"], raising=False)
    loader = DataLoader(scope["Rows"]([1, 2]))
    monkeypatch.setitem(unpicklable._sender, "main_file", "/home/user/train.py")
    assert shipping.pickle_problem(loader, "spawn") is None
    for typed_in in (None, "<stdin>"):
        monkeypatch.setitem(unpicklable._sender, "main_file", typed_in)
        assert "class Rows lives in __main__" in shipping.pickle_problem(loader, "spawn")


def test_a_class_of_the_users_script_is_still_known_for_one_where_it_arrives(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert in_python(tmp_path, script, tmp_path / "shipped").split() == ["written"]
    read = "import sys; sys.path.insert(0, '')\n" + READ.format(file=str(tmp_path / "shipped"))
    assert in_python(tmp_path, code=read).strip() == "None train.py"


def test_installing_changes_processes_and_not_queues(monkeypatch):
    monkeypatch.setattr(shipping.reduction, "dump", shipping.reduction.dump)
    shipping.install_by_value_pickling()
    file = io.BytesIO()
    shipping.reduction.dump(lambda: 7, file)
    assert cloudpickle.loads(file.getvalue())() == 7
    with pytest.raises(Exception, match="pickle"):
        multiprocessing.reduction.ForkingPickler.dumps(lambda: 7)


def test_a_name_that_the_trials_own_main_module_has_becomes_the_users_and_breaks_nothing(monkeypatch):
    own = type(sys)("__main__")
    exec("def run():\n    return Probe\nProbe = 'its own'", vars(own))
    monkeypatch.setitem(sys.modules, "__main__", own)
    monkeypatch.setattr(shipping, "_published", set())
    for value in ("the user's", "the user's, defined again"):
        assert shipping.publish(7, [("__main__", "Probe", value), ("__main__", "New", 1)]) == 7
        assert sys.modules["__main__"].Probe == value and sys.modules["__main__"].New == 1
    assert own.run() == "its own" and sys.modules["__main__"].run is own.run
