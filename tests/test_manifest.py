"""Manifests: what they list, what a check finds and how likely it misses something, how two differ."""

from __future__ import annotations

import json
import math
import shutil
from itertools import combinations
from pathlib import Path

import pytest

from workbench.errors import LayoutError, ManifestError
from workbench.layouts import convert, open_dataset, read_manifest
from workbench.layouts.manifest import MANIFEST_NAME
from workbench.review.manifest import diff, load_manifest, make_manifest, miss_probability, surely_found, verify

HELLO = "46fb7408d4f285228f4af516ea25851b"
"""BLAKE2b-128 of b"hello", from `b2sum -l 128`."""


@pytest.fixture
def data(tmp_path):
    """A tar data set of 12 shards, 36 samples."""
    source = [{"__key__": f"s{n:02d}", "txt": f"text {n}"} for n in range(36)]
    convert(source, tmp_path / "data", shards=12, processes=1)
    return tmp_path / "data"


def flip(path: Path, at: int = 600) -> None:
    """Damage a file without changing its size."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_lists_paths_bytes_counts_checksums_and_how_it_was_made(data):
    document = json.loads((data / MANIFEST_NAME).read_text())
    assert (document["layout"], document["samples"], document["hash"]) == ("tar", 36, "blake2b-128")
    assert [shard["samples"] for shard in document["shards"]] == [3] * 12
    assert document["bytes"] == sum(p.stat().st_size for p in data.iterdir() if p.name != MANIFEST_NAME)
    assert document["fields"] == {"txt": {"field": "txt", "kind": "text"}}
    assert document["made"]["by"] == "workbench.layouts.convert" and document["made"]["source"] == "builtins.list"
    assert str(data.parent) not in (data / MANIFEST_NAME).read_text()


def test_checksum_is_blake2b(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"hello")
    manifest = make_manifest(tmp_path)
    assert [(f.path, f.bytes, f.checksum) for f in manifest.files] == [("a.txt", 5, HELLO)]


def test_a_manifest_that_is_not_to_be_written_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"hello")
    made = make_manifest(tmp_path, write=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and read_manifest(tmp_path) is None
    assert made.digest() == make_manifest(tmp_path).digest() == read_manifest(tmp_path).digest()


def test_digest_is_about_content_and_not_about_place_or_making(data, tmp_path):
    shutil.copytree(data, tmp_path / "copy")
    (tmp_path / "copy" / MANIFEST_NAME).unlink()
    made_here = make_manifest(tmp_path / "copy")
    listed = read_manifest(data)
    tars = [f for f in listed.files if f.path.endswith(".tar")]
    assert [(f.path, f.checksum) for f in made_here.files] == [(f.path, f.checksum) for f in tars]
    again = make_manifest(tmp_path / "copy", overwrite=True)
    assert again.digest() == made_here.digest() == open_dataset(tmp_path / "copy").fingerprint()
    flip(tmp_path / "copy" / "shard-00003.tar")
    assert make_manifest(tmp_path / "copy").digest() == made_here.digest()
    assert make_manifest(tmp_path / "copy", overwrite=True).digest() != made_here.digest()


def test_manifest_of_a_plain_folder_is_read_as_its_data(tmp_path):
    for name in ("x/a.jpg", "x/a.json", "b.c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = [dict(sample) for sample in open_dataset(tmp_path)]
    seen = []
    manifest = make_manifest(tmp_path, on_file=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert (manifest.layout, manifest.samples) == ("files", 2)
    assert [dict(sample) for sample in open_dataset(tmp_path)] == before
    assert verify(tmp_path).ok


def test_full_check_finds_every_kind_of_problem(data):
    assert verify(data).ok and verify(data).miss_probability == 0.0
    assert verify(data).text.startswith("Every file is as the manifest says: 24 of 24")
    flip(data / "shard-00001.tar")
    (data / "shard-00002.tar").write_bytes(b"short")
    (data / "shard-00003.tar").unlink()
    shutil.copy(data / "shard-00000.tar", data / "shard-00099.tar")
    (data / "notes.txt").write_text("no data")
    result = verify(data)
    assert [(p.path, p.kind) for p in result.problems] == [
        ("shard-00001.tar", "content"),
        ("shard-00002.tar", "size"),
        ("shard-00003.tar", "missing"),
        ("shard-00099.tar", "unexpected"),
    ]
    assert not result.ok and result.text.startswith("4 problems: shard-00001.tar has other content")
    assert "22 of 24 files read" in result.text, "one is missing, and one of another size is not read"


def test_sampled_check_says_what_it_may_miss(data):
    result = verify(data, sample=6, seed=1)
    assert (result.files, result.files_hashed, result.miss_probability) == (24, 6, 0.75)
    assert "6 of 24 files" in result.text and "75.0%" in result.text
    assert verify(data, sample=0.25, seed=1) == result
    for seed in range(4):
        flipped = data / "shard-00005.tar"
        flip(flipped)
        found = not verify(data, sample=6, seed=seed).ok
        import random

        drawn = random.Random(seed).sample(list(read_manifest(data).files), 6)
        assert found == any(entry.path == flipped.name for entry in drawn)
        flip(flipped)
    assert not verify(data, sample=24).miss_probability


def test_sampled_check_looks_every_file_up(data):
    (data / "shard-00007.tar.index").unlink()
    assert all(not verify(data, sample=1, seed=seed).ok for seed in range(5))


@pytest.mark.parametrize("sample", [0, -1, 0.0, 1.5, True])
def test_samples_that_are_none(data, sample):
    with pytest.raises(ManifestError, match="sample="):
        verify(data, sample=sample)


def test_miss_probability_is_counted_right():
    """Against every draw of 3 of 7 files, written out."""
    draws = list(combinations(range(7), 3))
    for damaged in range(8):
        missed = sum(all(file >= damaged for file in draw) for draw in draws) / len(draws)
        assert miss_probability(7, 3, damaged) == pytest.approx(missed)
    assert surely_found(7, 3, 0.95) == 4  # C(4,3)/C(7,3) = 0.114 at 3, 1/35 = 0.029 at 4
    assert surely_found(7, 7) == 1 and surely_found(7, 0) is None
    found = surely_found(1000, 50)
    assert miss_probability(1000, 50, found) <= 0.05 < miss_probability(1000, 50, found - 1)
    assert math.isclose(miss_probability(1000, 50, 1), 0.95)


def test_diff_names_what_changed(data, tmp_path):
    shutil.copytree(data, tmp_path / "new")
    assert diff(data, tmp_path / "new").same and diff(data, tmp_path / "new").text == "The same data."
    old = make_old_and_new(data, tmp_path / "new")
    result = diff(old, tmp_path / "new" / MANIFEST_NAME)
    assert result.added == ("shard-00098.tar",)
    assert result.removed == ("shard-00002.tar",)
    assert result.changed == ("shard-00001.tar",)
    assert result.moved == (("shard-00000.tar", "shard-00099.tar"),)
    assert not result.same and result.samples == -2
    assert "1 moved (shard-00000.tar -> shard-00099.tar)" in result.text and "-2 samples" in result.text


def make_old_and_new(data: Path, new: Path):
    """Manifests without indexes: one shard moved, one changed, one removed, one of a single sample added."""
    (data / MANIFEST_NAME).unlink()
    (new / MANIFEST_NAME).unlink()
    old = make_manifest(data)
    (new / "shard-00000.tar").rename(new / "shard-00099.tar")
    flip(new / "shard-00001.tar")
    (new / "shard-00002.tar").unlink()
    convert([{"__key__": "x", "txt": "x"}], new.parent / "one", processes=1)
    shutil.copy(new.parent / "one" / "shard-00000.tar", new / "shard-00098.tar")
    make_manifest(new)
    return old


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"format": "loader-workbench manifest", "version": 99}', "version 99"),
        ('{"format": "loader-workbench manifest", "version": 1, "layout": "tar"}', "damaged"),
        (
            '{"format": "loader-workbench manifest", "version": 1, "layout": "tar", "fields": {}, "shards": '
            '[{"name": "x", "samples": 1, "files": [{"path": "../x", "bytes": 1, "checksum": "0"}]}]}',
            "outside the data set",
        ),
    ],
)
def test_damaged_manifests_are_refused(tmp_path, text, words):
    (tmp_path / MANIFEST_NAME).write_text(text)
    for read in (read_manifest, load_manifest, verify, open_dataset):
        with pytest.raises(ManifestError, match=words):
            read(tmp_path)


def test_folders_without_data_or_manifest(tmp_path):
    with pytest.raises(ManifestError, match="workbench manifest"):
        verify(tmp_path)
    with pytest.raises(LayoutError, match="holds no files"):
        make_manifest(tmp_path)
    with pytest.raises(ManifestError, match="cannot be read"):
        load_manifest(tmp_path / "none.json")


def test_a_json_file_called_manifest_is_data(tmp_path):
    """A web manifest, say, is not ours."""
    (tmp_path / MANIFEST_NAME).write_text('{"name": "app"}')
    assert read_manifest(tmp_path) is None
