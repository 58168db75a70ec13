"""YAML, JSON and Hydra: settings as data."""

from __future__ import annotations

import json
from typing import Any

import yaml

from workbench.loaders.settings import NOT_FOR_DATALOADER, LoaderSettings
from workbench.tuning.exports.document import REGENERATE, Document

_OF_TUNED_LOADER = ("batch_on_worker", "worker_threads", "sharing_strategy")


def as_yaml(document: Document) -> str:
    """YAML with `loader_kwargs`, ready for `DataLoader(dataset, **loader_kwargs)`, and provenance."""
    usage = document.usage(*_call(document, "yaml.safe_load", "loader.yaml"))
    return _commented([REGENERATE, *usage, *document.notes]) + _yaml(_data(document))


def as_json(document: Document) -> str:
    """The same as JSON, which has no comments: notes are a list in it."""
    usage = document.usage(*_call(document, "json.load", "loader.json"))
    data = _data(document) | {"notes": [*usage, *document.notes]}
    return json.dumps(data, indent=2) + "\n"


def as_hydra(document: Document) -> str:
    """A Hydra node: `hydra.utils.instantiate(cfg)(dataset)` gives the DataLoader.

    It names `tuned_loader` in place of DataLoader where these settings turn what DataLoader has no argument for.
    """
    told = {knob: value for knob, value in _beside(document).items() if knob in _OF_TUNED_LOADER}
    target = "workbench.loaders.tuned.tuned_loader" if told else "torch.utils.data.DataLoader"
    node = {"_target_": target, "_partial_": True, **document.loader_kwargs, **told}
    return _commented(document.comment("hydra.utils.instantiate(cfg)(dataset", ", **yours)")) + _yaml(node)


def _call(document: Document, read: str, file: str) -> tuple[str, str]:
    """The call that builds a DataLoader from the file, before and after the batch size."""
    kwargs = f'{read}(open({json.dumps(document.file or file)}))["loader_kwargs"]'
    around = ("whole_batches(", ")") if document.settings.batch_on_worker else ("", "")
    return f"{around[0]}DataLoader(dataset", f", **yours, **{kwargs}){around[1]}"


def _data(document: Document) -> dict[str, Any]:
    data: dict[str, Any] = {"loader_kwargs": document.loader_kwargs, **_beside(document)}
    if document.provenance:
        data["provenance"] = document.provenance
    return data


def _beside(document: Document) -> dict[str, Any]:
    """Knobs that are turned and no argument of DataLoader."""
    values, plain = document.settings.as_dict(), LoaderSettings().as_dict()
    return {knob: values[knob] for knob in NOT_FOR_DATALOADER if values[knob] != plain[knob]}


def _yaml(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _commented(lines: list[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)
