"""A stream that resumes exactly, packs, and keeps the device fed."""

from workbench.streaming.buckets import BucketStream, BudgetStream, padding_report, quantile_boundaries
from workbench.streaming.cache import CachedDataset
from workbench.streaming.checkpoint import LoaderCheckpoint
from workbench.streaming.decoding import compare_decoders, decoder
from workbench.streaming.loader import StreamLoader, merge_states
from workbench.streaming.masks import block_mask, dense_mask
from workbench.streaming.packed import PackedStream
from workbench.streaming.packing import PackingReport, packing_report
from workbench.streaming.prefetch import DevicePrefetcher
from workbench.streaming.shards import ListShards, TokenBlocks
from workbench.streaming.stream import ShardStream

__all__ = [
    "BucketStream",
    "BudgetStream",
    "CachedDataset",
    "DevicePrefetcher",
    "ListShards",
    "LoaderCheckpoint",
    "PackedStream",
    "PackingReport",
    "ShardStream",
    "StreamLoader",
    "TokenBlocks",
    "block_mask",
    "compare_decoders",
    "decoder",
    "dense_mask",
    "merge_states",
    "packing_report",
    "padding_report",
    "quantile_boundaries",
]
