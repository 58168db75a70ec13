"""One reader for every layout: a map-style data set whose shards can also be read one by one from any row."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from workbench.layouts.manifest import Manifest
from workbench.layouts.protocol import Layout, OpenShard, Sample, Shard

OPEN_SHARDS = 32
"""Shards that one reader keeps open: a mapped file costs a descriptor, and the usual limit is 1,024 a process."""


class ShardedReader:
    """Samples of one data set by index, and its shards one by one.

    A map-style data set for ``DataLoader`` and ``StatefulDataLoader``. Files are opened on first use in each process,
    so that it can be pickled, forked and spawned at any time.

    Args:
        root: Folder of the data set.
        manifest: What is in it.
        layout: How to read it.
        transform: Applied to every sample; None leaves samples as they are stored.
    """

    def __init__(
        self, root: Path, manifest: Manifest, layout: Layout, transform: Callable[[Sample], Any] | None = None
    ) -> None:
        self.root = Path(root)
        self.manifest = manifest
        self.transform = transform
        self._layout = layout
        self._ends = list(accumulate(shard.samples for shard in manifest.shards))
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._pid = os.getpid()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Every shard: ``name``, ``samples``, ``bytes``, ``files``."""
        return self.manifest.shards

    @property
    def layout(self) -> str:
        """Name of the layout."""
        return self._layout.name

    def fingerprint(self) -> str:
        """The manifest's digest: equal for equal data, whatever path it lies under."""
        return self.manifest.digest()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self.sample(index) for index in indices]

    def sample(self, index: int) -> Any:
        """The sample at ``index`` (negative counts from the end), read without scanning.

        Raises:
            IndexError: There is no such sample.
        """
        shard, row = self.locate(index)
        return self._transformed(self.open_shard(shard).sample(row))

    def read_shard(self, shard: int, start: int = 0) -> Iterator[Any]:
        """Samples of shard number ``shard`` in order, from row ``start`` on, without reading those before it."""
        if start < 0:
            raise IndexError(f"start {start} lies before the first sample of a shard: start at 0 or later.")
        samples = self.open_shard(shard).samples(start)
        return samples if self.transform is None else map(self.transform, samples)

    def locate(self, index: int) -> tuple[int, int]:
        """Shard number and row in it of the sample at ``index``."""
        total = len(self)
        position = index + total if index < 0 else index
        if not 0 <= position < total:
            raise IndexError(f"Sample {index} was asked for and {self.root} holds {total}.")
        shard = bisect_right(self._ends, position)
        return shard, position - (self._ends[shard - 1] if shard else 0)

    def will_need(self, shard: int) -> None:
        """Say that shard number ``shard`` is next; a remote data set begins to fetch it, a local one does nothing."""
        fetch = getattr(self._layout, "will_need", None)
        if fetch is not None:
            fetch(self.manifest.shards[shard])

    def open_shard(self, shard: int) -> OpenShard:
        """The opened shard (at most ``OPEN_SHARDS`` stay open)."""
        if self._pid != os.getpid():
            self._open, self._pid = OrderedDict(), os.getpid()
        opened = self._open.get(shard)
        if opened is None:
            opened = self._layout.open_shard(self.root, self.manifest.shards[shard], self.manifest.fields)
            self._open[shard] = opened
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(shard)
        return opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def __repr__(self) -> str:
        return f"<{self.layout} data set {str(self.root)!r}: {len(self)} samples in {len(self.shards)} shards>"

    def _transformed(self, sample: Sample) -> Any:
        return sample if self.transform is None else self.transform(sample)
