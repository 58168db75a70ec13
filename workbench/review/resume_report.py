"""What a resume test found: every way of being killed and resumed, what states cost, and both in words."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from workbench.review.resume_differences import Difference


@dataclass(frozen=True)
class ResumeCase:
    """One way of being killed and resumed.

    Attributes:
        num_workers: Workers when the state was saved.
        resumed_workers: Workers when it was loaded.
        cuts: Batches after which it was killed, one number for each resume.
        outcome: ``exact`` (same batches, same order), ``complete`` (every sample once, in another order or other
            batches), ``refused`` (the loader said why in an error), ``wrong``, ``failed``, or ``unknown`` (nothing
            speaks against it, but the epoch is longer than what was compared, or samples cannot be told apart).
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

    @property
    def told(self) -> bool:
        """Whether there was enough to compare."""
        return self.outcome != "unknown"

    def describe(self) -> str:
        """One line."""
        workers = workers_in_words(self.num_workers)
        if not self.cuts:
            return f"{workers}: {self.outcome} ({self.detail})"
        cuts = " and ".join(map(str, self.cuts))
        after = f", resumed with {self.resumed_workers}" if self.resumed_workers != self.num_workers else ""
        return (
            f"{workers_in_words(self.num_workers)}, killed after {cuts} batches{after}: {self.outcome} ({self.detail})"
        )


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
        size = f"{workers_in_words(self.num_workers)}: the state is {self.state_bytes:,} bytes"
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
        """Whether this loader can be killed and resumed, as far as could be told."""
        told = [case for case in self.cases if case.told]
        return bool(told) and all(case.ok for case in told)

    def describe(self) -> str:
        """The report for people, one fact a line."""
        told = [case for case in self.cases if case.told]
        good = sum(case.ok for case in told)
        verdict = "resumes exactly" if self.ok else "does NOT resume exactly"
        lines = [
            f"{self.name} {verdict}: {good} of {len(told)} ways of being killed and resumed are right."
            if told
            else f"Whether {self.name} resumes exactly could not be told."
        ]
        lines += [f"  {_mark(case)} {case.describe()}" for case in self.cases]
        lines += [f"  cost: {cost.describe()}" for cost in self.costs]
        seconds = resume_seconds(self)
        if seconds is not None:
            lines.append(
                f"  cost: from load_state_dict() to the first batch {seconds:.2g} s, the median of all resumes."
            )
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


def resume_seconds(report: ResumeReport) -> float | None:
    """Median time from ``load_state_dict`` to the first batch over all cases; None if nothing was resumed."""
    seconds = [case.resume_seconds for case in report.cases if case.resume_seconds is not None]
    return statistics.median(seconds) if seconds else None


def _mark(case: ResumeCase) -> str:
    return "?  " if not case.told else "ok " if case.ok else "BAD"


def workers_in_words(count: int) -> str:
    """How many workers, in words."""
    return "1 worker" if count == 1 else f"{count} workers"
