"""What the rates, the bounds and the confidences of a diagnosis are called where people read them."""

from __future__ import annotations

NAMES = {
    "loader": "loader alone",
    "moved": "loader and copy",
    "step": "step alone",
    "combined": "both, as in training",
}
HEADLINES = {
    "input": "The loader holds the training back",
    "compute": "The step sets the pace",
    "transfer": "Copies to the device hold the training back",
    "sync": "The step waits for the device more than it must",
    "balanced": "Loader and step are about equally fast",
    "unknown": "The evidence is too thin for a verdict",
}
SURE = {
    "high": "high: no end of an interval would change it",
    "medium": "medium: other programs, few starts or wide intervals leave some doubt",
    "low": "low: take it as a hint",
}
