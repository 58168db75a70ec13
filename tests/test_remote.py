"""Data sets at a URL, against stores whose faults are scripted: retries, the cache, and what must never be shown."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import LayoutError, ManifestError
from workbench.layouts import KEY, convert, layout_loader, open_dataset, read_manifest
from workbench.layouts import remote as rooms
from workbench.layouts.cache import FileCache
from workbench.layouts.protocol import FileEntry
from workbench.layouts.remote import open_remote, redacted, retried
from workbench.layouts.stores import open_store

SECRET = "hunter2"


class ScriptedStore:
    """A folder served with faults: ``faults[path]`` is a list of what the next reads of it do.

    Args:
        root: The folder.
        faults: Exceptions to raise, or functions of the true bytes.
    """

    def __init__(self, root: Path, faults: dict | None = None) -> None:
        self.root, self.faults, self.log = root, faults or {}, root.parent / "reads.log"

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        with open(self.log, "a") as log:
            log.write(f"{path} {start} {stop}\n")
        planned = self.faults.get(path, [])
        fault = planned.pop(0) if planned else None
        if isinstance(fault, Exception):
            raise fault
        content = (self.root / path).read_bytes()[start:stop]
        return content if fault is None else fault(content)

    def reads(self, word: str = "shard") -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if word in line]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(rooms, "FIRST_WAIT_SECONDS", 0.0)


def samples(count: int = 24) -> list[dict]:
    return [{KEY: f"s{n:02d}", "jpg": bytes([n]) * 5000, "label": n} for n in range(count)]


@pytest.fixture(params=["tar"])
def served(request, tmp_path):
    convert(samples(), tmp_path / "data", request.param, shards=6, processes=1)
    return tmp_path / "data"


def opened(served: Path, faults: dict | None = None, cache_bytes: int = 10_000_000, url: str = "s3://bucket/data"):
    store = ScriptedStore(served, faults)
    reader = open_remote(url, store=store, cache_directory=served.parent / "cache", cache_bytes=cache_bytes)
    return reader, store


@pytest.mark.parametrize("served", ["tar", "parquet", "files"], indirect=True)
def test_every_layout_reads_as_it_does_here(served):
    reader, _ = opened(served)
    here = open_dataset(served)
    assert reader.fingerprint() == here.fingerprint() and len(reader) == 24
    assert [dict(reader.sample(n)) for n in (23, 0, 7)] == [dict(here.sample(n)) for n in (23, 0, 7)]
    for shard in range(len(here.shards)):
        assert list(reader.read_shard(shard, 1)) == list(here.read_shard(shard, 1))


def test_tokens_read_as_they_do_here(tmp_path):
    convert([[1, 2, 3], [70_000]], tmp_path / "data", "tokens", processes=1)
    reader, _ = opened(tmp_path / "data")
    assert [s["tokens"].tolist() for s in reader] == [[1, 2, 3], [70_000]]


def test_faults_that_pass_are_outlasted(served):
    name = "shard-00002.tar"
    cut = lambda content: content[:-1]  # noqa: E731
    reader, store = opened(served, {name: [ConnectionError(), TimeoutError(), cut, OSError("busy")]})
    assert reader.sample(9)["label"] == 9
    assert len(store.reads(name + " ")) == 5


def test_faults_that_stay_end_after_six_attempts(served):
    reader, store = opened(served, {"shard-00000.tar": [OSError(f"GET ?sig={SECRET}")] * 9})
    with pytest.raises(
        LayoutError, match=r"s3://bucket/data/shard-00000\.tar could not be read in 6 attempts"
    ) as caught:
        reader.sample(0)
    assert SECRET not in str(caught.value) and len(store.reads("shard-00000.tar ")) == 6


def test_waits_double_and_are_spread():
    waits: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "FIRST_WAIT_SECONDS", 0.2)
        with pytest.raises(LayoutError, match="last: TimeoutError"):
            retried(lambda: (_ for _ in ()).throw(TimeoutError()), "x", waits.append)
    assert len(waits) == 5 and all(0 <= wait <= 0.2 * 2**n for n, wait in enumerate(waits))


@pytest.mark.parametrize("error", [PermissionError(SECRET), FileNotFoundError(SECRET)])
def test_what_another_attempt_does_not_mend_is_told_at_once(served, error):
    reader, store = opened(served, {"shard-00000.tar": [error]})
    with pytest.raises(LayoutError, match=r"s3://bucket/data/shard-00000\.tar") as caught:
        reader.sample(0)
    assert SECRET not in str(caught.value) and len(store.reads("shard-00000.tar ")) == 1


def test_other_content_than_the_manifest_says_is_not_kept(served):
    reader, _ = opened(served, {"shard-00000.tar": [lambda content: bytes(len(content))]})
    with pytest.raises(LayoutError, match="other content"):
        reader.sample(0)
    cached = [path.name for path in (served.parent / "cache").rglob("*shard-00000.tar*")]
    assert cached in ([], ["shard-00000.tar.index"]), "the index beside it came as it should"
    assert reader.sample(0)["label"] == 0


def test_the_cache_survives_a_restart(served):
    reader, store = opened(served)
    assert [s["label"] for s in reader] == list(range(24))
    fetched = len(store.reads())
    again, _ = opened(served)
    assert [s["label"] for s in again] == list(range(24))
    assert len(store.reads()) == fetched == 12


def test_the_cache_keeps_its_bound_and_drops_what_was_used_longest_ago(served):
    size = read_manifest(served).shards[0].bytes
    reader, store = opened(served, cache_bytes=int(2.5 * size))
    for number in range(6):
        list(reader.read_shard(number))
        kept = [p for p in (served.parent / "cache").rglob("shard-*") if p.is_file()]
        assert sum(p.stat().st_size for p in kept) <= 2.5 * size
        assert f"shard-{number:05d}.tar" in {p.name for p in kept}
    assert {p.name for p in kept if p.suffix == ".tar"} == {"shard-00004.tar", "shard-00005.tar"}
    assert reader.sample(0)["label"] == 0  # still mapped, though its file is gone
    fetched = len(store.reads())
    again, _ = opened(served, cache_bytes=int(2.5 * size))
    assert again.sample(23)["label"] == 23 and len(store.reads()) == fetched
    assert again.sample(0)["label"] == 0 and len(store.reads()) == fetched + 2


def test_a_shard_larger_than_the_cache_is_told(served):
    reader, _ = opened(served, cache_bytes=1000)
    with pytest.raises(LayoutError, match="cache_bytes"):
        reader.sample(0)


def test_a_torn_file_is_never_served(served):
    reader, store = opened(served)
    path = reader.root / "shard-00000.tar"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"torn")
    (path.parent / ".shard-00001.tar.99.tmp").write_bytes(b"half")
    assert [reader.sample(n)["label"] for n in (0, 4)] == [0, 4]
    assert len(store.reads("shard-00000.tar ")) == len(store.reads("shard-00001.tar ")) == 1


def test_a_shard_that_another_process_removed_before_it_was_opened_is_fetched_again(served, monkeypatch):
    reader, store = opened(served)
    shard, opening, removed = reader.shards[2], reader._layout._inner.open_shard, []

    def made_room_just_now(root, wanted, fields):
        if len(removed) < 2:
            removed.append(root / wanted.files[0].path)
            removed[-1].unlink()
        return opening(root, wanted, fields)

    monkeypatch.setattr(type(reader._layout._inner), "open_shard", lambda _, *rest: made_room_just_now(*rest))
    assert [s["label"] for s in reader.read_shard(2)] == [8, 9, 10, 11]
    assert len(removed) == 2 and len(store.reads(f"{shard.name} ")) == 3


def test_a_file_that_another_process_removed_before_it_was_read_is_fetched_again(tmp_path, monkeypatch):
    convert(samples(3), tmp_path / "data", "files", processes=1)
    reader, store = opened(tmp_path / "data")
    fetch, removals = FileCache.fetch, [True, True, False]

    def made_room_just_now(self, folder, entry, write):
        path = fetch(self, folder, entry, write)
        if removals.pop(0):
            path.unlink()
        return path

    monkeypatch.setattr(FileCache, "fetch", made_room_just_now)
    assert reader.open_shard(0)._read("s01.jpg") == bytes([1]) * 5000
    assert removals == [] and len(store.reads("s01.jpg ")) == 3
    removals += [True] * 8
    with pytest.raises(LayoutError, match=r"s02\.jpg was removed 8 times .* raise cache_bytes"):
        reader.open_shard(0)._read("s02.jpg")


def read_all(reader, times: int, answers) -> None:
    try:
        answers.put([s["label"] for _ in range(times) for s in reader] == list(range(24)) * times)
    except Exception as error:
        answers.put(str(error))


@pytest.mark.parametrize("served", ["tar", "files"], indirect=True)
def test_processes_that_take_each_others_room_still_read_everything(served):
    largest = max(shard.bytes for shard in read_manifest(served).shards)
    reader, _ = opened(served, cache_bytes=largest + 1 if open_dataset(served).layout == "tar" else 12_000)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=read_all, args=(reader, 4, answers)) for _ in range(3)]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == [True] * 3
    for child in children:
        child.join()


def test_files_on_their_way_take_their_room_from_the_start(tmp_path):
    entries = {name: FileEntry(name, size) for name, size in (("kept", 4), ("coming", 5), ("next", 4))}

    def whole(name):
        return lambda file: file.write(bytes(entries[name].bytes))

    one, two = FileCache(tmp_path, 10), FileCache(tmp_path, 10)
    one.fetch("d", entries["kept"], whole("kept"))

    def slowly(file):
        two.fetch("d", entries["next"], whole("next"))
        assert two.bytes() == 9, "4 of the next and 5 that are still to come"
        whole("coming")(file)

    assert one.fetch("d", entries["coming"], slowly).read_bytes() == bytes(5)
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"coming", "next"}


def test_no_room_for_the_cache_is_told(tmp_path):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LayoutError, match=r"No space left on device.*WORKBENCH_CACHE"):
        FileCache(tmp_path, 10).fetch("d", FileEntry("a", 4), full)
    assert list((tmp_path / "d").iterdir()) == []


def test_changed_data_at_one_url_is_not_mixed_with_what_was_kept(served, tmp_path):
    opened(served)[0].sample(0)
    convert([{**s, "label": s["label"] + 100} for s in samples()], tmp_path / "new", shards=6, processes=1)
    shutil.rmtree(served)
    (tmp_path / "new").rename(served)
    assert opened(served)[0].sample(0)["label"] == 100


def read_first(reader, ready, answers) -> None:
    ready.wait()
    answers.put(reader.sample(0)["label"])


def test_processes_share_one_fetch(served):
    context = multiprocessing.get_context("fork")
    reader, store = opened(served)
    ready, answers = context.Barrier(3), context.Queue()
    children = [context.Process(target=read_first, args=(reader, ready, answers)) for _ in range(3)]
    for child in children:
        child.start()
    assert [answers.get(timeout=30) for _ in children] == [0, 0, 0]
    for child in children:
        child.join()
    assert len(store.reads("shard-00000.tar ")) == 1


def test_large_files_come_in_several_reads(served, monkeypatch):
    monkeypatch.setattr(rooms, "READ_BYTES", 4096)
    reader, store = opened(served)
    assert reader.sample(3)["jpg"] == bytes([3]) * 5000
    size = (served / "shard-00000.tar").stat().st_size
    assert len(store.reads("shard-00000.tar ")) == -(-size // 4096)


def test_reads_of_a_large_file_follow_each_other_without_a_gap(served, monkeypatch):
    monkeypatch.setattr(rooms, "READ_BYTES", 4096)
    monkeypatch.setattr(rooms, "READS_AT_ONCE", 2)
    begun = {start: threading.Event() for start in (0, 4096, 8192)}

    class Waiting(ScriptedStore):
        """Answers the second read of a shard only when the third has begun."""

        def read(self, path, start, stop):
            if path == "shard-00000.tar":
                begun.setdefault(start, threading.Event()).set()
                if start == 4096 and not begun[8192].wait(timeout=20):
                    raise PermissionError("the third read waits for the second")
            return super().read(path, start, stop)

    reader = open_remote("s3://b/d", store=Waiting(served), cache_directory=served.parent / "cache")
    assert reader.sample(3)["jpg"] == bytes([3]) * 5000


def test_a_shard_that_is_needed_next_is_fetched_before(served):
    reader, store = opened(served)
    reader.will_need(1)
    reader.will_need(1)
    reader._layout._coming["shard-00001.tar"].result()
    before = len(store.reads("shard-00001.tar "))
    assert [s["label"] for s in reader.read_shard(1)] == [4, 5, 6, 7]
    assert before == len(store.reads("shard-00001.tar ")) == 1
    assert pickle.loads(pickle.dumps(reader)).sample(5)["label"] == 5


ENDING = """
    import sys, time
    from workbench import layouts
    from workbench.layouts import remote

    class Slow:
        def read(self, path, start, stop):
            if path.endswith(".tar"):
                print(start, flush=True)
                time.sleep(0.2)
            with open(f"{sys.argv[1]}/{path}", "rb") as file:
                file.seek(start)
                return file.read() if stop is None else file.read(stop - start)

    remote.READ_BYTES = 256
    reader = layouts.open_remote("s3://b/d", store=Slow(), cache_directory=sys.argv[2])
    reader.will_need(0)
