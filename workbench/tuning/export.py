"""Export: settings to YAML, JSON, Python, Lightning, Transformers or Hydra, and back from a file."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import ExportError, SettingsError
from workbench.loaders.settings import NOT_FOR_DATALOADER, LoaderSettings
from workbench.tuning.exports import code, configuration
from workbench.tuning.exports.document import Document, document_of
from workbench.tuning.exports.said import SaidSettings

if TYPE_CHECKING:
    from workbench.tuning.results import Results

FORMATS: dict[str, Callable[[Document], str]] = {
    "yaml": configuration.as_yaml,
    "json": configuration.as_json,
    "python": code.as_python,
    "lightning": code.as_lightning,
    "transformers": code.as_transformers,
    "hydra": configuration.as_hydra,
}
SUFFIXES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python"}


def export(
    settings_or_results: LoaderSettings | Results, path: str | os.PathLike[str], format: str | None = None
) -> Path:
    """Writes settings, or the recommended ones of results with their provenance; gives the path.

    The file appears whole or not at all: it is written beside its place and renamed.

    Args:
        settings_or_results: What to write.
        path: Where; an existing file is replaced.
        format: One of `FORMATS`; None takes it from the suffix.

    Raises:
        ExportError: If the format is unknown, there is nothing to recommend, or the file cannot be written.
    """
    target = Path(path)
    text = _rendered(settings_or_results, format or _format_of(target), target.name)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise ExportError(
            f"{target} cannot be written: {error.strerror or error}; name a file in a writable folder that exists."
        ) from error
    return target


def render(settings_or_results: LoaderSettings | Results, format: str) -> str:
    """The text that `export` would write.

    Raises:
        ExportError: If the format is unknown or there is nothing to recommend.
    """
    return _rendered(settings_or_results, format)


def load_settings(path: str | os.PathLike[str]) -> LoaderSettings:
    """Settings read back from a YAML (Hydra's too), JSON or Python export; Python is parsed, never run.

    They equal the settings that were exported. Their `loader_kwargs()` name only what the file says, so that what it
    leaves out stays as a DataLoader has it.

    Raises:
        ExportError: If the file is missing, has another suffix, or holds no settings.
    """
    source = Path(path)
    format = _format_of(source)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ExportError(f"{source} cannot be read: {why}; name a file that export wrote.") from error
    try:
        return _settings_in(_READERS[format](text))
    except SettingsError as error:
        raise ExportError(f"{source} holds settings that no DataLoader accepts: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError) as error:
        raise ExportError(
            f"{source} holds no exported settings ({' '.join(str(error).split())}); write it with workbench.export."
        ) from error


def _rendered(settings_or_results: LoaderSettings | Results, format: str, file: str = "") -> str:
    if format not in FORMATS:
        raise ExportError(f"format={format!r} is unknown; choose one of {', '.join(FORMATS)}.")
    return FORMATS[format](dataclasses.replace(_document(settings_or_results), file=file))


def _document(settings_or_results: LoaderSettings | Results) -> Document:
    if isinstance(settings_or_results, LoaderSettings):
        return document_of(settings_or_results)
    best = getattr(settings_or_results, "best", None)
    if isinstance(best, LoaderSettings):
        return document_of(best, settings_or_results)
    if hasattr(settings_or_results, "reason"):
        raise ExportError(f"there is nothing to export. {settings_or_results.reason}")
    raise ExportError(f"{settings_or_results!r} cannot be exported; give LoaderSettings or the Results of a sweep.")


def _format_of(path: Path) -> str:
    try:
        return SUFFIXES[path.suffix.lower()]
    except KeyError:
        raise ExportError(
            f"{path} has the suffix {path.suffix!r}, which names no format; use one of {', '.join(SUFFIXES)}, or give "
            f"format= one of {', '.join(FORMATS)}."
        ) from None


def _settings_in(data: Any) -> LoaderSettings:
    if not isinstance(data, dict):
        raise ValueError("no mapping at its top")
    if "_target_" in data:
        kwargs = {key: value for key, value in data.items() if not key.startswith("_")}
        return SaidSettings.from_dict(kwargs)
    if not isinstance(data.get("loader_kwargs"), dict):
        raise ValueError("no loader_kwargs in it")
    beside = {knob: data[knob] for knob in NOT_FOR_DATALOADER if knob in data}
    return SaidSettings.from_dict({**data["loader_kwargs"], **beside})


def _read_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {error}") from error


def _read_python(text: str) -> dict[str, Any]:
    names = {"LOADER_KWARGS": "loader_kwargs", **{knob.upper(): knob for knob in NOT_FOR_DATALOADER}}
    found: dict[str, Any] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in names:
                found[names[name]] = ast.literal_eval(statement.value)
            elif name == "TRAINING_ARGUMENTS":
                found["loader_kwargs"] = _from_training_arguments(ast.literal_eval(statement.value))
    return found


def _from_training_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    renamed = {"per_device_train_batch_size": "batch_size"}
    arguments = {**arguments, **arguments.get("accelerator_config", {})}
    arguments.pop("accelerator_config", None)
    return {renamed.get(name, name.removeprefix("dataloader_")): value for name, value in arguments.items()}


_READERS: dict[str, Callable[[str], Any]] = {"yaml": _read_yaml, "json": json.loads, "python": _read_python}
