"""Measuring the stages of one trial's settings when somebody asks, and keeping them with the trial's record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.stages import measure_stages
from workbench.notebook.errand import Errand
from workbench.tuning.control import Control
from workbench.tuning.store import SweepStore

UNDER_WAY = "Timing each stage in a process of its own …"


class StageLook:
    """One look at a time, at trials of one loader.

    Args:
        source: The loader.
        step: What to do with a batch, or None.
        store: File with the sweep.
        kept: Called with the sweep's name when its stages are in the store.
        said: Called with what it is doing, "" when it has ended.
        failed: Called with what ended it.
        options: As for `Errand`.
    """

    def __init__(
        self,
        source: Any,
        step: Any,
        store: Path,
        kept: Callable[[str], None],
        said: Callable[[str], None],
        failed: Callable[[BaseException], None],
        **options: Any,
    ) -> None:
        self._source, self._step, self._store, self._options = source, step, store, options
        self._kept, self._said, self._failed = kept, said, failed
        self._errand: Errand | None = None

    @property
    def active(self) -> bool:
        """Whether it measures now."""
        return self._errand is not None and self._errand.state in ("running", "stopping")

    def begin(self, name: str, settings: LoaderSettings) -> None:
        """Measures these settings of the sweep of that name; returns at once."""

        def job(server: Any, _: Control) -> None:
            costs = measure_stages(server, settings)
            with SweepStore(self._store) as store:
                store.save_stages(name, settings, costs)
            self._kept(name)

        self._errand = Errand(self._source, self._step, job, **self._options)
        self._errand.on_event.append(self._went_on)
        self._errand.start()

    def stop(self) -> None:
        """Ends it; returns at once."""
        if self._errand is not None:
            self._errand.stop()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits for the end; says whether it has come."""
        return self._errand is None or self._errand.wait(timeout_seconds)

    def _went_on(self, event: dict[str, Any]) -> None:
        if event["kind"] == "error":
            self._failed(event["error"])
        elif event["kind"] == "state":
            self._said(UNDER_WAY if event["state"] == "running" else "")