"""


def test_what_is_fetched_ahead_does_not_hold_up_the_end_of_a_program(served):
    command = [sys.executable, "-c", textwrap.dedent(ENDING), str(served), str(served.parent / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    pieces = -(-(served / "shard-00000.tar").stat().st_size // 256)
    assert len(ended.stdout.split()) < pieces / 2 and "Traceback" not in ended.stderr


def labels(batch: list[dict]) -> list[int]:
    return [sample["label"] for sample in batch]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_through_fsspec(served, monkeypatch, method):
    monkeypatch.setenv("WORKBENCH_CACHE", str(served.parent / "cache"))
    reader = open_dataset(f"file://{served}")
    assert reader.sample(0)["label"] == 0
    loader = StatefulDataLoader(reader, batch_size=5, num_workers=2, collate_fn=labels, multiprocessing_context=method)
    assert [n for batch in loader for n in batch] == list(range(24))


def test_a_remote_data_set_is_converted(served, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    url = f"file://{served}"
    made = convert(url, tmp_path / "out", "parquet", shards=2, processes=1)
    assert [s["label"] for s in open_dataset(tmp_path / "out")] == list(range(24))
    assert convert(url, tmp_path / "out", "parquet", shards=2, processes=1).shards_written == 0
    assert made.manifest.samples == 24


def test_credentials_are_nowhere(served, tmp_path):
    url = f"s3://key:{SECRET}@bucket/data?token={SECRET}"
    assert redacted(url) == "s3://bucket/data"
    reader, _ = opened(served, {"shard-00000.tar": [PermissionError(url)]}, url=url)
    with pytest.raises(LayoutError) as caught:
        reader.sample(0)
    store = open_store("memory://x", {"secret": SECRET})
    convert(reader, tmp_path / "out", processes=1)
    shown = [str(caught.value), repr(reader), repr(store), (tmp_path / "out" / "manifest.json").read_text()]
    shown += [repr(layout_loader({"tar": url}))]
    shown += [os.fsdecode(path) for path in (served.parent / "cache").rglob("*")]
    assert not [text for text in shown if SECRET in text]
    with pytest.raises(ManifestError) as missing:
        opened(tmp_path, url=url)
    assert SECRET not in str(missing.value)


def test_urls_that_nothing_opens():
    with pytest.raises(LayoutError, match="carrier://"):
        open_dataset("carrier://pigeon")
