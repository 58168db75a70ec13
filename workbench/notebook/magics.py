"""Magics for people who think in cells: `%load_ext workbench`, then `%%loader_sweep` and `%diagnose`."""

from __future__ import annotations

import argparse
import ast
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from workbench.errors import SettingsError, WorkbenchError
from workbench.loaders.settings import KNOBS
from workbench.notebook import saved, verdict
from workbench.tuning.space import SearchSpace
from workbench.tuning.steps import step_of
from workbench.tuning.sweep import Sweep

WORDS = {"true": True, "false": False, "on": True, "off": False, "none": None}
NO_LOADER = (
    "the cell gives no loader: let its last line be the loader, a function that makes one, or an assignment of either"
)


@magics_class
class LoaderMagics(Magics):
    """The workbench's magics."""

    @cell_magic
    def loader_sweep(self, line: str, cell: str) -> None:
        """Runs the cell, sweeps the loader that its last line gives, and shows what was found.

        ::

            %%loader_sweep num_workers=0,1,2 prefetch_factor=2,4 --budget 60s
            loader = DataLoader(dataset, batch_size=32)

        Every KNOB=VALUE,VALUE adds a knob; without any, what suits the machine is tried. Options: `--strategy`,
        `--budget`, `--memory-limit`, `--step NAME` (a variable, or file.py:function), `--store`, `--name`, and
        `--into NAME` for the variable that takes the results ("results").
        """
        try:
            asked = parse(line)
            results = _sweep(asked, value_of(self.shell, cell), self.shell.user_ns).run()
        except WorkbenchError as error:
            raise UsageError(str(error)) from error
        self.shell.user_ns[asked.into] = results
        display(saved.bundle(results), raw=True)

    @line_magic
    def diagnose(self, line: str) -> None:
        """Says what holds training back: `%diagnose loader step`, with the names of two variables.

        Either may be a sample, a file or an import path instead, as in `%diagnose sample:photos train.py:step`. The
        variable `diagnosis` takes what was found.
        """
        from workbench.measure.diagnosis import diagnose
        from workbench.notebook.diagnosis_line import DiagnosisLine

        names = shlex.split(line, comments=True)
        try:
            if len(names) != 2:
                raise SettingsError(f"%diagnose {line}: it takes a loader and a step, as in %diagnose loader step")
            loader, step = (self.shell.user_ns.get(name, name) for name in names)
            with DiagnosisLine() as line:
                found = diagnose(loader, step_of(step) if isinstance(step, str) else step, on_event=line.put)
        except WorkbenchError as error:
            raise UsageError(str(error)) from error
        self.shell.user_ns["diagnosis"] = found
        display(verdict.bundle(found), raw=True)


def register(shell: Any) -> None:
    """Makes the magics known to an IPython shell."""
    shell.register_magics(LoaderMagics)


def parse(line: str) -> argparse.Namespace:
    """What stands behind `%%loader_sweep`.

    Raises:
        SettingsError: If a word there is no option and no knob.
    """
    parser = _Parser(prog="%%loader_sweep", add_help=False, allow_abbrev=False)
    parser.add_argument("knobs", nargs="*")
    for name, start in (("strategy", "race"), ("budget", None), ("memory-limit", None), ("step", None)):
        parser.add_argument(f"--{name}", default=start)
    for name, start in (("store", "sweeps.db"), ("name", None), ("into", "results")):
        parser.add_argument(f"--{name}", default=start)
    asked = parser.parse_intermixed_args(shlex.split(line, comments=True))
    asked.space = SearchSpace(**dict(map(_knob, asked.knobs))) if asked.knobs else None
    if not asked.into.isidentifier():
        raise SettingsError(f"--into {asked.into!r} is no name for a variable; write one like results")
    return asked


def value_of(shell: Any, cell: str) -> Any:
    """Runs a cell in the notebook and gives the value of its last line: an expression's, or what it assigns.

    Raises:
        SettingsError: If the last line has no value.
        Exception: Whatever the cell raises.
    """
    source = shell.transform_cell(cell)
    tree = ast.parse(source)
    if not tree.body:
        raise SettingsError(NO_LOADER)
    filename = shell.compile.cache(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, filename, "exec"), shell.user_ns)
    value = _last_value(last, filename, shell.user_ns)
    if value is None:
        raise SettingsError(NO_LOADER)
    return value


def _last_value(last: ast.stmt, filename: str, names: dict[str, Any]) -> Any:
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), filename, "eval"), names)
    if isinstance(last, (ast.FunctionDef, ast.ClassDef)):
        return names[last.name]
    targets = last.targets if isinstance(last, ast.Assign) else [last.target] if isinstance(last, ast.AnnAssign) else []
    return names[targets[0].id] if targets and isinstance(targets[0], ast.Name) else None


def _sweep(asked: argparse.Namespace, loader: Any, names: dict[str, Any]) -> Sweep:
    return Sweep(
        loader,
        asked.space,
        asked.strategy,
        asked.budget,
        asked.memory_limit,
        step=names.get(asked.step, asked.step) if asked.step else None,
        store=asked.store,
        name=asked.name,
    )


def _knob(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not values or name not in KNOBS:
        raise SettingsError(
            f"{text!r} is no knob with values; write for instance num_workers=0,1,2 with one of {', '.join(KNOBS)}"
        )
    return name, [_value(part.strip()) for part in values.split(",")]


def _value(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    return int(text) if text.lstrip("-").isdigit() else text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"%%loader_sweep: {message}; %%loader_sweep? shows how it is written")
