"""The shape of the house: imports point one way, light modules stay light, and what is needed is shipped."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "workbench"
ROOMS = (  # a module imports from rooms before its own, or from its own; nothing imports upwards
    "errors",
    "machine",
    "samples",
    "lab",
    "loaders",
    "measure",
    "layouts",
    "streaming",
    "tuning",
    "review",
    "notebook",
    "cli",
)
NOTEBOOK_PACKAGES = {"pandas", "plotly", "ipywidgets", "anywidget", "IPython", "matplotlib"}
HEAVY_PACKAGES = NOTEBOOK_PACKAGES | {"torch", "torchdata", "pyarrow", "PIL"}
WITHOUT_TORCH = (  # modules that the command line, a store's reader or the processes around a trial stand on
    "workbench.errors",
    "workbench.machine",
    "workbench.loaders.settings",
    "workbench.measure.records",
    "workbench.measure.statistics",
    "workbench.measure.result",
    "workbench.tuning.space",
    "workbench.tuning.strategies",
    "workbench.tuning.store",
    "workbench.tuning.results",
    "workbench.tuning.export",
    "workbench.cli",
)


def module_files() -> dict[str, Path]:
    """Dotted name -> file of every module in the package."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


MODULES = module_files()


def room_of(module: str) -> str | None:
    """The room a module of this package belongs to; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imported_modules(module: str, tree: ast.AST) -> Iterator[str]:
    """Every module that the source of `module` imports, wherever the import stands, as a dotted name."""
    package = module if MODULES.get(module, Path()).name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


def without_type_checking(tree: ast.Module) -> ast.Module:
    """The module less its `if TYPE_CHECKING:` blocks, which never run."""

    class Strip(ast.NodeTransformer):
        def visit_If(self, node: ast.If):
            named = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
            return None if named == "TYPE_CHECKING" else self.generic_visit(node)

    return Strip().visit(tree)


def upward_imports(module: str, source: str) -> list[str]:
    """What `module` imports from a room that stands above its own."""
    own = ROOMS.index(room_of(module))
    wrong = []
    for name in imported_modules(module, ast.parse(source)):
        if name.split(".")[0] != "workbench":
            continue
        room = room_of(name)
        if room is None or room not in ROOMS or ROOMS.index(room) > own:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", [name for name in MODULES if name != "workbench"])
def test_imports_point_one_way(module):
    assert room_of(module) in ROOMS, f"{module} is in no known room; rooms are {ROOMS}"
    assert upward_imports(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("workbench.loaders.source", "from workbench.measure import records", ["workbench.measure.records"]),
        ("workbench.loaders.source", "def f():\n    import workbench.cli", ["workbench.cli"]),
        ("workbench.loaders.source", "from ..tuning.space import SearchSpace", ["workbench.tuning.space"]),
        ("workbench.loaders.source", "import workbench as wb", ["workbench"]),
        ("workbench.loaders.source", "from workbench.loaders.settings import LoaderSettings", []),
        ("workbench.cli", "from workbench.notebook.charts import throughput", []),
    ],
)
def test_the_direction_test_sees_a_wrong_import(module, source, wrong):
    assert upward_imports(module, source) == wrong


def test_no_import_cycle_between_modules():
    graph = {
        module: {
            name
            for name in imported_modules(module, without_type_checking(ast.parse(path.read_text())))
            if name in MODULES and name != module
        }
        for module, path in MODULES.items()
    }
    done: set[str] = set()
    while ready := {module for module, needs in graph.items() if module not in done and needs <= done}:
        done |= ready
    left = set(graph) - done
    circles = {module: sorted(graph[module] & left) for module in sorted(left)}
    assert circles == {}, "these modules import each other in a circle, or import one that does"


@pytest.mark.parametrize("module", MODULES)
def test_notebook_packages_load_only_where_they_are_shown(module):
    if room_of(module) == "notebook" or module == "workbench.tuning.results":
        return
    body = without_type_checking(ast.parse(MODULES[module].read_text())).body
    top = [node for node in body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    loaded = {name.split(".")[0] for node in top for name in imported_modules(module, node)}
    assert loaded & NOTEBOOK_PACKAGES == set()


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in `sys.modules` of a fresh interpreter after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_import_workbench_is_light():
    assert loaded_by("import workbench; dir(workbench)") & HEAVY_PACKAGES == set()


def test_modules_that_need_no_torch_load_none():
    statement = "import " + ", ".join(name for name in WITHOUT_TORCH if name != "workbench.tuning.results")
    assert loaded_by(statement) & HEAVY_PACKAGES == set()
    assert "torch" not in loaded_by("import workbench.tuning.results")


def test_every_public_name_resolves_and_says_what_it_is():
    for name in workbench.__all__:
        assert getattr(workbench, name).__doc__, f"workbench.{name} has no docstring"
        assert name in dir(workbench)


def test_measure_is_the_function_whether_or_not_its_room_was_imported():
    code = (
        "import workbench as wb, {room} inspect\n"
        "assert callable(wb.measure) and list(inspect.signature(wb.measure).parameters)[:2] == ['loader', 'settings']\n"
        "assert wb.measure.records.TrialRun.__module__ == 'workbench.measure.records'"
    )
    for room in ("", "workbench.measure.records, ", "workbench.measure.trial, "):
        prelude = "" if room else "import workbench.measure.records\n"
        subprocess.run([sys.executable, "-c", prelude + code.format(room=room)], check=True, timeout=120)


def test_unknown_public_name_is_an_attribute_error_that_lists_the_names():
    with pytest.raises(AttributeError, match=r"no attribute 'Swep'.*Sweep"):
        workbench.Swep  # noqa: B018


def test_type_checkers_see_the_same_names_as_the_interpreter():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    rooms_seen = {name for name, home in seen.items() if home == "workbench"} | {"measure"}
    assert rooms_seen == set(workbench._MODULES)
    assert {n: h for n, h in seen.items() if h != "workbench" and n != "measure"} == workbench._HOMES


@pytest.mark.parametrize("module", MODULES)
def test_every_module_opens_with_its_charter(module):
    assert ast.get_docstring(ast.parse(MODULES[module].read_text()))


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        shipped = set(wheel.namelist())
    needed = {
        path.relative_to(REPOSITORY).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert needed - shipped == set()


def test_nothing_in_the_tests_is_skipped():
    marks = {"skip", "skipif", "skipIf", "skipUnless", "xfail", "importorskip", "skipTest", "SkipTest"}
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = getattr(node, "attr", None) or getattr(node, "id", None)
            assert named not in marks, f"{path.name}:{node.lineno} uses {named}"
