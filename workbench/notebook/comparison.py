"""What changed between two sweeps: their common settings rate by rate, what was recommended, and whether it is fair."""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape

from workbench import machine
from workbench.loaders.settings import LoaderSettings
from workbench.measure.statistics import RateEstimate, Ratio, ratio
from workbench.notebook import formatting
from workbench.notebook.tables import settings_html
from workbench.tuning.ranking import counts
from workbench.tuning.results import Results
from workbench.tuning.trials import surely_slower

MOST_ROWS = 12
ALIKE, FASTER, SLOWER = "cannot be told apart", "faster", "slower"
CONDITIONS = ("measure_seconds", "step", "samples_per_batch", "memory_limit_bytes")  # options that shape the numbers


@dataclass(frozen=True)
class Changed:
    """One settings that both sweeps measured.

    Attributes:
        settings: The knobs.
        before: Its rate in the earlier sweep.
        now: Its rate in this one.
        verdict: `FASTER` or `SLOWER` where that is certain at 95 %, else `ALIKE`.
    """

    settings: LoaderSettings
    before: RateEstimate
    now: RateEstimate
    verdict: str

    @property
    def ratio(self) -> Ratio:
        """The rate now over the rate before, with its 95 % interval."""
        return ratio(self.now, self.before)


@dataclass(frozen=True)
class Comparison:
    """Two sweeps side by side.

    Attributes:
        name: Name of the earlier sweep.
        created: When it began, in seconds since the epoch.
        conditions: What else differs between the two, so that a difference need not come from the settings.
        both: Settings that both measured, the largest change first.
        only_before: How many settings only the earlier one measured.
        only_now: How many only this one measured.
        best_before: What the earlier one recommends.
        best_now: What this one recommends.
    """

    name: str
    created: float
    conditions: tuple[str, ...]
    both: tuple[Changed, ...]
    only_before: int
    only_now: int
    best_before: LoaderSettings | None
    best_now: LoaderSettings | None


def compare(now: Results, before: Results) -> Comparison:
    """What changed from the sweep `before` to the sweep `now`."""
    rated_now, rated_before = _rated(now), _rated(before)
    both = [
        Changed(settings, rated_before[settings], rate, _verdict(rated_before[settings], rate))
        for settings, rate in rated_now.items()
        if settings in rated_before
    ]
    return Comparison(
        before.name,
        before.created,
        _conditions(now, before),
        tuple(sorted(both, key=lambda one: max(one.ratio.value, 1 / one.ratio.value), reverse=True)),
        len(rated_before) - len(both),
        len(rated_now) - len(both),
        before.best,
        now.best,
    )


def sentences(found: Comparison) -> tuple[str, ...]:
    """The comparison in words: how far it is fair, what got faster or slower, what is recommended now."""
    told = []
    if found.conditions:
        told.append(
            f"Not only the settings differ: {'; '.join(found.conditions)}. A change below may come from that alone."
        )
    told.append(_counted(found))
    told += _recommended(found)
    told += [
        f"{formatting.count(amount, 'settings', 'settings')} measured only {when}."
        for amount, when in ((found.only_now, "in this sweep"), (found.only_before, "in the earlier one"))
        if amount
    ]
    return tuple(told)


def comparison_html(found: Comparison) -> str:
    """Words and table of a comparison."""
    head = f"Since sweep {escape(found.name)} of {when(found.created)}"
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(found))
    box = f'<div class="wb-verdict"><strong>{head}</strong>{words}</div>'
    return box + (f'<div class="wb-scroll" tabindex="0" role="region" aria-label="Changes">{_table(found)}</div>')


def when(created: float) -> str:
    """A moment as people write it, in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(created))


def _rated(results: Results) -> dict[LoaderSettings, RateEstimate]:
    return {trial.settings: trial.estimate for trial in results.trials if counts(trial) and trial.estimate is not None}


def _verdict(before: RateEstimate, now: RateEstimate) -> str:
    return FASTER if surely_slower(before, now) else SLOWER if surely_slower(now, before) else ALIKE


def _conditions(now: Results, before: Results) -> tuple[str, ...]:
    differences = machine.fingerprint_differences(before.machine, now.machine)
    if before.source and now.source and now.source != before.source:
        differences.append(f"the loader was {before.source!r}, is {now.source!r}")
    for name in ("epoch_samples", "samples_per_batch", "batch_structure"):
        old, new = getattr(before.probe, name, None), getattr(now.probe, name, None)
        if old is not None and new is not None and old != new:
            differences.append(f"{name.replace('_', ' ')} was {old}, is {new}")
    for name in CONDITIONS:
        old, new = before.options.get(name), now.options.get(name)
        if old != new and before.options and now.options:
            told = name.removesuffix("_bytes").replace("_", " ")
            differences.append(f"{told} was {_option(name, old)}, is {_option(name, new)}")
    return tuple(differences)


def _option(name: str, value: object) -> str:
    if not value:
        return "none"
    return machine.format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)


def _counted(found: Comparison) -> str:
    total = len(found.both)
    if not total:
        return "No settings was measured in both sweeps, so there is nothing to compare rate by rate."
    parts = []
    for verdict in (FASTER, SLOWER):
        changed = [one for one in found.both if one.verdict == verdict]
        if changed:
            most = changed[0]
            told = f"{len(changed)} {'is' if len(changed) == 1 else 'are'} {verdict} for certain"
            parts.append(f"{told}, most of all {most.settings.describe()} ({_ratio(most)})")
    alike = sum(one.verdict == ALIKE for one in found.both)
    parts += [f"{alike} cannot be told apart from before"] if alike else []
    return f"Of {formatting.count(total, 'settings', 'settings')} measured in both, {'; '.join(parts)}."


def _recommended(found: Comparison) -> list[str]:
    old, new = found.best_before, found.best_now
    if old is None or new is None:
        return [
            f"{'This' if new is None else 'The earlier'} sweep recommends nothing."
            if old or new
            else "Neither sweep recommends anything."
        ]
    if old == new:
        return [f"Both recommend {new.describe()}."]
    return [f"Recommended was {old.describe()}, and is {new.describe()} now."]


def _ratio(one: Changed) -> str:
    found = one.ratio
    ends = f", 95 %: {found.low:.2f} to {found.high:.2f}" if found.low > 0 else ""
    return f"{formatting.times(found.value)} the rate{ends}"


def _table(found: Comparison) -> str:
    rows = "".join(_row(one) for one in found.both[:MOST_ROWS])
    if len(found.both) > MOST_ROWS:
        rows += f'<tr><td colspan="5">and {len(found.both) - MOST_ROWS} more, changed less</td></tr>'
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("settings", "before", "now", "now / before", ""))
    caption = "Samples/s of settings that both sweeps measured, ± 95 %; the largest change first."
    return (
        f'<table class="wb-table"><caption>{caption}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        if found.both
        else ""
    )


def _row(one: Changed) -> str:
    ends = f" ({one.ratio.low:.2f} to {one.ratio.high:.2f})" if one.ratio.low > 0 else ""
    looks = {FASTER: "wb-faster", SLOWER: "wb-slower", ALIKE: "wb-part"}[one.verdict]
    cells = (_rate(one.before), _rate(one.now), f"{one.ratio.value:.2f}{ends}")
    return (
        f'<tr><th scope="row">{settings_html(one.settings)}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f'<td><span class="{looks}">{one.verdict}</span></td></tr>'
    )


def _rate(estimate: RateEstimate) -> str:
    return formatting.rate(estimate.samples_per_second, estimate.low, estimate.high, "").replace("  ", " ").strip()
