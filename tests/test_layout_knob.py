"""`layout` as a knob: who takes it, what a sweep makes of it, and when a conversion has paid for itself."""

from __future__ import annotations

import functools

import cloudpickle
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests import made_up_sweeps as made_up
from tests.scripted import ScriptedServer
from workbench.errors import LayoutError, SettingsError, SourceError
from workbench.layouts import KEY, Payback, convert, layout_loader, payback, prepare_layouts
from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.measure.plan import TrialPlan
from workbench.measure.right_copy import why_another_copy
from workbench.measure.right_data import reference
from workbench.measure.trial import TrialServer
from workbench.tuning.export import load_settings, render
from workbench.tuning.space import SearchSpace
from workbench.tuning.strategies import Progress, Race
from workbench.tuning.sweep import Sweep

NUMBERS = TensorDataset(torch.arange(12))


def label(sample):
    return torch.tensor(sample["label"])


def samples(first=0):
    return [{KEY: f"s{n:02d}", "jpg": bytes([n]) * 300, "label": first + n} for n in range(40)]


@pytest.fixture
def prepared(tmp_path):
    return prepare_layouts(samples(), tmp_path / "copies", ("files", "tar", "parquet"), processes=1)


def names_it(layout="near", num_workers=0):
    return DataLoader(NUMBERS, batch_size=4 if layout == "near" else 6, num_workers=num_workers)


def takes_anything(num_workers=0, **kwargs):
    return DataLoader(NUMBERS, num_workers=num_workers, **kwargs)


def test_it_is_the_ninth_knob_and_no_argument_of_dataloader():
    assert KNOBS[8] == "layout"
    assert "layout" not in LoaderSettings(layout="tar").loader_kwargs()
    assert LoaderSettings(2, layout="tar").describe() == "2 workers, prefetch 2 (4 batches in flight), layout tar"
    assert "layout" not in LoaderSettings(2).describe()


@pytest.mark.parametrize("value", ["", " tar", 3, b"tar", ["tar"]])
def test_a_layout_is_a_word(value):
    with pytest.raises(SettingsError, match="layout="):
        LoaderSettings(layout=value)


def test_only_a_factory_that_names_it_takes_it():
    assert LoaderSource.of(names_it).accepts("layout")
    assert not LoaderSource.of(takes_anything).accepts("layout")
    assert not LoaderSource.of(DataLoader(NUMBERS)).accepts("layout")
    with pytest.raises(SettingsError, match="layout='tar' cannot be tried"):
        SearchSpace(layout=["tar"]).settings(LoaderSource.of(DataLoader(NUMBERS)))


@pytest.mark.parametrize("source", [DataLoader(NUMBERS), takes_anything], ids=["loader", "factory"])
def test_a_dataset_that_is_made_already_is_not_passed_off_as_another_copy(source):
    with pytest.raises(SourceError, match="layout='tar' cannot be set"):
        LoaderSource.of(source).build(LoaderSettings(layout="tar"))


def test_the_factory_gets_it_and_none_keeps_its_own():
    source = LoaderSource.of(names_it)
    assert source.current == LoaderSettings(layout="near")
    assert source.build(LoaderSettings(layout="far")).batch_size == 6
    assert source.build(LoaderSettings()).batch_size == 4


def test_a_parameter_of_that_name_that_is_no_word_is_left_alone():
    source = LoaderSource.of(functools.partial(names_it, layout=("near", 1)))
    assert source.current == LoaderSettings()
    assert source.build(LoaderSettings()).batch_size == 6

    def asks_for_one(layout, num_workers=0):
        return DataLoader(NUMBERS)

    with pytest.raises(SourceError, match="asks for layout"):
        LoaderSource.of(asks_for_one).build(LoaderSettings())


def test_exports_carry_it_where_it_is_set(tmp_path):
    chosen = LoaderSettings(2, layout="tar")
    for format, suffix in (("yaml", "yaml"), ("json", "json"), ("python", "py"), ("lightning", "py")):
        (path := tmp_path / f"loader.{suffix}").write_text(render(chosen, format))
        assert load_settings(path) == chosen
        assert "LAYOUT" not in (plain := render(LoaderSettings(2), format)) and "layout" not in plain
    assert "layout='tar'" in render(chosen, "transformers")


def test_a_race_looks_at_every_layout_first():
    space = SearchSpace(layout=["files", "tar"], prefetch_factor=[2, 4], num_workers=[0, 2])
    settings = space.settings(current=LoaderSettings(layout="files"))
    looked_at = Race().next_round(Progress(tuple(settings), current=settings[0])).settings
    assert {(one.num_workers, one.layout) for one in looked_at} == {
        (workers, layout) for workers in (0, 2) for layout in ("files", "tar")
    }


def test_the_ready_factory_reads_the_same_samples_from_every_copy(prepared):
    source = LoaderSource.of(cloudpickle.loads(cloudpickle.dumps(layout_loader(prepared, transform=label))))
    assert source.current == LoaderSettings(layout="files")
    for shuffle in (False, True):
        orders = []
        for layout in ("files", "tar", "parquet"):
            factory = layout_loader(prepared, transform=label, batch_size=16, shuffle=shuffle)
            loader = LoaderSource.of(factory).build(LoaderSettings(1, layout=layout))
            assert loader.dataset.layout == layout
            orders.append(torch.cat(list(loader)).tolist())
        assert orders[0] == orders[1] == orders[2] and sorted(orders[0]) == list(range(40))
        assert (orders[0] == sorted(orders[0])) is not shuffle


