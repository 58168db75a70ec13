"""The rate of the recommended settings, and how it compares with the user's own and with PyTorch's defaults."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.measure.records import TrialRun
from workbench.measure.result import TrialResult
from workbench.measure.statistics import Ratio, ratio
from workbench.tuning.cautions import number
from workbench.tuning.ranking import MEMORY_NOISE, counts, worths
from workbench.tuning.trials import SURE_LOSS_OF_A_SINGLE_START, surely_slower

if TYPE_CHECKING:
    from workbench.tuning.results import Results

SAME_RATE = 0.1  # rates that lie within this, and are not told apart, are called about the same
EPOCHS_TELL_MORE = 0.02  # by so much must the waits between epochs change a comparison to be said
# Half-width of a ratio's interval, as a share of it, from which the ratio is given as a range: single starts on a busy
# machine lie as far apart, so that a figure in the middle would tell no more than one of them.
WIDE_FROM = SURE_LOSS_OF_A_SINGLE_START
OPEN_BELOW = 0.1  # an interval that begins lower leaves everything open, and only its upper end is told
FEWEST_QUIET_STARTS = 2  # with so many, a rate rests on these alone (`measure.statistics`)


def rate_words(results: Results) -> Iterator[str]:
    """The rate with its interval, and on how many starts that rests."""
    estimate = results.ranking.order[0].estimate
    assert estimate is not None
    rate, high = number(estimate.samples_per_second), number(estimate.high)
    ends = f"{number(estimate.low)} to {high}" if estimate.low > 0 else f"anything up to {high}"
    if estimate.in_run_only:
        yield f"{rate} samples/s in its only start; how far another start may lie from that is not known."
    elif estimate.starts == 1:
        yield (
            f"{rate} samples/s from one start; by the spread seen between starts of other settings, another may give "
            f"{ends} (95 % interval)."
        )
    else:
        yield f"{rate} samples/s, 95 % interval {ends} ({estimate.starts} starts)."


def gain_words(results: Results) -> Iterator[str]:
    """How it compares with what the user has, and with what a DataLoader has by itself, in one line."""
    best = results.ranking.order[0]
    told = [_comparison(best, other, name, results) for other, name in _compared(results)]
    told += [_over_epochs(best, other, results) for other, _ in list(_compared(results))[:1]]
    told = [words for words in told if words]
    if told := [*told, *_defaults_predicted(results)]:
        yield " ".join(told)


def _defaults(results: Results) -> LoaderSettings:
    """PyTorch's own settings for the same batches: what a loader has to which no knob was given."""
    current = results.current or LoaderSettings()
    return LoaderSettings(batch_size=current.batch_size, layout=current.layout)


def _defaults_predicted(results: Results) -> Iterator[str]:
    """The comparison with PyTorch's defaults where no trial of them counts."""
    best, defaults = results.ranking.order[0], _defaults(results)
    plain = results.trial(defaults)
    if best.settings == defaults or (plain and plain.status != "skipped"):
        return
    from workbench.tuning.advice import predicted_rate

    if rate := predicted_rate(results, defaults):
        yield (
            f"PyTorch's defaults, {defaults.describe()}, were not measured; about {number(rate)} samples/s are "
            f"predicted for them, so that this is about {(best.samples_per_second or 0.0) / rate:.2g} times their rate."
        )


def _compared(results: Results) -> Iterator[tuple[TrialResult, str]]:
    best, defaults = results.best, _defaults(results)
    current = results.trial(results.current) if results.current else None
    if current and counts(current) and results.current != best:
        same = " (PyTorch's defaults)" if results.current == defaults else ""
        yield current, f"your current settings{same}, {current.settings.describe()}"
    plain = results.trial(defaults)
    if plain and counts(plain) and defaults not in (best, results.current):
        yield plain, f"PyTorch's defaults, {plain.settings.describe()}"


