"""resume_test: loaders whose fault is known are killed, resumed, and the fault is named with its numbers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import SettingsError
from workbench.review import resume
from workbench.review.resume import resume_test
from workbench.review.resume_differences import Columns, came_again, compare, stable_leaves
from workbench.review.resume_report import ResumeCase, ResumeReport, StateCost
from workbench.review.resume_runs import JobServer, _first_sentence
from workbench.streaming.loader import StreamLoader
from workbench.streaming.stream import ShardStream

SAMPLES = 40


class ById:
    """A loader of batches of 4 numbered samples from 0 to 39; ``state`` says how far it got."""

    def __init__(self, num_workers: int = 0) -> None:
        self.taken, self.begun_at = 0, 0

    def order(self) -> list[int]:
        return list(range(SAMPLES))

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = self.order()
        while self.taken < SAMPLES:
            self.taken += 4
            yield torch.tensor(order[self.taken - 4 : self.taken])

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = self.begun_at = state["taken"]


class Replays(ById):
    """Knows only which shard of 16 samples it was in, and replays it (as the article's stream does)."""

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken // 16 * 16}


class CountsWhatIsPrefetched(ById):
    """Counts two batches that were made and not yet handed out."""

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken + 8}


class CountsAnew(ById):
    """Counts from zero after a resume: the first one is right, the second is not."""

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken - self.begun_at}


class Unseeded(ById):
    """Draws its order from the global generator, and keeps no seed."""

    def order(self) -> list[int]:
        return random.sample(range(SAMPLES), SAMPLES)


class Augmented(ById):
    """Right, with noise on every sample."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for ids in super().__iter__():
            yield {"id": ids, "noisy": torch.rand(4, 3)}


class Draws(torch.utils.data.Sampler):
    """Draws with replacement, and keeps no state: a resume draws others."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(SAMPLES, (SAMPLES,)).tolist())

    def __len__(self) -> int:
        return SAMPLES


