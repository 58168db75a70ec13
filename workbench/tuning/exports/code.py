"""Python, Lightning and Transformers: settings as code that runs as it stands."""

from __future__ import annotations

from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.tuning.exports.document import Document

# TrainingArguments has no field for these knobs; a Trainer subclass has to pass them itself.
NOT_IN_TRAINING_ARGUMENTS = ("multiprocessing_context", "in_order", "batch_on_worker", "layout")


def as_python(document: Document) -> str:
    """A module with LOADER_KWARGS and a function that builds a DataLoader with them."""
    lines = [
        *_comment(document),
        "",
        *_imports(document),
        "",
        *_constants(document),
        "",
        "",
        "def make_loader(dataset, **kwargs):",
        '    """A DataLoader with these settings; `kwargs` (batch_size, collate_fn, ...) come on top."""',
        f"    return {_build(document, 'dataset', 'kwargs')}",
    ]
    return "\n".join(lines) + "\n"


def as_lightning(document: Document) -> str:
    """A LightningDataModule whose loaders use these settings."""
    lines = [
        *_comment(document),
        "",
        "try:",
        "    from lightning import LightningDataModule",
        "except ImportError:",
        "    from pytorch_lightning import LightningDataModule",
        *_imports(document),
        "",
        *_constants(document),
        "",
        "",
        "class TunedDataModule(LightningDataModule):",
        '    """Training data with these settings; `kwargs` (batch_size, shuffle, ...) come on top."""',
        "",
        "    def __init__(self, train_dataset, **kwargs):",
        "        super().__init__()",
        "        self.train_dataset, self.kwargs = train_dataset, kwargs",
        "",
        "    def train_dataloader(self):",
        f"        return {_build(document, 'self.train_dataset', 'self.kwargs')}",
    ]
    return "\n".join(lines) + "\n"


def as_transformers(document: Document) -> str:
    """Keyword arguments for `transformers.TrainingArguments`; persistence is said even where it is off."""
    settings, values = document.settings, document.settings.as_dict()
    arguments: dict[str, Any] = {
        "dataloader_num_workers": settings.num_workers,
        "dataloader_pin_memory": settings.pin_memory,
        "dataloader_persistent_workers": settings.persistent_workers,
    }
    if settings.prefetch_factor is not None:
        arguments["dataloader_prefetch_factor"] = settings.prefetch_factor
    if settings.batch_size is not None:
        arguments["per_device_train_batch_size"] = settings.batch_size
    plain = LoaderSettings().as_dict()
    untold = [name for name in NOT_IN_TRAINING_ARGUMENTS if values[name] != plain[name]]
    lines = [
        *_comment(document),
        *(f"# TrainingArguments has no field for {name}={values[name]!r}." for name in untold),
        "",
        "# TrainingArguments(output_dir, **TRAINING_ARGUMENTS)",
        *_assignment("TRAINING_ARGUMENTS", arguments),
    ]
    return "\n".join(lines) + "\n"


def _imports(document: Document) -> list[str]:
    lines = ["from torch.utils.data import DataLoader"]
    return lines + (["from workbench.loaders.batching import whole_batches"] if _on_worker(document) else [])


def _constants(document: Document) -> list[str]:
    lines = _assignment("LOADER_KWARGS", document.loader_kwargs)
    lines += ["BATCH_ON_WORKER = True"] if _on_worker(document) else []
    return lines + ([f"LAYOUT = {document.settings.layout!r}"] if document.settings.layout is not None else [])


def _build(document: Document, dataset: str, kwargs: str) -> str:
    loader = f"DataLoader({dataset}, **{{**LOADER_KWARGS, **{kwargs}}})"
    return f"whole_batches({loader})" if _on_worker(document) else loader


def _on_worker(document: Document) -> bool:
    return document.settings.batch_on_worker


def _assignment(name: str, values: dict[str, Any]) -> list[str]:
    return [f"{name} = {{", *(f'    "{key}": {value!r},' for key, value in values.items()), "}"]


def _comment(document: Document) -> list[str]:
    return [f"# {line}" for line in document.comment()]
