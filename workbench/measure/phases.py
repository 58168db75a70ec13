"""What goes on before the first number, in words: the phases that sweeps and diagnoses report until the probe ended."""

from __future__ import annotations

PROBE_WORDS = {
    "starting": "starting the process that runs trials",
    "probing": "importing torch and the loader in a process of its own, and building it",
    "first batch": "reading a few batches with 0 workers to learn sizes and times",
    "epoch length": "reading on with 0 workers to see how long an epoch is",
    "reference": "reading some batches again, to compare every trial's data with",
}
