"""resume_test: run a loader, kill it, resume it, and say what was lost, repeated or reordered, and what it costs."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.errors import SettingsError
from workbench.loaders.shipping import ship
from workbench.loaders.source import LoaderSource
from workbench.review.resume_differences import Difference, compare, samples_in, stable_leaves
from workbench.review.resume_process import Job
from workbench.review.resume_runs import JobServer, Run, Runner

FIRST_SEED, OTHER_SEED = 20_240_501, 7
"""A process that resumes is seeded differently: a state must carry whatever the order depends on."""
COST_LIMIT = 0.02
"""Share of a step that snapshots may take before another interval is recommended."""
BATCHES = 100
"""As many steps as a first test of resuming needs; more cost time, fewer may not reach an epoch's end."""


@dataclass(frozen=True)
class ResumeCase:
    """One way of being killed and resumed.

    Attributes:
        num_workers: Workers when the state was saved.
        resumed_workers: Workers when it was loaded.
        cuts: Batches after which it was killed, one number for each resume.
        outcome: ``exact`` (same batches, same order), ``complete`` (every sample once, in another order or other
            batches), ``refused`` (the loader said why in an error), ``wrong`` or ``failed``.
        detail: What was lost, repeated or reordered, or what the loader said.
        difference: The same as numbers; None where there was nothing to compare.
        resume_seconds: From ``load_state_dict`` to the first batch; None if there was none.
        state_bytes: Size of the pickled state; None if none was saved.
    """

    num_workers: int
    resumed_workers: int
    cuts: tuple[int, ...]
    outcome: str
    detail: str
    difference: Difference | None = None
    resume_seconds: float | None = None
    state_bytes: int | None = None

    @property
    def ok(self) -> bool:
        """Nothing went wrong in silence: exact, or, with another number of workers, complete or refused."""
        return self.outcome == "exact" or (
            self.num_workers != self.resumed_workers and self.outcome in ("complete", "refused")
        )

    def describe(self) -> str:
        """One line."""
        cuts = " and ".join(map(str, self.cuts))
        after = f", resumed with {self.resumed_workers}" if self.resumed_workers != self.num_workers else ""
        return f"{_workers(self.num_workers)}, killed after {cuts} batches{after}: {self.outcome} ({self.detail})"


@dataclass(frozen=True)
class StateCost:
    """What keeping the state costs with one number of workers.

    Attributes:
        num_workers: Workers.
        state_bytes: Size of the pickled state.
        state_dict_seconds: One call of ``state_dict``.
        snapshot_seconds_per_step: What a snapshot at every step adds to a step; None at 0 workers and where the loader
            takes none.
        step_seconds: A step without snapshots (the caller's, if longer than the loader's own).
        snapshot_every_n_steps: Recommended interval: the shortest whose snapshots take less than 2 % of a step.
    """

    num_workers: int
    state_bytes: int
    state_dict_seconds: float
    snapshot_seconds_per_step: float | None
    step_seconds: float
    snapshot_every_n_steps: int

    def describe(self) -> str:
        """One sentence."""
        size = f"{_workers(self.num_workers)}: the state is {self.state_bytes:,} bytes"
        call = f"state_dict() takes {self.state_dict_seconds * 1e3:.2f} ms"
        if self.snapshot_seconds_per_step is None:
            return f"{size}; {call}; nothing is snapshot in between."
        share = self.snapshot_seconds_per_step / (self.snapshot_seconds_per_step + self.step_seconds)
        advice = f"snapshot_every_n_steps={self.snapshot_every_n_steps}"
        if self.snapshot_every_n_steps > 1:
            advice += ", aligned with your checkpoint interval"
        return f"{size}; {call}; snapshots at every step take {share:.0%} of loader time: {advice}."


