"""Threads in a worker, sharing strategy and `non_blocking`: applied for real, refused with the way out, exported."""

from __future__ import annotations

import json
import os
import sys
import types

import pytest
import torch
import yaml
from torch.utils.data import DataLoader

from tests.scripted import ScriptedServer, factory, probe_of, run_of
from tests.tellers import Telling, leave_a_mark
from workbench.cli import checking
from workbench.cli.arguments import knob_values
from workbench.errors import SettingsError, SourceError
from workbench.loaders.settings import NOT_FOR_DATALOADER, LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.loaders.tuned import tuned_loader
from workbench.loaders.workers import WorkerInit
from workbench.machine import Accelerator
from workbench.measure.plan import TrialPlan
from workbench.measure.step_copies import step_under, takes_non_blocking
from workbench.measure.trial import TrialServer
from workbench.notebook.choices import Choices
from workbench.notebook.formatting import short_label
from workbench.tuning.export import export, load_settings, render
from workbench.tuning.knob_notes import THREADS_AND_FORK, knob_notes, threads_worth_a_try
from workbench.tuning.space import NO_COPY_NOTE, SearchSpace
from workbench.tuning.steps import NamedStep
from workbench.tuning.sweep import Sweep
from workbench.tuning.trials import trials_of

TURNED = LoaderSettings(2, worker_threads=3, sharing_strategy="file_system", non_blocking=True)


def told(loader) -> list[int]:
    return next(iter(loader))[0].tolist()


@pytest.fixture
def sharing():
    """Leaves this process's own sharing strategy as it was."""
    before = torch.multiprocessing.get_sharing_strategy()
    yield
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.parametrize(
    ("knobs", "value"),
    [
        ({"worker_threads": 0}, "worker_threads=0 must be a whole number of 1 or more, or None"),
        ({"worker_threads": True}, "worker_threads=True"),
        ({"worker_threads": "2"}, "worker_threads='2'"),
        (
            {"sharing_strategy": "files"},
            "sharing_strategy='files' must be one of 'file_descriptor', 'file_system', or None",
        ),
        ({"sharing_strategy": 3}, "sharing_strategy=3"),
        ({"non_blocking": 1}, "non_blocking=1 must be True or False, or None"),
    ],
)
def test_nonsense_is_refused_with_value_rule_and_way_out(knobs, value):
    with pytest.raises(SettingsError) as caught:
        LoaderSettings(2, **knobs)
    assert value in str(caught.value) and "give for instance" in str(caught.value)
    with pytest.raises(SettingsError):
        SearchSpace(**{name: [given] for name, given in knobs.items()})


def test_without_workers_threads_and_sharing_mean_nothing():
    assert LoaderSettings(0, worker_threads=4, sharing_strategy="file_system") == LoaderSettings(0)
    assert len(SearchSpace(num_workers=[0, 1], worker_threads=[None, 1, 2])) == 1 + 3


def test_dataloader_is_never_given_what_it_does_not_take():
    assert not set(NOT_FOR_DATALOADER) & set(TURNED.loader_kwargs())
    assert TURNED.describe() == (
        "2 workers, prefetch 2 (4 batches in flight), 3 threads a worker, tensors shared by file_system, "
        "non-blocking copies"
    )
    assert LoaderSettings(non_blocking=False).describe() == "0 workers, blocking copies"


