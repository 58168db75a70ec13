"""Sample loaders give the same under any settings; grown data is distinct, resumable and never half-written."""

import gzip
import hashlib
import json
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from workbench import samples
from workbench.errors import SamplesError, SettingsError
from workbench.samples import documents, epoch, flights, images, speech

FOLDER = samples.data_directory()
SMALL = {
    "photos": {"batch_size": 4, "samples_per_epoch": 10, "size": 64},
    "text": {"batch_size": 4, "samples_per_epoch": 10, "max_tokens": 128},
    "audio": {"batch_size": 4, "samples_per_epoch": 10, "seconds": 1.0},
    "tables": {"batch_size": 100, "samples_per_epoch": 1000, "batch_on_worker": True},
}
GROWN = {"photos": 70, "text": 600, "audio": 40, "tables": 60_000}


def small(name, **knobs):
    return getattr(samples, name)(**SMALL[name], **knobs)


def flat(loader):
    return [tensor for batch in loader for tensor in batch.values()]


# -- the data itself --


def test_every_file_is_attributed_and_small():
    entries = {part: json.loads((FOLDER / f"{part}.json").read_text()) for part in ("photos", "audio", "files")}
    readme = (FOLDER / "README.md").read_text()
    for part in ("photos", "audio"):
        assert {e["file"] for e in entries[part]} == {path.name for path in (FOLDER / part).iterdir()}
    for entry in (*entries["photos"], *entries["audio"], *entries["files"]):
        assert all(entry[fact] for fact in ("licence", "author", "source", "change"))
        assert entry["author"] in readme and entry["licence"] in readme
    assert all(f"`{entry['file']}`" in readme for entry in entries["photos"] + entries["files"])
    described = {"README.md", "photos.json", "audio.json", "files.json"} | {entry["file"] for entry in entries["files"]}
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == described
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()]
    assert max(sizes) < 3e6 and sum(sizes) < 25e6


