"""Which data a sweep read: the manifest's digest, through wrappers, into runs, exports and the check on resuming."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests import made_up_sweeps as made_up
from tests.scripted import probe_of
from workbench.errors import StoreError
from workbench.layouts import KEY, convert, layout_loader, open_dataset, prepare_layouts
from workbench.loaders.settings import LoaderSettings
from workbench.measure.data_version import manifest_digest
from workbench.measure.records import run_from_json, to_json
from workbench.measure.trial import TrialServer, measure
from workbench.streaming import ShardStream, StreamLoader
from workbench.tuning.export import render
from workbench.tuning.space import SearchSpace
from workbench.tuning.sweep import Sweep


def label(sample):
    return torch.tensor(sample["label"])


def samples(first=0):
    return [{KEY: f"s{n:02d}", "label": first + n} for n in range(40)]


@pytest.fixture
def data(tmp_path):
    return convert(samples(), tmp_path / "data", processes=1)


def test_it_is_found_through_wrappers(data):
    reader, wanted = open_dataset(data.path, transform=label), data.manifest.digest()
    assert manifest_digest(DataLoader(reader)) == wanted
    assert manifest_digest(DataLoader(Subset(Subset(reader, range(9)), range(3)))) == wanted
    assert manifest_digest(DataLoader(ShardStream(reader), batch_size=4)) == wanted
    assert manifest_digest(DataLoader(ShardStream(str(data.path)), batch_size=4)) == wanted


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_state_names_the_data(data, num_workers):
    loader = StreamLoader(ShardStream(open_dataset(data.path, transform=label)), batch_size=4, num_workers=num_workers)
    assert data.manifest.digest() in str(loader.state_dict())
    batches = iter(loader)
    next(batches)
    assert data.manifest.digest() in str(loader.state_dict())


def test_data_without_a_manifest_have_none_and_nothing_of_the_users_is_run():
    class Odd(TensorDataset):
        manifest = property(lambda self: 1 / 0)

    class Mine:
        def digest(self, size):
            return "never asked for"

    with_own = TensorDataset(torch.arange(3))
    with_own.manifest = Mine()
    for loader in (DataLoader(Odd(torch.arange(3))), DataLoader(with_own), DataLoader(list(range(3))), iter([1]), None):
        assert manifest_digest(loader) is None


def test_a_trial_and_its_export_name_the_data_of_the_layout_that_was_read(tmp_path):
    prepared = prepare_layouts(samples(), tmp_path / "copies", ("files", "tar"), processes=1)
    loader = layout_loader(prepared, transform=label, batch_size=8)
    for one in prepared:
        trial = measure(loader, LoaderSettings(layout=one.layout), starts=2, measure_seconds=0.1)
        assert [run.manifest_digest for run in trial.runs] == [one.digest, one.digest]
        assert run_from_json(json.loads(json.dumps(to_json(trial.runs[0])))).manifest_digest == one.digest
        told = json.loads(render(made_up.results(trial, current=trial.settings), "json"))["provenance"]
        assert told["manifest_digest"] == one.digest


def test_the_probe_names_the_data_and_a_sweep_of_other_data_is_not_gone_on_with(data, tmp_path):
    def loader(layout="now", num_workers=0):
        return DataLoader(open_dataset(tmp_path / "data", transform=label), batch_size=8, num_workers=num_workers)

    with TrialServer(loader) as server:
        assert server.probe().manifest_digest == data.manifest.digest()
    told = []
    for number in (0, 100):
        convert(samples(number), tmp_path / "data", processes=1, overwrite=True)
        sweep = Sweep(loader, SearchSpace(num_workers=[0]), "grid", 0.5, store=tmp_path / "s.db", name="kept")
        try:
            sweep.run(resume=number > 0, progress=False)
        except StoreError as error:
            told.append(str(error))
    assert len(told) == 1 and "manifest digest was" in told[0]


def test_an_export_names_no_data_that_it_does_not_know():
    chosen = LoaderSettings(2)
    plain = made_up.results(made_up.trial(chosen, 100), current=chosen)
    assert "manifest_digest" not in render(plain, "yaml")
    known = replace(plain, probe=replace(probe_of(), manifest_digest="abc123"))
    assert "manifest_digest: abc123" in render(known, "yaml") and "manifest_digest: abc123" in render(known, "python")
