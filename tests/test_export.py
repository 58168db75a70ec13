"""Exports load back equal, run as they stand, and say where they come from."""

from __future__ import annotations

import ast
import json
import os
import pickle
from dataclasses import replace

import pytest
import yaml
from torch.utils.data import DataLoader, RandomSampler

from tests.scripted import probe_of, run_of
from workbench.errors import ExportError
from workbench.loaders.batching import whole_batches
from workbench.loaders.settings import LoaderSettings
from workbench.measure.result import TrialResult
from workbench.tuning.export import FORMATS, export, load_settings, render
from workbench.tuning.results import Results

PLAIN = LoaderSettings()
FULL = LoaderSettings(
    num_workers=3,
    prefetch_factor=4,
    pin_memory=True,
    persistent_workers=True,
    batch_on_worker=True,
    multiprocessing_context="spawn",
    in_order=False,
    batch_size=24,
)
EVERY_SETTINGS = [PLAIN, LoaderSettings(num_workers=2), LoaderSettings(batch_on_worker=True), FULL]


def results_with(settings: LoaderSettings) -> Results:
    runs = tuple(run_of(settings, 1000.0, memory_bytes=500_000_000, start_method="fork") for _ in range(3))
    return Results(
        trials=(TrialResult(settings, runs),),
        probe=probe_of(),
        machine={"cpu": "Test CPU", "torch": "2.13.0", "python": "3.11.7"},
        name="photos-1",
        source="DataLoader over Photos",
        current=settings,
        created=1_790_000_000.0,
    )


@pytest.mark.parametrize("settings", EVERY_SETTINGS)
@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".py"])
def test_what_is_written_loads_back_equal(tmp_path, settings, suffix):
    path = export(settings, tmp_path / f"loader{suffix}")

    assert load_settings(path) == settings


@pytest.mark.parametrize("settings", EVERY_SETTINGS)
def test_hydra_and_lightning_load_back_what_they_can_say(tmp_path, settings):
    hydra = load_settings(export(settings, tmp_path / "hydra.yaml", format="hydra"))
    lightning = load_settings(export(settings, tmp_path / "lightning.py", format="lightning"))

    assert hydra == settings
    assert lightning == settings


@pytest.mark.parametrize("settings", EVERY_SETTINGS)
def test_the_python_export_runs_and_builds_a_loader(settings):
    names: dict = {}

    exec(render(settings, "python"), names)
    loader = names["make_loader"](list(range(50)), **({} if settings.batch_size else {"batch_size": 8}))

    assert isinstance(loader, DataLoader)
    assert loader.num_workers == settings.num_workers
    assert (loader.batch_size is None) == settings.batch_on_worker


def test_keys_that_mean_nothing_without_workers_are_left_out():
    for format in ("yaml", "json", "hydra", "python", "lightning"):
        text = render(PLAIN, format)

        assert "prefetch_factor" not in text and "persistent_workers" not in text and "null" not in text


def test_transformers_says_persistence_even_where_it_is_off_and_names_what_it_cannot_say():
    off = _assigned(render(PLAIN, "transformers"), "TRAINING_ARGUMENTS")
    on = render(FULL, "transformers")

    assert off == {
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "dataloader_persistent_workers": False,
    }
    assert _assigned(on, "TRAINING_ARGUMENTS")["dataloader_prefetch_factor"] == 4
    for untold in ("multiprocessing_context='spawn'", "in_order=False", "batch_on_worker=True"):
        assert f"no field for {untold}" in on


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_carries_machine_versions_date_rate_interval_and_memory(format):
    text = render(results_with(LoaderSettings(num_workers=2)), format)

    for fact in ("Test CPU", "2.13.0", "2026-09", "1000", "500000000", "warm", "photos-1", "loader-workbench"):
        assert fact in text, fact


def test_data_formats_parse_and_hold_the_interval_and_the_number_of_starts():
    results = results_with(LoaderSettings(num_workers=2))

    for data in (yaml.safe_load(render(results, "yaml")), json.loads(render(results, "json"))):
        measured = data["provenance"]["measured"]
        assert measured["samples_per_second_95_percent"] == [980.4, 1019.6]
        assert measured["starts"] == 3
        assert data["loader_kwargs"]["num_workers"] == 2


