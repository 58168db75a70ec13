"""Who wins: settings ordered by what they are worth, ties decided for the cheapest. Pure functions of trial results."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Probe
from workbench.measure.result import TrialResult
from workbench.measure.statistics import RateEstimate, Ratio, ratio
from workbench.tuning.trials import surely_slower

EQUAL_WITHIN = 0.02  # rates within 2 % are practically equal, however narrow their intervals
# Further than this below the leader a setting is not preferred for being cheap, however wide the intervals are.
TIED_AT_MOST_BELOW = 0.05
MEMORY_NOISE = 0.05  # two peaks of PSS within 5 % are one
MEMORY_WORTH_A_CHANGE = 0.10  # saves this much before the current settings are given up for memory alone
LOOKS_FASTER = 1.10  # times the rate of the current settings from which what is not certain is worth finding out


@dataclass(frozen=True)
class Ranking:
    """The order of a sweep's settings.

    Attributes:
        order: Results that count, the recommended one first, the others by their steady rate.
        fastest: The result with the highest rate, None when nothing counts.
        tied: Results as good as the fastest, itself included, without the recommended one.
        unsettled: Results of which it is not known whether they are faster than the recommended one.
        kept_current: True when the current settings are recommended since no gain over them is certain.
        rival: While the current settings are kept, what looks clearly faster and is not known, or not checked, to be
            so; None where nothing does.
        rival_times: How many times as fast it looks, over the user's real epochs.
    """

    order: tuple[TrialResult, ...] = ()
    fastest: TrialResult | None = None
    tied: tuple[TrialResult, ...] = ()
    unsettled: tuple[TrialResult, ...] = ()
    kept_current: bool = False
    rival: TrialResult | None = None
    rival_times: Ratio | None = None


@dataclass(frozen=True, eq=False)
class _Entrant:
    trial: TrialResult
    worth: RateEstimate

    @property
    def settings(self) -> LoaderSettings:
        return self.trial.settings

    @property
    def rate(self) -> float:
        return self.worth.samples_per_second

    @property
    def memory_bytes(self) -> int | None:
        return self.trial.peak_pss_bytes


def counts(trial: TrialResult) -> bool:
    """Whether this result may win: it ran without fault and has a rate."""
    return trial.status == "ok" and trial.estimate is not None


def is_checked(trial: TrialResult) -> bool:
    """Whether any start of these settings was more than a short first look: data, memory and edge were looked at."""
    return any(run.status == "ok" and not run.screened for run in trial.runs)


def has_idle_workers(trial: TrialResult) -> bool:
    """Whether fewer workers would deliver the same: some have no data of their own."""
    return any(run.idle_workers for run in trial.runs)


def worths(trials: Sequence[TrialResult], probe: Probe | None) -> list[RateEstimate]:
    """The rate of each over the user's real epochs: the steady rate, with an epoch's edge shared out over its samples.

    Settings that only had a short first look are given the edge of those that restart their workers as they do, or of
    any with workers where no such edge was measured: what was not looked at is not taken to be free. Where the length
    of an epoch, or the edge of a checked result, is unknown, all are judged by their steady rate.
    """
    samples = probe.epoch_samples if probe else None
    edges = [_edge_seconds(trial, trials) for trial in trials] if samples else [None] * len(trials)
    compare = bool(samples) and all(
        edge is not None or not is_checked(trial) for edge, trial in zip(edges, trials, strict=True)
    )
    rates = []
    for trial, edge in zip(trials, edges, strict=True):
        estimate = trial.estimate
        assert estimate is not None  # the callers ask for results that count
        if samples and compare and edge is not None:
            scale = 1 / (1 + edge * estimate.samples_per_second / samples)
            scaled = {end: getattr(estimate, end) * scale for end in ("samples_per_second", "low", "high")}
            estimate = dataclasses.replace(estimate, **scaled)
        rates.append(estimate)
    return rates


def _edge_seconds(trial: TrialResult, trials: Sequence[TrialResult]) -> float | None:
    """Seconds that an epoch's edge adds; 0 where the measured rate contains it already."""
    if any(run.mode == "epochs" for run in trial.runs):
        return 0.0
    if trial.epoch_edge_seconds is not None or is_checked(trial):
        return trial.epoch_edge_seconds
    measured = [
        other
        for other in trials
        if other.epoch_edge_seconds is not None and bool(other.settings.num_workers) == bool(trial.settings.num_workers)
    ]
    alike = [one for one in measured if one.settings.persistent_workers == trial.settings.persistent_workers]
    edges = [one.epoch_edge_seconds for one in alike or measured if one.epoch_edge_seconds is not None]
    return statistics.median(edges) if edges else None