class Long(torch.utils.data.Dataset):
    """Far more samples than a test looks at, with noise on each."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"id": torch.tensor(index), "noisy": torch.rand(2)}


class OnlyNoise(ById):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for ids in super().__iter__():
            yield torch.rand(len(ids), 3)


class Broken(ById):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RuntimeError("the checkpoint of yesterday cannot be read")


@pytest.fixture(scope="module")
def job_server() -> Iterator[JobServer]:
    with JobServer() as server:
        yield server


@pytest.fixture
def warm(job_server, monkeypatch) -> None:
    """Tests that take it share one process to fork from: importing torch anew would be most of their time."""
    monkeypatch.setattr(resume, "JobServer", lambda: contextlib.nullcontext(job_server))


def report_of(loader: Any, **options: Any) -> Any:
    return resume_test(loader, **{"num_workers": (0,), "cut_points": (3,), **options})


def cases_of(report: Any) -> dict[tuple[int, ...], Any]:
    return {case.cuts: case for case in report.cases}


# ------------------------------------------------------------------------------------------------------ real processes


def test_the_own_stream_resumes_exactly_and_with_other_numbers_of_workers():
    shards = [range(at, at + 30) for at in range(0, 120, 30)]
    lines: list[str] = []
    loader = StreamLoader(ShardStream(shards, window=8), batch_size=5, num_workers=2)
    report = resume_test(loader, num_workers=(0, 2), cut_points=(7,), on_event=lines.append)
    assert report.ok and report.late_load == "refused" and report.compared == {0: 24, 2: 24}
    outcomes = {(case.num_workers, case.resumed_workers, case.cuts): case.outcome for case in report.cases}
    assert outcomes == {
        (0, 0, (7,)): "exact",
        (0, 0, (7, 5)): "exact",
        (2, 2, (7,)): "exact",
        (2, 2, (7, 5)): "exact",
        (0, 2, (7,)): "complete",
        (2, 0, (7,)): "complete",
    }
    assert all(case.state_bytes < 2_000 and case.resume_seconds is not None for case in report.cases)
    assert [cost.num_workers for cost in report.costs] == [0, 2] and report.costs[0].snapshot_every_n_steps == 1
    assert "resumes exactly: 6 of 6" in report.describe() and len(lines) == 17
    assert "cost: from load_state_dict() to the first batch" in report.describe()
    assert any("resumed, 2 workers from batch 7, saved with 0 workers" in line for line in lines)
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True


def test_a_stream_that_replays_its_shard_is_told_what_it_repeats(warm):
    report = report_of(Replays, cut_points=(6, 8))
    cases = cases_of(report)
    assert not report.ok and "does NOT resume exactly" in report.describe()
    assert cases[(6,)].outcome == "wrong" and cases[(6,)].difference.repeated == 8 and cases[(6,)].difference.lost == 0
    assert "8 of 40 samples repeated" in cases[(6,)].detail and "batch 4 sample 0" in cases[(6,)].detail
    assert cases[(8,)].outcome == "exact", "a cut at a shard's border shows nothing"


def test_a_loader_that_counts_what_is_prefetched_is_told_what_it_loses(warm):
    case = cases_of(report_of(CountsWhatIsPrefetched))[(3,)]
    assert (case.outcome, case.difference.lost, case.difference.repeated) == ("wrong", 8, 0)
    assert "lost: batch 3 sample 0" in case.detail


def test_a_counter_that_begins_anew_shows_at_the_second_cut(warm):
    cases = cases_of(report_of(CountsAnew))
    assert cases[(3,)].outcome == "exact"
    assert cases[(3, 2)].outcome == "wrong" and cases[(3, 2)].difference.repeated == 12


def test_an_order_that_no_state_keeps(warm):
    report = report_of(Unseeded, cut_points=(5,))
    assert cases_of(report)[(5,)].outcome == "wrong"
    assert cases_of(report)[(5,)].difference.lost == cases_of(report)[(5,)].difference.repeated > 0


def test_random_leaves_are_left_out_and_named(warm):
    report = report_of(Augmented)
    assert report.ok and report.random_leaves == ("noisy",) and report.late_load == "resumes"
    assert "left out, since they differ from run to run: noisy" in report.describe()


def test_a_sampler_that_draws_others_after_a_resume_is_wrong_and_not_taken_for_augmentation(warm):
    loader = StatefulDataLoader(torch.arange(SAMPLES), batch_size=4, sampler=Draws())
    case = cases_of(report_of(loader))[(3,)]
    assert case.outcome == "wrong" and case.difference.lost == case.difference.repeated + case.difference.unknown > 0


def test_part_of_a_long_shuffled_epoch_is_compared_sample_by_sample(warm):
    report = report_of(StatefulDataLoader(Long(), batch_size=4, shuffle=True), batches=8)
    assert report.ok and report.random_leaves == ("noisy",)
    deaf = cases_of(report_of(StatefulDataLoader(Long(), batch_size=4, sampler=Draws()), batches=8))[(3,)]
    assert deaf.outcome == "wrong"


def test_noise_alone_proves_nothing(warm):
    report = report_of(OnlyNoise)
    assert {case.outcome for case in report.cases} == {"unknown"} and not report.ok
    assert "could not be told" in report.describe() and "give an id beside each sample" in report.describe()


def test_a_loader_without_state_and_one_that_raises_and_an_empty_one(warm):
    stateless = report_of(Stateless)
    assert not stateless.ok and "Stateless has no state_dict()" in stateless.describe()
    broken = cases_of(report_of(Broken))[(3,)]
    assert (broken.outcome, broken.ok) == ("refused", False) and "checkpoint of yesterday" in broken.detail
    empty = report_of(StatefulDataLoader([], batch_size=4))
    assert not empty.ok and "gives no batch" in empty.describe()


class Stateless:
    def __init__(self, num_workers: int = 0) -> None:
        pass

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)] * 9)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_loader_is_tested_as_the_stateful_one_that_replaces_it(warm, shuffle):
    report = report_of(DataLoader(torch.arange(40), batch_size=4, shuffle=shuffle))
    assert report.ok and "which keeps no state" in report.describe()


class Endless(IterableDataset):
    """Numbers without end."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_a_stream_without_end_is_compared_as_far_as_asked_and_nothing_stays_behind():
    already = own_processes()
    report = report_of(StatefulDataLoader(Endless(), batch_size=4), batches=12)
    assert report.ok and report.compared == {0: 12}
    assert "the epoch is longer" in report.describe()
    assert report.late_load == "restarts" and "ignored in silence" in report.describe()
    assert own_processes() - already == set()


