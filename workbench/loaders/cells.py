"""What the user's code is called where it was written: notebook cells by their number, with their lines."""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any


def origin(code: types.CodeType) -> str:
    """The file that the code comes from, or "In[3]" for the notebook cell of that number."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    naming = getattr(getattr(shell, "compile", None), "format_code_name", None)  # IPython 7.32 and later
    found = naming(code.co_filename) if naming is not None else None
    return found[1] if found else code.co_filename


def is_cell(file: str) -> bool:
    """Whether `origin` gave this name to a notebook cell."""
    return file.startswith("In[") and file.endswith("]")


def lines_of(code: types.CodeType) -> list[str]:
    """The lines of the cell or file that the code comes from; empty where they are not at hand."""
    return linecache.getlines(code.co_filename)


def show_lines(cells: dict[str, list[str]]) -> None:
    """Lets tracebacks in this process quote cells that ran in another one.

    Args:
        cells: Lines by the name of the cell.
    """
    for name, lines in cells.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def with_origin(name: str, make: Any, arguments: tuple[Any, ...]) -> types.CodeType:
    """Code made anew, as coming from the file or cell of that name."""
    return make(*arguments).replace(co_filename=name)
