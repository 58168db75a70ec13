"""Look at a few samples before anything is written: how large they become, and which columns they need."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.errors import ConversionError, LayoutError
from workbench.layouts.codec import encode_sample
from workbench.layouts.files import SAMPLES_A_SHARD
from workbench.layouts.names import numbered_key
from workbench.layouts.parquet_rows import infer_schema
from workbench.layouts.parquet_settings import ParquetOptions
from workbench.layouts.pieces import transform_error
from workbench.layouts.protocol import KEY, Sample
from workbench.layouts.registry import LAYOUTS
from workbench.layouts.sources import ReaderSource, Source, StreamSource, evenly, stored_bytes
from workbench.layouts.tokens import TokenOptions, narrowest_dtype
from workbench.layouts.transforms import vocabulary

SCHEMA_SAMPLES = 1000
"""Looked at for a Parquet schema where nothing is transformed: enough to meet the types that JSON lines hold."""
SIZE_SAMPLES = 64
"""Looked at for sizes, and wherever each costs a decode or a tokenizer."""
MOST_BYTES = 64 << 20
"""Held in memory while looking."""

_OPTIONS = {"parquet": ParquetOptions, "tokens": TokenOptions}


@dataclass(frozen=True)
class Probe:
    """What some samples told.

    Attributes:
        options: The layout's options, with a Parquet schema filled in.
        ratio: Bytes in the target layout for each byte in the source.
        bytes_a_sample: Bytes that each sample costs beside its content (tar headers and padding).
        most_samples: The layout's own limit of samples in a shard, or None.
    """

    options: Any
    ratio: float
    bytes_a_sample: float
    most_samples: int | None


def layout_options(layout: str, options: Mapping[str, Any], transform: object) -> Any:
    """The options record of a layout; a tokenizer's vocabulary fills in what was left out.

    Raises:
        LayoutError: The layout is unknown or has no such option.
    """
    if layout not in LAYOUTS:
        raise LayoutError(f"{layout!r} is no layout: use one of {', '.join(sorted(LAYOUTS))}.")
    record = _OPTIONS.get(layout)
    known = () if record is None else tuple(record.__dataclass_fields__)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise LayoutError(
            f"{unknown[0]}={options[unknown[0]]!r} is no option of {layout}: it takes {', '.join(known) or 'none'}."
        )
    if record is None:
        return None
    filled = {**vocabulary(transform), **options} if layout == "tokens" else options
    return record(**filled)


def probe_source(
    source: Source | StreamSource,
    layout: str,
    options: Any,
    transform: Callable[[Sample], Sample | None] | None,
    *,
    skip_failures: bool,
) -> Probe:
    """Convert some samples in memory and measure them.

    Raises:
        ConversionError: The source holds nothing, or the transform fails on one of them.
        LayoutError: One of them cannot be read or written.
    """
    wanted = SCHEMA_SAMPLES if transform is None and layout == "parquet" else SIZE_SAMPLES
    given, sizes = _some(source, wanted)
    if not given:
        raise ConversionError(f"{source.describe()} holds no samples: check the source.")
    changed = [_changed(sample, n, transform, skip_failures) for n, sample in enumerate(given)]
    kept = [sample for sample in changed if sample is not None]
    if layout == "parquet" and options.schema is None:
        options = replace(options, schema=_schema(source, kept, transform))
    content, overhead = _planned(layout, kept, options)
    return Probe(
        options,
        content / max(1.0, float(sizes)),
        overhead / len(given),
        SAMPLES_A_SHARD if layout == "files" else None,
    )


def _some(source: Source | StreamSource, wanted: int) -> tuple[list[Sample], float]:
    if isinstance(source, StreamSource):
        given = source.head(wanted, MOST_BYTES)
        return given, float(sum(stored_bytes(sample) for sample in given))
    if not len(source):
        return [], 0.0
    sizes = source.sample_bytes()
    fitting = int(MOST_BYTES / max(1.0, float(sizes.mean())))
    indices = evenly(len(source), max(1, min(wanted, fitting)))
    return [source.sample(index) for index in indices], float(sizes[indices].sum())


def _changed(
    sample: Sample, number: int, transform: Callable[[Sample], Sample | None] | None, skip_failures: bool
) -> Sample | None:
    named = sample if sample.get(KEY) is not None else {**sample, KEY: numbered_key("sample", number)}
    if transform is None:
        return named
    try:
        changed = transform(named)
    except Exception as error:
        if skip_failures:
            return None
        raise transform_error(transform, named, error) from error
    if changed is not None and not isinstance(changed, Mapping):
        raise ConversionError(
            f"The transform returned {type(changed).__name__}: return a record (dict), or None to drop."
        )
    return changed


def _schema(source: Source | StreamSource, kept: list[Sample], transform: object) -> Any:
    """The source's own schema where columns stay as they are, else one that holds every sample looked at."""
    own = source.schema() if transform is None and isinstance(source, ReaderSource) else None
    return infer_schema(kept) if own is None else own


def _planned(layout: str, kept: Iterable[Sample], options: Any) -> tuple[float, float]:
    content = overhead = 0.0
    for sample in kept:
        if layout == "tokens":
            content += _token_bytes(sample, options)
            continue
        for _, part, _ in encode_sample(sample):
            content += len(part)
            if layout == "tar":
                overhead += tarfile.BLOCKSIZE + -len(part) % tarfile.BLOCKSIZE
    return content, overhead


def _token_bytes(sample: Sample, options: TokenOptions) -> int:
    if options.field not in sample:
        return 0
    ids = sample[options.field]
    largest = options.vocab_size - 1 if options.vocab_size else int(np.max(ids, initial=0))
    return len(ids) * np.dtype(options.dtype or narrowest_dtype(max(0, largest))).itemsize