def test_settings_written_before_these_knobs_existed_still_load(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text("loader_kwargs: {num_workers: 2, pin_memory: false}\nbatch_on_worker: true\n")

    assert load_settings(path) == LoaderSettings(2, batch_on_worker=True)
    old = {knob: value for knob, value in LoaderSettings(2).as_dict().items() if knob not in NOT_FOR_DATALOADER}
    assert LoaderSettings.from_dict(old) == LoaderSettings(2)


@pytest.mark.parametrize("whole", [False, True])
def test_a_worker_has_the_threads_and_strategy_after_the_users_own_init_ran(whole):
    source = LoaderSource.of(DataLoader(Telling(), batch_size=4, worker_init_fn=leave_a_mark))
    plain = LoaderSettings(1, batch_on_worker=whole)

    assert told(source.build(plain)) == [2, 0, 7]
    assert told(source.build(plain.replaced(worker_threads=3))) == [3, 0, 7]
    assert told(source.build(plain.replaced(sharing_strategy="file_system"))) == [2, 1, 7]


def test_a_spawned_worker_knows_nothing_of_its_parent_and_is_told_all_the_same():
    source = LoaderSource.of(DataLoader(Telling(), batch_size=4, worker_init_fn=leave_a_mark))
    turned = LoaderSettings(1, multiprocessing_context="spawn", worker_threads=3, sharing_strategy="file_system")

    assert told(source.build(turned)) == [3, 1, 7]


def test_a_factory_need_not_name_them_and_may():
    def plain(num_workers=0):
        return DataLoader(Telling(), batch_size=4, num_workers=num_workers, worker_init_fn=leave_a_mark)

    heard = []

    def names_it(num_workers=0, worker_threads=None):
        heard.append(worker_threads)
        return plain(num_workers)

    def no_loader(num_workers=0):
        return iter([1])

    assert LoaderSource.of(plain).accepts("worker_threads") and LoaderSource.of(plain).accepts("sharing_strategy")
    assert not LoaderSource.of(plain).accepts("non_blocking")
    assert told(LoaderSource.of(plain).build(LoaderSettings(1, worker_threads=1)))[0] == 1
    assert told(LoaderSource.of(names_it).build(LoaderSettings(1, worker_threads=1)))[0] == 2
    LoaderSource.of(names_it).build(LoaderSettings(1))
    assert heard == [1, None]
    with pytest.raises(SourceError, match="worker_threads=1 cannot be applied"):
        LoaderSource.of(no_loader).build(LoaderSettings(1, worker_threads=1))


def test_a_loader_that_has_such_an_init_function_keeps_what_nobody_turns():
    inner = WorkerInit(leave_a_mark, worker_threads=4)
    source = LoaderSource.of(DataLoader(Telling(), batch_size=4, num_workers=1, worker_init_fn=inner))

    assert source.current == LoaderSettings(1, worker_threads=4)
    built = source.build(LoaderSettings(1, worker_threads=5))
    assert (built.worker_init_fn.own, built.worker_init_fn.worker_threads) == (leave_a_mark, 5)
    assert source.build(LoaderSettings(1)).worker_init_fn is inner


def test_opencv_is_told_too_where_a_worker_has_it(monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "cv2", types.SimpleNamespace(setNumThreads=asked.append))
    before = torch.get_num_threads()
    try:
        WorkerInit(None, worker_threads=1)(0)
        assert torch.get_num_threads() == 1 and asked == [1]
    finally:
        torch.set_num_threads(before)


def test_a_trial_really_runs_under_all_three(tmp_path):
    """Worker and step write down, from inside the trial, what they were told."""
    seen = str(tmp_path / "seen")

    class Writing(Telling):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            with open(f"{seen}.worker", "w") as file:
                json.dump(found.tolist(), file)
            return found

    def step(batch, non_blocking=None):
        with open(f"{seen}.step", "w") as file:
            json.dump([non_blocking, torch.multiprocessing.get_sharing_strategy()], file)

    def read(name):
        with open(f"{seen}.{name}") as file:
            return json.load(file)

    quick = TrialPlan(measure_seconds=0.1, max_measure_seconds=0.1, check_data=False, measure_growth=False)
    names = set(os.listdir("/dev/shm"))
    with TrialServer(DataLoader(Writing(), batch_size=4, worker_init_fn=leave_a_mark), step=step) as server:
        run = server.run(TURNED, quick)
        assert (run.status, run.reason) == ("ok", "")
        assert read("worker") == [3, 1, 7] and read("step") == [True, "file_system"]
        assert run.memory.peak_shm_bytes
        plain = server.run(LoaderSettings(2), quick)
        assert plain.status == "ok" and read("worker") == [2, 0, 7]
        assert read("step") == [None, torch.multiprocessing.get_sharing_strategy()]
    assert not [name for name in set(os.listdir("/dev/shm")) - names if name.startswith("torch_")]


# -- non_blocking and the step --


def plain_step(batch):
    return batch


def telling_step(batch, non_blocking=False):
    return non_blocking


def greedy_step(batch, **anything):
    return anything


def test_only_a_step_that_names_it_is_told():
    assert takes_non_blocking(telling_step) and not takes_non_blocking(plain_step)
    assert not takes_non_blocking(greedy_step) and not takes_non_blocking(None)
    assert step_under(telling_step, True)(1) is True and step_under(telling_step, False)(1) is False
    assert step_under(plain_step, None) is plain_step
    with pytest.raises(
        SettingsError, match=r"non_blocking=True cannot be tried: the step plain_step names no parameter"
    ):
        step_under(plain_step, True)


def test_what_waits_for_a_steps_own_device_stays_reachable():
    telling_step.synchronize = waits = lambda: None
    try:
        assert step_under(telling_step, True).synchronize is waits
    finally:
        del telling_step.synchronize


def test_a_step_in_a_file_is_asked_without_importing_it(tmp_path):
    (tmp_path / "steps_here.py").write_text(
        "raise SystemExit\ndef told(batch, *, non_blocking=True): pass\ndef deaf(batch): pass\n"
    )

    assert NamedStep(f"{tmp_path}/steps_here.py:told").takes_non_blocking
    assert not NamedStep(f"{tmp_path}/steps_here.py:deaf").takes_non_blocking


def test_a_named_step_hands_it_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "steps_told.py").write_text("def told(batch, non_blocking=None): return non_blocking\n")

    step = NamedStep("steps_told:told")

    assert step(1) is None and step_under(step, False)(1) is False


