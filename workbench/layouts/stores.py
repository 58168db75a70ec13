"""Object stores behind two methods: through obstore where it is installed and fits, else through fsspec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from workbench.errors import LayoutError

OBSTORE_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Streams 160 MB/s over 20 ms where s3fs in blocks does 18 to 88."""


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
        import obstore
        from obstore import exceptions

        client = self._connected()
        try:
            if stop is None:
                return bytes(obstore.get(client, path).bytes())[start:]
            return bytes(obstore.get_range(client, path, start=start, end=stop))
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(type(error).__name__) from None
        except FileNotFoundError:
            raise
        except exceptions.BaseError as error:
            raise ConnectionError(type(error).__name__) from None

    def _connected(self) -> Any:
        if self._client is None or self._pid != os.getpid():
            from obstore.store import from_url

            self._client, self._pid = from_url(self._url, **self._options), os.getpid()
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"<ObstoreStore {urlsplit(self._url).scheme}>"


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None
