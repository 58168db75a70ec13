"""The recommendation in words: what, how much faster, how sure, what it costs, what it was chosen from."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.loaders.settings import LoaderSettings
from workbench.machine import format_bytes
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate, ratio
from workbench.tuning.feasibility import batch_bytes_under
from workbench.tuning.knob_notes import knob_notes, threads_worth_a_try
from workbench.tuning.ranking import EQUAL_WITHIN, counts, has_idle_workers, is_checked
from workbench.tuning.start_methods import start_method_note
from workbench.tuning.trials import surely_slower

if TYPE_CHECKING:
    from workbench.tuning.results import Results

OVERHEAD_BELOW = 0.8  # of the rate without workers: lower still, and workers do harm rather than no good
TAIL_OVER_MEDIAN = 8.0  # a batch this many times the median, in most starts, is the loader's and not the machine's
TAIL_SECONDS = 0.03  # three time slices: shorter delays are a busy machine's own
STARTS_THAT_SHOW_A_TAIL = 2
ALIKE_TAILS = 1.5  # a sample that is slow by itself takes about as long every time; a machine's delays do not
LEAST_BATCHES = 20  # in windows; a rate that rests on fewer is a first impression
EDGE_WORTH_SAYING = 0.01  # share of an epoch that its restart must take
EDGE_SECONDS_WORTH_SAYING = 0.1  # the same where an epoch's length is not known
MOST_NAMED = 4  # settings that a sentence lists before it only counts them

# torch warns by counting cores, which says nothing about a loader that waits; here it was measured instead.
TORCH_WORKER_WARNING = "UserWarning: This DataLoader will create"

_ENDED_EARLY = {
    "budget": "the time budget ended",
    "stopped": "the sweep was stopped",
    "interrupted": "the sweep was interrupted",
    "failed": "the sweep ended with an error",
}


def recommend(results: Results) -> str:
    """The whole recommendation, a paragraph a line; why there is none when nothing counts."""
    if results.best is None:
        return results.reason
    return "\n".join(line for part in _PARTS for line in part(results))


def why_nothing(results: Results) -> str:
    """One sentence on why no settings can be recommended, and what to do."""
    if not results.trials:
        why = _ENDED_EARLY.get(results.ending, "no trial has finished yet")
        return f"Nothing can be recommended: {why} before a trial did; give it more time."
    if any(trial.status == "ok" for trial in results.trials):
        return "Nothing can be recommended: the trials ran but measured no window; give each more measure_seconds."
    kinds = Counter(trial.status for trial in results.trials).most_common()
    told = ", ".join(f"{number} {status}" for status, number in kinds)
    tried = [trial for trial in results.trials if trial.status != "skipped"] or list(results.trials)
    return (
        f"Nothing can be recommended: none of {len(results.trials)} settings could be measured ({told}). "
        f"{tried[0].settings.describe()}: {tried[0].reason}"
    )


def _headline(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    if best.settings == results.current:
        yield f"Keep your current settings, {best.settings.describe()}: {_why_kept(results)}."
    else:
        yield f"Use {best.settings.describe()}."


def _why_kept(results: Results) -> str:
    if len(results.ranking.order) > 1:
        return "nothing tried is faster for certain" if results.ranking.kept_current else "nothing tried is faster"
    ended = _ENDED_EARLY.get(results.ending)
    return "nothing else could be measured" + (f", since {ended}; more time would tell" if ended else "")


def _rate(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    estimate = best.estimate
    assert estimate is not None
    rate = _number(estimate.samples_per_second)
    if estimate.in_run_only:
        yield f"{rate} samples/s in its only start; how far another start may lie from that is not known."
    else:
        count = f"{estimate.starts} start{'' if estimate.starts == 1 else 's'}"
        yield f"{rate} samples/s, 95 % interval {_number(estimate.low)} to {_number(estimate.high)} ({count})."
    for other, name in _compared(results):
        yield _comparison(best, other, name)
    yield from _defaults_predicted(results)


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
            f"PyTorch's defaults, {defaults.describe()}, were not measured; about {_number(rate)} samples/s are "
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


def _comparison(best: TrialResult, other: TrialResult, name: str) -> str:
    assert best.estimate is not None and other.estimate is not None
    times = ratio(best.estimate, other.estimate)
    cost = _memory_difference(best, other)
    single = best.estimate.in_run_only or other.estimate.in_run_only
    span = "single starts" if single else f"95 % interval {times.low:.2f} to {times.high:.2f}"
    if surely_slower(other.estimate, best.estimate) or surely_slower(best.estimate, other.estimate):
        return f"That is {times.value:.2f} times the rate of {name} ({span}){cost}."
    return f"That is about the rate of {name}: {times.value:.2f} times it ({span}){cost}."


def _memory(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    if best.peak_pss_bytes is not None:
        yield (
            f"Peak memory of all its processes: {format_bytes(best.peak_pss_bytes)} (shared pages counted once, "
            "batches in flight included)."
        )
    settings, probe = best.settings, results.probe
    if settings.num_workers and probe is not None:
        each = batch_bytes_under(settings, probe)
        flight = settings.batches_in_flight
        yield (
            f"prefetch_factor counts batches per worker: {settings.num_workers} x {settings.prefetch_factor} = "
            f"{flight} batches in flight of {format_bytes(each)} each, {_megabytes(flight * each)} in all."
        )


def _no_workers(results: Results) -> Iterator[str]:
    """Why 0 workers win, where that was measured and not just all that was left."""
    best = results.ranking.order[0]
    rated = [t for t in results.ranking.order if t.settings.num_workers and not has_idle_workers(t)]
    if best.settings.num_workers:
        return
    if not rated:
        if faulty := [t for t in results.trials if t.settings.num_workers and t.status not in ("ok", "skipped")]:
            yield f"No settings with workers could be rated. {faulty[0].settings.describe()}: {faulty[0].reason}"
        return
    assert best.estimate is not None
    if faster := [t for t in rated if t.estimate and surely_slower(best.estimate, t.estimate)]:
        leader = min(faster, key=lambda trial: trial.settings.num_workers)
        yield (
            f"Within an epoch workers would be faster ({leader.settings.describe()}: "
            f"{_number(leader.samples_per_second or 0.0)} samples/s), but starting them anew with every epoch costs "
            "what they gain; try persistent_workers=True."
        )
    elif not all(trial.estimate and _far_slower(trial.estimate, best.estimate) for trial in rated):
        yield "Worker processes gain nothing certain here, so none are spent."
    elif all(_loses_by_restarts(trial, best, results.probe) for trial in rated):
        yield (
            "Worker processes slow this loader down: its epochs are so short that starting them anew costs more than "
            "they save."
        )
    else:
        yield (
            "Worker processes slow this loader down: its cost is per-item overhead, not I/O, and handing batches "
            "between processes costs more than it saves. What helps is batched fetching: a dataset with "
            "__getitems__, or one that yields whole batches (batch_size=None)."
        )


def _far_slower(rate: RateEstimate, best: RateEstimate) -> bool:
    return surely_slower(rate, best) and rate.samples_per_second < OVERHEAD_BELOW * best.samples_per_second


def _loses_by_restarts(trial: TrialResult, best: TrialResult, probe: Probe | None) -> bool:
    """Whether these settings would not be far behind if epochs followed each other without a restart."""
    samples, edge = probe.epoch_samples if probe else None, trial.epoch_edge_seconds
    if not samples or edge is None or not trial.samples_per_second or all(run.mode != "epochs" for run in trial.runs):
        return False
    seconds = samples / trial.samples_per_second - edge
    return seconds <= 0 or samples / seconds >= OVERHEAD_BELOW * (best.samples_per_second or 0.0)


def _idle_workers(results: Results) -> Iterator[str]:
    """Settings that cannot win since some of their workers have no data."""
    idle = [trial for trial in results.trials if has_idle_workers(trial) and trial.status == "ok"]
    if idle and idle[0] is not results.ranking.order[0]:
        told = [note for note in idle[0].notes if "delivered nothing" in note]
        yield f"{_list(tuple(idle))} cannot win: {told[0] if told else 'some of their workers have no data'}."


def _ties(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    looked_at = tuple(trial for trial in results.ranking.tied if not is_checked(trial))
    tied = tuple(trial for trial in results.ranking.tied if is_checked(trial))
    if results.ranking.kept_current:
        tied, looked_at = results.ranking.tied, ()
        why = "kept because a change gains nothing certain"
    elif tied and best.settings.num_workers < min(trial.settings.num_workers for trial in tied):
        why = "chosen for fewer workers"
    else:
        why = "chosen for fewer workers, or with as many for less memory, a smaller prefetch or a shorter epoch restart"
    if tied:
        yield f"Tied with it (within {EQUAL_WITHIN:.0%} or not to be told apart): {_list(tied)}; it was {why}."
    if looked_at:
        yield f"May be as good, but had only a short first look: {_list(looked_at)}; more time would check that."


def _unsettled(results: Results) -> Iterator[str]:
    if results.ranking.unsettled:
        yield f"Not settled, may still be faster: {_list(results.ranking.unsettled)}; more time would tell."
    waiting = [t for t in results.trials if t.status == "skipped" and t.reason.startswith("not run")]
    if results.ending in _ENDED_EARLY:
        rest = f"; {len(waiting)} of the settings got no turn" if waiting else ""
        yield f"Not everything was settled: {_ENDED_EARLY[results.ending]} first{rest}."


def _faults(results: Results) -> Iterator[str]:
    bad = [t for t in results.trials if not counts(t) and not t.reason.startswith("not run")]
    if bad:
        kinds = Counter(trial.status for trial in bad).most_common()
        told = ", ".join(f"{number} {status}" for status, number in kinds)
        yield f"Left out: {told}. {bad[0].settings.describe()}: {bad[0].reason}"


def _head_of_line(results: Results) -> Iterator[str]:
    """Slow batches that hold up ready ones; seen without workers, where batches do not arrive in bursts."""
    alone = next((trial for trial in results.trials if trial.settings.num_workers == 0 and counts(trial)), None)
    if alone is None or len(alone.runs) < STARTS_THAT_SHOW_A_TAIL:
        return
    middle, late = alone.batch_seconds_p50, alone.batch_seconds_p95
    longest = _tail_seconds(alone, middle or 0.0)
    if middle and late and longest is not None:
        yield (
            f"Some batches take far longer than the rest (without workers: median {_milliseconds(middle)}, 95th "
            f"percentile {_milliseconds(late)}, longest {_milliseconds(longest)}) and hold up ready ones behind them "
            "(head of line). A larger prefetch_factor evens that out and is worth a try before more workers; "
            "in_order=False lets ready batches pass, but the order of batches then changes from run to run and a run "
            "cannot be resumed exactly."
        )


def _tail_seconds(alone: TrialResult, middle: float) -> float | None:
    """What a slow batch takes, where it is the loader's: seen in most starts, or alike in those that saw one."""
    limit = max(TAIL_SECONDS, TAIL_OVER_MEDIAN * middle)
    tails = sorted(run.batch_seconds_max for run in alone.runs if (run.batch_seconds_max or 0.0) >= limit)
    alike = len(tails) >= STARTS_THAT_SHOW_A_TAIL and tails[-1] <= ALIKE_TAILS * tails[0]
    return statistics.median_low(tails) if alike or 2 * len(tails) > len(alone.runs) else None