def test_photographs_are_the_files_described():
    for entry in json.loads((FOLDER / "photos.json").read_text()):
        content = (FOLDER / "photos" / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest().startswith(entry["sha256"])


def test_missing_data_says_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv(samples.ENVIRONMENT_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(SamplesError, match="WORKBENCH_DATA_SAMPLES"):
        samples.photos()
    with pytest.raises(SamplesError, match="is not a folder"):
        samples.photos(data=tmp_path / "nowhere")
    for name in samples.SAMPLES:
        with pytest.raises(SamplesError, match="grow"):
            getattr(samples, name)(data=tmp_path)


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_missing_package_says_what_to_install(monkeypatch, name):
    monkeypatch.setattr(epoch.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(SamplesError, match=r"pip install 'loader-workbench\[samples\]'"):
        small(name)


def test_import_is_light():
    code = "import workbench.samples as s, sys; s.SAMPLES; s.data_directory(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- loaders --


@pytest.mark.parametrize("items, length", [(1, 5), (2, 9), (7, 50), (76, 2048), (64, 64)])
def test_every_round_of_an_epoch_visits_every_item(items, length):
    visits = [epoch.Epoch(items, length).visit(index)[0] for index in range(length)]
    for start in range(0, length, items):
        stretch = visits[start : start + items]
        assert len(set(stretch)) == len(stretch) and set(stretch) <= set(range(items))
    crops = {epoch.Epoch(items, length).visit(index)[1].random() for index in range(length)}
    assert len(crops) == length
    with pytest.raises(IndexError):
        epoch.Epoch(items, length).visit(length)


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_batches_do_not_depend_on_workers(name):
    alone, together = flat(small(name)), flat(small(name, num_workers=2, prefetch_factor=1))
    if name == "tables":  # a stream: workers cut other batches, out of the same rows
        alone, together = (
            [torch.cat(column)[torch.cat(column).flatten(1).double().sum(1).argsort()] for column in (t[0::3], t[1::3])]
            for t in (alone, together)
        )
        alone, together = (sorted(map(tuple, t[0].tolist())) for t in (alone, together))
        assert alone == together and len(alone) == 1000
    else:
        assert len(alone) == len(together) and all(map(torch.equal, alone, together))
        assert not all(map(torch.equal, alone, flat(getattr(samples, name)(**SMALL[name], seed=1))))


def test_shapes_and_types():
    (image, label), (ids, lengths), (mel, spoken) = (flat(small(name))[:2] for name in ("photos", "text", "audio"))
    assert image.shape == (4, 3, 64, 64) and image.dtype == torch.float32 and label.dtype == torch.int64
    assert -2.2 < image.min() < -0.5 and 0.5 < image.max() < 2.7
    assert ids.shape == (4, lengths.max()) and ids.dtype == torch.int64 and 1 <= lengths.min()
    assert all((row[length:] == documents.END_OF_TEXT).all() for row, length in zip(ids, lengths, strict=True))
    assert mel.shape == (4, 80, 101) and mel.isfinite().all() and set(spoken.tolist()) <= {1, 2}
    assert len(small("photos")) == 3


def test_workers_that_are_spawned_get_the_same():
    assert all(
        map(torch.equal, flat(small("text")), flat(small("text", num_workers=1, multiprocessing_context="spawn")))
    )


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_opened_files_do_not_travel(name):
    dataset = small(name).dataset
    first = next(iter(dataset))
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(copy)) < 200_000
    again = next(iter(copy))
    pairs = zip(first.values(), again.values(), strict=True) if isinstance(first, dict) else [(first, again)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


def test_knobs_reach_the_loader():
    loader = small("photos", num_workers=1, prefetch_factor=3, persistent_workers=True, in_order=False)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 3, True)
    assert loader.in_order is False
    for wrong in (0, -3, True, 1.5):
        with pytest.raises(SamplesError, match="samples_per_epoch"):
            samples.photos(samples_per_epoch=wrong)
        with pytest.raises(SamplesError, match="samples_per_epoch"):
            samples.tables(samples_per_epoch=wrong)


# -- photographs --


def test_crops_lie_inside():
    chance = random.Random(0)
    for _ in range(500):
        left, top, right, bottom = images.crop_box(300, 20, chance)
        assert 0 <= left < right <= 300.001 and 0 <= top < bottom <= 20.001


def test_draft_shows_the_same_picture():
    plain, fast = (next(iter(samples.photos(batch_size=24, draft=draft)))["image"] for draft in (False, True))
    assert 0 < (plain - fast).abs().mean() < 0.1  # in units of the channels' deviation


def test_labels_follow_a_grown_photograph():
    assert images.source_name("/a/00000012_gc_fish1.jpg") == "gc_fish1.jpg"
    assert images.photo_labels(FOLDER)["gc_fish1.jpg"] == "fishes"


# -- text --


def test_one_document_is_read_without_the_rest():
    lines = gzip.open(FOLDER / "text.jsonl.gz").read().splitlines()
    reader = documents.DocumentReader([str(FOLDER / "text.jsonl.gz")] * 2)
    assert len(reader) == 2 * len(lines) == 2 * 7169
    for number in (0, 6, 7, 4000, 7168, 7169, 14337):
        assert reader.read(number) == json.loads(lines[number % 7169])
    with pytest.raises(IndexError):
        reader.read(14338)


@pytest.mark.parametrize("member_bytes", [1, 30, 10**6])
@pytest.mark.parametrize("last_newline", [True, False])
def test_files_without_an_index_are_scanned(tmp_path, member_bytes, last_newline):
    lines = [json.dumps({"text": "x" * n}).encode() + b"\n" for n in range(9)]
    if not last_newline:
        lines[-1] = lines[-1].rstrip()
    packed, index = documents.pack(lines, member_bytes)
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    scanned = documents.members_of(tmp_path / "a.jsonl.gz")
    (tmp_path / "a.index.json").write_bytes(index)
    assert documents.members_of(tmp_path / "a.jsonl.gz") == scanned
    reader = documents.DocumentReader([str(tmp_path / "a.jsonl.gz")])
    assert [len(reader.read(n)["text"]) for n in range(len(reader))] == list(range(9))


def test_an_index_of_another_file_is_not_believed(tmp_path):
    packed, index = documents.pack([b'{"text": "a"}\n'] * 5)
    (tmp_path / "a.index.json").write_bytes(index)
    (tmp_path / "a.jsonl.gz").write_bytes(packed + documents.pack([b'{"text": "b"}\n'])[0])
    assert documents.members_of(tmp_path / "a.jsonl.gz").documents == 6


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:15] + b"\xff" * 20 + b[35:]])
def test_damaged_text_is_named(tmp_path, damage):
    (tmp_path / "a.jsonl.gz").write_bytes(damage(documents.pack([b'{"text": "abc%d"}\n' % n for n in range(99)])[0]))
    with pytest.raises(SamplesError, match=r"a\.jsonl\.gz .*again"):
        samples.text(data=tmp_path)