def test_the_interval_of_a_single_start_is_left_out_and_not_null():
    run = run_of(PLAIN, 1000.0)
    results = replace(results_with(PLAIN), trials=(TrialResult(PLAIN, (replace(run, windows=run.windows[:1]),)),))

    for format in FORMATS:
        text = render(results, format)
        assert "samples_per_second_95_percent" not in text and "null" not in text and "None to None" not in text
        assert "samples_per_second" in text


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_what_was_started_once_or_only_looked_at_says_so_in_the_file(format):
    look = replace(run_of(PLAIN, 1000.0), screened=True)
    text = " ".join(render(replace(results_with(PLAIN), trials=(TrialResult(PLAIN, (look,)),)), format).split())

    assert "Not certain: measured in a single start, so that the interval" in text.replace(" # ", " ")
    assert "Not certain: the only start of the chosen settings was a short look" in text.replace(" # ", " ")
    assert "Not certain" not in render(results_with(PLAIN), format)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_has_one_line_that_builds_the_loader_with_the_users_own_batch_size(format):
    text = render(results_with(LoaderSettings(num_workers=2)), format)

    name = "per_device_train_batch_size" if format == "transformers" else "batch_size"
    assert sum("To use it:" in line and f"{name}=16" in line for line in text.splitlines()) == 1
    assert f"{name} was not tuned" in text and "batch_size: 16" in text.replace('"', "")
    assert f"{name}=..." in render(LoaderSettings(num_workers=2), format)
    tuned = render(results_with(LoaderSettings(num_workers=2, batch_size=24)), format)
    assert "was not tuned" not in tuned and "=16" not in tuned and "=..." not in tuned


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".py"])
@pytest.mark.parametrize(
    "settings", [LoaderSettings(num_workers=2), LoaderSettings(num_workers=1, batch_size=24), FULL]
)
def test_the_line_that_a_file_says_runs_as_it_stands(tmp_path, monkeypatch, suffix, settings):
    monkeypatch.chdir(tmp_path)
    path = export(results_with(settings), f"the loader{suffix}")
    (line,) = (line for line in path.read_text().splitlines() if "To use it:" in line)
    if suffix == ".json":
        line = next(note for note in json.loads(path.read_text())["notes"] if "To use it:" in note)
    names = {"yaml": yaml, "json": json, "DataLoader": DataLoader, "whole_batches": whole_batches}
    if suffix == ".py":
        exec(path.read_text(), names)

    yours = {"collate_fn": list} if settings.batch_on_worker else {"collate_fn": list, "shuffle": True}
    loader = eval(line.partition("To use it: ")[2], names, {"dataset": list(range(50)), "yours": yours})

    assert loader.num_workers == settings.num_workers
    assert settings.batch_on_worker or (loader.collate_fn is list and isinstance(loader.sampler, RandomSampler))
    assert "yours: a dict of the other arguments that you give DataLoader now (shuffle," in path.read_text()
    if not settings.batch_on_worker:
        assert loader.batch_size == (settings.batch_size or 16)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_knob_that_this_machine_could_not_try_is_left_out_with_a_word(tmp_path, format):
    settings = LoaderSettings(num_workers=2, prefetch_factor=4)
    none, some = (
        replace(results_with(settings), machine={"cpu": "Test CPU", "accelerator": name}) for name in ("none", "1 x A")
    )
    suffix = {"json": ".json", "yaml": ".yaml", "hydra": ".yaml"}.get(format, ".py")

    text = render(none, format)
    assert "pin_memory is left out: no accelerator was here" in text and "pin_memory" not in text.replace(
        "pin_memory is left out", ""
    )
    loaded = load_settings(export(none, tmp_path / f"loader{suffix}", format))
    assert loaded == settings and "pin_memory" not in loaded.loader_kwargs()
    assert "pin_memory" not in render(loaded, format)
    assert load_settings(export(some, tmp_path / f"loader{suffix}", format)).loader_kwargs() == settings.loader_kwargs()
    assert "pin_memory" in render(some, format) and "is left out" not in render(some, format)


