"""Fix the file format: layouts, and conversion from any to any."""

from workbench.layouts.manifest import Manifest, read_manifest, write_manifest
from workbench.layouts.protocol import KEY, FileEntry, Sample, Shard
from workbench.layouts.reader import ShardedReader, open_dataset

__all__ = [
    "KEY",
    "FileEntry",
    "Manifest",
    "Sample",
    "Shard",
    "ShardedReader",
    "open_dataset",
    "read_manifest",
    "write_manifest",
]