def test_the_ready_factory_draws_another_order_from_another_seed_and_drops_what_is_not_full(prepared):
    orders = []
    for seed in (1, 1, 2):
        factory = layout_loader(prepared, transform=label, batch_size=16, shuffle=True, seed=seed, drop_last=True)
        orders.append(torch.cat(list(LoaderSource.of(factory).build(LoaderSettings(layout="tar")))).tolist())
    assert orders[0] == orders[1] != orders[2]
    assert [len(order) for order in orders] == [32] * 3  # of 40


def test_the_ready_factory_takes_names_with_folders_and_refuses_what_is_not_there(prepared, tmp_path):
    factory = layout_loader({"now": tmp_path / "copies" / "tar"}, transform=label)
    assert len(LoaderSource.of(factory).build(LoaderSettings(batch_size=8))) == 5
    with pytest.raises(LayoutError, match="'zip' was not prepared: there are now"):
        factory(layout="zip")
    for wrong in ({}, [prepared[0], prepared[0]]):
        with pytest.raises(LayoutError, match="name of its own"):
            layout_loader(wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trial_checks_that_another_copy_gives_the_same_samples(prepared, tmp_path, workers):
    others = convert(samples(100), tmp_path / "others", processes=1)
    places = {one.layout: one.path for one in prepared} | {"others": others.path}
    loader = layout_loader(places, transform=label, batch_size=8)
    plan = TrialPlan(measure_seconds=0.1, measure_growth=False, measure_edge=False)
    with TrialServer(loader) as server:
        server.probe()
        found = {name: server.run(LoaderSettings(workers, layout=name), plan) for name in places}
    assert {name: run.status for name, run in found.items()} == {
        "files": "ok", "tar": "ok", "parquet": "ok", "others": "wrong_data"
    }  # fmt: skip
    assert found["others"].reason.startswith("layout 'others' gives other data: 40 of 40 samples")


def test_a_sweep_over_layouts_has_them_in_its_table(prepared, tmp_path):
    loader = layout_loader(prepared, transform=label, batch_size=8)
    sweep = Sweep(loader, SearchSpace(layout=["files", "tar", "parquet"]), "grid", 4, store=tmp_path / "s.db")
    results = sweep.run(progress=False)
    assert results.current == LoaderSettings(layout="files")
    assert set(results.frame["layout"]) == {"files", "tar", "parquet"} and results.frame["layout"].dtype == "string"
    assert {trial.status for trial in results.trials} <= {"ok", "skipped"}, results.failed


def test_payback_in_epochs():
    assert payback(30.0, 1000, 100.0, 400.0) == Payback(7.5, 30.0, 4.0)
    assert payback(0.0, 1000, 100.0, 400.0).epochs == 0.0


def test_payback_that_never_comes_and_what_is_not_known():
    slower = payback(30.0, 1000, 400.0, 100.0)
    assert (slower.gained_seconds, slower.epochs, slower.never) == (-7.5, None, True)
    assert payback(30.0, 1000, 100.0, 100.0).never
    assert payback(None, 1000, 100.0, 400.0) == Payback(7.5, None, None)
    assert payback(30.0, 1000, None, 400.0) == Payback(None, 30.0, None)
    assert not payback(30.0, 1000, None, 400.0).never
    for wrong in ((-1.0, 10, 1.0, 1.0), (1.0, -10, 1.0, 1.0), (1.0, 10, 0.0, 1.0)):
        with pytest.raises(LayoutError):
            payback(*wrong)


def test_short_marks_name_the_layout():
    from workbench.notebook.formatting import short_label

    assert short_label(made_up.settings(2, layout="tar")) == "2w p2 tar"


class Noisy(TensorDataset):
    """Every visit adds noise."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.rand(3)


def test_copies_are_told_from_other_data_only_where_that_can_be_told():
    def loader(values, kind=TensorDataset, **more):
        return DataLoader(kind(values), batch_size=8, **more)

    values = torch.arange(120.0).reshape(40, 3)
    own = reference(lambda: loader(values), 0.5)
    assert why_another_copy(loader(values.clone()), "tar", own, 0.5) == ""
    assert why_another_copy(loader(values.flip(0)), "tar", own, 0.5) == "", "another order is the same data"
    assert "has 39 samples, not 40" in why_another_copy(loader(values[:39]), "tar", own, 0.5)
    assert "1 of 40 samples" in why_another_copy(
        loader(values.clone().index_fill(0, torch.tensor([7]), 9)), "tar", own, 0.5
    )
    shuffled = reference(lambda: loader(values, shuffle=True), 0.5)
    assert why_another_copy(loader(values, shuffle=True), "tar", shuffled, 0.5) == ""
    noisy = reference(lambda: loader(values, Noisy), 0.5)
    assert why_another_copy(loader(values + 5, Noisy), "tar", noisy, 0.5) == "", "noise hides what it covers"
    assert "has 20 samples, not 40" in why_another_copy(loader(values[:20], Noisy), "tar", noisy, 0.5)


def test_the_forecast_strategy_looks_at_every_layout(tmp_path):
    """Nothing of one layout is predicted from another, and the better one is found all the same."""
    space = SearchSpace(num_workers=[0, 1, 2], layout=["near", "far"])
    server = ScriptedServer(lambda one: 100.0 * max(1, one.num_workers) * (3 if one.layout == "far" else 1))

    results = Sweep(names_it, space, "forecast", store=tmp_path / "s.db", server_factory=server).run(progress=False)

    assert results.best == LoaderSettings(2, layout="far")
    assert {one.layout for one in server.starts} == {"near", "far"}