def test_a_sweep_refuses_a_step_that_cannot_be_told_before_anything_starts(tmp_path):
    space = SearchSpace(num_workers=[0], non_blocking=[False, True])

    with pytest.raises(SettingsError, match=r"there is no step; give step= a function"):
        Sweep(factory, space, store=tmp_path / "s.db")
    with pytest.raises(SettingsError, match="plain_step names no parameter non_blocking"):
        Sweep(factory, space, step=plain_step, store=tmp_path / "s.db")
    Sweep(factory, SearchSpace(num_workers=[0], non_blocking=[None]), store=tmp_path / "s.db")


def test_the_command_line_writes_them_as_words():
    space = SearchSpace(
        worker_threads=knob_values("none,1"),
        sharing_strategy=knob_values("none,file_system"),
        non_blocking=knob_values("false,true"),
    )

    assert space.as_dict() == {
        "worker_threads": [None, 1],
        "sharing_strategy": [None, "file_system"],
        "non_blocking": [False, True],
    }


def test_a_check_in_which_no_step_runs_leaves_the_steps_knob_out(monkeypatch):
    server = ScriptedServer(lambda one: 100.0)
    server.source, server.cores = LoaderSource.of(factory), 2
    monkeypatch.setattr("workbench.measure.trial.TrialServer", lambda loader: server)

    exported, current = checking._measured_in_turns("loader.py:make", LoaderSettings(1, non_blocking=True), 2, None)

    assert exported.settings == LoaderSettings(1) and current.settings == LoaderSettings()
    assert set(server.starts) == {LoaderSettings(1), LoaderSettings()}


@pytest.mark.parametrize("said, pinned", [("num_workers: 1", True), ("num_workers: 1, pin_memory: false", False)])
def test_a_check_pins_as_the_loader_does_where_the_export_does_not_say(monkeypatch, tmp_path, said, pinned):
    server = ScriptedServer(lambda one: 100.0, probe=probe_of(current=LoaderSettings(pin_memory=True)))
    server.source, server.cores = LoaderSource.of(factory), 2
    monkeypatch.setattr("workbench.measure.trial.TrialServer", lambda loader: server)
    monkeypatch.setattr(checking.machine, "accelerator", lambda: Accelerator("cuda", "a card", 1, pins=True))
    (tmp_path / "loader.yaml").write_text(f"loader_kwargs: {{{said}}}\n")

    exported, _ = checking._measured_in_turns("loader.py:make", load_settings(tmp_path / "loader.yaml"), 2, None)

    assert exported.settings == LoaderSettings(1, pin_memory=pinned)


def test_the_panel_offers_what_the_loader_and_the_step_can_be_told():
    source = LoaderSource.of(DataLoader(Telling(), batch_size=4))
    asked = SearchSpace(num_workers=[1], non_blocking=[True])

    deaf = Choices(source, None, lambda: None, plain_step)
    told = Choices(source, asked, lambda: None, telling_step)
    told.tick(worker_threads=(None, 1), sharing_strategy=("file_system",))

    assert {"worker_threads", "sharing_strategy"} <= set(deaf.rows) and "non_blocking" not in deaf.rows
    assert told.space == SearchSpace(
        num_workers=[1], worker_threads=[None, 1], sharing_strategy=["file_system"], non_blocking=[True]
    )
    assert short_label(TURNED) == "2w p2 3t file_system no wait"


def test_where_no_copy_can_go_on_beside_the_step_it_is_left_out_and_said_so():
    space = SearchSpace(num_workers=[0, 1], non_blocking=[False, True])
    source = LoaderSource.of(factory)

    without, with_one = space.resolve(source, pins=False), space.resolve(source, pins=True)

    assert {one.non_blocking for one in without.settings} == {None} and without.notes == (NO_COPY_NOTE,)
    assert {one.non_blocking for one in with_one.settings} == {None, False, True} and not with_one.notes