def _binding(results: Results) -> Iterator[str]:
    from workbench.tuning.advice import binding_words

    yield from binding_words(results)


def _epoch_restarts(results: Results) -> Iterator[str]:
    """What the start of every epoch costs with workers that are kept and with new ones, where it matters."""
    best = results.ranking.order[0]
    twin = results.trial(best.settings.replaced(persistent_workers=not best.settings.persistent_workers))
    other = twin.epoch_edge_seconds if twin and twin is not best and counts(twin) else None
    edge = best.epoch_edge_seconds
    if not best.settings.num_workers or edge is None or not _matters(max(edge, other or 0.0), best, results.probe):
        return
    if best.settings.persistent_workers:
        paid = f"; new workers would wait {_seconds(other)} there" if other is not None else ""
        yield f"Workers are kept: every epoch after the first begins with {_seconds(edge)} of waiting{paid}."
    elif twin is not None and twin.status == "wrong_data":
        yield f"Every epoch begins with {_seconds(edge)} of waiting for new workers; keeping them spoils the data here."
    else:
        kept = "would spare most of it" if other is None else f"makes it {_seconds(other)} after the first epoch"
        yield f"Every epoch begins with {_seconds(edge)} of waiting for new workers; persistent_workers=True {kept}."


def _matters(edge_seconds: float, best: TrialResult, probe: Probe | None) -> bool:
    samples = probe.epoch_samples if probe else None
    if not samples or not best.samples_per_second:
        return edge_seconds >= EDGE_SECONDS_WORTH_SAYING
    return edge_seconds >= EDGE_WORTH_SAYING * samples / best.samples_per_second


