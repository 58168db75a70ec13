"""What is exported: settings, the arguments they mean for a DataLoader, and where they come from."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.tuning.knob_notes import knob_notes
from workbench.tuning.start_methods import BY_PICKLING, start_method_note, start_method_of

if TYPE_CHECKING:
    from workbench.tuning.results import Results

REGENERATE = "Written by Loader Workbench; measure again rather than editing."


@dataclass(frozen=True)
class Document:
    """Settings to be written.

    Attributes:
        settings: The knobs.
        provenance: Where they come from, in JSON types; empty for settings that no sweep stands behind.
        notes: What the reader has to know to use them.
    """

    settings: LoaderSettings
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def loader_kwargs(self) -> dict[str, Any]:
        """Arguments of `DataLoader`: no key that these values make invalid."""
        return self.settings.loader_kwargs()

    def comment(self) -> list[str]:
        """Provenance and notes as lines for a file's head."""
        return [REGENERATE, *_flat(self.provenance), *self.notes]


def document_of(settings: LoaderSettings, results: Results | None = None) -> Document:
    """The document for these settings; with `results`, what was measured goes with them."""
    trial = results.trial(settings) if results is not None else None
    provenance = {} if results is None else _provenance(results, trial)
    return Document(settings, provenance, tuple(_notes(settings, trial, results.probe if results else None)))


def _provenance(results: Results, trial: TrialResult | None) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    if trial is not None and trial.estimate is not None:
        measured = {
            "samples_per_second": _short(trial.estimate.samples_per_second),
            "samples_per_second_95_percent": [
                _short(trial.samples_per_second_low),
                _short(trial.samples_per_second_high),
            ],
            "starts": trial.estimate.starts,
            "peak_pss_bytes": trial.peak_pss_bytes,
            "first_batch_seconds": _short(trial.first_batch_seconds),
            "data": "cold" if all(run.cold for run in trial.runs) else "warm",
            "start_method": next((run.start_method for run in trial.runs if run.start_method), None),
        }
    return {
        "tool": f"loader-workbench {_version()}",
        "sweep": results.name,
        "loader": results.source,
        "date": datetime.datetime.fromtimestamp(results.created, datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": results.machine,
        **_data(results, trial),
        "measured": {name: value for name, value in measured.items() if value is not None},
    }


def _data(results: Results, trial: TrialResult | None) -> dict[str, str]:
    """The digest of the manifest of the data that were read, where they have one."""
    read = {run.manifest_digest for run in trial.runs if run.manifest_digest} if trial is not None else set()
    if not read and results.probe is not None and (trial is None or trial.settings.layout is None):
        read = {results.probe.manifest_digest} - {None}
    return {"manifest_digest": read.pop()} if len(read) == 1 else {}


def _notes(settings: LoaderSettings, trial: TrialResult | None, probe: Probe | None) -> list[str]:
    notes = []
    if settings.batch_on_worker:
        notes.append(
            "Whole batches are formed by the workers: workbench.loaders.batching.whole_batches(loader) does it to a "
            "DataLoader; or give it batch_size=None and a dataset that yields batches."
        )
    if settings.layout is not None:
        notes.append(
            f"The dataset is the {settings.layout} copy of the data, which no argument of DataLoader says: open that "
            "copy, for instance with workbench.open_dataset."
        )
    notes += knob_notes(settings)
    method = start_method_of(settings, trial)
    if note := start_method_note(settings, trial, probe):
        notes.append(note)
    elif method == "fork" and settings.multiprocessing_context is None:
        notes.append(
            "Workers were started by fork; where that is not the default (macOS, Windows, Linux from Python 3.14) "
            "dataset and collate_fn must be picklable."
        )
    elif method in BY_PICKLING:
        notes.append(f"Workers are started by {method}: dataset and collate_fn must be picklable.")
    return notes


def _flat(values: dict[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            text = " to ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f"{prefix}{name}: {' '.join(text.split())}")
    return lines


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("loader-workbench")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
