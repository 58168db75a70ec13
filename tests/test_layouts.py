"""One behaviour suite over every layout, and what other libraries read of what is written."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import LayoutError
from workbench.layouts import KEY, Manifest, open_dataset, write_manifest
from workbench.layouts.names import checked_key, escape_key, split_member, unescape_key
from workbench.layouts.parquet_settings import ParquetOptions, advise_row_groups
from workbench.layouts.registry import LAYOUTS, detect_layout
from workbench.layouts.tar_index import index_path, read_index
from workbench.layouts.tokens import BIN_HEADER_BYTES, TokenOptions, read_bin_header

SHARD_SIZES = (5, 1, 8)
MIXED = ("files", "tar", "parquet")
VARIANTS = {"files": None, "tar": None, "parquet": ParquetOptions(row_group_rows=3), "npy": None, "bin": None}


def mixed_sample(n: int) -> dict:
    """A sample with a value of every kind, all of them derived from ``n``."""
    return {
        KEY: f"class.{n % 3}/ünï.{n:03d}",
        "jpg": bytes([n % 256]) * (n + 1),
        "caption": f"naïve {n}",
        "label": n,
        "ids": np.arange(n + 1, dtype=np.int32),
        "box": np.full((2, 3), n, np.float32),
    }


def token_sample(n: int) -> dict:
    return {"tokens": [n, 70_000 + n, *range(n)]}


def write_variant(root: Path, variant: str) -> list[dict]:
    """Write the data set under ``root`` by the layout's own writer; return the samples that went in."""
    layout = LAYOUTS["tokens" if variant in ("npy", "bin") else variant]
    options = TokenOptions(container=variant) if layout.name == "tokens" else VARIANTS[variant]
    make = token_sample if layout.name == "tokens" else mixed_sample
    samples, written = [], []
    for number, size in enumerate(SHARD_SIZES):
        part = [make(len(samples) + i) for i in range(size)]
        written.append(layout.write_shard(root, f"shard-{number:05d}", part, options))
        samples += part
    write_manifest(root, Manifest(layout.name, tuple(w.shard for w in written), written[-1].fields))
    return samples


def same(one: dict, other: dict) -> bool:
    """Equal fields and values; the name of a token document is the reader's own."""
    keys = (set(one) | set(other)) - ({KEY} if "tokens" in one else set())
    return all(
        type(one.get(k)) is type(other.get(k)) and np.array_equal(one[k], other[k])
        if k != "tokens"
        else list(one[k]) == list(other[k])
        for k in keys
    )


@pytest.fixture(params=VARIANTS)
def dataset(request, tmp_path):
    return tmp_path, write_variant(tmp_path, request.param)


def test_counts_and_shards(dataset):
    root, samples = dataset
    reader = open_dataset(root)
    assert len(reader) == len(samples) == 14
    assert tuple(shard.samples for shard in reader.shards) == SHARD_SIZES
    on_disk = sum(p.stat().st_size for p in root.rglob("*") if p.is_file() and p.name != "manifest.json")
    assert sum(shard.bytes for shard in reader.shards) == on_disk


def test_reads_every_shard_from_any_row(dataset):
    root, samples = dataset
    reader, first = open_dataset(root), 0
    for number, size in enumerate(SHARD_SIZES):
        for start in range(size + 1):
            got = list(reader.read_shard(number, start))
            assert len(got) == size - start
            assert all(same(a, b) for a, b in zip(got, samples[first + start : first + size], strict=True))
        first += size


def test_reads_any_sample_by_index(dataset):
    root, samples = dataset
    reader = open_dataset(root)
    for index in (13, 0, 5, 6, -1, 7, -14):
        assert same(reader.sample(index), samples[index])
    for index in (14, -15):
        with pytest.raises(IndexError, match="holds 14"):
            reader.sample(index)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_readers_of_equal_data_have_one_fingerprint(variant, tmp_path):
    root, other = tmp_path / "one", tmp_path / "other"
    for folder in (root, other):
        folder.mkdir()
        write_variant(folder, variant)
    assert open_dataset(root).fingerprint() == open_dataset(other).fingerprint()
    assert (root / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()


def test_leaves_no_temporary_file(dataset):
    root, _ = dataset
    assert not [path for path in root.rglob(".*")]


def test_pickles_after_use(dataset):
    root, samples = dataset
    reader = open_dataset(root)
    reader.sample(0)
    assert same(pickle.loads(pickle.dumps(reader)).sample(9), samples[9])


def test_forked_child_reads_what_its_parent_opened(dataset):
    root, samples = dataset
    reader = open_dataset(root)
    reader.sample(3)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send([reader.sample(i) for i in (3, 12)]))
    child.start()
    got = ours.recv()
    child.join()
    assert same(got[0], samples[3]) and same(got[1], samples[12])


