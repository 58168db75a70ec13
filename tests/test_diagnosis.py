"""Verdicts from given rates and costs, exactly; then a small exam in which faults are switched on and off again."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import workbench as wb
from tests.benchmarks.diagnosis import ask, part_of, summary
from tests.benchmarks.exam import QUESTIONS, AskedLoader, AskedStep, Question, flips, fresh
from tests.scripted import costs_of
from workbench import lab
from workbench.errors import ProbeError, SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure import bounds, causes
from workbench.measure.bounds import CopyLook, Rates, SyncLook
from workbench.measure.causes import Scene
from workbench.measure.diagnosing import accelerator_of
from workbench.measure.diagnosis import NO_DEVICE, conclude, diagnose
from workbench.measure.records import TrialRun, Window
from workbench.measure.stage_costs import Stage, merged
from workbench.measure.starts import Start, start_from
from workbench.measure.statistics import RateEstimate
from workbench.measure.training import TrainingStep, move, step_of
from workbench.measure.trial import TrialPlan, TrialServer
from workbench.tuning.steps import NamedStep


def rate(value, error=0.01, starts=3):
    return RateEstimate(value, value * (1 - 2 * error), value * (1 + 2 * error), starts, 4.0, error)


def rates(loader=1000.0, step=500.0, combined=None, error=0.01, **more):
    slower = min(loader, step)
    known = {"input_wait_fraction": max(0.0, 1 - loader / step), "num_workers": 2}
    return Rates(
        rate(loader, error), rate(step, error), rate(combined or slower, error), **{"moved": None, **known, **more}
    )


# -- bounds --


@pytest.mark.parametrize(
    "loader, step, bound",
    [(250, 500, "input"), (1000, 500, "compute"), (500, 500, "balanced"), (440, 500, "input"), (570, 500, "compute")],
)
def test_the_slower_of_loader_and_step_bounds(loader, step, bound):
    assert bounds.judge(rates(loader, step, error=0.002)).bound == bound


def test_sides_meet_at_a_tenth():
    assert [bounds.side(r) for r in (0.5, 0.90, 0.92, 1.0, 1.10, 1.12)] == [
        "input", "input", "balanced", "balanced", "balanced", "compute",
    ]  # fmt: skip


def test_a_wide_interval_around_the_border_is_no_verdict():
    found = bounds.judge(rates(500, 500, error=0.2))
    assert (found.bound, found.confidence) == ("unknown", "low") and "too wide" in found.why
    assert bounds.judge(rates(50, 500, error=0.2)).bound == "input"  # as wide, and far from the border


def test_other_programs_take_confidence_where_they_could_have_changed_the_side():
    close, far = rates(700, 500), rates(2000, 500)
    assert [bounds.judge(r).confidence for r in (close, far)] == ["high", "high"]
    busy = [bounds.judge(replace(r, foreign_share=0.9)) for r in (close, far)]
    assert [(found.bound, found.confidence) for found in busy] == [("compute", "low"), ("compute", "low")]
    half = [bounds.judge(replace(r, foreign_share=0.4)) for r in (close, far)]
    assert [(found.bound, found.confidence) for found in half] == [("compute", "medium"), ("compute", "high")]


def test_one_start_is_never_high_confidence():
    found = rates(2000, 500)
    alone = replace(found, loader=rate(2000, starts=1))
    assert bounds.judge(alone).confidence == "medium"


def test_numbers_that_are_hardly_known_are_never_highly_confident():
    sure, vague = (bounds.judge(rates(50, 500, error=error)) for error in (0.01, 0.2))
    assert (sure.bound, sure.confidence) == ("input", "high")
    assert (vague.bound, vague.confidence) == ("input", "medium")  # a headroom of 4 to 46, say
    to_zero = replace(rates(50, 500), loader=replace(rate(50), low=0.0))
    assert bounds.judge(to_zero).confidence == "medium"


def test_a_step_that_waits_for_its_device_is_sync_and_one_that_runs_ahead_is_not():
    waits = SyncLook(host_seconds=0.02, host_cpu_seconds=0.01, left_seconds=0.0)
    ahead = SyncLook(host_seconds=0.01, host_cpu_seconds=0.01, left_seconds=0.01)
    only_device = SyncLook(host_seconds=0.02, host_cpu_seconds=0.0001, left_seconds=0.0)
    spins = SyncLook(host_seconds=0.02, host_cpu_seconds=0.02, left_seconds=0.0, wait_fraction=0.4)
    assert [look.gain for look in (waits, ahead, only_device)] == [pytest.approx(2), 1, pytest.approx(1, rel=0.01)]
    assert spins.gain == pytest.approx(1 / 0.6)
    assert [bounds.judge(rates(sync=look)).bound for look in (waits, ahead, only_device, None)] == [
        "sync", "compute", "compute", "compute",
    ]  # fmt: skip
    assert bounds.judge(rates(200, 500, sync=waits)).bound == "input"  # the loader comes first
    near = SyncLook(host_seconds=0.0112, host_cpu_seconds=0.01, left_seconds=0.0)
    assert bounds.judge(rates(2000, sync=near)).confidence == "medium"


def test_copies_that_hold_the_loop_back_are_transfer():
    found = bounds.judge(rates(1000, 500, combined=300, moved=rate(300), input_wait_fraction=0.2))
    assert found.bound == "transfer"
    assert bounds.judge(rates(200, 500, moved=rate(180))).bound == "input"  # the loader alone is too slow already


def test_both_fast_and_together_slow_is_transfer_where_copies_explain_it():
    def found(seconds, kept=0.0, **more):
        copy = CopyLook(host_seconds=seconds, seconds=seconds)
        known = {"moved": rate(900), "copy": copy, "lost_seconds": 0.016, "transfer_seconds": kept}
        return bounds.judge(rates(1000, 800, combined=400, **{"input_wait_fraction": 0.0, **known, **more}))

    assert [found(s).bound for s in (0.015, 0.001)] == ["transfer", "compute"]
    assert [found(0.015, foreign_share=share).confidence for share in (0.0, 0.45)] == ["high", "medium"]
    assert found(0.001, kept=0.015).bound == "transfer"  # short, but it waits for the device's earlier work
    assert found(0.015, num_workers=0).bound == "compute"  # loading in turn loses as much
    assert [CopyLook(*look).keeps_host for look in ((0.004, 0.004), (0.0001, 0.004))] == [True, False]


@pytest.mark.parametrize(
    "host, pinned, cause",
    [
        (0.01, None, "unpinned copies"),
        (0.0, None, "transfer"),
        (0.0, False, "unpinned copies"),
        (0.01, True, "transfer"),
    ],
)
def test_memory_that_is_not_pinned_is_known_by_itself_or_by_how_its_copies_keep_the_host(host, pinned, cause):
    one = replace(start(1000, 800, 400), copy=CopyLook(host, 0.010), pinned=pinned)
    one.laps["combined"][0].update(batches=4, transfer_seconds=host * 4)
    found = conclude([one, one], LoaderSettings(num_workers=2), 2)
    assert (found.bound, found.cause, found.headroom) == ("transfer", cause, pytest.approx(2.0))
    assert ("pin_memory=True" in found.next_step) == (cause == "unpinned copies")


def test_both_fast_and_together_slow_is_a_disturbance():
    found = bounds.judge(rates(1000, 800, combined=400, input_wait_fraction=0.5))
    assert (found.bound, found.disturbed) == ("input", True)
    slowed = bounds.judge(rates(1000, 600, combined=400, input_wait_fraction=0.01, step_slowdown=1.5))
    assert (slowed.bound, slowed.disturbed) == ("compute", True)


@pytest.mark.parametrize(
    "loader, waits, expected",
    [
        (900, 0.05, ("compute", True, "medium")),  # hardly slower than the step, and the step is what takes longer
        (900, 0.40, ("input", True, "medium")),
        (1080, 0.05, ("compute", True, "medium")),  # balanced by itself
        (450, 0.60, ("input", False, "high")),  # the loader alone explains more of what is lost
    ],
)
def test_what_step_and_workers_take_from_each_other_is_told_where_it_costs_most(loader, waits, expected):
    found = bounds.judge(rates(loader, 1040, combined=373, input_wait_fraction=waits, step_slowdown=2.5))
    assert (found.bound, found.disturbed, found.confidence) == expected


def test_contradictions_are_no_verdict():
    found = bounds.judge(rates(300, 500, combined=500, input_wait_fraction=0.0))
    assert found.bound == "unknown" and "as fast as the step alone" in found.why


def test_without_workers_one_after_the_other_is_no_disturbance():
    found = bounds.judge(rates(1000, 400, combined=1 / (1 / 1000 + 1 / 400), num_workers=0, input_wait_fraction=0.29))
    assert (found.bound, found.disturbed) == ("compute", False)


# -- causes --


def scene(found, **more):
    known = {"num_workers": 2, "prefetch_factor": 2, "cores": 2, "samples_per_second": found.samples_per_second,
             "wanted_samples_per_second": 4 * found.samples_per_second}  # fmt: skip
    return Scene(found, **{**known, **more})


BUSY = {"fetch": (0.01, 0.0095)}
RESIZE = Stage("Resize", 0.03, 0.029)


@pytest.mark.parametrize(
    "found, name",
    [
        (costs_of(), "storage wait"),
        (costs_of(**BUSY), "CPU in the dataset's __getitem__"),
        (costs_of(transforms=(RESIZE, Stage("Flip", 0.001, 0.001))), "CPU in the transform Resize"),
        (costs_of(fetch=(0.002, 0.002), collate=(0.02, 0.019)), "Python collate"),
        (costs_of(fetch=(0.02, 0.005, 0.014)), "CPU in the dataset's __getitem__"),  # wants a core, does not wait
        (costs_of(worker_batches=(100, 0)), "idle workers"),
        (costs_of(worker_batches=(95, 5)), "shard imbalance"),
        (costs_of(batch_walls=(*(0.01,) * 9, 0.4) * 10), "heavy tail"),
        (costs_of(**BUSY, other_threads_cpu_seconds=0.008, threads_per_worker=8), "thread oversubscription"),
        (costs_of(hand=(0.05, 0.05), tensors_per_batch=600, bytes_per_batch=40_000), "many small tensors"),
        (costs_of(hand=(0.05, 0.05), pickled_bytes_per_batch=900_000.0), "pickled objects"),
        (costs_of(hand=(0.05, 0.01), bytes_per_batch=40_000_000), "hand-over"),
        (costs_of(main_seconds_per_batch=0.004, pickled_bytes_per_batch=900_000.0), "pickled objects"),
    ],
)
def test_each_sub_cause_from_its_numbers(found, name):
    cause = causes.input_cause(scene(found))
    assert cause.name == name and cause.next_step and cause.refuted_by
    assert any(letter.isdigit() for letter in cause.evidence)


def test_memory_pressure_comes_before_what_it_makes_slow():
    assert causes.input_cause(scene(costs_of(), memory_pressure=0.4)).name == "memory pressure"
    assert causes.input_cause(scene(costs_of(), memory_pressure=0.02)).name == "storage wait"


def test_advice_says_how_many_workers_and_what_the_cores_allow():
    assert "num_workers to 8" in causes.input_cause(scene(costs_of())).next_step
    computing = causes.input_cause(scene(costs_of(**BUSY)))
    assert "would take 7.6 cores and there are 2" in computing.evidence and "num_workers" not in computing.next_step
    few = causes.input_cause(scene(costs_of(**BUSY), num_workers=1, cores=16))
    assert few.next_step.startswith("raise num_workers to 8")


def alone(found, **more):
    """A loader without workers: it hands nothing over, and its batches come one after the other."""
    made = found.worker_seconds_per_batch
    one = replace(found, hand_over=None, worker_batches=(100,), samples_per_second=16 / made)
    return scene(one, **{"num_workers": 0, "prefetch_factor": None, **more})


def test_a_loader_without_workers_is_given_workers_first_where_its_stages_predict_a_gain():
    busy = causes.input_cause(alone(costs_of(**BUSY)))
    assert busy.next_step.startswith("give it workers: num_workers=2 would load up to 2 times as fast")
    assert "; then do the work of the dataset's __getitem__ once, offline" in busy.next_step
    waiting = causes.input_cause(alone(costs_of()))
    assert waiting.next_step.startswith("give it workers: num_workers=4, since waiting takes no core")
    single = causes.input_cause(alone(costs_of(**BUSY), cores=1))
    assert "give it workers" not in single.next_step  # one core cannot do two things at once
    light = causes.input_cause(alone(costs_of(fetch=(0.0003, 0.0003), collate=(0.0001, 0.0001))))
    assert "give it workers" not in light.next_step  # handing a batch over would cost as much as making it


def test_what_is_to_be_done_offline_and_left_out_for_a_test_has_a_name_and_a_how():
    resize = causes.input_cause(scene(costs_of(transforms=(RESIZE,))))
    assert resize.next_step.startswith("do the work of the transform Resize once, offline")
    assert "Resize computes its first result once and returns that one every time" in resize.refuted_by
    fetch = causes.input_cause(scene(costs_of(**BUSY)))
    assert "the dataset's __getitem__ once, offline" in fetch.next_step
    assert "__getitem__ loads its first sample once and returns that one for every index" in fetch.refuted_by
    collate = causes.input_cause(scene(costs_of(fetch=(0.002, 0.002), collate=(0.02, 0.019))))
    assert "collate_fn makes its first batch once" in collate.refuted_by


@pytest.mark.parametrize(
    "slow, name, told",
    [
        ((3, 9, 17, 22), "heavy tail", "4 of 28 batches take far longer than the rest (median 10 ms"),
        ((6, 7, 8, 9, 10, 11), "storage wait", "6 of 28 batches, most of them in a row, took far longer"),
        ((12, 13), "storage wait", "2 of 28 batches, most of them in a row"),
        ((0, 5, 6, 13, 20, 24), "heavy tail", "6 of 28"),  # two neighbours, as it happens
        ((), "storage wait", ""),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_slow_batches_in_a_row_are_no_tail_of_slow_samples(slow, name, told, num_workers):
    walls = tuple(0.3 if place in slow else 0.01 for place in range(28))
    seen = replace(scene(costs_of(batch_walls=walls)), num_workers=num_workers)
    cause, notes = causes.input_cause(seen), causes.asides(seen)
    assert cause.name == name and told in (cause.evidence if name == "heavy tail" else " ".join(notes))
    assert ("behind a slow one" in cause.evidence) == (name == "heavy tail" and num_workers > 0)


def test_asides():
    slow = scene(costs_of(first_batch_seconds=3.0), foreign_share=0.5)
    told = " ".join(causes.asides(slow))
    assert "first batch took 3 s" in told and "other programs used 1.0 of 2 cores" in told
    assert causes.asides(scene(costs_of())) == ()
    crowded = scene(costs_of(fetch=(0.02, 0.005, 0.014)), foreign_share=0.0)
    assert "more of them than cores" in causes.asides(crowded)[0]
    assert causes.asides(replace(crowded, num_workers=0)) == ()


def test_costs_of_several_stretches_are_weighted_by_their_batches():
    one = costs_of(fetch=(0.01, 0.01), worker_batches=(10, 0))
    two = replace(costs_of(fetch=(0.04, 0.01), worker_batches=(0, 30)), batches=300, hand_over=None)
    both = merged([one, two])
    assert both.fetch.wall_seconds == pytest.approx((0.01 * 100 + 0.04 * 300) / 400)
    assert (both.worker_batches, both.batches, both.tensors_per_batch) == ((10, 30), 400, 1)
    assert len(both.batch_walls) == 200 and merged([]) is None


# -- from starts to a diagnosis --


def start(loader=1000.0, step=500.0, combined=500.0, wait=0.0, sync=None, device=True, foreign=0.0):
    rate_of = {"loader": loader, "step": step, "combined": combined}
    runs = {
        kind: TrialRun(LoaderSettings(num_workers=2), "ok", windows=(Window(0.0, 1.0, 10, round(r), foreign),) * 2)
        for kind, r in rate_of.items()
    }
    lap = {"seconds": 1.0, "batches": 10, "next_seconds": wait, "step_seconds": 0.5, "transfer_seconds": 0.0}
    return Start(runs, {kind: [lap] for kind in rate_of}, {"loader": [costs_of()]}, sync, None, 0.1, device, None)


def test_a_diagnosis_states_rates_headroom_and_a_way_on():
    seen = [start(250, 500, 248, 0.5), start(252, 502, 250, 0.5), start(248, 498, 251, 0.5)]
    found = conclude(seen, LoaderSettings(num_workers=2), 2)
    assert (found.bound, found.cause, found.confidence, found.starts) == ("input", "storage wait", "high", 3)
    assert found.loader_samples_per_second == 250 and found.headroom == pytest.approx(2.0, rel=0.01)
    low, high = found.headroom_interval
    assert low < 2 < high and found.intervals["step"][0] < 500 < found.intervals["step"][1]
    assert found.input_wait_fraction == 0.5 and found.moved_samples_per_second is None
    text = str(found)
    assert "perfect loading would give at most 2.00x" in text and "Next: raise num_workers" in text
    assert NO_DEVICE not in text
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["stages"]["fetch"]["name"] == "fetch"


def test_the_cores_that_step_and_workers_share_are_named_with_a_way_out():
    found = conclude([start(960, 1040, 373, 0.05)] * 2, LoaderSettings(num_workers=2), 2)
    assert (found.bound, found.cause, found.headroom) == ("compute", "mutual starvation", pytest.approx(1040 / 373))
    assert "num_workers=1" in found.next_step and "torch.set_num_threads(1)" in found.next_step


def test_a_loop_as_fast_as_the_step_alone_leaves_nothing_to_gain():
    found = conclude([start(1000, 500, 505), start(1000, 500, 507)], LoaderSettings(num_workers=2), 2)
    low, high = found.headroom_interval
    assert found.headroom == low == 1.0 <= high < 1.1


def test_stages_of_a_sample_of_the_batches_are_told_as_such():
    def notes(detailed):
        one = replace(start(), costs={"loader": [replace(costs_of(), batches_detailed=detailed)]})
        return conclude([one, one], LoaderSettings(num_workers=2), 2).notes

    assert any("timed on 20 of 200 batches" in note for note in notes(10))
    assert not any("timed on" in note for note in notes(100))


def test_without_a_device_it_says_what_could_not_be_seen():
    found = conclude([start(device=False)] * 2, LoaderSettings(num_workers=2), 2)
    assert NO_DEVICE in found.notes and found.bound == "compute"


def test_laps_with_an_epochs_edge_are_left_out_while_others_have_none():
    lap = {"at_seconds": 0.0, "seconds": 1.0, "batches": 10, "samples": 160, "next_seconds": 0.1, "step_seconds": 0.1,
           "transfer_seconds": 0.0, "holds_epochs": False}  # fmt: skip
    kinds = ["loader", "step", "combined"] * 2
    edges = [1, 0, 1, 0, 0, 1]
    laps = [{"kind": k, "lap": lap | {"edges": e}, "costs": None} for k, e in zip(kinds, edges, strict=True)]
    windows = [
        {"at_seconds": 0.0, "seconds": 1.0, "batches": 10, "samples": n, "foreign_cores": None} for n in range(6)
    ]
    done = {"laps": laps, "sync": None, "memory_pressure": None, "first_batch_seconds": 0.1, "device_seen": False,
            "copies_pinned": None, "copy": None}  # fmt: skip
    found = start_from({"done": done, "windows": windows}, LoaderSettings())
    assert [w.samples for w in found.runs["loader"].windows] == [3]
    assert [w.samples for w in found.runs["step"].windows] == [1, 4]
    assert [w.samples for w in found.runs["combined"].windows] == [2, 5]  # both hold one: then it belongs to the pace
    laps[0]["lap"]["holds_epochs"] = True
    found = start_from({"done": done, "windows": windows}, LoaderSettings())
    assert [w.samples for w in found.runs["loader"].windows] == [0]  # a whole epoch says more than a part of one


def test_laps_hold_whole_epochs_where_these_are_short():
    """Two shards, of 30 samples and of 10: half of an epoch comes from one worker, at half the pace of the rest."""
    loader = lab.loader(shards=2, largest_shard=0.75, storage_seconds=0.002, length=40, batch_size=2)
    settings = LoaderSettings(num_workers=2, persistent_workers=True)
    plan = TrialPlan(max_measure_seconds=2.0, measure_seconds=1e9, precision=0.0)
    with TrialServer(loader, step=lambda batch: None) as server:
        server.probe()
        laps = server.ask("diagnose", settings, plan, seconds=0.05)["done"]["laps"]
    taken = [lap["lap"] for lap in laps if lap["kind"] != "step"]
    assert {lap["holds_epochs"] for lap in taken[1:]} == {True}
    assert all(lap["batches"] % 20 == 0 and lap["samples"] == 2 * lap["batches"] for lap in taken[1:])


# -- steps --


def test_a_triple_trains():
    model = torch.nn.Linear(3, 1)
    before = model.weight.detach().clone()
    step = step_of((model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1)))
    step((torch.ones(4, 3), torch.ones(4, 1)))
    step({"inputs": torch.ones(4, 3), "targets": torch.ones(4, 1)})
    assert not torch.equal(model.weight, before)
    with pytest.raises(SettingsError, match=r"\(inputs, targets\)"):
        step(torch.ones(4, 3))
    copied = pickle.loads(pickle.dumps(step))
    copied((torch.ones(4, 3), torch.zeros(4, 1)))
    assert copied.optimiser.param_groups[0]["params"][0] is next(copied.model.parameters())


def test_a_step_found_by_its_name_keeps_its_device(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "named_steps.py").write_text(
        "from workbench import lab\n"
        "there = lab.step(device_seconds=0.1, copy_seconds=0.1)\n"
        "def plain(batch): return batch\n"
    )
    there, plain = NamedStep("named_steps:there"), NamedStep("named_steps:plain")
    copy, wait = accelerator_of(there)
    assert callable(copy) and callable(wait)
    assert not hasattr(plain, "synchronize") and not hasattr(plain, "anything")
    assert pickle.loads(pickle.dumps(there)).text == there.text


@pytest.mark.parametrize("nonsense", [None, 3, "step", (torch.nn.Linear(1, 1), 2), (1, 2, 3)])
def test_what_is_no_step_is_refused(nonsense):
    with pytest.raises(SettingsError, match="is no training step"):
        step_of(nonsense)


def test_a_step_on_a_device_travels_on_the_cpu():
    model = torch.nn.Linear(2, 1)
    step = TrainingStep(model, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters()))
    step((torch.ones(1, 2), torch.ones(1, 1)))
    step.device = torch.device("meta")  # not the CPU, and here on every machine
    state = step.__getstate__()
    assert state["model"] is not model and not state["_at_home"]
    assert next(state["model"].parameters()) is state["optimiser"].param_groups[0]["params"][0]


def test_batches_are_moved_with_their_structure():
    class Marked(dict):
        pass

    batch = Marked(x=torch.ones(2), more=[torch.zeros(1), "path"], pair=(torch.ones(1),))
    moved = move(batch, torch.device("meta"))
    assert type(moved) is Marked and moved["x"].is_meta and moved["more"][0].is_meta and moved["more"][1] == "path"
    assert moved["pair"][0].is_meta and not batch["x"].is_meta


# -- the exam, a small part of it --


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("exam") / "question.json")
    loader = AskedLoader(path)
    loader.put(Question("healthy"))
    with TrialServer(loader, step=AskedStep(path)) as server:
        server.probe()
        yield lambda question: ask(server, loader, question, starts=2, seconds=0.1)


TWENTY = {"device_seconds": 0.020}
SYNC = {"launch_seconds": 0.010, "device_seconds": 0.020}
WAITS = {"storage_seconds": 0.0005}  # a rate of its own that other programs leave alone
COPIED = {"copy_seconds": 0.030, "device_seconds": 0.060}
FOUND = {"storage": ("input", "storage wait"), "idle": ("input", "idle workers"),
         "sync": ("sync", "host synchronisation"), "pageable": ("transfer", "unpinned copies")}  # fmt: skip


@pytest.mark.parametrize(
    "fault, on, off",
    [
        ("storage", Question("on", {"storage_seconds": 0.008}, TWENTY), Question("off", {}, TWENTY)),
        (
            "idle",
            Question("on", {"shards": 1, "storage_seconds": 0.004}, TWENTY),
            Question("off", {"shards": 2}, TWENTY),
        ),
        ("sync", Question("on", {}, SYNC | {"synchronise": True}), Question("off", {}, SYNC)),
        ("pageable", Question("on", WAITS, COPIED | {"pageable": True}), Question("off", WAITS, COPIED)),
    ],
)
def test_a_verdict_flips_with_the_fault_and_back(asked, fault, on, off):
    found = [asked(question) for question in (off, on, off)]
    assert [each.bound for each in found] == ["compute", FOUND[fault][0], "compute"], "\n\n".join(map(str, found))
    assert found[1].cause == FOUND[fault][1]


def test_every_question_has_an_answer_and_the_exam_is_long_enough():
    assert len(QUESTIONS) >= 60 and len({question.name for question in QUESTIONS}) == len(QUESTIONS)
    asked_for = {question.right_bound for question in QUESTIONS}
    assert asked_for == {"input", "compute", "sync", "transfer", "balanced"}
    assert sum(not question.loader for question in QUESTIONS) >= 5  # healthy controls


def test_fresh_questions_have_other_strengths_and_the_same_answers():
    once, again, other = fresh(1), fresh(1), fresh(2)
    assert once == again and once != other and len(once) == len(QUESTIONS)
    assert [q.right_bound for q in once] == [q.right_bound for q in other] == [q.right_bound for q in QUESTIONS]
    changed = [new.loader != old.loader or new.step != old.step for new, old in zip(once, QUESTIONS, strict=True)]
    assert all(changed)


def test_every_fault_is_asked_off_on_and_off():
    found = flips(QUESTIONS)
    assert len(found) >= 3 * 12
    for off, on, again in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert on.right_bound in ("input", "sync", "transfer") and on.right_bound != "compute"
        assert (off.right_bound, again.right_bound) == ("compute", "compute")
        assert (off.loader, off.step) == (again.loader, again.step)


def test_parts_of_the_exam_make_the_whole_and_nonsense_is_refused():
    parts = [part_of(QUESTIONS, f"{number}/6") for number in range(1, 7)]
    assert sorted(q.name for part in parts for q in part) == sorted(q.name for q in QUESTIONS)
    for wrong in ("0/6", "7/6", "one", "2", "1/0"):
        with pytest.raises(SystemExit, match="is none"):
            part_of(QUESTIONS, wrong)


def test_the_exams_marks():
    row = {"question": "a", "right": "input", "bound": "input", "confidence": "high", "cause_right": True,
           "headroom_error": 0.04, "only_waits": True}  # fmt: skip
    rows = [row, row | {"bound": "unknown", "headroom_error": None}, row | {"bound": "compute", "headroom_error": -0.5}]
    found = summary(rows)
    assert found["accuracy"] == pytest.approx(1 / 3) and found["accuracy_of_answers"] == pytest.approx(1 / 2)
    assert found["abstentions"] == pytest.approx(1 / 3) and found["wrong_with_high_confidence"] == ["a"]
    assert found["confusions"] == {"input taken for compute": 1}
    assert found["headroom_within_10_percent_waiting"] == pytest.approx(1 / 2)


# -- whole diagnoses --


class Quick(Dataset):
    """Loads in 1 ms a sample; the same loader is too slow for a fast step and fast enough for a slow one."""

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        import time

        time.sleep(0.001)
        return torch.tensor(float(index))


def test_the_same_loader_is_the_bound_of_one_step_and_not_of_another():
    loader = DataLoader(Quick(), batch_size=4, num_workers=1)
    fast, slow = (diagnose(loader, lab.step(device_seconds=s), starts=2, seconds=0.1) for s in (0.0002, 0.020))
    assert (fast.bound, slow.bound) == ("input", "compute")
    assert (fast.cause, slow.cause) == ("storage wait", "step")
    assert slow.input_wait_fraction < 0.5 < fast.input_wait_fraction
    assert slow.headroom < 1.5 < fast.headroom
    assert fast.settings == LoaderSettings(num_workers=1)


def test_the_callers_loader_and_model_stay_as_they_are():
    model = torch.nn.Linear(8, 1)
    before = model.weight.detach().clone()
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))
    state = loader.generator.get_state()
    step = (model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1))
    found = wb.diagnose(loader, step, starts=2, seconds=0.1)
    assert torch.equal(model.weight, before) and torch.equal(loader.generator.get_state(), state)
    assert loader.worker_init_fn is None and NO_DEVICE in found.notes
    assert found.moved_samples_per_second is None and found.starts == 2


def fails(batch):
    raise RuntimeError("the step is broken")


def test_a_step_that_fails_is_the_users_own_error():
    with pytest.raises(ProbeError, match=r"could not be run with .*the step is broken") as caught:
        diagnose(DataLoader(Quick(), batch_size=4), fails)
    assert "in fails" in caught.value.traceback_text


@pytest.mark.parametrize("effort", [{"starts": 1}, {"starts": True}, {"starts": 2.5}, {"seconds": 0}, {"seconds": -1.0},
                                    {"seconds": float("nan")}, {"seconds": 1e9}, {"samples_per_batch": 0}])  # fmt: skip
def test_efforts_that_make_no_sense_are_refused_before_anything_starts(effort, monkeypatch):
    monkeypatch.setattr("workbench.measure.diagnosis.TrialServer", None)
    with pytest.raises(SettingsError, match=f"{next(iter(effort))}="):
        diagnose(DataLoader([1, 2]), lambda batch: None, **effort)
