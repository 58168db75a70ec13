"""LoaderSettings: canonical values, refusals that say the way out, and exactly the arguments DataLoader takes."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import subprocess
import sys

import numpy
import pytest

from workbench.errors import SettingsError, WorkbenchError
from workbench.loaders import settings as settings_room
from workbench.loaders.settings import KNOBS, LoaderSettings


def test_what_means_nothing_without_workers_does_not_tell_settings_apart():
    plain = LoaderSettings(num_workers=0)
    loud = LoaderSettings(
        0, prefetch_factor=8, persistent_workers=True, multiprocessing_context="spawn", in_order=False
    )
    assert loud == plain and hash(loud) == hash(plain)
    assert (loud.prefetch_factor, loud.persistent_workers) == (None, False)
    assert (loud.multiprocessing_context, loud.in_order) == (None, True)


def test_unsaid_prefetch_is_the_two_that_dataloader_uses():
    assert LoaderSettings(num_workers=3) == LoaderSettings(num_workers=3, prefetch_factor=2)
    assert LoaderSettings(num_workers=3).batches_in_flight == 6
    assert LoaderSettings(num_workers=0).batches_in_flight == 0


@pytest.mark.parametrize(
    ("knobs", "value"),
    [
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": "4"}, "num_workers='4'"),
        ({"num_workers": 2.0}, "num_workers=2.0"),
        ({"num_workers": True}, "num_workers=True"),
        ({"num_workers": None}, "num_workers=None"),
        ({"num_workers": 2, "prefetch_factor": 0}, "prefetch_factor=0"),
        ({"num_workers": 0, "prefetch_factor": 0}, "prefetch_factor=0"),
        ({"pin_memory": 1}, "pin_memory=1"),
        ({"pin_memory": "true"}, "pin_memory='true'"),
        ({"persistent_workers": None}, "persistent_workers=None"),
        ({"batch_on_worker": 0}, "batch_on_worker=0"),
        ({"in_order": "no"}, "in_order='no'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"multiprocessing_context": "thread"}, "multiprocessing_context='thread'"),
        ({"multiprocessing_context": ["spawn"]}, "multiprocessing_context=['spawn']"),
    ],
)
def test_refusals_name_value_rule_and_way_out(knobs, value):
    with pytest.raises(SettingsError) as caught:
        LoaderSettings(**knobs)
    text = str(caught.value)
    assert value in text and "must be" in text and "give for instance" in text
    assert isinstance(caught.value, WorkbenchError) and isinstance(caught.value, ValueError)


def test_table_cells_and_context_objects_are_taken_as_the_values_they_hold():
    read = LoaderSettings(num_workers=numpy.int64(2), pin_memory=numpy.bool_(True))
    assert read == LoaderSettings(num_workers=2, pin_memory=True)
    assert type(read.num_workers) is int and type(read.pin_memory) is bool
    context = multiprocessing.get_context("spawn")
    assert LoaderSettings(2, multiprocessing_context=context).multiprocessing_context == "spawn"


def test_loader_kwargs_hold_nothing_that_dataloader_would_refuse():
    assert LoaderSettings().loader_kwargs() == {"num_workers": 0, "pin_memory": False}
    full = LoaderSettings(2, 4, True, True, True, "forkserver", False, 16)
    assert full.loader_kwargs() == {
        "num_workers": 2,
        "pin_memory": True,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "multiprocessing_context": "forkserver",
        "in_order": False,
        "batch_size": 16,
    }


def test_every_combination_constructs_a_dataloader():
    from torch.utils.data import DataLoader

    values = ([0, 1, 2], [None, 1, 4], [False], [False, True], [False, True], [None, *settings_room.START_METHODS])
    seen = set()
    for combination in itertools.product(*values, [False, True], [None, 5]):
        chosen = LoaderSettings(*combination)
        loader = DataLoader(list(range(8)), **chosen.loader_kwargs())
        assert loader.num_workers == chosen.num_workers and loader.prefetch_factor == chosen.prefetch_factor
        assert loader.persistent_workers == chosen.persistent_workers and loader.batch_size == (chosen.batch_size or 1)
        seen.add(chosen)
    assert len(seen) == 2 * 2 + 2 * (3 * 2 * 2 * 4 * 2 * 2)  # at 0 workers only batch_on_worker and batch_size differ


def test_an_old_torch_refuses_in_order_instead_of_dropping_it(monkeypatch):
    monkeypatch.setattr(settings_room, "_torch_version", lambda: (2, 4))
    assert "in_order" not in LoaderSettings(2).loader_kwargs()
    with pytest.raises(SettingsError, match=r"in_order=False needs torch 2\.6 or later and torch 2\.4 is installed"):
        LoaderSettings(2, in_order=False).loader_kwargs()


def test_dict_and_json_round_trip_in_column_order():
    chosen = LoaderSettings(4, 8, True, True, False, "spawn", False, 32)
    assert tuple(chosen.as_dict()) == KNOBS
    assert LoaderSettings.from_dict(json.loads(json.dumps(chosen.as_dict()))) == chosen
    assert LoaderSettings.from_dict({"num_workers": 1}) == LoaderSettings(1)


def test_unknown_names_are_refused_with_the_likely_name():
    with pytest.raises(SettingsError, match="'num_worker' is not a knob; did you mean 'num_workers'"):
        LoaderSettings.from_dict({"num_worker": 2})
    with pytest.raises(SettingsError, match="the knobs are num_workers, prefetch_factor"):
        LoaderSettings().replaced(zzz=1)


def test_replaced_normalises_again():
    many = LoaderSettings(4, 8, persistent_workers=True)
    assert many.replaced(num_workers=0) == LoaderSettings(0)
    assert many.replaced(num_workers=0).replaced(num_workers=4).prefetch_factor == 2
    assert many.num_workers == 4


def test_describe_reads_as_a_sentence_part():
    assert LoaderSettings(4, 2, True, True).describe() == (
        "4 workers, prefetch 2 (8 batches in flight), pinned, persistent"
    )
    assert LoaderSettings(0).describe() == "0 workers"
    text = LoaderSettings(1, 3, False, False, True, "spawn", False, 16).describe()
    assert text == (
        "1 worker, prefetch 3 (3 batches in flight), whole batches on the worker, started by spawn, any order, "
        "batch size 16"
    )


def test_settings_do_not_import_torch():
    code = "import sys, workbench.loaders.settings as s; s.LoaderSettings(2, in_order=False).loader_kwargs()"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