def rank(
    trials: Sequence[TrialResult],
    current: LoaderSettings | None = None,
    probe: Probe | None = None,
    *,
    checked_only: bool = True,
) -> Ranking:
    """Orders the results that count.

    The fastest leads. What cannot be told apart from it, nor from the one whose interval begins highest, or lies within
    2 %, is tied with it, and the tie goes to fewer workers, then to less memory, then to a smaller prefetch; the
    current settings are kept unless something is faster for certain, or as fast with fewer workers or markedly less
    memory. The rest follows by steady rate, as anyone can check in a table. Settings of which some workers have no data
    of their own do not win while anything else counts.

    Args:
        trials: One result a settings.
        current: The user's settings; None when unknown.
        probe: Gives the length of an epoch.
        checked_only: Recommend settings of which only a short first look was taken, unchecked for right data, when
            nothing else counts and not before; False treats them like all others.
    """
    able = [trial for trial in trials if counts(trial)]
    field = [_Entrant(trial, worth) for trial, worth in zip(able, worths(able, probe), strict=True)]
    if not field:
        return Ranking()
    useful = [one for one in field if not has_idle_workers(one.trial)] or field
    eligible = useful
    if checked_only and any(is_checked(one.trial) for one in useful):
        eligible = [one for one in useful if is_checked(one.trial) or one.settings == current]
    fastest = max(eligible, key=lambda one: one.rate)
    tied = _tied(eligible, fastest, current)
    winner, kept = _choose(tied, current)
    alike = _tied(useful, fastest, current)
    equals = [one for one in alike if one is not winner and one.rate <= winner.rate / (1 - TIED_AT_MOST_BELOW)]
    unsettled = [one for one in useful if one not in (winner, *equals) and not surely_slower(one.worth, fastest.worth)]
    rest = sorted((one for one in field if one is not winner), key=_steady_rate, reverse=True)
    rival = _rival(useful, winner) if winner.settings == current else None
    told = (rival.trial, ratio(rival.worth, winner.worth)) if rival is not None else (None, None)
    return Ranking(_trials([winner, *rest]), fastest.trial, _trials(equals), _trials(unsettled), kept, *told)


def passed_over(ranking: Ranking, probe: Probe | None) -> tuple[TrialResult, str] | None:
    """What beats the recommended settings in rate, workers and memory at once, and why it is not recommended all the
    same: "unchecked", "edge" (of an epoch) or "idle"; None where nothing does, or where it is the rival.

    Args:
        ranking: Of a sweep.
        probe: Gives the length of an epoch.
    """
    if not ranking.order or ranking.rival is not None:
        return None
    best, *rest = ranking.order
    beaten_by = [trial for trial in rest if _beats(trial, best)]
    if not beaten_by:
        return None
    found = zip(ranking.order, worths(ranking.order, probe), strict=True)
    worth = {trial.settings: estimate.samples_per_second for trial, estimate in found}
    trial = max(beaten_by, key=lambda trial: worth[trial.settings])
    if has_idle_workers(trial):
        return trial, "idle"
    if worth[trial.settings] < worth[best.settings]:
        return trial, "edge"
    return (trial, "unchecked") if is_checked(best) and not is_checked(trial) else None


