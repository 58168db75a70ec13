"""CachedDataset: decoded samples on local disk within a byte budget, shared by all workers and safe to kill."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from workbench.errors import CacheError, SettingsError

_FACTS = "cache.json"
_USED = "used"
_PRESENT = "present"
_SUFFIX = ".sample"
_FOLDERS = 256
"""Folders that samples are spread over: file systems grow slow with very many files in one."""


@dataclass(frozen=True)
class CacheStatus:
    """What a cache holds, and what it did in this process.

    Attributes:
        used_bytes: Bytes of all samples kept (and being written).
        budget_bytes: Most bytes.
        hits: Samples that this process read from it.
        misses: Samples that this process took from the data set.
        turned_away: Those of them that the budget had no room for.
    """

    used_bytes: int
    budget_bytes: int
    hits: int
    misses: int
    turned_away: int


class CachedDataset(Dataset):
    """A map-style data set whose samples are decoded once and read from local disk afterwards.

    What is cached is what ``dataset[index]`` gives; augmentation belongs into ``transform``, which runs after the
    cache, anew for every epoch. When the budget is used up, what is kept stays: epochs come round in a circle, and
    under them throwing out the sample unused for longest would throw out what is needed next.

    Any number of workers and processes may share a folder. A sample is written under a name of its own and then
    renamed, so that a kill leaves it whole or absent; what a kill left behind is swept up by the next one to open the
    cache alone. A damaged file is decoded again.

    Args:
        dataset: The data set; its samples are tensors, numbers and text, in dicts, lists and tuples.
        folder: Where samples are kept, on a local disk.
        budget_bytes: Most bytes that they take.
        version: Change it when the data or how it is decoded changes: the cache cannot see that.
        transform: Applied to each sample after the cache.

    Raises:
        SettingsError: The budget is below 1 byte.
        CacheError: The folder holds another cache: of another version, or of a data set of another length.
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        folder: str | Path,
        *,
        budget_bytes: int,
        version: str = "",
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if budget_bytes < 1:
            raise SettingsError(f"budget_bytes={budget_bytes} keeps nothing: give the bytes that may be used.")
        self.dataset, self.folder, self.budget_bytes = dataset, Path(folder), budget_bytes
        self.version, self.transform = version, transform
        self.hits = self.misses = self.turned_away = 0
        self._presence: int | None = None
        self._claim()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        sample = self._kept(position)
        if sample is None:
            self.misses += 1
            sample = (self.dataset[position],)
            self._keep(position, sample)
        else:
            self.hits += 1
        return sample[0] if self.transform is None else self.transform(sample[0])

    def status(self) -> CacheStatus:
        """What is kept, and what this process did."""
        with self._counter() as counter:
            used = _number(counter)
        return CacheStatus(used, self.budget_bytes, self.hits, self.misses, self.turned_away)

    def _kept(self, position: int) -> tuple[Any] | None:
        path = self._path(position)
        try:
            return torch.load(path, weights_only=True)
        except FileNotFoundError:
            return None
        except Exception:  # cut short by a power failure: torch raises many kinds
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                path.unlink()
                self._reserve(-size)
            return None

    def _keep(self, position: int, sample: tuple[Any]) -> None:
        self._be_present()
        written = io.BytesIO()
        torch.save(sample, written)
        raw = written.getbuffer()
        if not self.misses - 1:
            self._check_readable(position, bytes(raw))
        if not self._reserve(len(raw)):
            self.turned_away += 1
            return
        path = self._path(position)
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(raw)
            os.link(temporary, path)
        except FileExistsError:  # another worker was first
            self._reserve(-len(raw))
        except OSError:  # the disk is full: the sample is there all the same, only not kept
            self.turned_away += 1
            self._reserve(-len(raw))
        finally:
            os.unlink(temporary)

    def _check_readable(self, position: int, raw: bytes) -> None:
        try:
            torch.load(io.BytesIO(raw), weights_only=True)
        except Exception as error:
            raise CacheError(
                f"Sample {position} cannot be kept ({str(error).splitlines()[0][:120]}): let the data set return "
                "tensors, numbers and text in dicts, lists and tuples."
            ) from error

    def _reserve(self, size: int) -> bool:
        """Take ``size`` bytes of the budget (or give them back); False if there is no room."""
        with self._counter() as counter:
            used = _number(counter) + size
            if size > 0 and used > self.budget_bytes:
                return False
            os.pwrite(counter, b"%020d" % max(used, 0), 0)
            return True

    @contextlib.contextmanager
    def _counter(self) -> Iterator[int]:
        counter = os.open(self.folder / _USED, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(counter, fcntl.LOCK_EX)  # given up by the kernel when the process dies
            yield counter
        finally:
            os.close(counter)

    def _claim(self) -> None:
        """Check whose cache it is; sweep up after a crash if nobody else is using it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {"samples": len(self.dataset), "version": self.version}
        with self._counter():
            try:
                found = json.loads((self.folder / _FACTS).read_text())
            except FileNotFoundError:
                temporary = self.folder / f"{_FACTS}.{os.getpid()}"
                temporary.write_text(json.dumps(facts))
                os.replace(temporary, self.folder / _FACTS)
                found = facts
            except ValueError:
                found = {}
        if found != facts:
            raise CacheError(
                f"{self.folder} caches another data set ({found or 'its description is damaged'}, and this one is "
                f"{facts}): use another folder, or delete it."
            )
        self._be_present(alone=self._sweep)

    def _be_present(self, alone: Callable[[], None] | None = None) -> None:
        """Hold a shared lock as long as this process lives; do ``alone`` first if nobody else holds one."""
        if self._presence is not None:
            return
        self._presence = os.open(self.folder / _PRESENT, os.O_RDWR | os.O_CREAT)
        if alone is not None:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone()
        fcntl.flock(self._presence, fcntl.LOCK_SH)

    def _sweep(self) -> None:
        """Remove half-written files and count what is kept."""
        used = 0
        for folder in self.folder.iterdir():
            for file in folder.iterdir() if folder.is_dir() else ():
                if file.name.endswith(_SUFFIX):
                    used += file.stat().st_size
                else:
                    file.unlink()
        with self._counter() as counter:
            os.pwrite(counter, b"%020d" % used, 0)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position % _FOLDERS:02x}" / f"{position}{_SUFFIX}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_presence": None}

    def __del__(self) -> None:
        if getattr(self, "_presence", None) is not None:
            os.close(self._presence)


def _number(counter: int) -> int:
    return int(os.pread(counter, 20, 0) or 0)
