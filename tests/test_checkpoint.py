"""Beside the model: two gloo ranks save, are killed with SIGKILL, and one or three ranks go on where they were."""

from __future__ import annotations

import shutil

import pytest
import torch

from workbench.errors import ResumeError
from workbench.streaming import checkpoint_example as example
from workbench.streaming.checkpoint import LoaderCheckpoint
from workbench.streaming.loader import StreamLoader
from workbench.streaming.stream import ShardStream


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What two ranks with a worker each left when they were killed two steps after their checkpoint."""
    folder = tmp_path_factory.mktemp("killed") / "checkpoint"
    assert example.run(folder, 2, 1, outage=True) == [-9, -9]
    assert not (folder / "seen.pt").exists()
    return folder


@pytest.mark.parametrize(("ranks_after", "workers_after"), [(1, 2), (3, 0), (2, 1)])
def test_two_ranks_are_killed_and_any_number_goes_on(killed, tmp_path, ranks_after, workers_after):
    folder = tmp_path / "checkpoint"
    shutil.copytree(killed, folder)
    assert example.run(folder, ranks_after, workers_after, outage=False) == [0] * ranks_after
    assert torch.load(folder / "seen.pt").tolist() == [1] * example.SAMPLES


def test_the_example_tells_what_it_shows(capfd, monkeypatch):
    started = []

    def run(folder, ranks, num_workers, *, outage):
        folder.mkdir(exist_ok=True)
        started.append((ranks, outage))
        torch.save(torch.full((example.SAMPLES,), 2 if ranks == 3 else 1), folder / "seen.pt")
        return [-9] * ranks if outage else [0] * ranks

    monkeypatch.setattr(example, "run", run)
    assert example.show() is False and started == [(2, True), (1, False), (3, False)]
    told = capfd.readouterr().out
    assert "1 rank(s) of 2 workers went on: every sample exactly once: True" in told
    assert "3 rank(s) of 0 workers went on: every sample exactly once: False" in told


def test_without_a_process_group_it_is_one_rank():
    loader = StreamLoader(ShardStream([range(20)]), batch_size=4)
    iterator = iter(loader)
    before = next(iterator).tolist()
    state = LoaderCheckpoint(loader).state_dict()
    other = StreamLoader(ShardStream([range(20)]), batch_size=4)
    with pytest.raises(ResumeError, match="holds no states"):
        LoaderCheckpoint(other).load_state_dict({"model": 1})
    LoaderCheckpoint(other).load_state_dict(state)
    assert sorted([*before, *(sample for batch in other for sample in batch.tolist())]) == list(range(20))
