"""Object stores behind two methods: through obstore where it is installed and fits, else through fsspec."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from workbench.errors import LayoutError

OBSTORE_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Streams 160 MB/s over 20 ms where s3fs in blocks does 18 to 88."""

_HELPER_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from workbench.layouts.stores import serve_reads; "
    "serve_reads()"
)
_obstore_pid: int | None = None
"""The process in which obstore first ran; those forked from it inherit the number, and not its threads."""


class Store(Protocol):
    """Reads files below one URL. It is pickled without a connection and connects in the process that reads."""

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """Bytes ``start`` to ``stop - 1`` of ``path``; None reads to the end.

        Raises:
            FileNotFoundError: There is no such file.
            PermissionError: Access was refused.
            OSError: Anything that another attempt may mend.
        """


def open_store(url: str, options: Mapping[str, Any]) -> Store:
    """The store that serves ``url``.

    Raises:
        LayoutError: No installed package can open such a URL.
    """
    scheme = urlsplit(url).scheme
    if scheme in OBSTORE_SCHEMES and _installed("obstore"):
        return ObstoreStore(url, options)
    if not _installed("fsspec"):
        raise LayoutError(f"{scheme}:// needs obstore or fsspec: pip install 'loader-workbench[remote]'.")
    import fsspec

    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise LayoutError(
            f"{scheme}:// cannot be opened ({error}): install what it names, or use another URL."
        ) from None
    return FsspecStore(url, options)


class FsspecStore:
    """Any file system that fsspec knows.

    Args:
        url: Folder that paths are relative to.
        options: For the file system.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url, self._options = url, dict(options)
        self._client: Any = None
        self._pid: int | None = None

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """See ``Store``."""
        system, root = self._connected()
        return system.cat_file(f"{root.rstrip('/')}/{path}", start=start or None, end=stop)

    def _connected(self) -> tuple[Any, str]:
        if self._client is None or self._pid != os.getpid():
            from fsspec.core import url_to_fs

            self._client, self._pid = url_to_fs(self._url, skip_instance_cache=True, **self._options), os.getpid()
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"<FsspecStore {urlsplit(self._url).scheme}>"


class ObstoreStore:
    """S3, Google Cloud Storage or Azure through obstore.

    obstore works with threads of its own, which a forked process does not have: a client that is used there waits for
    ever. A process forked from one that used obstore therefore reads through a fresh helper process.

    Args:
        url: Folder that paths are relative to.
        options: Configuration of the store, e.g. ``endpoint``, ``access_key_id``.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url, self._options = url, dict(options)
        self._client: Any = None
        self._pid: int | None = None

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """See ``Store``."""
        global _obstore_pid
        _obstore_pid = _obstore_pid or os.getpid()
        if self._client is None or self._pid != os.getpid() or not self._client.alive():
            forked = _obstore_pid != os.getpid()
            self._client = _Helper(self._url, self._options) if forked else _Obstore(self._url, self._options)
            self._pid = os.getpid()
        return self._client.read(path, start, stop)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"<ObstoreStore {urlsplit(self._url).scheme}>"


class _Obstore:
    """obstore in this process."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        from obstore.store import from_url

        self._client = from_url(url, **options)

    def alive(self) -> bool:
        return True

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        import obstore
        from obstore import exceptions

        try:
            if stop is None:
                return bytes(obstore.get(self._client, path).bytes())[start:]
            return bytes(obstore.get_range(self._client, path, start=start, end=stop))
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(type(error).__name__) from None
        except FileNotFoundError:
            raise FileNotFoundError(path) from None
        except exceptions.BaseError as error:
            raise ConnectionError(type(error).__name__) from None


class _Helper:
    """obstore in a fresh interpreter, one request after the other; it ends when this process does."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        command = [sys.executable, "-c", _HELPER_BOOT, json.dumps([str(entry) for entry in sys.path])]
        self._lock = threading.Lock()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._send((url, dict(options)))

    def alive(self) -> bool:
        return self._process.poll() is None

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        with self._lock:
            self._send((path, start, stop))
            try:
                answer = pickle.load(self._process.stdout)  # type: ignore[arg-type]  # from our own process
            except EOFError:
                raise ConnectionError("the helper process ended") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()


def serve_reads() -> None:
    """Life of a helper: where to read from, then requests on standard input, and an answer to each."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    client = _Obstore(*pickle.load(requests))
    while True:
        try:
            path, start, stop = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: Any = client.read(path, start, stop)
        except OSError as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None
