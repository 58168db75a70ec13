"""The recommendation in words: what, how much faster, how sure, what it costs, what it was chosen from."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.machine import format_bytes
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate
from workbench.tuning.cautions import ENDED_EARLY, caution, listed, number, way_out
from workbench.tuning.data_errors import data_error, data_error_words, would_meet_it
from workbench.tuning.feasibility import batch_bytes_under
from workbench.tuning.gains import gain_words, others_meanwhile, rate_words
from workbench.tuning.knob_notes import knob_notes, threads_worth_a_try
from workbench.tuning.ranking import EQUAL_WITHIN, MEMORY_NOISE, counts, has_idle_workers, is_checked, passed_over
from workbench.tuning.start_methods import start_method_note
from workbench.tuning.trials import surely_slower

if TYPE_CHECKING:
    from workbench.tuning.results import Results

OVERHEAD_BELOW = 0.8  # of the rate without workers: lower still, and workers do harm rather than no good
TAIL_OVER_MEDIAN = 8.0  # a batch this many times the median, in most starts, is the loader's and not the machine's
TAIL_SECONDS = 0.03  # three time slices: shorter delays are a busy machine's own
STARTS_THAT_SHOW_A_TAIL = 2
ALIKE_TAILS = 1.5  # a sample that is slow by itself takes about as long every time; a machine's delays do not
EDGE_WORTH_SAYING = 0.01  # share of an epoch that its restart must take
SPARES_HARDLY_ANY = 0.8  # of that restart, which with kept workers is left
EDGE_SECONDS_WORTH_SAYING = 0.1  # the same where an epoch's length is not known
FEWEST_BATCHES_TO_TUNE = 10  # in an epoch: with fewer, starting it is a large part of it, whatever the settings

# torch warns by counting cores, which says nothing about a loader that waits; here it was measured instead.
TORCH_WORKER_WARNING = "UserWarning: This DataLoader will create"


def recommend(results: Results) -> str:
    """The whole recommendation, a paragraph a line; why there is none when nothing counts."""
    if results.best is None:
        return results.reason
    return "\n".join(line for part in _PARTS for line in part(results))


def why_nothing(results: Results) -> str:
    """One sentence on why no settings can be recommended, and what to do."""
    if not results.trials:
        why = ENDED_EARLY.get(results.ending, "no trial has finished yet")
        return f"Nothing can be recommended: {why} before a trial did; give it more time."
    if any(trial.status == "ok" for trial in results.trials):
        return (
            "Nothing can be recommended: the trials ran but measured no window; give each more time (measure_seconds)."
        )
    kinds = Counter(trial.status for trial in results.trials).most_common()
    told = ", ".join(f"{number} {status}" for status, number in kinds)
    tried = [trial for trial in results.trials if trial.status != "skipped"] or list(results.trials)
    return (
        f"Nothing can be recommended: none of {len(results.trials)} settings could be measured ({told}). "
        f"{tried[0].settings.describe()}: {tried[0].reason}"
    )


def _headline(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    if results.ranking.rival is not None:
        yield _undecided(results)
    elif best.settings == results.current:
        yield f"Keep your current settings, {best.settings.describe()}: {_why_kept(results)}."
    else:
        yield f"Use {best.settings.describe()}."


def _undecided(results: Results) -> str:
    rival, times = results.ranking.rival, results.ranking.rival_times
    assert rival is not None and times is not None and results.current is not None
    busy = others_meanwhile(results, rival, results.ranking.order[0])
    span = f" (95 % interval {_times(times.low)} to {_times(times.high)}{busy})"
    if not math.isfinite(times.high):
        sure = f"from single starts, which do not say how far another would lie{busy}"
    elif times.low <= 1:
        sure = f"not for certain{span}"
    elif not is_checked(rival):
        sure = f"from short looks alone, in which its data and its memory are not checked{span}"
    else:
        sure = f"a single start of it does not settle that{span}"
    return (
        f"Undecided so far: {rival.settings.describe()} looks {_times(times.value)} times as fast as your current "
        f"settings, {results.current.describe()}, but {sure}. {_upper(way_out(results))} would settle it; until then "
        "your current settings are kept."
    )


def _why_kept(results: Results) -> str:
    if len(results.ranking.order) > 1:
        return "nothing tried is faster for certain" if results.ranking.kept_current else "nothing tried is faster"
    if not results.ending and len(results.trials) == 1:
        return "nothing else has been measured yet"
    ended, failed = ENDED_EARLY.get(results.ending), data_error(results)
    if failed is not None:
        too = "which they did not come to" if would_meet_it(results, failed) else "which they have not come to so far"
        return f"nothing else got past an error of the data set, {too}"
    return "nothing else could be measured" + (f", since {ended}; more time would tell" if ended else "")


def _too_small(results: Results) -> Iterator[str]:
    """A data set whose epoch is over as soon as it has begun."""
    if not _is_too_small(results.probe):
        return
    batches = results.probe.epoch_batches if results.probe else None
    whole = any(run.mode == "epochs" for run in results.ranking.order[0].runs)
    rates = (
        "the rates are of whole epochs with their restarts, and" if whole else "that is too few for a steady rate, and"
    )
    yield (
        f"An epoch is only {batches} batch{'' if batches == 1 else 'es'}: {rates} the data set is too small to tune "
        "for; sweep with the data that training will read."
    )


def _is_too_small(probe: Probe | None) -> bool:
    batches = probe.epoch_batches if probe else None
    return batches is not None and batches < FEWEST_BATCHES_TO_TUNE


def _passed_over(results: Results) -> Iterator[str]:
    """Why something that beats it in rate, workers and memory is not recommended."""
    found = passed_over(results.ranking, results.probe)
    if found is None or found[1] == "idle":  # told with all others that have no data
        return
    trial, why = found
    name = f"{trial.settings.describe()}, at {number(trial.samples_per_second or 0.0)}/s"
    memory = f" and {format_bytes(trial.peak_pss_bytes)}" if trial.peak_pss_bytes is not None else ""
    if why == "edge":
        edge = f" ({_seconds(trial.epoch_edge_seconds)} an epoch)" if trial.epoch_edge_seconds is not None else ""
        yield f"Not {name}{memory}: what it gains within an epoch it loses by starting the next one{edge}."
    else:
        yield f"Not {name}{memory}: that is from short looks alone, in which data and memory are not checked."


def _memory(results: Results) -> Iterator[str]:
    best, told = results.ranking.order[0], []
    if best.peak_pss_bytes is not None:
        told.append(
            f"Peak memory of all its processes: {format_bytes(best.peak_pss_bytes)} (shared pages counted once, "
            "batches in flight included)."
        )
    settings, probe = best.settings, results.probe
    if settings.num_workers and probe is not None:
        each = batch_bytes_under(settings, probe)
        flight = settings.batches_in_flight
        told.append(
            f"prefetch_factor counts batches per worker: {settings.num_workers} x {settings.prefetch_factor} = "
            f"{flight} batches in flight of {format_bytes(each)} each, {_megabytes(flight * each)} in all."
        )
    if told:
        yield " ".join(told)


def _no_workers(results: Results) -> Iterator[str]:
    """Why 0 workers win, where that was measured and not just all that was left."""
    best = results.ranking.order[0]
    rated = [t for t in results.ranking.order if t.settings.num_workers and not has_idle_workers(t)]
    rival = results.ranking.rival
    if best.settings.num_workers or (rival is not None and rival.settings.num_workers):
        return
    if not rated:
        if data_error(results) is not None:  # told as what it is
            return
        if faulty := [t for t in results.trials if t.settings.num_workers and t.status not in ("ok", "skipped")]:
            yield f"No settings with workers could be rated. {faulty[0].settings.describe()}: {faulty[0].reason}"
        return
    assert best.estimate is not None
    if faster := [t for t in rated if t.estimate and surely_slower(best.estimate, t.estimate)]:
        leader = min(faster, key=lambda trial: trial.settings.num_workers)
        yield (
            f"Within an epoch workers would be faster ({leader.settings.describe()}: "
            f"{number(leader.samples_per_second or 0.0)} samples/s), but starting them anew with every epoch costs "
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
        yield f"{listed(tuple(idle))} cannot win: {told[0] if told else 'some of their workers have no data'}."


def _ties(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    tied = tuple(trial for trial in results.ranking.tied if results.ranking.kept_current or is_checked(trial))
    if results.ranking.kept_current:
        why = "kept because a change gains nothing certain"
    else:
        reasons = " and ".join(_cheaper_by(best, tied))
        why = f"chosen for {reasons or 'the fewest changes, and among those for its rate over whole epochs'}"
    if tied:
        yield f"Tied with it (within {EQUAL_WITHIN:.0%} or not to be told apart): {listed(tied)}; it was {why}."


def _cheaper_by(best: TrialResult, tied: tuple[TrialResult, ...]) -> Iterator[str]:
    """In what the recommended settings are cheaper than some of their equals."""
    if any(trial.settings.num_workers > best.settings.num_workers for trial in tied):
        yield "fewer workers"
    alike = [trial for trial in tied if trial.settings.num_workers == best.settings.num_workers]
    peak = best.peak_pss_bytes
    if peak is not None and any((trial.peak_pss_bytes or 0) > (1 + MEMORY_NOISE) * peak for trial in alike):
        yield "less memory"
    if any((trial.settings.prefetch_factor or 0) > (best.settings.prefetch_factor or 0) for trial in alike):
        yield "a smaller prefetch"


def _data_error(results: Results) -> Iterator[str]:
    """An error of the data, which the recommended settings may not have come to."""
    if (failed := data_error(results)) is not None:
        yield data_error_words(results, failed)


def _faults(results: Results) -> Iterator[str]:
    bad = [t for t in results.trials if not counts(t) and not t.reason.startswith("not run")]
    if bad:
        kinds = Counter(trial.status for trial in bad).most_common()
        told = ", ".join(f"{number} {status}" for status, number in kinds)
        failed = data_error(results)
        example = "" if failed and bad[0].reason == failed.reason else f" {bad[0].settings.describe()}: {bad[0].reason}"
        yield f"Left out: {told}.{example}"


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
    from workbench.tuning.binding import binding_words

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
    elif other is not None:
        kept = f"makes it {_seconds(other)} after the first epoch"
        kept = "spares hardly any of it" if other > SPARES_HARDLY_ANY * edge else kept
        yield f"Every epoch begins with {_seconds(edge)} of waiting for new workers; persistent_workers=True {kept}."
    else:
        paced = results.probe.batch_seconds if results.probe and results.options.get("step") else None
        loading = paced or best.settings.num_workers / (best.batches_per_second or math.inf)
        yield f"Every epoch begins with {_seconds(edge)} of waiting for new workers" + (
            f" and their first batch, which takes one of them about {_seconds(loading)}; persistent_workers=True, not "
            "measured, spares at most the rest."
            if loading < SPARES_HARDLY_ANY * edge
            else ", most of it for their first batch, which persistent_workers=True does not spare."
        )


def _matters(edge_seconds: float, best: TrialResult, probe: Probe | None) -> bool:
    samples = probe.epoch_samples if probe else None
    if not samples or not best.samples_per_second:
        return edge_seconds >= EDGE_SECONDS_WORTH_SAYING
    return edge_seconds >= EDGE_WORTH_SAYING * samples / best.samples_per_second


def _conditions(results: Results) -> Iterator[str]:
    best = results.ranking.order[0]
    yield from knob_notes(best.settings)
    if note := threads_worth_a_try(results.trials):
        yield note
    if note := start_method_note(best.settings, best, results.probe):
        yield note
    if any(run.mode == "epochs" for run in best.runs) and not _is_too_small(results.probe):
        yield "Epochs are so short that whole epochs were measured: the rate contains the restart of each epoch."
    if not best.settings.in_order:
        yield "in_order=False changes the order of batches from run to run, and a run cannot be resumed exactly."
    if best.settings.batch_size not in (None, results.current.batch_size if results.current else None):
        yield f"batch_size={best.settings.batch_size} changes the training itself, not just its speed."
    if results.options.get("step"):
        yield "Measured at the pace of your step: where the step sets the pace, more workers cannot help."
    notes = (*results.notes, *(results.probe.notes if results.probe else ()), *best.notes)
    yield from (note for note in dict.fromkeys(notes) if not note.startswith(TORCH_WORKER_WARNING))


_PARTS = (
    _headline,
    _too_small,
    rate_words,
    gain_words,
    _memory,
    _data_error,
    _no_workers,
    _idle_workers,
    _binding,
    _ties,
    _passed_over,
    _epoch_restarts,
    _head_of_line,
    _faults,
    _conditions,
    caution,
)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _seconds(seconds: float) -> str:
    return _milliseconds(seconds) if seconds < 0.1 else f"{seconds:.2g} s"


def _megabytes(size: int) -> str:
    return "under 0.1 MB" if size < 100_000 else f"{size / 1e6:,.3g} MB"


def _times(value: float) -> str:
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]
