"""What bounds a training loop: rules from measured rates to a verdict. Pure functions, no clock and no process.

The rule of the method (measure the loader alone, the step alone on batches at hand, and both together):

    loader slower than step            input: every gain of the loader is a gain of training
    loader faster than step            compute: leave the loader alone
    step faster without its waits      sync: the host waits inside the step for a device that it could run ahead of
    loader fast, moved batches slow    transfer: the copy to the device holds the loop back
    both fast, together slow           transfer where copies explain what is lost, else the step and the workers take
                                       something from each other
    within `SAME_FRACTION`             balanced
    evidence thin or contradictory     unknown
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.measure.statistics import RateEstimate, Ratio, ratio

BOUNDS = ("input", "compute", "transfer", "sync", "balanced", "unknown")
CONFIDENCES = ("high", "medium", "low")
SAME_FRACTION = 0.10
"""Loader and step within 10 % of each other: neither bounds the other. The lab's answers use the same border."""
SYNC_GAIN = 1.10
"""A step that would be this much faster if it did not wait is bound by its waits; the lab's border again."""
NOTHING_LEFT = 0.10
"""After a step that synchronises, less than this share of its time is left for the device to do."""
LOST_TOGETHER = 0.15
"""Share of the better rate that must be lost, for sure, before step and loader are said to disturb each other: above
the 2 to 6 % by which rates of one loader differ between starts (`statistics.py`)."""
WAITS = 0.15
"""Share of the loop's time in `next()` above which the loop counts as waiting for input."""
COPIES_EXPLAIN = 0.5
"""Of what the loop loses against the slower of loader and step, copies must take this share to be the reason."""
THIN = 0.35
"""Relative half-width of the ratio of loader to step above which nothing is claimed about their order."""
VAGUE = 2.0
"""Upper over lower end of the headroom's interval above which no verdict is called highly confident: the side may be
settled, but whoever reads "high" takes the number beside it for known."""

MOSTLY_TAKEN, MOST_TAKEN = 0.5, 0.9
"""Shares of the cores that other programs used: above the first a rate says more about them than about this loader (one
was read at a twentieth of its rate beside them); above the second nothing is left to reckon with."""


@dataclass(frozen=True)
class SyncLook:
    """One step on an idle device, as the host sees it. Medians over a few.

    Attributes:
        host_seconds: Until the step returns.
        host_cpu_seconds: CPU of the host's thread in that time, and time in which it had no core.
        left_seconds: Until the device has finished after that.
        wait_fraction: Share of the step in synchronising calls as a profiler's trace tells it; None without a trace.
    """

    host_seconds: float
    host_cpu_seconds: float
    left_seconds: float
    wait_fraction: float | None = None

    @property
    def gain(self) -> float:
        """How many times faster the step might be if the host went on instead of waiting; 1 when it does not wait."""
        whole = self.host_seconds + self.left_seconds
        if whole <= 0 or self.left_seconds > NOTHING_LEFT * whole:
            return 1.0
        waited = max(0.0, self.host_seconds - self.host_cpu_seconds)
        if self.wait_fraction is not None:
            waited = self.wait_fraction * self.host_seconds
        return self.host_seconds / max(waited, self.host_seconds - waited)


@dataclass(frozen=True)
class CopyLook:
    """Copying one batch to an idle device. Medians over a few.

    Attributes:
        host_seconds: Until the host may go on.
        seconds: Until the batch is there.
    """

    host_seconds: float
    seconds: float

    @property
    def keeps_host(self) -> bool:
        """Whether the host stands still for most of the copy, as it does for pageable memory."""
        return self.host_seconds > self.seconds / 2


