"""Loaders named by text: "package.module:callable", "path/to/file.py:callable", "sample:photos".

What the text names is checked by looking for the file and reading its syntax; the user's code is imported only where
a trial runs, or when its syntax alone does not tell what the name is.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from workbench.errors import SourceError
from workbench.loaders.factory import FactorySignature, signature_from_syntax

FORMS = "'package.module:callable', 'path/to/file.py:callable' or 'sample:photos'"
DATASETS = ("Dataset", "IterableDataset")  # of torch.utils.data, as a file may name them


@dataclass(frozen=True)
class Address:
    """Where a loader or factory is defined.

    Attributes:
        text: What the user wrote.
        module: Name under which the module is imported; a file's stem.
        attribute: Name in that module, with dots for attributes of attributes.
        file: Absolute path of the module's source, or None where it has none.
        folder: Folder that must be on `sys.path` for the import, or None when it is found without.
        is_file: Whether the user named the file itself.
    """

    text: str
    module: str
    attribute: str
    file: str | None
    folder: str | None
    is_file: bool


def address_of(text: str) -> Address:
    """What the text names, found but not imported.

    Raises:
        SourceError: If there is no such file, module or name, or the text has none of the three forms.
    """
    place, _, attribute = text.rpartition(":")
    if not place or not attribute or not all(part.isidentifier() for part in attribute.split(".")):
        raise SourceError(f"{text!r} does not name a loader; write {FORMS}{_hint(text)}")
    if place == "sample":
        return _sample(text, attribute)
    if place.endswith(".py") or "/" in place or os.sep in place:
        address = _file_address(text, place, attribute)
    else:
        address = _module_address(text, place, attribute)
    definitions_of(address)
    return address


def definitions_of(address: Address) -> ast.stmt | None:
    """The statement that defines what the address names; None when only importing can tell.

    Raises:
        SourceError: If the file cannot be read as Python, or surely defines no such name.
    """
    if address.file is None or not address.file.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(address.file).read_bytes(), address.file)
    except SyntaxError as error:
        raise SourceError(
            f"{address.text!r}: {address.file}, line {error.lineno}, is not valid Python ({error.msg}); correct it"
        ) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{address.text!r}: {address.file} cannot be read ({error}); check the path") from None
    names = dict(_defined(tree.body))
    wanted = address.attribute.partition(".")[0]
    if wanted in names:
        return names[wanted] if wanted == address.attribute else None
    if "*" in names or "__getattr__" in names:
        return None
    near = difflib.get_close_matches(wanted, names, n=1)
    way_out = f"did you mean {near[0]!r}?" if near else "it must be defined at the top level of the file"
    raise SourceError(f"{address.text!r}: {address.file} defines no {wanted!r}; {way_out}")


def signature_from_file(address: Address) -> FactorySignature | None:
    """The factory's signature read off its source; None when only importing can tell.

    Raises:
        SourceError: If it asks for something that is no knob, or what is named is a class of datasets.
    """
    statement = definitions_of(address)
    if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
        return signature_from_syntax(statement, repr(address.text))
    if isinstance(statement, ast.ClassDef) and any(_last_name(base) in DATASETS for base in statement.bases):
        raise SourceError(dataset_named(address.text, f"the Dataset class {statement.name}"))
    return None


def dataset_named(text: str, what: str) -> str:
    """That a text names a Dataset, or a class of them, and what to name instead."""
    return (
        f"{text!r} is {what}, not a DataLoader; write a function in its file that returns DataLoader(...) over it, and "
        f"name that, for instance '{text.rpartition(':')[0]}:make_loader'"
    )


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript):  # Dataset[Tensor]
        return _last_name(expression.value)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def imported(address: Address) -> Any:
    """What the address names, its module imported and its folder left on `sys.path` for worker processes.

    Raises:
        SourceError: If the import fails, another module has the same name, or the name is missing.
    """
    if address.folder is not None and address.folder not in sys.path:
        sys.path.insert(0, address.folder)
        importlib.invalidate_caches()
    try:
        target: Any = importlib.import_module(address.module)
    except (Exception, SystemExit) as error:
        raise SourceError(
            f"importing {address.text!r} failed with {type(error).__name__}: {error}; the module must import cleanly"
            f"{_import_hint(address, error)}"
        ) from error
    _require_same_file(address, target)
    for part in address.attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise SourceError(
                f"{address.text!r}: {address.module} has no {part!r}; define it at the top level"
            ) from None
    return target


def _sample(text: str, name: str) -> Address:
    from workbench.samples import SAMPLES

    if name not in SAMPLES:
        raise SourceError(f"{text!r} is no sample; the samples are {', '.join(f'sample:{s}' for s in SAMPLES)}")
    place, _, attribute = SAMPLES[name].partition(":")
    return _module_address(text, place, attribute)


def _file_address(text: str, place: str, attribute: str) -> Address:
    file = Path(place).expanduser().absolute()
    if not file.is_file():
        raise SourceError(f"{text!r}: there is no file {file}; give its path as seen from {os.getcwd()}")
    if file.suffix != ".py":
        raise SourceError(f"{text!r}: {file} is not a .py file; put the factory into one")
    return Address(text, file.stem, attribute, str(file), str(file.parent), True)


def _module_address(text: str, module: str, attribute: str) -> Address:
    if not all(module.split(".")) or any(letter.isspace() for letter in module):
        raise SourceError(f"{text!r}: {module!r} is not a module's name; write {FORMS}{_hint(text)}")
    folder, spec = None, _spec(module, None)
    if spec is None and (spec := _spec(module, [os.getcwd()])) is not None:
        folder = os.getcwd()
    if spec is None:
        spec = _spec_by_import(text, module)
    if spec is None:
        raise SourceError(
            f"{text!r}: there is no module {module!r} on sys.path or in {os.getcwd()}; install it, start in its "
            "folder, or give the path of its .py file"
        )
    return Address(text, module, attribute, spec.origin if spec.has_location else None, folder, False)


def _spec(module: str, path: list[str] | None) -> ModuleSpec | None:
    """Where a dotted module lies, found without importing its parents."""
    spec, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _spec_by_import(text: str, module: str) -> ModuleSpec | None:
    """As `_spec`, for modules that only an import hook finds; imports the parents of the module."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    except Exception as error:
        raise SourceError(
            f"importing {text!r} failed with {type(error).__name__}: {error}; it must import cleanly"
        ) from error


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names that statements define at the top level, those inside `if`, `try` and `with` included."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield (alias.asname or alias.name.partition(".")[0]), statement
        else:
            for node in ast.iter_child_nodes(statement):
                inner = [node] if isinstance(node, ast.stmt) else getattr(node, "body", [])
                yield from _defined([s for s in inner if isinstance(s, ast.stmt)] if isinstance(inner, list) else [])
            for node in ast.walk(statement) if not hasattr(statement, "body") else ():
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id, statement


def _require_same_file(address: Address, module: Any) -> None:
    found = getattr(module, "__file__", None)
    if not address.is_file or (found and os.path.realpath(found) == os.path.realpath(str(address.file))):
        return
    raise SourceError(
        f"{address.text!r}: the name {address.module!r} already belongs to {found or 'a built-in module'}, so the file "
        "cannot be imported under it; rename the file"
    )


def _import_hint(address: Address, error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return " (put what it runs under `if __name__ == '__main__':`)"
    if address.is_file and isinstance(error, ImportError) and "relative import" in str(error):
        return " (it belongs to a package: name it as 'package.module:callable')"
    return ""


def _hint(text: str) -> str:
    if text.endswith(".py"):
        return f"; which callable in {text}?"
    return f"; did you mean {text.replace('::', ':')!r}?" if "::" in text else ""
