"""Loader Workbench: measure, tune and explain PyTorch data loaders, and say how sure every number is.

Everything public is here under its own name and is loaded when it is first touched, so that `import workbench` costs
next to nothing and pulls in neither torch nor the notebook's packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench import errors, lab, layouts, machine, samples
    from workbench.errors import WorkbenchError
    from workbench.layouts.choosing import layout_loader
    from workbench.layouts.comparison import prepare_layouts
    from workbench.layouts.conversion import convert
    from workbench.layouts.reader import ShardedReader, open_dataset
    from workbench.loaders.settings import LoaderSettings
    from workbench.loaders.source import LoaderSource
    from workbench.measure.diagnosis import diagnose
    from workbench.measure.trace import read_trace
    from workbench.measure.trace_recording import profile
    from workbench.measure.trial import measure
    from workbench.notebook.diagnosis_panel import DiagnosisPanel
    from workbench.notebook.panel import TuningPanel
    from workbench.notebook.report import write_report
    from workbench.review.batches import check_first_batch
    from workbench.review.expectations import learn_expectations
    from workbench.review.manifest import make_manifest, verify
    from workbench.review.rank_meter import RankMeter
    from workbench.review.resume import resume_test
    from workbench.streaming.buckets import BucketStream, BudgetStream
    from workbench.streaming.cache import CachedDataset
    from workbench.streaming.loader import StreamLoader
    from workbench.streaming.packed import PackedStream
    from workbench.streaming.packing import packing_report
    from workbench.streaming.prefetch import DevicePrefetcher
    from workbench.streaming.stream import ShardStream
    from workbench.tuning.export import export, load_settings
    from workbench.tuning.forecast import forecast
    from workbench.tuning.results import Results, load_results
    from workbench.tuning.space import SearchSpace
    from workbench.tuning.sweep import Sweep

_MODULES = ("errors", "lab", "layouts", "machine", "measure", "samples")  # `measure` can be called: it is its function
_HOMES = {
    "BucketStream": "workbench.streaming.buckets",
    "BudgetStream": "workbench.streaming.buckets",
    "CachedDataset": "workbench.streaming.cache",
    "DevicePrefetcher": "workbench.streaming.prefetch",
    "DiagnosisPanel": "workbench.notebook.diagnosis_panel",
    "LoaderSettings": "workbench.loaders.settings",
    "LoaderSource": "workbench.loaders.source",
    "PackedStream": "workbench.streaming.packed",
    "RankMeter": "workbench.review.rank_meter",
    "Results": "workbench.tuning.results",
    "SearchSpace": "workbench.tuning.space",
    "ShardStream": "workbench.streaming.stream",
    "ShardedReader": "workbench.layouts.reader",
    "StreamLoader": "workbench.streaming.loader",
    "Sweep": "workbench.tuning.sweep",
    "TuningPanel": "workbench.notebook.panel",
    "WorkbenchError": "workbench.errors",
    "check_first_batch": "workbench.review.batches",
    "convert": "workbench.layouts.conversion",
    "diagnose": "workbench.measure.diagnosis",
    "export": "workbench.tuning.export",
    "forecast": "workbench.tuning.forecast",
    "layout_loader": "workbench.layouts.choosing",
    "learn_expectations": "workbench.review.expectations",
    "load_results": "workbench.tuning.results",
    "load_settings": "workbench.tuning.export",
    "make_manifest": "workbench.review.manifest",
    "open_dataset": "workbench.layouts.reader",
    "packing_report": "workbench.streaming.packing",
    "prepare_layouts": "workbench.layouts.comparison",
    "profile": "workbench.measure.trace_recording",
    "read_trace": "workbench.measure.trace",
    "resume_test": "workbench.review.resume",
    "verify": "workbench.review.manifest",
    "write_report": "workbench.notebook.report",
}

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"workbench.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("loader-workbench")
    raise AttributeError(f"module 'workbench' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext workbench`: the notebook's magics, `%%loader_sweep` and `%diagnose`."""
    importlib.import_module("workbench.notebook.magics").register(shell)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *(name for name in globals() if name.startswith("__"))])