@dataclass(frozen=True)
class Rates:
    """What the rules go by.

    Attributes:
        loader: The loader alone.
        step: The step alone, on batches at hand.
        combined: Both.
        moved: The loader and the copy to the device; None where nothing is copied.
        input_wait_fraction: Share of the combined loop spent in `next()`.
        num_workers: Of the loader.
        step_slowdown: Seconds of a step in the loop over those alone.
        sync: One step on an idle device; None where there is no device to wait for.
        foreign_share: Cores that other programs used meanwhile over all usable ones; None when not known.
        copy: Copying one batch to an idle device; None where nothing is copied.
        lost_seconds: Time a batch takes in the loop beyond that of the slower of loader and step.
        transfer_seconds: Time for which a copy kept the host in the loop, a batch.
    """

    loader: RateEstimate
    step: RateEstimate
    combined: RateEstimate
    moved: RateEstimate | None
    input_wait_fraction: float
    num_workers: int
    step_slowdown: float = 1.0
    sync: SyncLook | None = None
    foreign_share: float | None = None
    copy: CopyLook | None = None
    lost_seconds: float = 0.0
    transfer_seconds: float = 0.0

    @property
    def headroom(self) -> Ratio:
        """Step alone over combined: what perfect loading would give at most."""
        return ratio(self.step, self.combined)

    @property
    def doubt(self) -> float:
        """Factor by which other programs may have shifted one rate against another: what they used was taken from one
        of them, and nothing from the other."""
        return 1.0 / (1.0 - min(self.foreign_share or 0.0, MOST_TAKEN))


@dataclass(frozen=True)
class Bound:
    """A verdict without its sub-cause.

    Attributes:
        bound: One of `BOUNDS`.
        confidence: One of `CONFIDENCES`.
        why: The rule that decided, in words.
        disturbed: Whether step and workers hold each other up: alone each is faster.
    """

    bound: str
    confidence: str
    why: str
    disturbed: bool = False


def judge(rates: Rates) -> Bound:
    """The verdict that the rates support, never with high confidence beside numbers that are hardly known, and with
    none to speak of where other programs had most of the cores."""
    found = _judged(rates)
    if (rates.foreign_share or 0.0) > MOSTLY_TAKEN:
        return replace(found, confidence="low")
    return replace(found, confidence="medium") if found.confidence == "high" and _is_vague(rates) else found


def _judged(rates: Rates) -> Bound:
    feed = rates.moved or rates.loader
    found = ratio(feed, rates.step)
    if found.high * (1 - THIN) > found.low * (1 + THIN) and len(_sides(found)) > 1:
        return Bound("unknown", "low", _thin(found))
    bound, why = _order(rates, found)
    disturbed = _disturbed(rates)
    lost = _least_lost(rates)
    if lost > LOST_TOGETHER and _copies_explain(rates):
        why = "loader and step are both faster than the loop, and copies to the device take most of what is lost"
        sure = 1 - lost < (1 - LOST_TOGETHER) / rates.doubt
        return Bound("transfer", "high" if sure and _repeated(rates) else "medium", why)
    if disturbed and bound in ("compute", "balanced", "sync") and rates.input_wait_fraction > WAITS:
        why = "each is fast enough alone, and together the loop waits for batches"
        return Bound("input", _confidence(rates, found, certain=False), why, disturbed=True)
    if disturbed and bound in ("input", "balanced") and _mostly_disturbed(rates, found):
        why = "together they are slower than either alone, by more than one of them is slower than the other"
        waits = rates.input_wait_fraction > WAITS
        return Bound("input" if waits else "compute", "medium" if _repeated(rates) else "low", why, disturbed=True)
    if contradiction := _contradiction(rates, bound):
        return Bound("unknown", "low", contradiction)
    return Bound(
        bound,
        _confidence(rates, found, certain=not _doubtful_sync(rates, bound)),
        why,
        disturbed and bound == "compute",
    )


def side(loader_over_step: float) -> str:
    """ "input", "balanced" or "compute" for a ratio of rates."""
    if loader_over_step * (1 + SAME_FRACTION) < 1:
        return "input"
    return "balanced" if loader_over_step * (1 - SAME_FRACTION) <= 1 else "compute"


def _is_vague(rates: Rates) -> bool:
    """Whether an interval reaches 0, or the headroom may be one number or twice as much."""
    headroom = rates.headroom
    return min(rates.loader.low, rates.step.low, rates.combined.low) <= 0 or headroom.high > VAGUE * headroom.low


