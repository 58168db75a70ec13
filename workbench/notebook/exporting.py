"""Taking settings home: format, file and preview of an export, and everything set by hand as code."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from workbench.errors import ExportError, WorkbenchError
from workbench.tuning.export import FORMATS, export, render

SUFFIXES = {"yaml": ".yaml", "json": ".json", "python": ".py"}
NOTHING_TO_EXPORT = "there is nothing to export yet; run a sweep first, or choose a trial that was measured"
RECOMMENDED, CHOSEN = "recommended", "chosen"


class ExportBox:
    """Format, file name, preview and the button that writes.

    Args:
        chosen: Gives the trial that is looked at, or None.
        guard: Wraps a callback so that its errors are shown.
    """

    def __init__(self, chosen: Callable[[], Any], guard: Callable[[Callable[..., Any]], Callable[..., None]]) -> None:
        self._chosen = chosen
        self._results: Any = None
        self._which = W.Dropdown(
            options=[("the recommended settings", RECOMMENDED), ("the chosen trial", CHOSEN)], description="Export"
        )
        self._format = W.Dropdown(options=list(FORMATS), value="yaml", description="as")
        self._file = W.Text(value="loader.yaml", description="to file", continuous_update=False)
        self._write = W.Button(description="Write file", layout=W.Layout(width="auto", min_width="92px"))
        self._said = W.HTML()
        self._preview = W.HTML()
        for field in (self._which, self._format, self._file):
            field.style.description_width = "auto"
            field.layout = W.Layout(width="auto", flex="1 1 240px", min_width="150px")
        self._which.observe(guard(self._changed), "value")
        self._format.observe(guard(self._format_changed), "value")
        self._write.on_click(guard(self._clicked))
        row = W.Box(
            [self._which, self._format, self._file, self._write],
            layout=W.Layout(flex_flow="row wrap", overflow="visible"),
        )
        row.add_class("wb-fields")
        self.widget = W.VBox([row, self._said, self._preview])
        self.show(None)

    def show(self, results: Any) -> None:
        """Takes new results; the preview follows."""
        self._results = results
        self._changed()

    def write(self) -> Path:
        """Writes the file and says where it is.

        Raises:
            ExportError: If there is nothing to export, or the file cannot be written.
        """
        what = self._what()
        if what is None:
            raise ExportError(NOTHING_TO_EXPORT)
        path = export(what, self._file.value.strip(), self._format.value).absolute()
        self._said.value = f'<span role="status" class="wb-done">Wrote {escape(str(path))}</span>'
        return path

    def _clicked(self, _: Any) -> None:
        self._said.value = ""
        self.write()

    def _what(self) -> Any:
        if self._which.value == CHOSEN:
            trial = self._chosen()
            return trial.settings if trial is not None else None
        results = self._results
        return results if results is not None and results.best is not None else None

    def _changed(self, _: Any = None) -> None:
        what = self._what()
        if what is None:
            self._preview.value = f'<p class="wb-note">{NOTHING_TO_EXPORT[0].upper()}{NOTHING_TO_EXPORT[1:]}.</p>'
            return
        try:
            text = render(what, self._format.value)
        except WorkbenchError as error:
            self._preview.value = f'<p class="wb-note">{escape(str(error))}</p>'
            return
        self._preview.value = code_html(text, "Preview")

    def _format_changed(self, _: Any) -> None:
        name = Path(self._file.value.strip() or "loader")
        self._file.value = str(name.with_suffix(SUFFIXES.get(self._format.value, ".py")))
        self._changed()


def code_html(text: str, label: str = "Code") -> str:
    """Code as a box that the keyboard can scroll, under a label for those who do not see it."""
    return f'<pre class="wb-code" tabindex="0" aria-label="{label}">{escape(text)}</pre>'


def code_for(loader: str, arguments: dict[str, Any], space: Any) -> str:
    """Python that does what the panel was set to do by hand.

    Args:
        loader: The expression that stands for the loader.
        arguments: Further arguments of `Sweep`, already as Python values; those that are None are left out.
        space: The SearchSpace.
    """
    given = "".join(f"    {name}={value!r},\n" for name, value in arguments.items() if value is not None)
    knobs = "".join(f"        {name}={list(values)!r},\n" for name, values in space.knobs.items())
    return (
        "import workbench as wb\n\n"
        f"sweep = wb.Sweep(\n    {loader},\n    space=wb.SearchSpace(\n{knobs}    ),\n{given})\n"
        "results = sweep.run()\nprint(results.recommendation)\n"
    )


class Name(str):
    """A name that stands in code without quotes."""

    def __repr__(self) -> str:
        return str(self)