def first_field(samples: list[dict]) -> list[int]:
    return [int(s["tokens"][0]) if "tokens" in s else s["label"] for s in samples]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_loader_resumes_in_the_middle(dataset, num_workers):
    root, samples = dataset

    def loader():
        return StatefulDataLoader(open_dataset(root), batch_size=4, num_workers=num_workers, collate_fn=first_field)

    whole = list(loader())
    assert [n for batch in whole for n in batch] == list(range(len(samples)))
    cut = loader()
    iterator = iter(cut)
    head = [next(iterator), next(iterator)]
    state = cut.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert head + list(resumed) == whole


def test_spawned_workers_read(tmp_path):
    samples = write_variant(tmp_path, "tar")
    loader = StatefulDataLoader(
        open_dataset(tmp_path), batch_size=7, num_workers=1, collate_fn=first_field, multiprocessing_context="spawn"
    )
    assert [n for batch in loader for n in batch] == list(range(len(samples)))


def test_a_cut_shard_is_an_error_that_names_it(dataset):
    root, _ = dataset
    path = root / open_dataset(root).shards[2].files[0].path
    path.write_bytes(path.read_bytes()[:-3] if path.stat().st_size > 3 else b"")
    if open_dataset(root).layout == "files":
        path.unlink()
    with pytest.raises(LayoutError, match=path.name):
        list(open_dataset(root).read_shard(2))


def test_a_missing_shard_is_an_error_that_names_it(dataset):
    root, _ = dataset
    path = root / open_dataset(root).shards[0].files[0].path
    path.unlink()
    with pytest.raises(LayoutError, match=path.name):
        open_dataset(root).sample(0)


def test_more_shards_than_stay_open(tmp_path):
    layout = LAYOUTS["tar"]
    written = [layout.write_shard(tmp_path, f"s-{n:03d}", [mixed_sample(n)]) for n in range(40)]
    write_manifest(tmp_path, Manifest("tar", tuple(w.shard for w in written), written[0].fields))
    reader = open_dataset(tmp_path)
    assert [reader.sample(n)["label"] for n in range(40)] == list(range(40))
    assert len(reader._open) == 32


def test_webdataset_reads_our_tar(tmp_path):
    import webdataset

    samples = write_variant(tmp_path, "tar")
    urls = sorted(str(p) for p in tmp_path.glob("*.tar"))
    got = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert [unescape_key(s["__key__"]) for s in got] == [s[KEY] for s in samples]
    assert [s["label.json"] for s in got] == [s["label"] for s in samples]
    assert [s["caption.txt"] for s in got] == [s["caption"] for s in samples]
    assert all(np.array_equal(s["box.npy"], t["box"]) for s, t in zip(got, samples, strict=True))


def test_we_read_webdataset_tars(tmp_path):
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for n in range(6):
            writer.write({"__key__": f"k{n}", "bin": bytes([n]) * n, "cls": n, "seg.txt": f"t{n}"})
    reader = open_dataset(tmp_path)
    assert [s[KEY] for s in reader.read_shard(0, 2)] == ["k2", "k3", "k4", "k5"]
    assert reader.sample(4) == {KEY: "k4", "bin": b"\4\4\4\4", "cls": b"4", "seg.txt": b"t4"}
    assert index_path(tmp_path / "a.tar").is_file()


def test_saved_index_of_a_replaced_tar_is_not_trusted(tmp_path):
    path = tmp_path / "a.tar"
    for names in (["a.txt", "b.txt"], ["c.txt", "d.txt"]):
        with tarfile.open(path, "w") as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = 1
                archive.addfile(info, io.BytesIO(name[:1].encode()))
        keys = read_index(path).names()
    assert keys == ["c", "d"]


