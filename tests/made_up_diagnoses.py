"""Diagnoses whose every number is chosen here: nothing measured."""

from __future__ import annotations

import dataclasses
from typing import Any

from workbench.loaders.settings import LoaderSettings
from workbench.measure.diagnosis import Diagnosis


def diagnosis(**more: Any) -> Diagnosis:
    """A loader that is half as fast as its step."""
    known = Diagnosis(
        bound="input",
        cause="CPU in <decode>",
        confidence="high",
        loader_samples_per_second=100.0,
        step_samples_per_second=200.0,
        combined_samples_per_second=99.0,
        moved_samples_per_second=None,
        intervals={"loader": (95.0, 105.0), "step": (190.0, 210.0), "combined": (90.0, 108.0)},
        input_wait_fraction=0.5,
        headroom=2.0,
        headroom_interval=(1.9, 2.1),
        evidence=("loader alone 100 samples/s",),
        next_step="use more workers",
        refuted_by="more workers do not help",
        notes=("<no accelerator>",),
        settings=LoaderSettings(),
        stages=None,
        stages_combined=None,
        starts=2,
    )
    return dataclasses.replace(known, **more)
