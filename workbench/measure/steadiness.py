"""Whether the rate changed while one start was measured: a cache that fills, a source that slows down."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.measure.records import Window
from workbench.measure.statistics import is_clean, mean_rate

FEWEST_WINDOWS = 7
"""In quiet windows; fewer say nothing about a trend."""
LEAST_AT_AN_END = 3
"""Windows that are compared at either end, or a third of all where that is more. Windows that only scatter lie as far
apart as is asked for here in less than 1 of 100 starts (simulated, normal, any spread)."""
NOTABLE_CHANGE = 0.15
"""Change from one end to the other from which it is told; drift of an undisturbed machine stays below 5 %."""


def why_not_steady(windows: Sequence[Window], cores: int) -> str:
    """A sentence with both rates when the end of a start was faster or slower than its beginning; else empty.

    The two ends must lie further apart than the windows of either end do among themselves.

    Args:
        windows: Of one start, oldest first.
        cores: Cores that the start could use; windows that other programs disturbed are left out.
    """
    quiet = [window for window in windows if is_clean(window, cores) and window.samples]
    if len(quiet) < max(FEWEST_WINDOWS, len(windows) / 2):
        return ""
    count = max(LEAST_AT_AN_END, len(quiet) // 3)
    before, after = mean_rate(quiet[:count]), mean_rate(quiet[-count:])
    (slowest, fastest), (slowest_later, fastest_later) = _ends(quiet[:count]), _ends(quiet[-count:])
    gap = max(slowest_later - fastest, slowest - fastest_later)
    if gap <= max(fastest - slowest, fastest_later - slowest_later) or abs(after - before) <= NOTABLE_CHANGE * before:
        return ""
    verb = "rose" if after > before else "fell"
    return (
        f"not steady: the rate {verb} from {before:,.0f} to {after:,.0f} samples/s within one start; a cache that "
        "fills or a source that slows down does this, and more time (measure_seconds) shows where it ends"
    )


def _ends(windows: Sequence[Window]) -> tuple[float, float]:
    rates = [window.samples_per_second for window in windows]
    return min(rates), max(rates)
