"""Data sets in an S3-compatible store, read through obstore from a small server here that speaks enough S3."""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import LayoutError, ManifestError
from workbench.layouts import KEY, convert, open_remote, stores
from workbench.layouts import remote as rooms
from workbench.layouts.stores import ObstoreStore, open_store

NOT_FOUND = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>not for you</Message></Error>"


class Bucket(ThreadingHTTPServer):
    """Files of a folder under `/bucket/`, path-style, with byte ranges; what is in `locked` is refused.

    Args:
        folder: The folder. Requests for a shard wait for each other at the `meeting`, where there is one.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.folder, self.locked, self.log = folder, set(), []
        self.meeting: threading.Barrier | None = None

    def handle_error(self, request, client_address) -> None:
        """A reader that was ended while it waited is no error of the server's."""

    def options(self) -> dict:
        address = f"http://127.0.0.1:{self.server_address[1]}"
        return {
            "endpoint": address,
            "skip_signature": True,
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/bucket/")
        wanted = self.headers.get("Range")
        self.server.log.append((name, wanted))
        if self.server.meeting is not None:
            try:
                self.server.meeting.wait()
            except threading.BrokenBarrierError:
                self._answer(403, DENIED)
                return
        if name in self.server.locked:
            self._answer(403, DENIED)
        elif not (self.server.folder / name).is_file():
            self._answer(404, NOT_FOUND)
        else:
            self._send((self.server.folder / name).read_bytes(), wanted)

    def _send(self, content: bytes, wanted: str | None) -> None:
        if wanted is None:
            self._answer(200, content)
            return
        start, stop = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()
        part = content[int(start) : int(stop) + 1 if stop else None]
        self._answer(206, part, {"Content-Range": f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"})

    def _answer(self, status: int, content: bytes, headers: dict | None = None) -> None:
        self.send_response(status)
        said = {"Content-Length": str(len(content)), "ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        for name, value in {**said, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    made = [{KEY: f"s{n:02d}", "jpg": bytes([n]) * 5000, "label": n} for n in range(24)]
    convert(made, tmp_path / "served" / "data", "tar", shards=6, processes=1)
    server = Bucket(tmp_path / "served")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def labels(batch: list[dict]) -> list[int]:
    return [sample["label"] for sample in batch]


def test_obstore_serves_s3(bucket):
    store = open_store("s3://bucket/data", bucket.options())
    assert isinstance(store, ObstoreStore)
    assert store.read("shard-00000.tar", 0, None) == (bucket.folder / "data" / "shard-00000.tar").read_bytes()
    assert (
        store.read("shard-00000.tar", 512, 1024) == (bucket.folder / "data" / "shard-00000.tar").read_bytes()[512:1024]
    )
    assert bucket.log[-1] == ("data/shard-00000.tar", "bytes=512-1023")
    with pytest.raises(FileNotFoundError):
        store.read("nothing.tar", 0, None)


def test_a_data_set_is_read_and_kept(bucket):
    reader = open_remote("s3://bucket/data", storage_options=bucket.options())
    assert [sample["label"] for sample in reader] == list(range(24))
    asked = len(bucket.log)
    again = open_remote("s3://bucket/data", storage_options=bucket.options())
    assert [sample["label"] for sample in again] == list(range(24))
    assert [name for name, _ in bucket.log[asked:]] == ["data/manifest.json"], "shards came from the cache"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_after_this_process_has(bucket, method):
    reader = open_remote("s3://bucket/data", storage_options=bucket.options(), cache_bytes="40kB")
    assert reader.sample(0)["label"] == 0
    loader = StatefulDataLoader(reader, batch_size=5, num_workers=2, collate_fn=labels, multiprocessing_context=method)
    assert [label for batch in loader for label in batch] == list(range(24))


def read_two_at_once(store: ObstoreStore, answers) -> None:
    with ThreadPoolExecutor(2) as pool:
        try:
            answers.put(list(pool.map(lambda start: store.read("shard-00000.tar", start, start + 512), (0, 512))))
        except Exception as error:
            answers.put(error)


def test_a_forked_process_asks_for_several_pieces_at_once(bucket):
    store = open_store("s3://bucket/data", bucket.options())
    wanted = store.read("shard-00000.tar", 0, 1024)
    bucket.meeting = threading.Barrier(2, timeout=20)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=read_two_at_once, args=(store, answers))
    child.start()
    assert answers.get(timeout=60) == [wanted[:512], wanted[512:]]
    child.join()


def test_a_helper_that_ends_lets_nobody_wait(bucket):
    helper = stores._Helper("s3://bucket/data", bucket.options())
    assert helper.read("shard-00000.tar", 0, 512) == (bucket.folder / "data" / "shard-00000.tar").read_bytes()[:512]
    bucket.meeting = threading.Barrier(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(helper.read, "shard-00000.tar", 0, 512)
        while bucket.meeting.n_waiting == 0:
            time.sleep(0.01)
        helper._process.kill()
        with pytest.raises(ConnectionError, match="ended"):
            waiting.result(timeout=20)
    with pytest.raises(ConnectionError, match="ended"):
        helper.read("shard-00000.tar", 0, 512)
    assert not helper.alive()
    bucket.meeting.abort()


def test_threads_share_one_client(bucket, monkeypatch):
    made = []

    class Counted(stores._Obstore):
        def __init__(self, *arguments):
            made.append(arguments)
            time.sleep(0.05)
            super().__init__(*arguments)

    monkeypatch.setattr(stores, "_Obstore", Counted)
    monkeypatch.setattr(stores, "_obstore_pid", None)
    store = open_store("s3://bucket/data", bucket.options())
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: store.read("shard-00000.tar", 0, 512), range(4)))) == 1
    assert len(made) == 1


def test_options_that_the_store_does_not_know_are_told_without_their_values(bucket):
    with pytest.raises(LayoutError, match=r"storage_options .*'secrets'") as caught:
        open_remote("s3://bucket/data", storage_options={**bucket.options(), "secrets": "hunter2"})
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_refused_and_what_is_missing_is_told_at_once(bucket):
    reader = open_remote("s3://bucket/data", storage_options=bucket.options())
    bucket.locked.add("data/shard-00003.tar")
    with pytest.raises(LayoutError, match=r"shard-00003\.tar"):
        reader.sample(13)
    assert sum(name == "data/shard-00003.tar" for name, _ in bucket.log) == 1
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        open_remote("s3://bucket/elsewhere", storage_options=bucket.options())