class Deaf(Endless):
    """Begins anew whatever is loaded."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_part_of_an_epoch_is_no_proof_between_numbers_of_workers_but_a_repeat_is(warm):
    right = report_of(StatefulDataLoader(Endless(), batch_size=4), batches=9, num_workers=(0, 1))
    between = [case for case in right.cases if case.num_workers != case.resumed_workers]
    assert {case.outcome for case in between} <= {"unknown", "refused"} and right.ok
    if any(case.outcome == "unknown" for case in between):
        assert "? " in right.describe() and "the epoch is longer than the 36 samples" in right.describe()
    deaf = report_of(StatefulDataLoader(Deaf(), batch_size=4), batches=9)
    assert not deaf.ok and cases_of(deaf)[(3,)].difference.repeated == 12


def test_cases_that_could_not_be_told_are_neither_right_nor_wrong():
    told = ResumeCase(0, 0, (3,), "exact", "")
    untold = ResumeCase(0, 2, (3,), "unknown", "the epoch is longer")
    report = ResumeReport("loader", (told, untold), (), None, (), {})
    assert report.ok and "1 of 1 ways" in report.describe() and "?   0 workers, killed after 3" in report.describe()
    assert not ResumeReport("loader", (untold,), (), None, (), {}).ok


def test_samples_that_came_again():
    whole = [batch_of(0, 1), batch_of(2, 3)]
    assert came_again(whole, [batch_of(0, 1), batch_of(5, 0), batch_of(1, 6)], ["id"]) == 2
    assert came_again(whole, [batch_of(0, 1), batch_of(8, 9)], ["id"]) == 0
    assert came_again([batch_of(4, 4)], [batch_of(4, 4)], ["id"]) == 0 == came_again(whole, whole * 2, [])


def own_processes() -> set[str]:
    """Numbers of the children of this process that belong to resume tests."""
    listed = subprocess.run(["ps", "-eo", "ppid,pid,args"], capture_output=True, text=True, check=True).stdout
    found = [line.split(maxsplit=2) for line in listed.splitlines() if "resume_process" in line]
    return {pid for parent, pid, _ in found if parent == str(os.getpid())}


def test_a_silent_loader_is_stopped(warm):
    report = report_of(Hangs, timeout_seconds=2)
    assert not report.ok and "nothing came for too long" in report.describe()


class Hangs(ById):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(4)
        import time

        time.sleep(3_600)


@pytest.mark.parametrize(
    "options", [{"num_workers": ()}, {"num_workers": (-1,)}, {"cut_points": (500,)}, {"batches": 1}]
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(SettingsError):
        resume_test(ById, **options)


# ----------------------------------------------------------------------------------------------------- pure functions


def batch_of(*ids: int, leaf: str = "id") -> Columns:
    return {leaf: b"".join(number.to_bytes(8, "big") for number in ids)}


@pytest.mark.parametrize(
    ("got", "facts"),
    [
        ([(0, 1), (2, 3)], (0, 0, 0, False, False)),
        ([(0, 1), (3, 2)], (0, 0, 0, True, False)),
        ([(0, 1, 2), (3,)], (0, 0, 0, False, True)),
        ([(0, 1)], (2, 0, 0, True, False)),
        ([(0, 1), (2, 3), (3, 3)], (0, 2, 0, True, False)),
        ([(0, 1), (2, 9)], (1, 0, 1, True, False)),
    ],
)
def test_differences_are_counted(got, facts):
    difference = compare([batch_of(0, 1), batch_of(2, 3)], [batch_of(*ids) for ids in got], ["id"])
    found = difference.lost, difference.repeated, difference.unknown, difference.reordered, difference.rebatched
    assert found == facts and difference.exact == (facts == (0, 0, 0, False, False))


def test_leaves_are_stable_when_their_content_is_the_same_in_any_order():
    first = [{**batch_of(1, 2), **batch_of(7, 8, leaf="noise"), **batch_of(0, 0, leaf="constant")}]
    second = [{**batch_of(2, 1), **batch_of(9, 8, leaf="noise"), **batch_of(0, 0, leaf="constant")}]
    assert stable_leaves(first, second, [], []) == ("id",)
    assert stable_leaves([], [], [], []) == ()
    part, other_part = first + [batch_of(3, 4) | batch_of(5, 6, leaf="noise")] * 2, second
    reseeded = first + [batch_of(3, 4) | batch_of(8, 9, leaf="noise")] * 2
    named = [{name: batch[name] for name in ("id", "noise")} for batch in part]
    again = [{name: batch[name] for name in ("id", "noise")} for batch in reseeded]
    assert stable_leaves(named, other_part, named, again) == ("id",), "part of an epoch, in another order"
    numbers_only = compare(first, first * 2, [])
    assert (numbers_only.expected, numbers_only.repeated) == (2, 2) and "only numbers" in numbers_only.describe()


def test_costs_and_messages_in_words():
    cost = StateCost(2, 4_000_000, 0.002, 0.004, 0.001, 200)
    assert "80% of loader time" in cost.describe() and "snapshot_every_n_steps=200, aligned" in cost.describe()
    assert "nothing is snapshot" in StateCost(0, 500, 0.00001, None, 0.001, 1).describe()
    assert _first_sentence("Caught X in worker.\nOriginal Traceback\n  File\nX: the state is old\n") == (
        "X: the state is old"
    )
