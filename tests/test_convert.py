"""Conversion: what comes out, what is refused before anything is written, and what a kill or a full disk leaves."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from workbench.errors import ConversionError, LayoutError
from workbench.layouts import KEY, advise_shards, convert, open_dataset, prepare_layouts, resize_images, tokenise
from workbench.layouts.plan import cut

ROOT = Path(__file__).parents[1]
DOCUMENTS = [[(70_001 if k == 0 else 119_546 if k == 1 else 7 * n + k) for k in range(n)] for n in range(1, 51)]


def documents():
    yield from DOCUMENTS


@pytest.fixture
def folder(tmp_path):
    """60 files of 1,000 bytes, each of other content."""
    source = tmp_path / "source"
    source.mkdir()
    for n in range(60):
        (source / f"f{n:03d}.jpg").write_bytes(n.to_bytes(2, "big") * 500)
    return source


def contents(path: Path) -> dict[str, bytes]:
    return {sample[KEY]: sample["jpg"] for sample in open_dataset(path)}


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in path.iterdir() if p.is_file()}


@pytest.mark.parametrize("processes", [1, 2])
def test_folder_to_tar_and_again_is_nothing_to_do(folder, tmp_path, processes):
    first = convert(folder, tmp_path / "out", shards=5, processes=processes)
    assert (first.shards_written, first.shards_reused) == (5, 0)
    assert [shard.samples for shard in first.manifest.shards] == [12] * 5
    assert contents(tmp_path / "out") == contents(folder)
    before = files_of(tmp_path / "out")
    again = convert(folder, tmp_path / "out", shards=5, processes=processes)
    assert (again.shards_written, again.shards_reused) == (0, 5)
    assert files_of(tmp_path / "out") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


def test_equal_input_gives_equal_files(folder, tmp_path):
    for name, processes in (("one", 1), ("two", 2)):
        convert(folder, tmp_path / name, shards=3, processes=processes)
    names = [p.name for p in (tmp_path / "one").iterdir()]
    assert len(names) == 7
    assert all((tmp_path / "one" / n).read_bytes() == (tmp_path / "two" / n).read_bytes() for n in names)


@pytest.mark.parametrize("between", ["files", "tar", "parquet"])
def test_every_way_round_gives_the_same_data(folder, tmp_path, between):
    shards = 1 if between == "parquet" else 4  # Parquet tells the mean size of rows, so that borders may differ by one
    straight = convert(folder, tmp_path / "straight", shards=shards, processes=1)
    convert(folder, tmp_path / "between", between, shards=7, processes=1)
    back = convert(tmp_path / "between", tmp_path / "back", shards=shards, processes=1)
    assert back.manifest.digest() == straight.manifest.digest()


def records(count: int = 40) -> list[dict]:
    return [{"id": n, "text": f"line {n} ü", "score": n / 2, "tags": ["a"] * (n % 3)} for n in range(count)]


@pytest.fixture(params=["lines", "packed", "folder", "list", "function"])
def table(request, tmp_path):
    text = "".join(json.dumps(record) + "\n" for record in records())
    if request.param == "lines":
        (tmp_path / "a.jsonl").write_text(text + "\n")
        return tmp_path / "a.jsonl"
    if request.param == "packed":
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        return tmp_path / "a.jsonl.gz"
    if request.param == "folder":
        (tmp_path / "lines").mkdir()
        lines = text.splitlines(keepends=True)
        (tmp_path / "lines" / "a.jsonl").write_text("".join(lines[:13]).rstrip())
        (tmp_path / "lines" / "b.jsonl").write_text("".join(lines[13:]))
        return tmp_path / "lines"
    return records() if request.param == "list" else records


@pytest.mark.parametrize("layout", ["parquet", "tar"])
def test_records_keep_their_types(table, tmp_path, layout):
    made = convert(table, tmp_path / "out", layout, shard_bytes=500, processes=2)
    assert len(made.manifest.shards) > 1
    got = [{k: v for k, v in s.items() if k != KEY} for s in open_dataset(tmp_path / "out")]
    assert got == records()
    assert convert(table, tmp_path / "out", layout, shard_bytes=500, processes=2).shards_written == 0


def test_parquet_keeps_the_types_of_a_parquet_source(tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns = {"day": pyarrow.array([1, 2, 3], pyarrow.date32()), "n": pyarrow.array([1, None, 3], pyarrow.int8())}
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in" / "a.parquet")
    convert(tmp_path / "in", tmp_path / "out", "parquet", processes=1)
    table = pyarrow.parquet.read_table(tmp_path / "out" / "shard-00000.parquet")
    assert [str(table.schema.field(name).type) for name in ("day", "n")] == ["date32[day]", "int8"]
    assert table.column("n").to_pylist() == [1, None, 3]


@pytest.mark.parametrize("source", [documents, DOCUMENTS], ids=["function", "list"])
@pytest.mark.parametrize("container", ["npy", "bin"])
def test_ids_above_16_bits(tmp_path, source, container):
    """Case 51."""
    made = convert(source, tmp_path / "out", "tokens", container=container, shard_bytes=1500, processes=2)
    assert len(made.manifest.shards) > 2
    assert {k: made.manifest.facts[k] for k in ("dtype", "largest_id", "tokens", "vocab_size")} == {
        "dtype": "uint32",
        "largest_id": 119_546,
        "tokens": 1275,
        "vocab_size": None,
    }
    assert [s["tokens"].tolist() for s in open_dataset(tmp_path / "out")] == DOCUMENTS


@pytest.mark.parametrize(("options", "bad"), [({"dtype": "uint16"}, "70001"), ({"vocab_size": 100_000}, "119546")])
def test_the_first_bad_id_is_named_and_nothing_is_left(tmp_path, options, bad):
    with pytest.raises(LayoutError, match=bad) as caught:
        convert(documents, tmp_path / "out", "tokens", shard_bytes=400, processes=2, **options)
    assert "sample-00000000" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_all_token_shards_have_one_dtype(tmp_path):
    source = [[1, 2, 3]] * 20 + [[70_000, 5]] + [[1]] * 20
    made = convert(source, tmp_path / "out", "tokens", shard_bytes=60, processes=1)
    shards = sorted((tmp_path / "out").glob("shard-*.npy"))
    flat = [p for p in shards if "borders" not in p.name]
    assert len(flat) > 2 and {np.load(p).dtype.name for p in flat} == {"uint32"} == {made.manifest.facts["dtype"]}
    assert [s["tokens"].tolist() for s in open_dataset(tmp_path / "out")] == source
    from workbench.layouts.manifest import hash_file

    assert all(hash_file(tmp_path / "out" / f.path) == (f.bytes, f.checksum) for f in made.manifest.files)


def member(archive: tarfile.TarFile, name: str, content: bytes = b"x") -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.jpg", "../../evil.jpg"], "evil"),
        (["a.jpg", "/etc/passwd.jpg"], "passwd"),
        (["a.jpg", "b.jpg", "a.jpg"], "named 'a'"),
        (["a.jpg", "a.JPG"], "'jpg' twice"),
    ],
)
def test_bad_names_are_refused_before_anything_is_written(tmp_path, names, words):
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        for name in names:
            member(archive, name)
    with pytest.raises(LayoutError, match=words):
        convert(tmp_path / "in.tar", tmp_path / "out", processes=1)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".index")) == ["in.tar"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    Path(os.fsdecode(bytes(tmp_path / "in") + b"/bad\xff.jpg")).write_bytes(b"x")
    with pytest.raises(LayoutError, match="UTF-8"):
        convert(tmp_path / "in", tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{KEY: "manifest", "json": b"{}"}], r"manifest\.json, which is taken"),
        ([{KEY: ".conversion/job", "json": b"{}"}], r"\.conversion/job\.json, which is taken"),
        ([{KEY: "a", "json": b""}, {KEY: "a.json/b", "json": b""}], r"'a\.json/b' would be the file"),
        ([{KEY: "a.json/b", "json": b""}, {KEY: "a", "json": b""}], r"'a' would be the file"),
        ([{KEY: "a", "json": b""}, {KEY: "b"}], "'b' has no field"),
    ],
)
def test_names_that_plain_files_cannot_have_leave_nothing(tmp_path, samples, words):
    with pytest.raises(LayoutError, match=words):
        convert(samples, tmp_path / "out", "files", processes=1)
    assert list(tmp_path.iterdir()) == []


def test_a_tar_holds_no_sample_that_it_could_not_show(tmp_path):
    with pytest.raises(LayoutError, match="'b' has no field"):
        convert([{KEY: "a", "n": 1}, {KEY: "b", "n": None}], tmp_path / "out", processes=1)


def test_files_of_a_run_that_was_stopped_are_not_published_with_others(tmp_path):
    stop = [True]

    def stopped(sample):
        if stop[0] and sample["n"] == 2 and (tmp_path / "out.partial").exists():
            raise KeyboardInterrupt
        return sample

    first, second = ([{KEY: f"{name}{n}", "n": n} for n in range(3)] for name in ("old/", "new/"))
    with pytest.raises(KeyboardInterrupt):
        convert(first, tmp_path / "out", "files", transform=stopped, processes=1)
    assert (tmp_path / "out.partial" / "old" / "0.n.json").is_file()
    stop[0] = False
    convert(second, tmp_path / "out", "files", transform=stopped, processes=1)
    there = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert there == {"manifest.json", "new/0.n.json", "new/1.n.json", "new/2.n.json"}


def test_names_with_dots_and_unicode_stay_apart(tmp_path):
    import webdataset

    source = tmp_path / "in"
    names = ["photo.v1.jpg", "photo.v2.jpg", "ünï/日本.jpg", "100%.jpg", "a b/c'd.jpg"]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode())
    convert(source, tmp_path / "tar", processes=1)
    convert(tmp_path / "tar", tmp_path / "files", "files", processes=1)
    wanted = {name.removesuffix(".jpg"): name.encode() for name in names}
    assert contents(tmp_path / "tar") == contents(tmp_path / "files") == wanted
    shard = str(tmp_path / "tar" / "shard-00000.tar")
    assert sorted(s["jpg"] for s in webdataset.WebDataset(shard, shardshuffle=False)) == sorted(wanted.values())


def test_duplicates_can_be_numbered(tmp_path):
    for shard in "ab":
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for name in ("0.jpg", "1.jpg", "1~2.jpg"):
                member(archive, name, f"{shard}{name}".encode())
    with pytest.raises(ConversionError, match="duplicates='number'"):
        convert(tmp_path, tmp_path.parent / f"{tmp_path.name}-out", processes=1)
    out = tmp_path.parent / f"{tmp_path.name}-out"
    convert(tmp_path, out, duplicates="number", processes=1)
    assert list(contents(out)) == ["0", "1", "1~2", "0~2", "1~3", "1~2~2"]


def test_duplicates_of_a_stream_are_refused(tmp_path):
    for duplicates in ("refuse", "number"):
        with pytest.raises(ConversionError, match="'same': one would hide the other; rename one, or leave names out"):
            source = ({KEY: "same", "n": n} for n in range(2))
            convert(source, tmp_path / "out", processes=1, duplicates=duplicates)
    assert list(tmp_path.iterdir()) == []


def test_an_iterator_that_passes_once_is_converted_whole(tmp_path):
    convert(({"n": n} for n in range(3000)), tmp_path / "out", shard_bytes="200kB", processes=1)
    assert [s["n"] for s in open_dataset(tmp_path / "out")] == list(range(3000))


def test_looking_at_a_stream_first_holds_little_of_it(tmp_path):
    given = 0

    def blobs():
        nonlocal given
        for n in range(40):
            given += 1
            yield {"n": n, "blob": bytes(5_000_000)}

    from workbench.layouts.probe import MOST_BYTES, layout_options, probe_source
    from workbench.layouts.sources import resolve_source

    source = resolve_source(blobs)
    probe_source(source, "tar", layout_options("tar", {}, None), None, skip_failures=False)
    assert given == -(-MOST_BYTES // 5_000_001)
    assert [sample["n"] for sample in source] == list(range(40))


def test_changed_samples_of_a_list_are_noticed(tmp_path):
    convert([{"n": 1}, {"n": 2}], tmp_path / "out", processes=1)
    with pytest.raises(ConversionError, match="overwrite=True"):
        convert([{"n": 1}, {"n": 3}], tmp_path / "out", processes=1)
    convert([{"n": 1}, {"n": 3}], tmp_path / "out", processes=1, overwrite=True)
    assert [s["n"] for s in open_dataset(tmp_path / "out")] == [1, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_damaged_target_is_not_called_finished(folder, tmp_path):
    convert(folder, tmp_path / "out", shards=2, processes=1)
    (tmp_path / "out" / "shard-00001.tar").unlink()
    with pytest.raises(ConversionError, match="damaged"):
        convert(folder, tmp_path / "out", shards=2, processes=1)


def test_a_folder_of_somebody_else_is_never_replaced(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConversionError, match="another target"):
            convert(folder, tmp_path / "out", processes=1, overwrite=overwrite)
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "notes.txt").write_text("mine")
    with pytest.raises(ConversionError, match="not left by a conversion"):
        convert(folder, tmp_path / "new", processes=1, overwrite=True)
    assert (tmp_path / "new.partial" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["source", "source/inside", "."])
def test_source_and_target_do_not_lie_in_each_other(folder, tmp_path, target):
    with pytest.raises(ConversionError, match="in each other"):
        convert(folder, tmp_path / target, processes=1)


def image(width: int, height: int, orientation: int | None = None) -> bytes:
    buffer = io.BytesIO()
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    ramp = np.linspace(0, 255, width * height * 3).astype(np.uint8).reshape(height, width, 3)
    Image.fromarray(ramp).save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


def test_images_are_shrunk_and_stand_upright(tmp_path):
    source = [{KEY: "wide", "jpg": image(640, 320)}, {KEY: "small", "jpg": image(40, 30)}]
    source.append({KEY: "turned", "jpg": image(640, 320, orientation=6)})
    convert(source, tmp_path / "out", transform=resize_images(64), processes=1)
    sizes = {s[KEY]: Image.open(io.BytesIO(s["jpg"])).size for s in open_dataset(tmp_path / "out")}
    assert sizes == {"wide": (128, 64), "small": (40, 30), "turned": (64, 128)}
    assert next(iter(open_dataset(tmp_path / "out")))["jpg"] != source[0]["jpg"]


def test_shards_are_sized_by_what_the_transform_leaves(tmp_path):
    source = [{"blob": bytes(100_000)} for _ in range(40)]
    made = convert(source, tmp_path / "out", transform=shorten, shard_bytes=110_000, processes=1)
    assert [shard.samples for shard in made.manifest.shards] == [10] * 4  # 40 x (9,728 + 512 of header) / 110,000


def shorten(sample: dict) -> dict:
    return {**sample, "blob": sample["blob"][:9_728]}


def test_text_is_tokenised_with_a_given_tokenizer(tmp_path):
    from tokenizers import Tokenizer

    path = ROOT / "data_samples" / "bpe8k.json"
    made = convert(records(30), tmp_path / "out", "tokens", transform=tokenise(path, eos=0), processes=2)
    tokenizer = Tokenizer.from_file(str(path))
    wanted = [[*tokenizer.encode(record["text"]).ids, 0] for record in records(30)]
    assert [s["tokens"].tolist() for s in open_dataset(tmp_path / "out")] == wanted
    facts = made.manifest.facts
    assert (facts["vocab_size"], facts["eos"], facts["dtype"]) == (tokenizer.get_vocab_size(), 0, "uint16")


def odd_fails(sample: dict) -> dict | None:
    if sample["n"] % 10 == 3:
        raise ValueError("no good")
    return None if sample["n"] % 10 == 4 else sample


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_transform_names_the_sample_or_skips_it(tmp_path, processes):
    source = [{KEY: f"s{n}", "n": n} for n in range(200)]
    with pytest.raises(ConversionError, match=r"s3'.*no good.*on_error='skip'"):
        convert(source, tmp_path / "out", transform=odd_fails, shards=4, processes=processes)
    made = convert(source, tmp_path / "out", transform=odd_fails, shards=4, processes=processes, on_error="skip")
    assert (made.samples_failed, made.samples_dropped, made.manifest.samples) == (20, 20, 160)
    assert made.failures[0] == "s3: ValueError: no good"
    assert [s["n"] for s in open_dataset(tmp_path / "out")] == [n for n in range(200) if n % 10 not in (3, 4)]


def test_progress_reaches_the_end(folder, tmp_path):
    seen = []
    convert(folder, tmp_path / "out", shards=6, processes=2, progress=seen.append)
    assert [p.samples for p in seen] == sorted(p.samples for p in seen)
    assert (seen[-1].samples, seen[-1].shards, seen[-1].total_samples, seen[-1].total_shards) == (60, 6, 60, 6)


KILLER = """
    import os, signal, sys
    from workbench.layouts import convert
    out, at, processes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    def transform(sample):
        number = int(sample["__key__"][1:])
        if number == at and not os.path.exists(out + ".killed") and os.path.isdir(out + ".partial"):
            open(out + ".killed", "w").close()
            os.kill(os.getpid() if processes == 1 else os.getppid(), signal.SIGKILL)
        return sample
    made = convert(sys.argv[1], out, shards=5, processes=processes, transform=transform)
    print(made.shards_written, made.shards_reused)
