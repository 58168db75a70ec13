"""Python, Lightning and Transformers: settings as code that runs as it stands."""

from __future__ import annotations

from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.tuning.exports.document import Document

BATCH_SIZE = "per_device_train_batch_size"  # what TrainingArguments calls it
# TrainingArguments has no field for these knobs; a Trainer subclass has to pass them itself.
NOT_IN_TRAINING_ARGUMENTS = ("multiprocessing_context", "in_order", "batch_on_worker", "layout", "worker_threads")


def as_python(document: Document) -> str:
    """A module with LOADER_KWARGS and a function that builds a DataLoader with them."""
    lines = [
        *_comment(document, "make_loader(dataset", ", **yours)"),
        "",
        *_imports(document),
        "",
        *_constants(document),
        *_process(document),
        *_worker(document),
        "",
        "",
        "def make_loader(dataset, **kwargs):",
        '    """A DataLoader with these settings; `kwargs` (batch_size, collate_fn, ...) come on top."""',
        *(f"    {line}" for line in _build(document, "dataset", "kwargs")),
    ]
    return "\n".join(lines) + "\n"


def as_lightning(document: Document) -> str:
    """A LightningDataModule whose loaders use these settings."""
    lines = [
        *_comment(document, "TunedDataModule(train_dataset", ", **yours)"),
        "",
        *_imports(document, lightning=True),
        "try:",
        "    from lightning import LightningDataModule",
        "except ImportError:",
        "    from pytorch_lightning import LightningDataModule",
        "",
        *_constants(document),
        *_process(document),
        *_worker(document),
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
        *(f"        {line}" for line in _build(document, "self.train_dataset", "self.kwargs")),
        *(_TRANSFER if document.settings.non_blocking is not None else []),
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
    arguments = {
        name: value for name, value in arguments.items() if name.removeprefix("dataloader_") not in document.untried
    }
    if settings.prefetch_factor is not None:
        arguments["dataloader_prefetch_factor"] = settings.prefetch_factor
    if settings.batch_size is not None:
        arguments[BATCH_SIZE] = settings.batch_size
    if settings.non_blocking is not None:
        arguments["accelerator_config"] = {"non_blocking": settings.non_blocking}
    plain = LoaderSettings().as_dict()
    untold = [name for name in NOT_IN_TRAINING_ARGUMENTS if values[name] != plain[name]]
    lines = [
        *_comment(document, "TrainingArguments(output_dir", ", **TRAINING_ARGUMENTS)", BATCH_SIZE),
        *(f"# TrainingArguments has no field for {name}={values[name]!r}." for name in untold),
        "",
        *(["import torch", ""] if settings.sharing_strategy is not None else []),
        *_told(document, "worker_threads", "sharing_strategy"),
        *_process(document),
        *_assignment("TRAINING_ARGUMENTS", arguments),
    ]
    return "\n".join(lines) + "\n"


def _imports(document: Document, lightning: bool = False) -> list[str]:
    settings = document.settings
    lines = ["import functools"] if _tells_workers(document) else []
    lines += ["import sys"] if settings.worker_threads is not None else []
    lines += [""] if lines else []
    lines += ["import torch"] if _tells_workers(document) or (lightning and settings.non_blocking is not None) else []
    lines += ["from torch.utils.data import DataLoader"]
    return lines + (["from workbench.loaders.batching import whole_batches"] if settings.batch_on_worker else [])


def _constants(document: Document) -> list[str]:
    lines = _assignment("LOADER_KWARGS", document.loader_kwargs)
    lines += ["BATCH_ON_WORKER = True"] if document.settings.batch_on_worker else []
    return lines + _told(document, "layout", "worker_threads", "sharing_strategy", "non_blocking")


def _told(document: Document, *knobs: str) -> list[str]:
    """Constants for knobs that no argument says, where they are set."""
    values = {knob: getattr(document.settings, knob) for knob in knobs}
    return [f"{knob.upper()} = {value!r}" for knob, value in values.items() if value is not None]


def _tells_workers(document: Document) -> bool:
    return document.settings.worker_threads is not None or document.settings.sharing_strategy is not None


def _process(document: Document) -> list[str]:
    """What holds for the whole process and the workers that it forks."""
    if document.settings.sharing_strategy is None:
        return []
    return ["torch.multiprocessing.set_sharing_strategy(SHARING_STRATEGY)"]


def _worker(document: Document) -> list[str]:
    """A function that every worker runs, at the top of the module, where spawned workers find it too."""
    settings = document.settings
    if not _tells_workers(document):
        return []
    lines = ["", "", "def start_worker(own_init_fn, worker_id):"]
    lines += ['    """Your own worker_init_fn if there is one, then what these settings tell a worker."""']
    lines += ["    if own_init_fn is not None:", "        own_init_fn(worker_id)"]
    if settings.worker_threads is not None:
        lines += ["    torch.set_num_threads(WORKER_THREADS)", '    if "cv2" in sys.modules:']
        lines += ['        sys.modules["cv2"].setNumThreads(WORKER_THREADS)']
    if settings.sharing_strategy is not None:
        lines += ["    torch.multiprocessing.set_sharing_strategy(SHARING_STRATEGY)"]
    return lines


_TRANSFER = [
    "",
    "    def transfer_batch_to_device(self, batch, device, dataloader_idx):",
    "        def copied(leaf):",
    "            return leaf.to(device, non_blocking=NON_BLOCKING) if isinstance(leaf, torch.Tensor) else leaf",
    "",
    "        batch = torch.utils._pytree.tree_map(copied, batch)",
    "        return super().transfer_batch_to_device(batch, device, dataloader_idx)",
]


def _build(document: Document, dataset: str, kwargs: str) -> list[str]:
    """The statements that make the loader."""
    told, lines = "", []
    if _tells_workers(document):
        told = ', "worker_init_fn": init_fn'
        lines = [f'init_fn = functools.partial(start_worker, {kwargs}.get("worker_init_fn"))']
    loader = f"DataLoader({dataset}, **{{**LOADER_KWARGS, **{kwargs}{told}}})"
    return [*lines, f"return whole_batches({loader})" if document.settings.batch_on_worker else f"return {loader}"]


def _assignment(name: str, values: dict[str, Any]) -> list[str]:
    return [f"{name} = {{", *(f'    "{key}": {value!r},' for key, value in values.items()), "}"]


def _comment(document: Document, before: str, after: str, batch_size: str = "batch_size") -> list[str]:
    return [f"# {line}" for line in document.comment(before, after, batch_size)]
