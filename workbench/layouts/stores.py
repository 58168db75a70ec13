"""Object stores behind two methods: through obstore where it is installed and fits, else through fsspec."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import urlsplit

from workbench.errors import LayoutError

OBSTORE_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Streams 160 MB/s over 20 ms where s3fs in blocks does 18 to 88."""

HELPER_READS_AT_ONCE = 12
"""What one reading process asks for at most together: a shard in a few large reads, or many small files."""

_HELPER_BOOT = (
    "import json, sys; from importlib import util; sys.path[:] = json.loads(sys.argv[1]); "
    "spec = util.spec_from_file_location('workbench_reads', sys.argv[2]); module = util.module_from_spec(spec); "
    "spec.loader.exec_module(module); module.serve_reads()"
)
"""This file alone, without the package around it, whose imports would be most of what starting a helper takes."""
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
        self._forget()

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """See ``Store``."""
        return self._connected().read(path, start, stop)

    def _connected(self) -> Any:
        global _obstore_pid
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            _obstore_pid = _obstore_pid or os.getpid()
            if self._client is None or not self._client.alive():
                forked = _obstore_pid != os.getpid()
                self._client = _Helper(self._url, self._options) if forked else _Obstore(self._url, self._options)
            return self._client

    def _forget(self) -> None:
        self._client: Any = None
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"_url": self._url, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"<ObstoreStore {urlsplit(self._url).scheme}>"


class _Obstore:
    """obstore in this process."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            self._client = from_url(url, **options)
        except (BaseError, TypeError, ValueError) as error:
            said = str(error).partition("\n")[0] if type(error).__name__ == "UnknownConfigurationKeyError" else ""
            raise LayoutError(
                f"{urlsplit(url).scheme}:// cannot be opened with these storage_options "
                f"({said or type(error).__name__}): names and values are those of obstore's stores."
            ) from None

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
    """obstore in a fresh interpreter, several requests at once; it ends when this process does."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        command = [sys.executable, "-c", _HELPER_BOOT, json.dumps([str(entry) for entry in sys.path]), __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[bytes]] = {}
        self._send((url, dict(options)))
        threading.Thread(target=self._receive, name="workbench-answers", daemon=True).start()

    def alive(self) -> bool:
        return self._process.poll() is None

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        answer: Future[bytes] = Future()
        with self._sending:
            number = next(self._numbers)
            self._waiting[number] = answer
            try:
                self._send((number, path, start, stop))
            except (OSError, ValueError):  # a pipe that broke, or was closed after that
                self._waiting.pop(number, None)
                raise ConnectionError("the helper process ended") from None
        return answer.result()

    def _receive(self) -> None:
        """Hand answers to who waits for them, until the helper ends and nobody need wait any longer."""
        while True:
            try:
                number, content = pickle.load(self._process.stdout)  # type: ignore[arg-type]  # from our own process
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                break
            answer = self._waiting.pop(number)
            if isinstance(content, Exception):
                answer.set_exception(content)
            else:
                answer.set_result(content)
        self._process.kill()
        self._process.wait()
        with self._sending:
            while self._waiting:
                self._waiting.popitem()[1].set_exception(ConnectionError("the helper process ended"))
            self._process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()


def serve_reads() -> None:
    """Life of a helper: where to read from, then requests on standard input, and an answer to each as it comes."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    client, answering = _Obstore(*pickle.load(requests)), threading.Lock()

    def answer(number: int, path: str, start: int, stop: int | None) -> None:
        try:
            content: Any = client.read(path, start, stop)
        except OSError as error:
            content = error
        except Exception as error:
            content = ConnectionError(type(error).__name__)
        try:
            with answering:
                pickle.dump((number, content), answers)
                answers.flush()
        except BrokenPipeError:
            os._exit(0)

    with ThreadPoolExecutor(HELPER_READS_AT_ONCE) as pool:
        while True:
            try:
                pool.submit(answer, *pickle.load(requests))
            except EOFError:
                os._exit(0)


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None