# -- searching, results and exports --


@pytest.mark.parametrize("strategy", ["race", "guided", "grid"])
def test_strategies_find_the_better_number_of_threads(tmp_path, strategy):
    def rate(one):
        return 100.0 * (1 + one.num_workers) * (3 if one.worker_threads == 1 and one.num_workers else 1)

    def loader(num_workers=0, prefetch_factor=None):
        return iter(())

    space = SearchSpace(num_workers=[0, 2], worker_threads=[None, 1])
    sweep = Sweep(loader, space, strategy, store=tmp_path / "s.db", server_factory=ScriptedServer(rate))
    results = sweep.run(progress=False)

    assert results.best == LoaderSettings(2, worker_threads=1)
    assert "worker_threads=1 is torch.set_num_threads(1) in worker_init_fn" in results.recommendation
    row = results.frame[results.frame["rank"] == 1].iloc[0]
    assert row["worker_threads"] == 1 and str(row["sharing_strategy"]) == "<NA>"
    assert (
        str(results.frame["worker_threads"].dtype) == "Int64" and str(results.frame["non_blocking"].dtype) == "boolean"
    )


def test_crowded_cores_are_answered_with_a_space_to_try():
    two = LoaderSettings(2)
    crowded = run_of(two, 100.0, notes=("oversubscribed: 2 workers x 8 busy threads on 2 cores",))

    assert "worker_threads=[1]" in threads_worth_a_try(trials_of([crowded], 2).values())
    tried = run_of(two.replaced(worker_threads=1), 100.0)
    assert threads_worth_a_try(trials_of([crowded, tried], 2).values()) == ""
    assert threads_worth_a_try(trials_of([run_of(two, 100.0)], 2).values()) == ""


def test_threads_of_forked_workers_come_with_a_warning():
    assert THREADS_AND_FORK in knob_notes(LoaderSettings(1, worker_threads=2))
    assert THREADS_AND_FORK not in knob_notes(LoaderSettings(1, worker_threads=1))
    assert THREADS_AND_FORK not in knob_notes(LoaderSettings(1, worker_threads=2, multiprocessing_context="spawn"))
    assert knob_notes(LoaderSettings(1)) == []


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".py"])
def test_exports_load_back_equal(tmp_path, suffix):
    assert load_settings(export(TURNED, tmp_path / f"loader{suffix}")) == TURNED


def test_the_python_export_runs_and_its_workers_are_told(sharing):
    names: dict = {}

    exec(render(TURNED, "python"), names)

    assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    assert told(names["make_loader"](Telling(), batch_size=4, worker_init_fn=leave_a_mark)) == [3, 1, 7]
    assert told(names["make_loader"](Telling(), batch_size=4))[:2] == [3, 1]
    assert names["NON_BLOCKING"] is True


def test_the_lightning_export_runs_and_copies_as_it_was_told(sharing, monkeypatch):
    class DataModule:
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return batch

    monkeypatch.setitem(sys.modules, "lightning", types.SimpleNamespace(LightningDataModule=DataModule))
    names: dict = {}
    exec(render(TURNED, "lightning"), names)
    module = names["TunedDataModule"](Telling(), batch_size=4)
    copies = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, **how: copies.append((device, how)) or tensor)

    module.transfer_batch_to_device({"x": torch.zeros(1), "y": [torch.zeros(1), "text"]}, "cuda:0", 0)

    assert copies == [("cuda:0", {"non_blocking": True})] * 2
    assert module.train_dataloader().worker_init_fn.args == (None,)


def test_the_hydra_node_makes_a_loader_whose_workers_are_told(sharing, tmp_path):
    path = export(TURNED.replaced(batch_on_worker=True), tmp_path / "hydra.yaml", format="hydra")
    node = yaml.safe_load(path.read_text())

    assert node.pop("_target_") == "workbench.loaders.tuned.tuned_loader" and node.pop("_partial_")
    loader = tuned_loader(Telling(), batch_size=4, worker_init_fn=leave_a_mark, **node)
    assert loader.batch_size is None and told(loader) == [3, 1, 7]
    assert load_settings(path) == TURNED.replaced(batch_on_worker=True, non_blocking=None)


def test_transformers_is_told_what_it_has_a_word_for(sharing):
    text, names = render(TURNED, "transformers"), {}

    exec(text, names)

    assert names["TRAINING_ARGUMENTS"]["accelerator_config"] == {"non_blocking": True}
    assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    assert "no field for worker_threads=3" in text