# -- speech --


def test_resampling_keeps_a_tone():
    slow, fast = (np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32) for rate in (8000, 16000))
    for wave, rate, expected in ((slow, 8000, fast), (fast, 16000, slow)):
        played = speech.resample(wave, rate, len(expected))
        assert np.allclose(played, expected, atol=1e-5)


def test_a_tone_lands_in_its_band():
    wave = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    mel = speech.log_mel(wave)
    assert mel.shape == (80, 101)
    expected = 2595 * np.log10(1 + 1000 / 700) / (2595 * np.log10(1 + 8000 / 700)) * 81 - 1
    assert abs(mel[:, 50].argmax().item() - expected) <= 1


# -- tables --


def test_rows_come_once_whatever_the_workers():
    import pyarrow.parquet

    target = pyarrow.parquet.read_table(FOLDER / "flights_zstd.parquet")["arr_delay"].fill_null(0).to_numpy()
    for workers in (0, 3):
        loader = samples.tables(num_workers=workers, batch_on_worker=True, samples_per_epoch=100_000, batch_size=999)
        got = np.concatenate([batch["target"].numpy() for batch in loader])
        assert np.array_equal(np.sort(got), np.sort(target))


def test_batching_in_the_worker_gives_the_same_rows():
    knobs = {"samples_per_epoch": 30_000, "batch_size": 1000}
    for batch, whole in zip(samples.tables(**knobs), samples.tables(**knobs, batch_on_worker=True), strict=True):
        assert all(torch.equal(batch[key], whole[key]) for key in whole)


def test_unknown_values_are_flagged():
    import pyarrow as pa

    names = {name: pa.array(["A"]) for name in flights.CATEGORIES}
    table = pa.table(
        {name: pa.array([None, 4]) for name in (*flights.NUMBERS, flights.TARGET)}
        | {name: pa.array([6, 12]) for name in flights.CYCLES}
        | {name: pa.array(["A", "other"]) for name in flights.CATEGORIES}
    )
    found = flights.features(table, names)
    assert found["numbers"][:, :2].tolist() == [[0.0, 1.0], [pytest.approx(np.log(5)), 0.0]]
    assert found["numbers"][0, 6].item() == pytest.approx(0, abs=1e-6) and found["numbers"][0, 7] == -1  # month 6 of 12
    assert found["categories"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert found["target"].tolist() == [0.0, 4.0]


def test_a_table_of_something_else_is_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"month": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SamplesError, match="lacks the columns air_time"):
        samples.tables(data=tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"rubbish")
    with pytest.raises(SamplesError, match="is not Parquet"):
        samples.tables(data=tmp_path)


# -- growing --