@pytest.mark.parametrize("layout", ["tar", "files"])
def test_many_small_values_share_one_file(tmp_path, layout):
    samples = [{KEY: f"s{n}", "a": n, "b": f"é{n}", "c": [n], "d": None, "e": {"x": n}, "jpg": b"J"} for n in range(3)]
    written = LAYOUTS[layout].write_shard(tmp_path, "s", samples)
    write_manifest(tmp_path, Manifest(layout, (written.shard,), written.fields))
    assert sorted(written.fields) == ["fields.json", "jpg"]
    for index, sample in enumerate(samples):
        assert open_dataset(tmp_path).sample(index) == {k: v for k, v in sample.items() if v is not None}


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt"])
def test_traversal_in_a_tar_is_refused(tmp_path, name):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo(name)
        archive.addfile(info, io.BytesIO(b""))
    with pytest.raises(LayoutError, match="evil"):
        open_dataset(tmp_path)


def test_pyarrow_and_pandas_read_our_parquet(tmp_path):
    import pandas
    import pyarrow.parquet

    samples = write_variant(tmp_path, "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "shard-00002.parquet")
    assert table.column("label").to_pylist() == [s["label"] for s in samples[6:]]
    frame = pandas.read_parquet(tmp_path / "shard-00000.parquet")
    assert list(frame["caption"]) == [s["caption"] for s in samples[:5]]
    assert pyarrow.parquet.ParquetFile(tmp_path / "shard-00002.parquet").metadata.num_row_groups == 3


def test_datasets_reads_our_parquet_and_we_read_its(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    (tmp_path / "ours").mkdir()
    samples = write_variant(tmp_path / "ours", "parquet")
    files = sorted(str(path) for path in (tmp_path / "ours").glob("*.parquet"))
    got = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    assert got["label"][:] == [s["label"] for s in samples] and got["caption"][:] == [s["caption"] for s in samples]
    records = [{"id": n, "text": f"ü{n}", "tags": ["a"] * n} for n in range(7)]
    (tmp_path / "theirs").mkdir()
    datasets.Dataset.from_list(records).to_parquet(str(tmp_path / "theirs" / "a.parquet"))
    assert [dict(sample) for sample in open_dataset(tmp_path / "theirs")] == records


def test_numpy_reads_our_tokens(tmp_path):
    (tmp_path / "npy").mkdir()
    (tmp_path / "bin").mkdir()
    flat = [i for s in write_variant(tmp_path / "npy", "npy")[6:] for i in s["tokens"]]
    write_variant(tmp_path / "bin", "bin")
    assert np.load(tmp_path / "npy" / "shard-00002.npy", mmap_mode="r").tolist() == flat
    path = tmp_path / "bin" / "shard-00002.bin"
    header = read_bin_header(path)
    assert (header.dtype, header.tokens, header.documents) == ("uint32", len(flat), 8)
    assert np.memmap(path, header.dtype, "r", offset=BIN_HEADER_BYTES).tolist() == flat


def documents():
    """Case 51: ids up to 119,546, the first of each document 70,001."""
    return [
        {"tokens": [(70_001 if k == 0 else 119_546 if k == 1 else 7 * n + k) for k in range(n)]} for n in range(1, 51)
    ]


@pytest.mark.parametrize("container", ["npy", "bin"])
def test_dtype_follows_the_largest_id(tmp_path, container):
    written = LAYOUTS["tokens"].write_shard(tmp_path, "s", documents(), TokenOptions(container=container))
    assert written.facts == {"largest_id": 119_546, "tokens": 1275, "dtype": "uint32"}
    got = [s["tokens"] for s in open_dataset(tmp_path).read_shard(0)]
    assert [g.tolist() for g in got] == [d["tokens"] for d in documents()]
    assert {g.dtype.name for g in got} == {"uint32"}


@pytest.mark.parametrize(
    ("ids", "options", "words"),
    [
        ([70_001, 3], {"dtype": "uint16"}, ["70001", "uint16", "65,535", "uint32"]),
        ([5, 8000, 9000], {"vocab_size": 8000}, ["8000", "position 1", "vocab_size=8,000"]),
        ([5, -1], {}, ["-1", "position 1"]),
        ([0.5], {}, ["float64"]),
        ([[1, 2]], {}, ["2 dimensions"]),
        ([1 << 70], {}, ["flat list"]),
    ],
)
def test_ids_that_do_not_fit_are_refused(tmp_path, ids, options, words):
    with pytest.raises(LayoutError) as caught:
        LAYOUTS["tokens"].write_shard(tmp_path, "s", [{"tokens": ids}], TokenOptions(**options))
    assert all(word in str(caught.value) for word in words)
    assert not list(tmp_path.iterdir())


def test_token_blocks_cross_documents(tmp_path):
    LAYOUTS["tokens"].write_shard(
        tmp_path, "s", [{"tokens": [1, 2]}, {"tokens": []}, {"tokens": [3, 4, 5]}], TokenOptions()
    )
    shard = open_dataset(tmp_path).open_shard(0)
    assert [b.tolist() for b in shard.blocks(2)] == [[1, 2], [3, 4]]
    assert [b.tolist() for b in shard.blocks(3, start=1, stride=2)] == [[3, 4, 5]]
    assert [shard.sample(i)["tokens"].tolist() for i in range(3)] == [[1, 2], [], [3, 4, 5]]
    with pytest.raises(ValueError, match="read-only"):
        next(shard.blocks(2))[0] = 9


def test_token_files_of_others_are_one_document_each(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.arange(4, dtype=np.uint16).reshape(2, 2))
    assert [s["tokens"].tolist() for s in open_dataset(tmp_path)] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
    (tmp_path / "c.npy").write_bytes(b"no array")
    with pytest.raises(LayoutError, match=r"c\.npy"):
        open_dataset(tmp_path).sample(2)


def test_headerless_bin_is_refused(tmp_path):
    np.arange(2000, dtype=np.uint16).tofile(tmp_path / "raw.bin")
    with pytest.raises(LayoutError, match="does not say its dtype"):
        open_dataset(tmp_path).sample(0)


def test_folder_of_files_groups_by_the_last_dot(tmp_path):
    for name in ("a.1.jpg", "a.2.jpg", "b/cat.jpg", "b/cat.json", "LICENSE", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    got = {s[KEY]: sorted(set(s) - {KEY}) for s in open_dataset(tmp_path)}
    assert got == {"a.1": ["jpg"], "a.2": ["jpg"], "b/cat": ["jpg", "json"], "LICENSE": ["file"]}


@pytest.mark.parametrize("key", ["a", "a.b", "100%", "%2E", "x%25y", "__meta__/a", "ü.ñ/ß.v2.1", "..."])
def test_names_survive_webdatasets_rule(key):
    name, suffix = split_member(escape_key(key) + ".seg.png")
    assert (unescape_key(name), suffix) == (key, "seg.png")
    assert not name.startswith("__")


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/..", "./a", "a\nb", "a\\b", "\udcff", 7, "x" * 300])
def test_names_that_no_layout_takes(key):
    with pytest.raises(LayoutError, match="Sample name"):
        checked_key(key)


def parquet_of(root: Path, rows: int, group_rows: int) -> None:
    samples = ({KEY: f"{n}", "blob": n.to_bytes(4, "big") * 1024} for n in range(rows))
    LAYOUTS["parquet"].write_shard(root, "s", samples, ParquetOptions(row_group_rows=group_rows))


def test_advice_tells_large_row_groups_from_small(tmp_path):
    """Sketch S10: 10,000 rows of 4 kB in groups of 100 and of 10,000."""
    for rows in (100, 10_000):
        (tmp_path / str(rows)).mkdir()
        parquet_of(tmp_path / str(rows), 10_000, rows)
    small, large = (advise_row_groups(open_dataset(tmp_path / name), "random") for name in ("100", "10000"))
    assert small.fits and not large.fits
    assert large.amplification == pytest.approx(10_000)
    assert 0.4e6 < small.bytes_per_sample < 0.5e6 and 40e6 < large.bytes_per_sample < 42e6
    assert "10,000 rows" in large.text and "access='random'" in large.text
    assert advise_row_groups(open_dataset(tmp_path / "10000"), "sequential").fits


KEPT_POOLS: list = []
"""Arrow frees a table through the pool that it came from, so a pool must outlive the test."""


@pytest.mark.parametrize("access", ["in order", "by index"])
def test_a_reader_holds_less_than_three_row_groups(tmp_path, access):
    """Sketch S10, the last sentence; Arrow counts the peak of its own pool."""
    import pyarrow

    for shard in range(3):
        samples = [{KEY: f"{n}", "blob": bytes([n % 256]) * 4096} for n in range(2000)]
        LAYOUTS["parquet"].write_shard(tmp_path, f"s{shard}", samples, ParquetOptions(row_group_rows=1000))
    default = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(default)
    KEPT_POOLS.append(pool)
    pyarrow.set_memory_pool(pool)
    try:
        reader = open_dataset(tmp_path)
        if access == "in order":
            assert sum(1 for k in range(3) for _ in reader.read_shard(k)) == 6000
        else:
            assert all(reader.sample(n)["blob"][0] == n % 2000 % 256 for n in range(5, 6000, 400))
        assert 4096 < pool.max_memory() < 3 * 1000 * 4200
    finally:
        pyarrow.set_memory_pool(default)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_and_workers_share_a_data_set(tmp_path, world_size):
    samples = write_variant(tmp_path, "tar")
    seen = []
    for rank in range(world_size):
        sampler = DistributedSampler(open_dataset(tmp_path), world_size, rank, shuffle=True, drop_last=False)
        loader = StatefulDataLoader(
            open_dataset(tmp_path), batch_size=2, num_workers=2, sampler=sampler, collate_fn=first_field
        )
        seen += [n for batch in loader for n in batch]
    assert set(seen) == set(range(len(samples))) and len(seen) == -(-14 // world_size) * world_size


def test_row_groups_close_at_their_target(tmp_path):
    samples = [{KEY: f"{n}", "blob": bytes(100_000)} for n in range(30)]
    written = LAYOUTS["parquet"].write_shard(tmp_path, "s", samples, ParquetOptions(access="random"))
    assert written.facts["row_group_rows"] == 6 and written.facts["access"] == "random"
    assert open_dataset(tmp_path).open_shard(0).group_rows == [6] * 5


@pytest.mark.parametrize(
    ("second", "words"),
    [({KEY: "b", "x": "text"}, ["'x'", "'b'", "int64"]), ({KEY: "b", "x": 1, "y": 2}, ["'y'", "'b'"])],
)
def test_parquet_names_the_sample_that_does_not_fit(tmp_path, second, words):
    import pyarrow

    schema = pyarrow.schema([(KEY, pyarrow.string()), ("x", pyarrow.int64())])
    with pytest.raises(LayoutError) as caught:
        LAYOUTS["parquet"].write_shard(tmp_path, "s", [{KEY: "a", "x": 1}, second], ParquetOptions(schema=schema))
    assert all(word in str(caught.value) for word in words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (["a.tar", "b.tar", "a.tar.index", "README.md"], "tar"),
        (["x.npy", "x.npy.borders.npy", "notes.txt"], "tokens"),
        (["1.jpg", "2.jpg", "labels.npy"], "files"),
        (["1.npy", "1.txt", "2.npy", "2.txt"], "files"),
        ([".hidden.tar", "a.parquet", "LICENSE"], "parquet"),
        (["a.txt"], "files"),
    ],
)
def test_what_a_folder_is_taken_for(tmp_path, names, layout):
    for name in names:
        (tmp_path / name).touch()
    assert detect_layout(tmp_path) == layout


def test_mixed_shards_and_missing_folders_say_what_to_do(tmp_path):
    (tmp_path / "a.tar").touch()
    (tmp_path / "b.npy").touch()
    with pytest.raises(LayoutError, match="layout="):
        open_dataset(tmp_path)
    with pytest.raises(LayoutError, match="does not exist"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "d.partial").mkdir()
    with pytest.raises(LayoutError, match="run it again"):
        open_dataset(tmp_path / "d")
