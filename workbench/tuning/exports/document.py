"""What is exported: settings, the arguments they mean for a DataLoader, and where they come from."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.tuning.cautions import thin
from workbench.tuning.knob_notes import knob_notes
from workbench.tuning.start_methods import BY_PICKLING, start_method_note, start_method_of

if TYPE_CHECKING:
    from workbench.tuning.results import Results

REGENERATE = "Written by Loader Workbench; measure again rather than editing."
_UNTRIED = "{name} is left out: no accelerator was here to try it with, so it stays as you have it."
_YOURS = (
    "yours: a dict of the other arguments that you give DataLoader now (shuffle, sampler, collate_fn, drop_last, ...), "
    "without those that are set here."
)


@dataclass(frozen=True)
class Document:
    """Settings to be written.

    Attributes:
        settings: The knobs.
        provenance: Where they come from, in JSON types; empty for settings that no sweep stands behind.
        notes: What the reader has to know to use them.
        batch_size: Samples in a batch of the user's loader, which settings that name no batch size leave alone; None
            when unknown.
        untried: Arguments of DataLoader that this machine could not vary; they stay as the user has them.
        file: Name of the file that it is written to.
    """

    settings: LoaderSettings
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    batch_size: int | None = None
    untried: tuple[str, ...] = ()
    file: str = ""

    @property
    def loader_kwargs(self) -> dict[str, Any]:
        """Arguments of `DataLoader`: no key that these values make invalid, and none that was not tried."""
        return {name: value for name, value in self.settings.loader_kwargs().items() if name not in self.untried}

    def comment(self, before: str, after: str, batch_size: str = "batch_size") -> list[str]:
        """How to use it, provenance and notes as lines for a file's head; arguments as for `usage`."""
        return [REGENERATE, *self.usage(before, after, batch_size), *_flat(self.provenance), *self.notes]

    def usage(self, before: str, after: str, batch_size: str = "batch_size") -> list[str]:
        """One line to copy that builds the loader, with the user's own batch size where none is set here.

        Args:
            before: The call as far as the batch size.
            after: The rest of it; where it names `yours`, a line says what that is.
            batch_size: What the batch size is called there.
        """
        yours = [_YOURS] if "**yours" in after else []
        if self.settings.batch_size is not None:
            return [f"To use it: {before}{after}", *yours]
        size = "..." if self.batch_size is None else self.batch_size
        return [
            f"To use it: {before}, {batch_size}={size}{after}",
            *yours,
            f"{batch_size} was not tuned and is not set here: left out, it would be a default and not yours.",
        ]


def document_of(settings: LoaderSettings, results: Results | None = None) -> Document:
    """The document for these settings; with `results`, what was measured goes with them."""
    if results is None:
        untried = tuple(sorted(getattr(settings, "left_out", ())))
        return Document(settings, notes=tuple(_notes(settings, None, None)), untried=untried)
    trial, size, untried = results.trial(settings), _batch_size(settings, results), _untried(settings, results)
    notes = [*(_UNTRIED.format(name=name) for name in untried), *_notes(settings, trial, results.probe)]
    return Document(settings, _provenance(results, trial, size), tuple(notes), size, untried)


def _batch_size(settings: LoaderSettings, results: Results) -> int | None:
    """Samples in a batch under these settings, as far as that is known."""
    own = results.current.batch_size if results.current else None
    return settings.batch_size or own or (results.probe.samples_per_batch if results.probe else None)


def _untried(settings: LoaderSettings, results: Results) -> tuple[str, ...]:
    """Pinning means nothing where there is no accelerator, and so nothing can be said for or against it."""
    return ("pin_memory",) if results.machine.get("accelerator") == "none" and not settings.pin_memory else ()


def _provenance(results: Results, trial: TrialResult | None, batch_size: int | None) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    if trial is not None and trial.estimate is not None:
        measured = {
            "samples_per_second": _short(trial.estimate.samples_per_second),
            "samples_per_second_95_percent": _interval(trial),
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
        **({} if batch_size is None else {"batch_size": batch_size}),
        "measured": {name: value for name, value in measured.items() if value is not None},
    }


def _interval(trial: TrialResult) -> list[float | None] | None:
    low, high = _short(trial.samples_per_second_low), _short(trial.samples_per_second_high)
    return None if low is None or high is None else [low, high]


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
    if trial is not None and trial.estimate is not None:
        once = ["measured in a single start, so that the interval is one that starts of other settings let expect"]
        notes += [f"Not certain: {why}." for why in (*(once if trial.estimate.starts == 1 else ()), *thin(trial))]
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
