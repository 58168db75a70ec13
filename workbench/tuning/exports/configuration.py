"""YAML, JSON and Hydra: settings as data."""

from __future__ import annotations

import json
from typing import Any

import yaml

from workbench.tuning.exports.document import Document


def as_yaml(document: Document) -> str:
    """YAML with `loader_kwargs`, ready for `DataLoader(dataset, **loader_kwargs)`, and provenance."""
    return _commented(document.comment()[:1] + list(document.notes)) + _yaml(_data(document))


def as_json(document: Document) -> str:
    """The same as JSON, which has no comments: notes are a list in it."""
    data = _data(document) | ({"notes": list(document.notes)} if document.notes else {})
    return json.dumps(data, indent=2) + "\n"


def as_hydra(document: Document) -> str:
    """A Hydra node: `hydra.utils.instantiate(cfg)(dataset)` gives the DataLoader."""
    node = {"_target_": "torch.utils.data.DataLoader", "_partial_": True, **document.loader_kwargs}
    return _commented(document.comment()) + _yaml(node)


def _data(document: Document) -> dict[str, Any]:
    data: dict[str, Any] = {"loader_kwargs": document.loader_kwargs}
    if document.settings.batch_on_worker:
        data["batch_on_worker"] = True
    if document.settings.layout is not None:
        data["layout"] = document.settings.layout
    if document.provenance:
        data["provenance"] = document.provenance
    return data


def _yaml(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _commented(lines: list[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)
