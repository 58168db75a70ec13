"""Fix the file format: layouts, and conversion from any to any."""

from workbench.layouts.choosing import layout_loader
from workbench.layouts.comparison import PreparedLayout, prepare_layouts
from workbench.layouts.conversion import convert
from workbench.layouts.conversion_run import Conversion, Progress
from workbench.layouts.cost import Payback, payback
from workbench.layouts.manifest import Manifest, read_manifest, write_manifest
from workbench.layouts.parquet_settings import ParquetOptions, RowGroupAdvice, advise_row_groups
from workbench.layouts.plan import ShardAdvice, advise_shards
from workbench.layouts.protocol import KEY, FileEntry, Sample, Shard
from workbench.layouts.reader import ShardedReader, open_dataset
from workbench.layouts.remote import open_remote
from workbench.layouts.tokens import TokenOptions
from workbench.layouts.transforms import resize_images, tokenise

__all__ = [
    "KEY",
    "Conversion",
    "FileEntry",
    "Manifest",
    "ParquetOptions",
    "Payback",
    "PreparedLayout",
    "Progress",
    "RowGroupAdvice",
    "Sample",
    "Shard",
    "ShardAdvice",
    "ShardedReader",
    "TokenOptions",
    "advise_row_groups",
    "advise_shards",
    "convert",
    "layout_loader",
    "open_dataset",
    "open_remote",
    "payback",
    "prepare_layouts",
    "read_manifest",
    "resize_images",
    "tokenise",
    "write_manifest",
]