def _order(rates: Rates, found: Ratio) -> tuple[str, str]:
    bound = "balanced" if found.low <= 1 <= found.high else side(found.value)
    if bound == "input" and rates.moved is not None and side(ratio(rates.loader, rates.step).value) != "input":
        return "transfer", "the loader alone keeps up with the step, and does not once batches are copied to the device"
    if bound == "input":
        return "input", "the loader alone is slower than the step alone"
    if bound == "balanced":
        return (
            "balanced",
            f"the loader's rate is {found.low:.2f} to {found.high:.2f} times the step's: neither is clearly slower",
        )
    if rates.sync is not None and rates.sync.gain > SYNC_GAIN:
        return "sync", "the host waits inside the step for the device, which then has nothing to do while it prepares"
    return "compute", "the loader alone is faster than the step alone"


def _disturbed(rates: Rates) -> bool:
    """With workers the loop should run at the lower of both rates; a loss beyond what others explain disturbs."""
    if not rates.num_workers:
        return False
    return _lost_together(rates).low > rates.doubt / (1 - LOST_TOGETHER)


def _mostly_disturbed(rates: Rates, feed_over_step: Ratio) -> bool:
    """Whether the loop loses more by running both than the loader loses against the step."""
    return _lost_together(rates).value > 1 / feed_over_step.value


def _lost_together(rates: Rates) -> Ratio:
    """The slower of loader, copies included, and step over both together."""
    slower = min(rates.moved or rates.loader, rates.step, key=lambda rate: rate.samples_per_second)
    return ratio(slower, rates.combined)


def _least_lost(rates: Rates) -> float:
    """Share of the rate of the slower of loader and step that the loop loses at least, 0 to 1, by the intervals."""
    slower = min(rates.loader, rates.step, key=lambda rate: rate.samples_per_second)
    return max(0.0, 1 - 1 / ratio(slower, rates.combined).low)


def _copies_explain(rates: Rates) -> bool:
    """Whether what the loop loses goes to copies: by their length, or by the time for which they keep the host, which
    includes waiting for what the device was given before. Without workers loading in turn loses as much."""
    if rates.copy is None or not rates.num_workers:
        return False
    return max(rates.copy.seconds, rates.transfer_seconds) > COPIES_EXPLAIN * rates.lost_seconds


def _contradiction(rates: Rates, bound: str) -> str:
    """Why the combined run speaks against the verdict, or ""."""
    waits, headroom = rates.input_wait_fraction, rates.headroom
    if bound in ("input", "transfer") and headroom.high < 1 + SAME_FRACTION / 2:
        return (
            f"the loader alone is slower than the step, yet the loop runs as fast as the step alone "
            f"(headroom at most {headroom.high:.2f}x)"
        )
    if bound == "compute" and rates.num_workers and waits > 0.5 and headroom.low > 1 + 2 * SAME_FRACTION:
        return f"the loader alone is faster than the step, yet the loop spends {waits:.0%} of its time in next()"
    return ""


def _confidence(rates: Rates, found: Ratio, *, certain: bool) -> str:
    """High when no end of the interval, shifted by what other programs may have done, changes the side."""
    settled = len(_sides(found)) == 1
    shifted = len({side(found.low / rates.doubt), side(found.high * rates.doubt)}) == 1
    if not settled:
        return "low"
    return "high" if shifted and certain and _repeated(rates) else "medium"


def _repeated(rates: Rates) -> bool:
    return min(rates.loader.starts, rates.step.starts, rates.combined.starts) >= 2


def _sides(found: Ratio) -> set[str]:
    return {side(found.low), side(found.high), side(found.value)}


def _doubtful_sync(rates: Rates, bound: str) -> bool:
    """Whether "compute" and "sync" lie within 10 % of the border between them."""
    return (
        bound in ("compute", "sync")
        and rates.sync is not None
        and abs(rates.sync.gain / SYNC_GAIN - 1) < 0.1 * (rates.sync.gain > 1)
    )


def _thin(found: Ratio) -> str:
    return (
        f"the loader's rate is {found.low:.2f} to {found.high:.2f} times the step's: too wide to say which is slower; "
        "the machine is busy with other things, or the loader's pace changes"
    )