def _beats(trial: TrialResult, best: TrialResult) -> bool:
    """Faster beyond a tie, with no more workers and no more memory."""
    assert trial.samples_per_second is not None and best.samples_per_second is not None
    known = trial.peak_pss_bytes is not None and best.peak_pss_bytes is not None
    return (
        trial.samples_per_second > (1 + EQUAL_WITHIN) * best.samples_per_second
        and trial.settings.num_workers <= best.settings.num_workers
        and (not known or trial.peak_pss_bytes <= best.peak_pss_bytes)  # type: ignore[operator]
    )


def _rival(useful: list[_Entrant], winner: _Entrant) -> _Entrant | None:
    others = [one for one in useful if one is not winner and one.rate >= LOOKS_FASTER * winner.rate]
    return max(others, key=lambda one: one.rate, default=None)


def pareto(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """The results that no other one beats in rate and memory at once, least memory first."""
    known = [trial for trial in trials if counts(trial) and trial.peak_pss_bytes is not None]
    front: list[TrialResult] = []
    for trial in sorted(known, key=lambda t: (t.peak_pss_bytes or 0, -(t.samples_per_second or 0))):
        if not front or (trial.samples_per_second or 0) > (front[-1].samples_per_second or 0):
            front.append(trial)
    return front


def _steady_rate(one: _Entrant) -> float:
    return one.trial.samples_per_second or 0.0


def _trials(entrants: Sequence[_Entrant]) -> tuple[TrialResult, ...]:
    return tuple(one.trial for one in entrants)


def _tied(field: list[_Entrant], fastest: _Entrant, current: LoaderSettings | None) -> list[_Entrant]:
    """The fastest, started once, may be known too badly to tell anything from it; the surest is asked as well."""
    tied, surest = [], max(field, key=lambda one: one.worth.low)
    for one in field:
        share = one.rate / fastest.rate
        near = share >= 1 - TIED_AT_MOST_BELOW or one.settings == current
        open_ = not (surely_slower(one.worth, fastest.worth) or surely_slower(one.worth, surest.worth))
        if share >= 1 - EQUAL_WITHIN or (near and open_):
            tied.append(one)
    return tied


def _choose(tied: list[_Entrant], current: LoaderSettings | None) -> tuple[_Entrant, bool]:
    """The cheapest of equals, and whether it is the current settings, kept for want of a certain gain."""
    best = max(one.rate for one in tied)
    mine = next((one for one in tied if one.settings == current), None)
    if mine is not None and mine.rate < (1 - TIED_AT_MOST_BELOW) * best:
        return mine, True
    fewest = min(one.settings.num_workers for one in tied)
    left = [one for one in tied if one.settings.num_workers == fewest]
    if mine in left and not _saves_memory(left, mine):
        return mine, len(tied) > 1
    return min(_least_memory(left), key=lambda one: _cheapness(one, current)), False


def _cheapness(one: _Entrant, current: LoaderSettings | None) -> tuple[float, ...]:
    kept = (current or LoaderSettings()).as_dict()
    changed = sum(value != kept[knob] for knob, value in one.settings.as_dict().items())
    return (one.settings.prefetch_factor or 0, changed, -one.rate)


def _least_memory(left: list[_Entrant]) -> list[_Entrant]:
    known = [one.memory_bytes for one in left if one.memory_bytes is not None]
    if not known:
        return left
    limit = (1 + MEMORY_NOISE) * min(known)
    return [one for one in left if one.memory_bytes is not None and one.memory_bytes <= limit]


def _saves_memory(left: list[_Entrant], mine: _Entrant) -> bool:
    if mine.memory_bytes is None:
        return False
    limit = (1 - MEMORY_WORTH_A_CHANGE) * mine.memory_bytes
    return any(one.memory_bytes is not None and one.memory_bytes <= limit for one in left)