def test_settings_of_a_file_equal_others_and_go_on_without_what_the_file_left_out(tmp_path):
    path = tmp_path / "loader.yaml"
    path.write_text("loader_kwargs: {num_workers: 2, persistent_workers: true}\n")
    same = LoaderSettings(num_workers=2, persistent_workers=True)
    loaded = load_settings(path)

    assert loaded == same and same == loaded and len({same, loaded}) == 1 and loaded != replace(same, num_workers=1)
    assert loaded.loader_kwargs() == {"num_workers": 2, "persistent_workers": True}
    assert pickle.loads(pickle.dumps(loaded)).loader_kwargs() == loaded.loader_kwargs()
    more = loaded.replaced(num_workers=4, pin_memory=True)
    assert more.loader_kwargs() == {"num_workers": 4, "persistent_workers": True, "pin_memory": True}
    assert "pin_memory" in same.loader_kwargs()


def test_text_of_a_machine_cannot_break_out_of_a_comment():
    results = replace(results_with(PLAIN), machine={"cpu": "odd\nimport os; os.abort()"})

    ast.parse(render(results, "python"))
    assert "\nimport os" not in render(results, "python")


def test_python_is_read_without_being_run(tmp_path):
    path = tmp_path / "loader.py"
    path.write_text("raise SystemExit('ran')\nLOADER_KWARGS = {'num_workers': 2, 'pin_memory': False}\n")

    assert load_settings(path) == LoaderSettings(num_workers=2)


def test_a_call_in_place_of_a_value_is_refused(tmp_path):
    path = tmp_path / "loader.py"
    path.write_text("LOADER_KWARGS = {'num_workers': __import__('os').getpid()}\n")

    with pytest.raises(ExportError, match="no exported settings"):
        load_settings(path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "loader_kwargs: [1, 2", "not valid YAML"),
        ("a.yaml", "learning_rate: 3\n", "no loader_kwargs"),
        ("a.json", "{", "no exported settings"),
        ("a.json", "[]", "no mapping"),
        ("a.yaml", "loader_kwargs: {num_workers: -1}", "num_workers=-1"),
        ("a.yaml", "loader_kwargs: {num_wrokers: 1}", "num_workers"),
        ("a.py", "def (", "no exported settings"),
        ("a.txt", "", "'.yaml'|suffix"),
    ],
)
def test_files_that_hold_no_settings_are_refused_with_the_reason(tmp_path, name, text, says):
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ExportError, match=says):
        load_settings(path)


def test_a_missing_file_and_binary_content_are_one_sentence(tmp_path):
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")

    for name in ("none.yaml", "b.yaml"):
        with pytest.raises(ExportError, match="cannot be read") as caught:
            load_settings(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_unknown_formats_and_suffixes_list_the_choices(tmp_path):
    with pytest.raises(ExportError, match="yaml, json, python, lightning, transformers, hydra"):
        render(PLAIN, "toml")
    with pytest.raises(ExportError, match=r"\.yaml, \.yml, \.json, \.py"):
        export(PLAIN, tmp_path / "loader.toml")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = export(PLAIN, tmp_path / "loader.yaml")
    before = path.read_text()

    def no_rename(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_rename)
    with pytest.raises(ExportError, match="No space left"):
        export(FULL, path)

    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["loader.yaml"]


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ExportError, match="missing"):
        export(PLAIN, tmp_path / "missing" / "loader.yaml")


def test_results_without_a_winner_cannot_be_exported_and_say_why():
    settings = LoaderSettings(num_workers=2)
    failed = run_of(settings, 1.0, status="failed", reason="ValueError: no such file", windows=())
    results = replace(results_with(PLAIN), trials=(TrialResult(settings, (failed,)),))

    with pytest.raises(ExportError, match="ValueError: no such file"):
        render(results, "yaml")


def test_things_that_are_neither_settings_nor_results_are_refused():
    with pytest.raises(ExportError, match="give LoaderSettings"):
        render({"num_workers": 2}, "yaml")


def _assigned(text: str, name: str):
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == name:
            return ast.literal_eval(statement.value)
    raise AssertionError(f"{name} is not assigned")
