"""Data sets at a URL: files fetched in large reads, retried, checked against the manifest, kept in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from workbench.errors import LayoutError, ManifestError
from workbench.layouts.cache import OPENED_AGAIN, FileCache
from workbench.layouts.files import FilesLayout, FilesShard
from workbench.layouts.manifest import MANIFEST_NAME, parse_manifest
from workbench.layouts.protocol import FileEntry, Layout, OpenShard, Sample, Shard
from workbench.layouts.registry import LAYOUTS
from workbench.layouts.sharded import ShardedReader
from workbench.layouts.stores import Store, open_store
from workbench.machine import parse_bytes

READ_BYTES = 16 << 20
"""One request. At 20 ms and 160 MB/s a stream, waiting for the first byte is then a sixth of the time."""
READS_AT_ONCE = 4
"""Requests of one file that are under way together: the line stays full while one waits for its first byte."""
FILES_AT_ONCE = 8
"""Fetched together where a shard is several files: each costs a round trip, whatever its size."""

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.2
"""Doubled after each attempt, and multiplied by a random part of one so that workers do not return together: up to
0.2 + 0.4 + 0.8 + 1.6 + 3.2 = 6.2 s in all, which outlasts a store that is asking for a slower pace."""

DEFAULT_CACHE_BYTES = 20_000_000_000
CACHE_VARIABLE = "WORKBENCH_CACHE"


def open_remote(
    url: str,
    *,
    cache_directory: str | Path | None = None,
    cache_bytes: int | str = DEFAULT_CACHE_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    transform: Callable[[Sample], Any] | None = None,
    store: Store | None = None,
) -> ShardedReader:
    """Open the data set at ``url``, which must have a manifest; shards are fetched when they are read.

    Args:
        url: Folder of the data set: ``s3://``, ``gs://``, ``https://`` ..., whatever obstore or fsspec can open.
        cache_directory: Where fetched files are kept; None takes ``$WORKBENCH_CACHE`` or ``~/.cache/loader-workbench``.
        cache_bytes: How much they may take.
        storage_options: For the store, credentials among them. They are handed to it and to no log, error or manifest;
            they do travel to loader workers inside this process's own pickles.
        transform: Applied to every sample.
        store: Used instead of the one that fits ``url``.

    Raises:
        LayoutError: The store cannot be opened or reached.
        ManifestError: There is no manifest at ``url``, or it is damaged.
    """
    chosen = store if store is not None else open_store(url, dict(storage_options or {}))
    shown = redacted(url)
    try:
        content = retried(lambda: chosen.read(MANIFEST_NAME, 0, None), f"{shown}/{MANIFEST_NAME}")
    except FileNotFoundError:
        raise ManifestError(
            f"{shown} has no {MANIFEST_NAME}: run `workbench manifest` on the folder and upload it."
        ) from None
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ManifestError(f"{shown}/{MANIFEST_NAME} is not JSON: upload it again.") from error
    manifest = parse_manifest(document if isinstance(document, dict) else {}, Path(shown) / MANIFEST_NAME)
    cache = FileCache(_cache_directory(cache_directory), parse_bytes(cache_bytes))
    layout = CachedLayout(LAYOUTS[manifest.layout], chosen, cache, manifest.digest(), shown)
    return ShardedReader(cache.directory / manifest.digest(), manifest, layout, transform)


class CachedLayout:
    """A layout whose files are fetched into a cache before they are opened.

    Args:
        inner: The layout of the data set.
        store: Where its files are.
        cache: Where they are kept.
        folder: Their sub-folder in the cache.
        shown: The URL as it may be shown.
    """

    def __init__(self, inner: Layout, store: Store, cache: FileCache, folder: str, shown: str) -> None:
        self.name = inner.name
        self._inner, self._store, self._cache, self._folder, self._shown = inner, store, cache, folder, shown
        self._coming: dict[str, Future[None]] = {}
        self._background: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def open_shard(self, root: Path, shard: Shard, fields: Mapping[str, Mapping[str, Any]]) -> OpenShard:
        """Fetch what is missing of the shard, and open it; plain files are fetched one by one as they are read.

        Raises:
            LayoutError: A file cannot be fetched, or is not what the manifest says.
        """
        coming = self._forget_after_fork().pop(shard.name, None)
        if coming is not None:
            coming.result()
        if self.name == FilesLayout.name:
            entries = {entry.path: entry for entry in shard.files}
            return FilesShard(root, shard, fields, read=lambda path: self._content(entries[path]))
        for attempt in range(OPENED_AGAIN):
            self._fetch_all(shard)
            try:
                return self._inner.open_shard(root, shard, fields)
            except LayoutError:
                if attempt and all((root / entry.path).exists() for entry in shard.files):
                    raise  # nobody takes it away: it cannot be read
        raise self._cache.too_small(shard.files[0])

    def will_need(self, shard: Shard) -> None:
        """Begin to fetch a shard in the background; it waits there until it is opened."""
        coming = self._forget_after_fork()
        with self._lock:
            if shard.name not in coming:
                if self._background is None:
                    self._background = ThreadPoolExecutor(1, thread_name_prefix="workbench-fetch")
                coming[shard.name] = self._background.submit(self._fetch_all, shard)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_coming": {}, "_background": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _forget_after_fork(self) -> dict[str, Future[None]]:
        if self._pid != os.getpid():
            self._coming, self._background, self._lock, self._pid = {}, None, threading.Lock(), os.getpid()
        return self._coming

    def _fetch_all(self, shard: Shard) -> None:
        if len(shard.files) == 1:
            self._fetch(shard.files[0])
            return
        with ThreadPoolExecutor(min(FILES_AT_ONCE, len(shard.files))) as pool:
            list(pool.map(self._fetch, shard.files))

    def _fetch(self, entry: FileEntry) -> Path:
        return self._cache.fetch(self._folder, entry, self._downloader(entry))

    def _content(self, entry: FileEntry) -> bytes:
        return self._cache.content(self._folder, entry, self._downloader(entry))

    def _downloader(self, entry: FileEntry) -> Callable[[BinaryIO], None]:
        where = f"{self._shown}/{entry.path}"
        return lambda file: download(self._store, entry, file, where)


def download(store: Store, entry: FileEntry, file: BinaryIO, where: str) -> None:
    """Write the whole of ``entry`` to ``file``, a few large reads at a time, and check it.

    Raises:
        LayoutError: It cannot be read after ``ATTEMPTS``, is missing, or has other content than the manifest says.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        for content in _pieces(store, entry, where):
            digest.update(content)
            file.write(content)
    except FileNotFoundError:
        raise LayoutError(f"{where} is listed and missing: upload it, or write the manifest again.") from None
    if entry.checksum is not None and digest.hexdigest() != entry.checksum:
        raise LayoutError(
            f"{where} has other content than the manifest says: upload it again, or write the manifest again."
        )