"""


def run_script(tmp_path: Path, text: str, *arguments: object) -> subprocess.CompletedProcess:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("at", "processes"), [(0, 1), (59, 1), (36, 2)])
def test_killed_at_any_point_and_finished_by_a_second_run(folder, tmp_path, at, processes):
    """Sketch S9."""
    out = tmp_path / "out"
    killed = run_script(tmp_path, KILLER, folder, out, at, processes)
    assert killed.returncode == -9
    assert not out.exists()
    with pytest.raises(LayoutError, match="run it again"):
        open_dataset(out)
    partial = tmp_path / "out.partial"
    left = {p.name: p.stat().st_ino for p in partial.glob("shard-*.tar")}
    for name in left:
        with tarfile.open(partial / name) as archive:
            assert len(archive.getmembers()) == 12
    again = run_script(tmp_path, KILLER, folder, out, at, processes)
    assert again.returncode == 0, again.stderr
    written, reused = map(int, again.stdout.split())
    assert written + reused == 5 and reused >= at // 12 - (processes - 1)
    if processes == 1:
        assert all((out / name).stat().st_ino == inode for name, inode in left.items())
    assert contents(out) == contents(folder)
    whole = convert(folder, tmp_path / "whole", shards=5, processes=1)
    assert open_dataset(out).fingerprint() == whole.manifest.digest()
    assert run_script(tmp_path, KILLER, folder, out, at, processes).stdout.split() == ["0", "5"]
    assert not partial.exists()


def test_killed_between_manifest_and_name(folder, tmp_path):
    whole = convert(folder, tmp_path / "out", shards=3, processes=1)
    os.rename(tmp_path / "out", tmp_path / "out.partial")
    again = convert(folder, tmp_path / "out", shards=3, processes=1)
    assert (again.shards_written, again.shards_reused) == (0, 3)
    assert again.manifest == whole.manifest and not (tmp_path / "out.partial").exists()


def test_a_half_written_shard_and_a_stray_file_are_not_trusted(folder, tmp_path):
    run_script(tmp_path, KILLER, folder, tmp_path / "out", 30, 1)
    partial = tmp_path / "out.partial"
    (partial / "shard-00000.tar").write_bytes(b"cut")
    (partial / ".shard-00002.tar.1.tmp").write_bytes(b"half")
    again = run_script(tmp_path, KILLER, folder, tmp_path / "out", 30, 1)
    assert again.stdout.split() == ["4", "1"]
    assert contents(tmp_path / "out") == contents(folder)


def test_another_conversion_does_not_mix_with_an_unfinished_one(folder, tmp_path):
    run_script(tmp_path, KILLER, folder, tmp_path / "out", 30, 1)
    with pytest.raises(ConversionError, match="layout"):
        convert(folder, tmp_path / "out", "parquet", processes=1)
    convert(folder, tmp_path / "out", "parquet", processes=1, overwrite=True)
    assert open_dataset(tmp_path / "out").layout == "parquet"


FULL_DISK = """
    import resource, sys
    from workbench.errors import ConversionError
    from workbench.layouts import convert
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        convert(sys.argv[1], sys.argv[2], sys.argv[4], processes=int(sys.argv[5]), shard_bytes=60_000)
    except ConversionError as error:
        print(error)