def content(folder):
    suffixes = (".jpg", ".flac", ".gz", ".parquet")
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.suffix in suffixes}


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_grown_data_is_exact_distinct_and_resumable(tmp_path, name):
    count = GROWN[name]
    seen = []
    whole = samples.grow(name, tmp_path / "whole", count=count, progress=lambda done, of: seen.append((done, of)))
    files = content(tmp_path / "whole")
    assert whole.samples == count and seen[-1] == (count, count) and seen == sorted(seen)
    assert len(set(files.values())) == len(files) and sum(map(len, files.values())) <= whole.bytes
    assert all(p.stat().st_nlink == 1 for p in (tmp_path / "whole").rglob("*") if p.is_file())
    assert samples.grow(name, tmp_path / "whole", count=count).written == 0
    samples.grow(name, tmp_path / "parts", count=count // 3)
    samples.grow(name, tmp_path / "parts", count=count)
    assert content(tmp_path / "parts") == files
    assert samples.grow(name, tmp_path / "parts", count=count // 3).written == 0
    loader = getattr(samples, name)(data=tmp_path / "whole")
    assert len(next(iter(next(iter(loader)).values()))) == loader.batch_size
    if name != "tables":
        held = len(loader.dataset.reader) if name == "text" else len(loader.dataset.files)
        assert held == count


def test_grown_documents_are_distinct(tmp_path):
    samples.grow("text", tmp_path, count=1500)
    reader = documents.DocumentReader([str(path) for path in sorted(tmp_path.rglob("*.jsonl.gz"))])
    read = [reader.read(number) for number in range(1500)]
    assert len({document["text"] for document in read}) == len({document["id"] for document in read}) == 1500


def test_labels_and_authors_go_along(tmp_path):
    samples.grow("photos", tmp_path, count=300)
    assert {entry["author"] for entry in json.loads((tmp_path / "photos.json").read_text())}
    dataset = samples.photos(data=tmp_path).dataset
    assert len(set(dataset.labels)) > 1


def test_growing_to_a_size(tmp_path):
    grown = samples.grow("audio", tmp_path, total_bytes="300kB")
    assert 300_000 <= grown.bytes < 400_000 and grown.bytes == sum(map(len, content(tmp_path).values()))
    assert samples.grow("audio", tmp_path, total_bytes=grown.bytes).written == 0


def test_interrupted_growth_leaves_whole_files_only(tmp_path):
    def interrupt(done, of):
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        samples.grow("audio", tmp_path / "a", count=40, progress=interrupt)
    (tmp_path / "a" / "audio" / f".unfinished-{2**22 + 1}-x").write_bytes(b"of a killed process")  # above pid_max
    (tmp_path / "a" / "audio" / f".unfinished-{os.getpid()}-x").write_bytes(b"of a living one")
    samples.grow("audio", tmp_path / "a", count=40)
    samples.grow("audio", tmp_path / "b", count=40)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert [p.name for p in (tmp_path / "a").rglob(".unfinished-*")] == [f".unfinished-{os.getpid()}-x"]


def test_full_disk_is_one_sentence(tmp_path):
    code = (
        "import resource, sys; from workbench import samples; from workbench.errors import SamplesError\n"
        f"samples.grow('tables', {str(tmp_path)!r}, count=1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        f"try: samples.grow('tables', {str(tmp_path)!r}, count=60_000)\n"
        "except SamplesError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.startswith("not enough room in") and "grow again" in run.stdout and not run.stderr
    assert not list(tmp_path.rglob(".unfinished-*")) and len(content(tmp_path)) == 1
    with pytest.raises(SamplesError, match="not enough room"):
        samples.grow("photos", tmp_path, total_bytes="900TB")


def test_growth_refuses_nonsense(tmp_path):
    for wrong in ({}, {"count": 1, "total_bytes": 1}, {"count": 0}, {"count": True}, {"count": "5"}):
        with pytest.raises(SamplesError):
            samples.grow("audio", tmp_path, **wrong)
    with pytest.raises(SettingsError):
        samples.grow("audio", tmp_path, total_bytes="much")
    with pytest.raises(SamplesError, match="choose one of photos"):
        samples.grow("video", tmp_path, count=1)
    samples.grow("audio", tmp_path / "a", count=1)
    with pytest.raises(SamplesError, match="seed=0"):
        samples.grow("audio", tmp_path / "a", count=1, seed=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SamplesError, match="cannot write"):
        samples.grow("audio", tmp_path / "file" / "below", count=1)
