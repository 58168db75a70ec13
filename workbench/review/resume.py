"""resume_test: run a loader, kill it, resume it, and say what was lost, repeated or reordered, and what it costs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import SettingsError
from workbench.loaders.shipping import ship
from workbench.loaders.source import LoaderSource
from workbench.review.resume_differences import came_again, compare, samples_in, stable_leaves
from workbench.review.resume_process import Job
from workbench.review.resume_report import ResumeCase, ResumeReport, StateCost, workers_in_words
from workbench.review.resume_runs import JobServer, Run, Runner

FIRST_SEED, OTHER_SEED = 20_240_501, 7
"""A process that resumes is seeded differently: a state must carry whatever the order depends on."""
COST_LIMIT = 0.02
"""Share of a step that snapshots may take before another interval is recommended."""
BATCHES = 100
"""As many steps as a first test of resuming needs; more cost time, fewer may not reach an epoch's end."""


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
                self.leaves = self.stable(whole, workers)
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
        self.on_event(f"{self.runner.jobs + 1}: {source}, {workers_in_words(job.num_workers)} {doing}".rstrip())
        return self.runner.run(job)

    def stable(self, whole: Run, workers: int) -> tuple[str, ...]:
        """The leaves by which samples can be told from each other."""
        other = self.run(Job("run", workers, OTHER_SEED, self.batches), "seeded differently")
        reference = whole if workers == 0 else self.run(Job("run", 0, FIRST_SEED, self.batches))
        reseeded = self.run(Job("run", 0, FIRST_SEED, self.batches, reseed=OTHER_SEED), "seeded anew after one batch")
        return stable_leaves(whole.batches, other.batches, reference.batches, reseeded.batches)

    def resumed(self, whole: Run, killed: Run, before: int, after: int, cut: int) -> ResumeCase:
        """Go on from the state at ``cut`` to the end, and compare."""
        state = killed.state(cut)
        if state is None:
            return ResumeCase(before, after, (cut,), "failed", killed.trouble or f"no state after {cut} batches")
        left = self.left(whole, cut) if before == after else self.batches
        saved = f", saved with {workers_in_words(before)}" if before != after else ""
        rest = self.run(Job("run", after, OTHER_SEED, left, state=str(state)), f"from batch {cut}{saved}")
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
        first = rest.event("first")
        if before != after and not self.ended(whole):
            again = came_again(expected, got, self.leaves)
            detail = (
                f"{again} samples came twice"
                if again
                else f"the epoch is longer than the {sum(map(samples_in, expected)):,} samples that were compared"
            )
            outcome, seconds = "wrong" if again else "unknown", first and first["seconds"]
            return ResumeCase(before, after, cuts, outcome, detail, resume_seconds=seconds, state_bytes=size)
        difference = compare(expected, got, self.leaves)
        outcome = "exact" if difference.exact else "complete" if difference.complete else "wrong"
        if not self.leaves and difference.complete:
            outcome = "unknown"
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
            f"with {workers_in_words(workers)}, {len(whole.batches)} batches were compared; the epoch is longer"
            for workers, whole in wholes.items()
            if not self.ended(whole)
        ]
        if any(whole.event("replaced") for whole in wholes.values()):
            notes.append(
                "the loader is a plain DataLoader, which keeps no state: what was tested is the StatefulDataLoader of "
                "the same arguments, to be used in its place (from torchdata.stateful_dataloader)"
            )
        if wholes and not self.leaves:
            notes.append(
                "no leaf has the same content when the same sample comes: only numbers of samples were compared; let "
                "the loader give an id beside each sample to know more"
            )
        return notes


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