"""


@pytest.mark.parametrize("layout", ["tar", "parquet"])
@pytest.mark.parametrize("processes", [1, 2])
def test_full_disk_is_one_sentence(folder, tmp_path, layout, processes):
    """Sketch S9, variant."""
    out = tmp_path / "out"
    told = run_script(tmp_path, FULL_DISK, folder, out, 20_000, layout, processes)
    assert told.stdout.startswith("No room to write") and len(told.stdout.splitlines()) == 1, told.stderr
    assert "Traceback" not in told.stderr
    assert not out.exists() and not list((tmp_path / "out.partial").rglob("*.tmp"))
    again = convert(folder, out, layout, processes=1, shard_bytes=60_000)
    assert again.shards_reused + again.shards_written == len(again.manifest.shards)
    assert contents(out) == contents(folder)


def test_full_disk_while_a_stream_is_set_aside(tmp_path):
    script = FULL_DISK.replace("convert(sys.argv[1],", "convert(({'blob': bytes(9000)} for _ in range(9)),")
    told = run_script(tmp_path, script, "-", tmp_path / "out", 20_000, "tar", 2)
    assert told.stdout.startswith("No room to write"), told.stderr
    assert not (tmp_path / "out").exists()


def test_a_process_that_dies_is_named_and_the_rest_is_kept(folder, tmp_path):
    marker = tmp_path / "died"

    def dies_once(sample):
        if sample[KEY] == "f050" and not marker.exists() and (tmp_path / "out.partial").exists():
            marker.touch()
            os._exit(7)
        return sample

    with pytest.raises(ConversionError, match=r"shard-00004.*code 7"):
        convert(folder, tmp_path / "out", shards=5, processes=2, transform=dies_once)
    again = convert(folder, tmp_path / "out", shards=5, processes=2, transform=dies_once)
    assert again.shards_reused >= 3 and contents(tmp_path / "out") == contents(folder)


def test_two_conversions_into_one_target(folder, tmp_path):
    from workbench.layouts.staging import Staging

    first = Staging(tmp_path / "out", "job")
    first.take()
    with pytest.raises(ConversionError, match="Another process"):
        convert(folder, tmp_path / "out", processes=1)
    first.leave()
    convert(folder, tmp_path / "out", processes=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


def test_nobody_comes_in_between_while_the_folder_gets_its_name(folder, tmp_path, monkeypatch):
    from workbench.layouts.staging import Staging

    rename, told = Staging.rename, []

    def tried_by_another(self):
        with pytest.raises(ConversionError) as caught:
            convert(folder, tmp_path / "out", shards=2, processes=1)
        told.append(str(caught.value))
        rename(self)

    monkeypatch.setattr(Staging, "rename", tried_by_another)
    assert convert(folder, tmp_path / "out", shards=2, processes=1).shards_written == 2
    assert len(told) == 1 and "Another process is converting" in told[0]
    assert contents(tmp_path / "out") == contents(folder)


def test_what_is_finished_asks_for_no_lock(folder, tmp_path):
    from workbench.layouts.staging import Staging

    convert(folder, tmp_path / "out", processes=1)
    busy = Staging(tmp_path / "out", "another job")
    busy.take()
    assert convert(folder, tmp_path / "out", processes=1).shards_written == 0
    busy.leave()


def test_who_waited_for_a_lock_that_is_gone_takes_the_new_one(tmp_path):
    import fcntl

    from workbench.layouts.staging import Staging

    path = tmp_path / ".out.lock"
    opened, real = [], fcntl.flock

    def released_just_before(handle, how):
        if not opened:
            opened.append(path)
            path.unlink()
        real(handle, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", released_just_before)
        mine = Staging(tmp_path / "out", "job")
        mine.take()
    with pytest.raises(ConversionError, match="Another process"):
        Staging(tmp_path / "out", "job").take()
    mine.leave()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("total", "world_size", "num_workers", "shards", "comfortable"),
    [
        ("256GB", 8, 8, 1024, True),  # 1000 by size -> next multiple of 64
        ("10GB", 8, 8, 256, True),  # 40 by size -> 4 for each of 64 workers, 39 MB each
        ("500MB", 8, 8, 64, False),  # 4 each would be 2 MB: one each, and said
        (1, 1, 0, 1, False),
    ],
)
def test_shard_advice(total, world_size, num_workers, shards, comfortable):
    advice = advise_shards(total, world_size, num_workers)
    assert (advice.shards, advice.comfortable) == (shards, comfortable)
    assert advice.shards % advice.consumers == 0 and str(shards) in advice.text


def test_convert_follows_the_advice(tmp_path):
    source = [{"blob": bytes(1000)} for _ in range(64)]
    made = convert(source, tmp_path / "out", world_size=2, num_workers=3, processes=1)
    assert len(made.manifest.shards) == 6


def test_the_command_line_cuts_for_who_reads_and_numbers_equal_names(tmp_path):
    from workbench.cli import main

    for shard in "ab":
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for number in range(12):
                member(archive, f"{number}.jpg")
    target = tmp_path.parent / f"{tmp_path.name}-out"
    asked = ["convert", str(tmp_path), str(target), "--layout", "parquet", "--world-size", "2", "--num-workers", "3"]
    assert main([*asked, "--processes", "1"]) == 2 and not target.exists()
    assert main([*asked, "--processes", "1", "--duplicates", "number"]) == 0
    made = open_dataset(target)
    assert len(made.shards) == 6 and made.sample(12)[KEY] == "0~2"


@pytest.mark.parametrize("counted", ["shards", "world_size", "num_workers"])
def test_a_stream_cannot_be_cut_for_its_readers(tmp_path, counted):
    with pytest.raises(LayoutError, match=f"{counted}=2 needs a source whose length is known"):
        convert(({"n": n} for n in range(9)), tmp_path / "out", processes=1, **{counted: 2})
    assert list(tmp_path.iterdir()) == []


def test_cut_is_even_and_loses_nothing():
    sizes = np.array([1, 1, 1, 100, 1, 1, 1, 1, 1, 1])
    for shards in range(1, 15):
        borders = cut(sizes, shards)
        assert len(borders) == min(shards, 10)
        assert borders[0][0] == 0 and borders[-1][1] == 10
        assert all(a < b for a, b in borders) and all(p[1] == n[0] for p, n in pairwise(borders))
    assert cut(np.full(100, 7), 4) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert cut(np.empty(0, np.int64), 3) == []


def test_the_same_samples_in_several_layouts_with_their_cost(folder, tmp_path):
    first = prepare_layouts(folder, tmp_path / "all", ("tar", "parquet"), processes=1)
    again = prepare_layouts(folder, tmp_path / "all", ("tar", "parquet"), processes=1)
    assert first == again and [one.layout for one in first] == ["tar", "parquet"]
    assert all(one.convert_seconds > 0 and one.samples == 60 for one in first)
    assert contents(tmp_path / "all" / "tar") == contents(tmp_path / "all" / "parquet") == contents(folder)
    other = prepare_layouts(
        folder, tmp_path / "all", ("parquet",), options={"parquet": {"row_group_rows": 5}}, overwrite=True, processes=1
    )
    assert other[0].digest != first[1].digest and open_dataset(other[0].path).open_shard(0).group_rows == [5] * 12
    with pytest.raises(LayoutError, match="zip"):
        prepare_layouts(folder, tmp_path / "all", ("tar", "zip"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layout": "zip"}, "'zip' is no layout"),
        ({"row_group_rows": 3}, "no option of tar"),
        ({"layout": "parquet", "row_group_rows": 0}, "row_group_rows=0"),
        ({"layout": "tokens"}, "'tokens' is missing"),
        ({"shards": 0}, "shards=0"),
        ({"processes": 0}, "processes=0"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"duplicates": "keep"}, "duplicates='keep'"),
    ],
)
def test_wrong_use_is_told_before_anything_is_written(folder, tmp_path, arguments, words):
    with pytest.raises(LayoutError, match=words):
        convert(folder, tmp_path / "out", **{"processes": 1, **arguments})
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_sources_that_are_none(tmp_path):
    for source, words in ((tmp_path / "nowhere", "does not exist"), (7, "no source"), ([], "no samples")):
        with pytest.raises(LayoutError, match=words):
            convert(source, tmp_path / "out", processes=1)
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\nnot json\n')
    with pytest.raises(LayoutError, match=r"bad\.jsonl, byte 9"):
        convert(tmp_path / "bad.jsonl", tmp_path / "out", processes=1)