def retried(call: Callable[[], Any], where: str, wait: Callable[[float], None] = time.sleep) -> Any:
    """What ``call`` returns, tried up to ``ATTEMPTS`` times.

    Errors that another attempt does not mend (missing, not allowed) are raised at once. The last error is named by its
    class only, since the texts of stores may hold signed addresses.

    Raises:
        LayoutError: It failed every time, access was refused, or the process is about to end.
        FileNotFoundError: There is no such file.
    """
    for attempt in range(ATTEMPTS):
        if not threading.main_thread().is_alive():  # what is fetched ahead must not hold up the end of the program
            raise LayoutError(f"{where} is not read any more: this process is ending.")
        try:
            return call()
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise LayoutError(f"{where}: access was refused ({type(error).__name__}): check storage_options.") from None
        except (OSError, TimeoutError) as error:
            last = type(error).__name__
        if attempt + 1 < ATTEMPTS:
            wait(FIRST_WAIT_SECONDS * 2**attempt * random.Random().random())
    raise LayoutError(
        f"{where} could not be read in {ATTEMPTS} attempts (last: {last}): check the network and the store."
    )


def redacted(url: str) -> str:
    """``url`` without user, password, query and fragment, any of which may hold a secret.

    >>> redacted("s3://key:secret@bucket/data?token=abc")
    's3://bucket/data'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/")


def _pieces(store: Store, entry: FileEntry, where: str) -> Iterator[bytes]:
    def piece(start: int) -> bytes:
        stop = min(start + READ_BYTES, entry.bytes)
        return retried(lambda: _exactly(store.read(entry.path, start, stop), stop - start), where)

    starts = range(0, entry.bytes, READ_BYTES)
    if len(starts) <= 1:
        yield from map(piece, starts)
        return
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        coming: deque[Future[bytes]] = deque()
        for start in starts:
            coming.append(pool.submit(piece, start))
            if len(coming) == READS_AT_ONCE:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _exactly(content: bytes, wanted: int) -> bytes:
    if len(content) != wanted:
        raise ConnectionError(f"{len(content)} of {wanted} bytes came")
    return content


def _cache_directory(given: str | Path | None) -> Path:
    if given is not None:
        return Path(given)
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "loader-workbench")