def _conditions(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    batches = sum(window.batches for run in best.runs for window in run.windows)
    if batches < LEAST_BATCHES:
        yield f"Too few batches to rest on: only {batches} were timed; give each run more measure_seconds."
    if not is_checked(best):
        yield (
            "It only had a short first look: whether it delivers the right data, and whether its memory grows, was not "
            "checked; resume the sweep to have that done."
        )
    yield from knob_notes(best.settings)
    if note := threads_worth_a_try(results.trials):
        yield note
    if note := start_method_note(best.settings, best, results.probe):
        yield note
    if any(run.mode == "epochs" for run in best.runs):
        yield "Epochs are so short that whole epochs were measured: the rate contains the restart of each epoch."
    if not best.settings.in_order:
        yield "in_order=False changes the order of batches from run to run, and a run cannot be resumed exactly."
    if best.settings.batch_size not in (None, results.current.batch_size if results.current else None):
        yield f"batch_size={best.settings.batch_size} changes the training itself, not just its speed."
    if all(run.cold for run in best.runs):
        yield "It was measured only once, on files that may not have been in memory yet."
    if any(run.noisy for run in best.runs):
        yield "Other programs used the cores meanwhile: expect other numbers on a quiet machine."
    if results.options.get("step"):
        yield "Measured at the pace of your step: where the step sets the pace, more workers cannot help."
    notes = (*results.notes, *(results.probe.notes if results.probe else ()), *best.notes)
    yield from (note for note in dict.fromkeys(notes) if not note.startswith(TORCH_WORKER_WARNING))
    yield "Measured on this loader and this machine; measure again when data, transforms, batch size or machine change."


_PARTS = (
    _headline,
    _rate,
    _memory,
    _no_workers,
    _idle_workers,
    _binding,
    _ties,
    _unsettled,
    _epoch_restarts,
    _head_of_line,
    _faults,
    _conditions,
)


def _memory_difference(best: TrialResult, other: TrialResult) -> str:
    if best.peak_pss_bytes is None or other.peak_pss_bytes is None:
        return ""
    difference = best.peak_pss_bytes - other.peak_pss_bytes
    return f", for {format_bytes(abs(difference))} {'more' if difference >= 0 else 'less'} memory"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _seconds(seconds: float) -> str:
    return _milliseconds(seconds) if seconds < 0.1 else f"{seconds:.2g} s"


def _megabytes(size: int) -> str:
    return "under 0.1 MB" if size < 100_000 else f"{size / 1e6:,.3g} MB"


def _list(trials: tuple[TrialResult, ...]) -> str:
    named = "; ".join(
        f"{trial.settings.describe()} at {_number(trial.samples_per_second or 0)}/s" for trial in trials[:MOST_NAMED]
    )
    return named + (f"; and {len(trials) - MOST_NAMED} more" if len(trials) > MOST_NAMED else "")


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