@dataclass(frozen=True)
class ResumeReport:
    """What a resume test found.

    Attributes:
        name: The loader.
        cases: Every way of being killed and resumed that was tried.
        costs: What the state costs, for each number of workers.
        late_load: What happens when a state is loaded while an iterator is in use: ``refused``, ``restarts`` (the
            iterator goes on from where it was, in silence), ``resumes``, or None where it was not tried.
        random_leaves: Leaves that differ from run to run (augmentation) and were left out.
        compared: Batches of the uninterrupted run, for each number of workers.
        notes: What else a reader should know.
    """

    name: str
    cases: tuple[ResumeCase, ...]
    costs: tuple[StateCost, ...]
    late_load: str | None
    random_leaves: tuple[str, ...]
    compared: dict[int, int]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether this loader can be killed and resumed."""
        return bool(self.cases) and all(case.ok for case in self.cases)

    def describe(self) -> str:
        """The report for people, one fact a line."""
        good = sum(case.ok for case in self.cases)
        verdict = "resumes exactly" if self.ok else "does NOT resume exactly"
        lines = [f"{self.name} {verdict}: {good} of {len(self.cases)} ways of being killed and resumed are right."]
        lines += [f"  {'ok ' if case.ok else 'BAD'} {case.describe()}" for case in self.cases]
        lines += [f"  cost: {cost.describe()}" for cost in self.costs]
        if self.late_load == "restarts":
            lines.append(
                "  beware: load_state_dict() while an iterator is in use is ignored in silence, and that iterator goes "
                "on from where it was; load the state before iter()."
            )
        if self.random_leaves:
            lines.append(f"  left out, since they differ from run to run: {', '.join(self.random_leaves)}.")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {**asdict(self), "ok": self.ok}


def resume_test(
    loader: Any,
    *,
    num_workers: Sequence[int] = (0, 2),
    cut_points: Sequence[int] | None = None,
    batches: int = BATCHES,
    step_seconds: float | None = None,
    timeout_seconds: float = 120.0,
    on_event: Callable[[str], None] | None = None,
) -> ResumeReport:
    """Run a loader, kill it with SIGKILL, resume it in another process, and compare with an uninterrupted run.

    Each number of workers is run once without interruption; once more, saving a state at each cut and killed after
    the last, with batches in flight; and once from every state. One of these is cut a second time. States are also
    loaded with another number of workers of the list, and once while an iterator is in use. Processes are seeded
    differently, as those of an unseeded script are.

    Args:
        loader: Anything ``LoaderSource.of`` takes whose loader has ``state_dict`` and ``load_state_dict``. In place
            of a plain ``DataLoader`` the ``StatefulDataLoader`` of the same arguments is tested, and a note says so.
        num_workers: Numbers of workers to try.
        cut_points: Batches after which to cut; None cuts after the first, in the middle, and before the last.
        batches: Batches at most of the uninterrupted run; a longer epoch, or one without end, is compared so far.
        step_seconds: A step of the training loop, for judging costs; None takes the loader's own pace.
        timeout_seconds: Longest time without a batch.
        on_event: Called with a line for every process that is started.

    Raises:
        SettingsError: There is no number of workers, or a cut lies outside the run.
        SourceError: The loader cannot be found or sent to another process.
    """
    _check(num_workers, cut_points, batches)
    source = LoaderSource.of(loader)
    with tempfile.TemporaryDirectory(prefix="workbench-resume-") as folder:
        with open(Path(folder) / "loader.pickle", "wb") as file:
            ship(source, None, file)
        with JobServer() as server:
            runner = Runner(Path(folder), timeout_seconds, server)
            bench = _Bench(runner, batches, step_seconds, on_event or (lambda line: None))
            return bench.report(source.name, list(dict.fromkeys(num_workers)), cut_points)


class _Bench:
    """One resume test: its processes, in order, and the cases that they make."""

    def __init__(
        self,
        runner: Runner,
        batches: int,
        step_seconds: float | None,
        on_event: Callable[[str], None],
    ) -> None:
        self.runner, self.batches = runner, batches
        self.step_seconds, self.on_event = step_seconds, on_event
        self.leaves: tuple[str, ...] = ()

    def report(self, name: str, num_workers: list[int], cut_points: Sequence[int] | None) -> ResumeReport:
        """Try everything."""
        cases: list[ResumeCase] = []
        costs: list[StateCost] = []
        wholes: dict[int, Run] = {}
        states: dict[int, tuple[int, Run]] = {}
        random_leaves: tuple[str, ...] = ()
        for workers in num_workers:
            whole = self.run(Job("run", workers, FIRST_SEED, self.batches))
            if whole.trouble or not whole.batches:
                trouble = whole.trouble or "the loader gives no batch"
                cases.append(ResumeCase(workers, workers, (), "failed", trouble))
                continue
            if not wholes:
                again = self.run(Job("run", workers, OTHER_SEED, self.batches))
                self.leaves = stable_leaves(whole.batches, again.batches)
                random_leaves = tuple(leaf for leaf in whole.batches[0] if leaf not in self.leaves)
            wholes[workers] = whole
            cuts = _cuts(cut_points, len(whole.batches))
            killed = self.run(
                Job("run", workers, FIRST_SEED, self.batches, save_after=tuple(cuts), wait=True), f"killed at {cuts}"
            )
            cases += [self.resumed(whole, killed, workers, workers, cut) for cut in cuts]
            cases += self.cut_twice(whole, killed, workers, cuts)
            states[workers] = (cuts[len(cuts) // 2], killed)
            costs += self.cost(workers)
        cases += [
            self.resumed(wholes[before], states[before][1], before, after, states[before][0])
            for before in states
            for after in num_workers
            if after != before and after in wholes
        ]
        return ResumeReport(
            name=name,
            cases=tuple(cases),
            costs=tuple(costs),
            late_load=self.late(wholes, states),
            random_leaves=random_leaves,
            compared={workers: len(whole.batches) for workers, whole in wholes.items()},
            notes=tuple(self.notes(wholes)),
        )

    def run(self, job: Job, doing: str = "") -> Run:
        """One process."""
        source = "resumed" if job.state else job.kind
        self.on_event(f"{self.runner.jobs + 1}: {source}, {_workers(job.num_workers)} {doing}".rstrip())
        return self.runner.run(job)

    def resumed(self, whole: Run, killed: Run, before: int, after: int, cut: int) -> ResumeCase:
        """Go on from the state at ``cut`` to the end, and compare."""
        state = killed.state(cut)
        if state is None:
            return ResumeCase(before, after, (cut,), "failed", killed.trouble or f"no state after {cut} batches")
        left = self.left(whole, cut) if before == after else self.batches
        rest = self.run(Job("run", after, OTHER_SEED, left, state=str(state)), f"from batch {cut}")
        return self.judged(whole, killed, rest, (cut,), before, after, list(killed.batches[:cut]))

    def cut_twice(self, whole: Run, killed: Run, workers: int, cuts: Sequence[int]) -> list[ResumeCase]:
        """Cut in the first half, go on, be killed again, go on to the end: counters that begin anew show here."""
        first = max((cut for cut in cuts if 0 < cut <= len(whole.batches) // 2), default=None)
        if first is None or killed.state(first) is None:
            return []
        more = max(1, (len(whole.batches) - first) // 3)
        second = self.run(
            Job("run", workers, OTHER_SEED, self.batches, str(killed.state(first)), (more,), wait=True),
            f"from batch {first}, killed again {more} batches later",
        )
        state, cuts_done = second.state(more), (first, more)
        if state is None:
            return [ResumeCase(workers, workers, cuts_done, "failed", second.trouble or "no second state")]
        left = self.left(whole, first + more)
        rest = self.run(Job("run", workers, OTHER_SEED + 1, left, str(state)), f"from batch {first + more}")
        before = [*killed.batches[:first], *second.batches[:more]]
        return [self.judged(whole, second, rest, cuts_done, workers, workers, before)]

    def judged(
        self, whole: Run, saved: Run, rest: Run, cuts: tuple[int, ...], before: int, after: int, kept: list[Any]
    ) -> ResumeCase:
        """Compare what came before the cut and after the resume with the uninterrupted run."""
        size = next((event["bytes"] for event in saved.events if event.get("after") == cuts[-1]), None)
        failed = rest.event("failed")
        if rest.trouble:
            refused = failed is not None and failed["deliberate"] and not rest.batches
            broke = failed is not None and not rest.batches and before != after
            outcome = "refused" if refused or broke else "failed"
            return ResumeCase(before, after, cuts, outcome, rest.trouble, state_bytes=size)
        expected, got = list(whole.batches), [*kept, *rest.batches]
        if before != after and not self.ended(whole):
            count = sum(map(samples_in, expected))
            detail = f"an epoch longer than {count} samples cannot be compared between numbers of workers"
            return ResumeCase(before, after, cuts, "complete", detail, state_bytes=size)
        difference = compare(expected, got, self.leaves)
        outcome = "exact" if difference.exact else "complete" if difference.complete else "wrong"
        first = rest.event("first")
        return ResumeCase(
            before, after, cuts, outcome, difference.describe(), difference, first and first["seconds"], size
        )

    def left(self, whole: Run, done: int) -> int:
        """Batches that a resumed run may take: all that come where an epoch ends, so that repeats are seen."""
        return len(whole.batches) + 1 if self.ended(whole) else len(whole.batches) - done

    def ended(self, whole: Run) -> bool:
        """Whether the uninterrupted run reached the end of an epoch."""
        ended = whole.event("ended")
        return bool(ended and ended["complete"])

    def late(self, wholes: dict[int, Run], states: dict[int, tuple[int, Run]]) -> str | None:
        """Load a state while an iterator is in use."""
        for workers, (cut, killed) in states.items():
            if killed.state(cut) is None or cut < 1 or len(wholes[workers].batches) <= cut:
                continue
            seen = self.run(Job("late", workers, FIRST_SEED, 2, str(killed.state(cut))), "loading while iterating")
            if seen.event("failed"):
                return "refused"
            if len(seen.batches) == 2:
                went_on = compare(wholes[workers].batches[1:2], seen.batches[1:], self.leaves).complete
                return "restarts" if went_on else "resumes"
        return None

    def cost(self, workers: int) -> list[StateCost]:
        """What snapshots cost with so many workers."""
        event = self.run(Job("cost", workers, FIRST_SEED, 0), "timing snapshots").event("cost")
        if event is None or event["state_bytes"] is None:
            return []
        step = max(event["without_snapshots"], self.step_seconds or 0.0)
        added = max(0.0, event["with_snapshots"] - event["without_snapshots"])
        kept = event["snapshot_every_n_steps"] is not None and workers > 0
        every = max(1, math.ceil(added / (COST_LIMIT * step))) if kept and step else 1
        return [
            StateCost(workers, event["state_bytes"], event["state_dict_seconds"], added if kept else None, step, every)
        ]

    def notes(self, wholes: dict[int, Run]) -> list[str]:
        """What was not covered."""
        notes = [
            f"with {workers} workers the first {len(whole.batches)} batches were compared; the epoch is longer"
            for workers, whole in wholes.items()
            if not self.ended(whole)
        ]
        if any(whole.event("replaced") for whole in wholes.values()):
            notes.append(
                "the loader is a plain DataLoader, which keeps no state: what was tested is the StatefulDataLoader of "
                "the same arguments, to be used in its place (from torchdata.stateful_dataloader)"
            )
        if wholes and not self.leaves:
            notes.append("no leaf has the same content in two runs: only the number of samples was compared")
        return notes


def resume_seconds(report: ResumeReport) -> float | None:
    """Median time from ``load_state_dict`` to the first batch over all cases; None if nothing was resumed."""
    seconds = [case.resume_seconds for case in report.cases if case.resume_seconds is not None]
    return statistics.median(seconds) if seconds else None


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _cuts(cut_points: Sequence[int] | None, batches: int) -> list[int]:
    wanted = cut_points if cut_points is not None else (1, batches // 2, batches - 1)
    return sorted({cut for cut in wanted if cut <= batches}) or [min(1, batches)]


def _check(num_workers: Sequence[int], cut_points: Sequence[int] | None, batches: int) -> None:
    if not num_workers or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in num_workers):
        raise SettingsError(f"num_workers={list(num_workers)!r}: give one or more whole numbers, 0 or above.")
    if batches < 2:
        raise SettingsError(f"batches={batches} leaves nothing to cut: compare at least 2.")
    if cut_points is not None and (not cut_points or any(not 0 <= cut <= batches for cut in cut_points)):
        raise SettingsError(f"cut_points={list(cut_points)!r}: cut after 0 to batches={batches} batches.")