def _comparison(best: TrialResult, other: TrialResult, name: str, results: Results) -> str:
    assert best.estimate is not None and other.estimate is not None
    times = ratio(best.estimate, other.estimate)
    cost, busy = _memory_difference(best, other), others_meanwhile(results, best, other)
    single = best.estimate.in_run_only or other.estimate.in_run_only or not math.isfinite(times.high)
    sure = surely_slower(other.estimate, best.estimate) or surely_slower(best.estimate, other.estimate)
    if not single and (busy or is_wide(times)):
        return _in_range(times, name, sure, f"95 % interval{busy}") + f"{cost}."
    span = f"single starts{busy}" if single else f"95 % interval {_times(times.low)} to {_times(times.high)}"
    if sure and single:
        return f"It looks {times.value:.2f} times as fast as {name} ({span}){cost}."
    if sure:
        return f"That is {times.value:.2f} times the rate of {name} ({span}){cost}."
    if abs(times.value - 1) <= SAME_RATE:
        return f"That is about the rate of {name}: {times.value:.2f} times ({span}){cost}."
    unsettled = f"which single starts do not settle{busy}" if single else f"which the intervals do not settle ({span})"
    return f"It looks {times.value:.2f} times as fast as {name}, {unsettled}{cost}."


def _in_range(times: Ratio, name: str, sure: bool, how: str) -> str:
    """The comparison where a single figure would claim more than is known."""
    if sure and not times.low <= 1 <= times.high:
        return f"That is {between(times)} the rate of {name} ({how})"
    if sure:
        way = "faster" if times.value > 1 else "slower"
        return (
            f"It looks {way} than {name}, by more than starts of the same settings differ by, but how much is open: "
            f"{between(times)} the rate ({how})"
        )
    if abs(times.value - 1) <= SAME_RATE and not is_wide(times):
        return f"That is about the rate of {name}: {between(times)} ({how})"
    return f"The intervals do not settle how it compares with {name}: it has {between(times)} the rate ({how})"


def is_wide(times: Ratio) -> bool:
    """Whether the interval of a ratio is too wide for a figure in its middle to be stated."""
    return (times.high - times.low) / 2 >= WIDE_FROM * times.value


def between(times: Ratio) -> str:
    """A ratio as the range that its interval is: "between 4.9 and 31 times"."""
    show = _roughly if is_wide(times) else _times
    if times.low < OPEN_BELOW:
        return f"anything up to {show(times.high)} times"
    return f"between {show(times.low)} and {show(times.high)} times"


def others_meanwhile(results: Results, *trials: TrialResult) -> str:
    """What other programs used while these rates were measured: "; other programs used 1.3 of 2 cores meanwhile".

    Empty where the rates rest on quiet starts.
    """
    noisy = [run for trial in trials for run in _noisy_starts(trial)]
    if not noisy:
        return ""
    seen = [window.foreign_cores for run in noisy for window in run.windows if window.foreign_cores is not None]
    here = float(results.machine.get("usable_cores") or 0)
    if not seen or not here:
        return "; other programs used the cores meanwhile"
    return f"; other programs used {statistics.fmean(seen):.2g} of {here:g} cores meanwhile"


def _noisy_starts(trial: TrialResult) -> list[TrialRun]:
    """Starts that other programs disturbed, where the rate could not be told without them."""
    measured = [run for run in trial.runs if run.status == "ok" and run.windows]
    noisy = [run for run in measured if run.noisy]
    return noisy if len(measured) - len(noisy) < FEWEST_QUIET_STARTS else []


def _over_epochs(best: TrialResult, other: TrialResult, results: Results) -> str:
    """The same comparison over whole epochs, where the waits between them change it: these decide the choice."""
    probe = results.probe
    if best.estimate is None or other.estimate is None or not probe or not probe.epoch_samples:
        return ""
    steady = ratio(best.estimate, other.estimate).value
    over_epochs = ratio(*worths([best, other], probe))
    if abs(over_epochs.value / steady - 1) <= EPOCHS_TELL_MORE:
        return ""
    known = math.isfinite(over_epochs.high)
    ranged = known and (is_wide(over_epochs) or bool(others_meanwhile(results, best, other)))
    times = between(over_epochs) if ranged else f"{over_epochs.value:.2f} times"
    return f"Over epochs of {probe.epoch_samples:,} samples, with the wait before each, it is {times}."


def _memory_difference(best: TrialResult, other: TrialResult) -> str:
    if best.peak_pss_bytes is None or other.peak_pss_bytes is None:
        return ""
    difference = best.peak_pss_bytes - other.peak_pss_bytes
    if abs(difference) <= MEMORY_NOISE * other.peak_pss_bytes:
        return ", for about the same memory"
    return f", for {format_bytes(abs(difference))} {'more' if difference > 0 else 'less'} memory"


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _roughly(value: float) -> str:
    """Two figures of a number, or a whole one."""
    return f"{value:.2g}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
