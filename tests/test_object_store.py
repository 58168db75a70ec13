"""Data sets in an S3-compatible store, read through obstore from a small server here that speaks enough S3."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import LayoutError, ManifestError
from workbench.layouts import KEY, convert, open_remote
from workbench.layouts import remote as rooms
from workbench.layouts.stores import ObstoreStore, open_store

NOT_FOUND = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>not for you</Message></Error>"


class Bucket(ThreadingHTTPServer):
    """Files of a folder under `/bucket/`, path-style, with byte ranges; what is in `locked` is refused.

    Args:
        folder: The folder.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.folder, self.locked, self.log = folder, set(), []

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


def test_what_is_refused_and_what_is_missing_is_told_at_once(bucket):
    reader = open_remote("s3://bucket/data", storage_options=bucket.options())
    bucket.locked.add("data/shard-00003.tar")
    with pytest.raises(LayoutError, match=r"shard-00003\.tar"):
        reader.sample(13)
    assert sum(name == "data/shard-00003.tar" for name, _ in bucket.log) == 1
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        open_remote("s3://bucket/elsewhere", storage_options=bucket.options())
