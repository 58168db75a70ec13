"""Whether another copy of the data, chosen by the knob `layout`, gives the samples that the user's own copy gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.measure.right_data import Reference, log_like

FOREIGN_SHARE = 0.5
"""Share of samples unknown to the reference from which a beginning counts as other data; whole epochs allow none."""


def why_another_copy(loader: Any, layout: str, reference: Reference, seconds: float) -> str:
    """Why the copy is not the same data, as a sentence; empty where it is, or where that cannot be told.

    Args:
        loader: Built at 0 workers with that layout, and not yet iterated.
        layout: Its name, for the sentence.
        reference: What the user's own copy gave, under the same seed.
        seconds: Time for the look.
    """
    seen, own = log_like(reference, loader, seconds), reference.log
    if own.complete and seen.complete and len(set(reference.totals)) == 1 and seen.samples != own.samples:
        return f"layout {layout!r} is another copy: an epoch has {seen.samples} samples, not {own.samples}{_WAY_OUT}"
    compared = min(len(own.keys), len(seen.keys))
    if not compared or not own.reproducible or own.unit != seen.unit:
        return ""
    foreign = int((~np.isin(seen.keys[:compared], own.keys)).sum())
    whole = own.complete and seen.complete
    if foreign <= (0 if whole else FOREIGN_SHARE * compared):
        return ""
    return f"layout {layout!r} gives other data: {foreign} of {compared} samples are not among those of yours{_WAY_OUT}"


_WAY_OUT = "; convert it again from the same source, and give both the same transform"
