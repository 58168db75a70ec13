"""Two diagnoses side by side: what was changed between them, and what that did to verdict and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.notebook import formatting
from workbench.notebook.verdict_words import HEADLINES, NAMES

ALIKE, FASTER, SLOWER = "cannot be told apart", "faster", "slower"


@dataclass(frozen=True)
class RateChange:
    """One rate before and now.

    Attributes:
        name: One of `verdict_words.NAMES`.
        before: Samples per second in the earlier diagnosis.
        now: Samples per second in this one.
        low: Lower end of the 95 % interval of now over before.
        high: Upper end of it; infinite where one of the two has no interval.
    """

    name: str
    before: float
    now: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """The rate now over the rate before."""
        return self.now / self.before

    @property
    def verdict(self) -> str:
        """`FASTER` or `SLOWER` where the interval leaves no doubt, else `ALIKE`."""
        return FASTER if self.low > 1 else SLOWER if self.high < 1 else ALIKE


def rate_changes(now: Any, before: Any) -> tuple[RateChange, ...]:
    """Every rate that both diagnoses know."""
    return tuple(found for name in NAMES if (found := _change(name, now, before)) is not None)


def knobs_changed(now: LoaderSettings, before: LoaderSettings) -> tuple[str, ...]:
    """The knobs that differ, as "num_workers: 0, now 2"."""
    pairs = ((knob, getattr(before, knob), getattr(now, knob)) for knob in KNOBS)
    return tuple(
        f"{knob}: {formatting.value_label(old)}, now {formatting.value_label(new)}"
        for knob, old, new in pairs
        if old != new
    )


def sentences(now: Any, before: Any) -> tuple[str, ...]:
    """The comparison in words: what was changed, what became of the verdict, and of the loop's speed."""
    knobs = knobs_changed(now.settings, before.settings)
    told = [f"Changed: {'; '.join(knobs)}." if knobs else "The settings are the same; what changed is the code."]
    old, new = _named(before), _named(now)
    told.append(f"The verdict is the same: {new}." if old == new else f"It was: {old}. It is: {new}.")
    loop = next((change for change in rate_changes(now, before) if change.name == "combined"), None)
    if loop is not None and loop.verdict == ALIKE:
        told.append(f"The speed of the loop {ALIKE} from before{_ends(loop)}.")
    elif loop is not None:
        told.append(f"The loop runs at {formatting.times(loop.ratio)} its speed before{_ends(loop)}.")
    return tuple(told)


def changes_html(now: Any, before: Any) -> str:
    """Words and table of the comparison."""
    head, *words = sentences(now, before)
    box = "".join(f"<p>{escape(sentence)}</p>" for sentence in words)
    rows = "".join(_row(change) for change in rate_changes(now, before))
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("", "before", "now", "now / before", ""))
    return (
        f'<h3>Before and after</h3><div class="wb-verdict"><strong>{escape(head)}</strong>{box}</div>'
        '<div class="wb-scroll" tabindex="0" role="region" aria-label="Before and after">'
        '<table class="wb-table wb-changes"><caption>Samples/s, and 95 % interval of their ratio</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _change(name: str, now: Any, before: Any) -> RateChange | None:
    new, old = (getattr(found, f"{name}_samples_per_second") for found in (now, before))
    if not new or not old:
        return None
    reach = math.hypot(_log_reach(now, name, new), _log_reach(before, name, old))
    high = new / old * math.exp(reach) if reach < 700 else math.inf
    return RateChange(name, old, new, new / old * math.exp(-reach), high)


def _log_reach(found: Any, name: str, rate: float) -> float:
    """Longer arm of the rate's interval on a logarithmic scale; independent errors then add in squares."""
    low, high = found.intervals.get(name, (0.0, math.inf))
    if low <= 0 or not math.isfinite(high):
        return math.inf
    return max(math.log(high / rate), math.log(rate / low))


def _named(found: Any) -> str:
    return HEADLINES.get(found.bound, found.bound).lower() + (f" ({found.cause})" if found.cause else "")


def _ends(change: RateChange) -> str:
    return f" (95 %: {change.low:.2f} to {change.high:.2f})" if math.isfinite(change.high) else ""


def _row(change: RateChange) -> str:
    looks = {FASTER: "wb-faster", SLOWER: "wb-slower", ALIKE: "wb-part"}[change.verdict]
    cells = (formatting.number(change.before), formatting.number(change.now), f"{change.ratio:.2f}{_ends(change)}")
    return (
        f'<tr><th scope="row">{NAMES[change.name]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f'<td><span class="{looks}">{change.verdict}</span></td></tr>'
    )
