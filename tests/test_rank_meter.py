"""Ranks whose slowness is made up, two real gloo processes, and the cost of a step."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
import torch.multiprocessing

from workbench.errors import SettingsError
from workbench.review import rank_meter
from workbench.review.rank_meter import RankMeter, RankRate, report, standing_of, straggler


def ranks(*input_seconds, steps=10, seconds=1.0):
    return tuple(RankRate(n, f"host{n}", steps, 160, seconds, spent) for n, spent in enumerate(input_seconds))


# -- verdicts, exactly --


@pytest.mark.parametrize(
    "input_seconds, found",
    [
        ((0.1, 0.1, 0.5), 2),
        ((0.5, 0.1), 0),
        ((0.10, 0.105), None),  # within what starts differ by
        ((0.01, 0.04), None),  # four times as slow, of a time that does not matter
        ((0.3,), None),
    ],
)
def test_a_straggler_is_clearly_slower_at_what_is_its_own(input_seconds, found):
    assert straggler(ranks(*input_seconds)) == found


def test_without_input_times_the_whole_step_counts():
    slow, fast = RankRate(0, "a", 10, 160, 2.0), RankRate(1, "b", 10, 160, 1.0)
    assert straggler((slow, fast)) == 0
    assert (slow.samples_per_second, RankRate(0, "a", 10, 0, 2.0).samples_per_second) == (80, None)


def test_a_straggler_that_stays_names_its_host():
    found = standing_of([ranks(0.1, 0.6, 0.1)] * 4)
    assert (found.verdict, found.slowest, found.samples_per_second) == ("straggler stays", 1, 480)
    assert "rank 1 on host1 was the slowest in 4 of 4" in found.sentence


def test_a_straggler_that_moves_is_nobodys_fault():
    history = [ranks(0.6, 0.1, 0.1), ranks(0.1, 0.6, 0.1), ranks(0.1, 0.1, 0.6), ranks(0.6, 0.1, 0.1)]
    found = standing_of(history)
    assert found.verdict == "straggler moves" and "not fast enough" in found.sentence


def test_even_early_and_alone():
    assert standing_of([ranks(0.1, 0.1)] * 4).verdict == "even"
    assert standing_of([ranks(0.1, 0.6)] * 3).verdict == "too early"
    assert standing_of([ranks(0.5)] * 9).verdict == "even"
    assert standing_of([]).verdict == "too early"
    assert standing_of([ranks(0.1, 0.6)] + [ranks(0.1, 0.1)] * 4).verdict == "even"


def test_the_report_is_a_table_that_knows_what_it_does_not_know():
    text = report([ranks(0.1, 0.6)] * 2)
    assert text.splitlines()[1].split() == ["0", "160", "10%", "host0"]
    assert text.splitlines()[2].split() == ["1", "160", "60%", "host1"]
    unknown = report([(RankRate(0, "a", 5, 0, 1.0),)])
    assert unknown.splitlines()[1].split() == ["0", "–", "–", "a"]


# -- one process --


def test_around_a_loader_it_counts_samples_and_passes_everything_on(tmp_path):
    class Batches(list):
        colour = "green"

    said, path = [], tmp_path / "rates.jsonl"
    batches = Batches(torch.zeros(7, 3) for _ in range(10))
    meter = RankMeter(batches, every=4, path=path, console=said.append, label="shards 0-3")
    assert [batch.shape for batch in meter] == [torch.Size([7, 3])] * 10
    assert (len(meter), meter.colour) == (10, "green")
    assert [(ranks[0].steps, ranks[0].samples) for ranks in meter.history] == [(4, 28), (4, 28)]
    assert meter.history[0][0].host.endswith("(shards 0-3)")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 8] and lines[0]["ranks"][0]["samples"] == 28
    assert len(said) == 2 and said[0].startswith("step 4: ")
    with pytest.raises(AttributeError, match="no attribute 'size'"):
        RankMeter().size  # noqa: B018


def test_by_hand(capsys):
    with RankMeter(every=2) as meter:
        for _ in range(5):
            meter.step(3)
    assert [(r[0].steps, r[0].samples, r[0].input_seconds) for r in meter.history] == [(2, 6, None)] * 2
    assert "step 2:" in capsys.readouterr().out
    assert meter.gather().rounds == 3


def test_a_loop_that_stops_early_has_counted_what_it_finished():
    meter = RankMeter([torch.zeros(2)] * 9, every=1, console=None)
    for number, _ in enumerate(meter):
        if number == 3:
            break
    assert len(meter.history) == 3


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "50"])
def test_nonsense_is_refused(every):
    with pytest.raises(SettingsError, match="whole number of steps"):
        RankMeter(every=every)


def test_without_a_loader_there_is_nothing_to_iterate():
    with pytest.raises(SettingsError, match="no loader to iterate"):
        next(iter(RankMeter()))


def test_tensorboard_when_it_is_there_and_when_it_is_not(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, *values):
            written.append(values)

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    with RankMeter([torch.zeros(2)] * 2, every=2, tensorboard=tmp_path, console=None) as meter:
        list(meter)
    assert written[0] == str(tmp_path) and written[1][0] == "samples_per_second/rank_0" and written[1][2] == 2
    assert written[-1] == "closed"
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with RankMeter([torch.zeros(2)] * 2, every=2, tensorboard=tmp_path, console=None) as meter:
        assert len(list(meter)) == 2


# -- two ranks over gloo --


def train(rank, folder, waits):
    import time

    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)

    def batches():
        for _ in range(40):
            time.sleep(waits[rank])
            yield torch.zeros(4, 2)

    rank_meter.socket.gethostname = lambda: f"node{rank}"
    meter = RankMeter(batches(), every=8, path=f"{folder}/rates.jsonl", console=None)
    for _ in meter:
        dist.barrier()  # as the all-reduce of gradients: both run at the pace of the slower
    verdict = standing_of(meter.history)
    with open(f"{folder}/rank{rank}.json", "w") as file:
        json.dump([verdict.verdict, verdict.slowest, verdict.sentence], file)
    dist.destroy_process_group()


def test_two_ranks_agree_on_who_is_slow(tmp_path):
    torch.multiprocessing.spawn(train, (str(tmp_path), (0.001, 0.03)), nprocs=2)
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0][:2] == ["straggler stays", 1] and "rank 1 on node1" in told[0][2]
    lines = [json.loads(line) for line in (tmp_path / "rates.jsonl").read_text().splitlines()]
    assert len(lines) == 5 and [rank["samples"] for rank in lines[0]["ranks"]] == [32, 32]
