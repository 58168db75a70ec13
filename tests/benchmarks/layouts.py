"""Samples and bytes a second of each layout, in order and by index, beside their limit and other libraries.

    python tests/benchmarks/layouts.py [--megabytes 200] [--sample-bytes 40000] [--rounds 5] [--clock cpu] [--json]
    python tests/benchmarks/layouts.py --part loaders    # only decoding loaders, near and 20 ms away (far.py beside)

Everything reads the same samples, undecoded, in one process, from a warm page cache. Readers alternate round by
round, since machines drift; what is printed is the median of the rounds and the median of the ratios within a round.
The limit of files, tar and Parquet is a plain sequential read of a file of the same bytes; that of tokens is a loop
over slices of a `numpy.memmap`. Libraries that are not installed are left out and named; `--libraries` adds a folder
to look for them. 40,000 bytes are a photograph at training resolution (256 px); what `webdataset` takes goes by the
sample, so that the ratio to it falls as samples grow and the copy of the bytes is all that is left. For the tutorial's
worst case, 10,000 tiny files, use `--sample-bytes 1000 --megabytes 10`. On a machine with other work, `--clock cpu`
leaves out the time that others took: every reader here is one thread over cached files.

"At +20 ms" is a store that answers each request 20 ms late, with an empty cache: whole shards for tar (the next one is
fetched while one is read), a request a sample for files. It is measured by the wall clock only. Reading undecoded
bytes is faster than any network; what training sees of the distance is told by `far.py`: the same photographs decoded
by two workers from a folder and from an S3 server.

`datasets` reads the Arrow copy that it makes of Parquet, which costs disk and is made before the clock starts.

Libraries: webdataset comes with the extra `test`. The others need no more than
`pip install --no-deps --target FOLDER mosaicml-streaming Brotli python-snappy cramjam zstd xxhash catalogue`,
`... litdata lightning-utilities boto3 botocore s3transfer jmespath` and `... datasets dill multiprocess xxhash aiohttp`
with what these name; `moto[server]` serves `far.py`.

Targets: tar at least 8 times `webdataset` and 0.4 of the plain read, tokens 0.9 of the slice loop, the loader over
shards at +20 ms 0.85 of the one over a folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import far
from workbench import lab
from workbench.layouts import KEY, convert, open_dataset, open_remote
from workbench.layouts.sources import as_sample

PLAIN_READ_BYTES = 1 << 20
BLOCK_TOKENS = 2049
RANDOM_SAMPLES = 300
ROUND_TRIP_SECONDS = 0.02
FAR_SAMPLES = 40
SEED = 0
TARGETS = {
    "tar / webdataset": 8.0,
    "tar / plain read": 0.4,
    "tokens / slice loop": 0.9,
}


@dataclass(frozen=True)
class Reader:
    """One way of reading the data set.

    Attributes:
        name: What is printed.
        run: Reads everything, or some samples by index, and returns (samples, bytes).
        order: ``sequential`` or ``random``.
    """

    name: str
    run: Callable[[], tuple[int, int]]
    order: str


def made_samples(count: int, sample_bytes: int) -> Iterator[dict[str, Any]]:
    """Samples of random bytes, half to one and a half times ``sample_bytes`` long, that no file system can fold."""
    sizes = np.random.default_rng(SEED).integers(sample_bytes // 2, sample_bytes * 3 // 2, count)
    noise = np.random.default_rng(SEED)
    for number, size in enumerate(sizes.tolist()):
        yield {KEY: f"{number:07d}", "jpg": noise.bytes(size)}


def prepare(root: Path, megabytes: int, sample_bytes: int) -> None:
    """Write the same samples in every layout, and one plain file of all their bytes."""
    count = max(8, megabytes * 1_000_000 // sample_bytes)
    convert(lambda: made_samples(count, sample_bytes), root / "tar", shard_bytes="64MB", processes=2)
    convert(root / "tar", root / "files", "files", processes=2)
    convert(root / "tar", root / "parquet", "parquet", shard_bytes="64MB", processes=2)
    convert(root / "tar", root / "parquet-random", "parquet", access="random", shard_bytes="64MB", processes=2)
    with open(root / "plain", "wb") as plain:
        for path in sorted((root / "tar").glob("*.tar")):
            with open(path, "rb") as tar:
                shutil.copyfileobj(tar, plain)
    ids = np.random.default_rng(SEED).integers(0, 50_000, megabytes * 250_000, dtype=np.uint16)
    documents = [as_sample(part) for part in np.array_split(ids, max(1, len(ids) // 4000))]
    convert(documents, root / "tokens", "tokens", shards=1, processes=1)


def read_from_afar(path: Path, most_samples: int | None) -> tuple[int, int]:
    """The first pass over a data set at +20 ms; ``most_samples`` reads only so many, by index."""
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        store = lab.slow_storage(path, round_trip_seconds=ROUND_TRIP_SECONDS)
        reader = open_remote("far://away", store=store, cache_directory=cache)
        if most_samples is not None:
            count = min(most_samples, len(reader))
            return count, sum(len(reader.sample(index)["jpg"]) for index in range(count))
        count = total = 0
        for shard in range(len(reader.shards)):
            if shard + 1 < len(reader.shards):
                reader.will_need(shard + 1)
            for sample in reader.read_shard(shard):
                count, total = count + 1, total + len(sample["jpg"])
        return count, total


def plain_read(path: Path) -> tuple[int, int]:
    total = 0
    with open(path, "rb", buffering=0) as file:
        while content := file.read(PLAIN_READ_BYTES):
            total += len(content)
    return 0, total


def read_in_order(path: Path) -> tuple[int, int]:
    reader, count, total = open_dataset(path), 0, 0
    for shard in range(len(reader.shards)):
        for sample in reader.read_shard(shard):
            count += 1
            total += len(sample["jpg"])
    return count, total


def read_by_index(path: Path) -> tuple[int, int]:
    reader = open_dataset(path)
    indices = random.Random(SEED).sample(range(len(reader)), min(RANDOM_SAMPLES, len(reader)))
    return len(indices), sum(len(reader.sample(index)["jpg"]) for index in indices)


def slice_loop(path: Path) -> tuple[int, int]:
    """What a training script does with a token file: slices of a memmap, each turned into int64."""
    ids, total, count = np.load(path, mmap_mode="r"), 0, 0
    for begin in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = ids[begin : begin + BLOCK_TOKENS].astype(np.int64)
        total, count = total + block.size * 2, count + 1
    return count, total


def token_blocks(path: Path) -> tuple[int, int]:
    reader, total, count = open_dataset(path), 0, 0
    for block in reader.open_shard(0).blocks(BLOCK_TOKENS):
        total, count = total + block.astype(np.int64).size * 2, count + 1
    return count, total


def read_webdataset(path: Path) -> tuple[int, int]:
    import webdataset

    urls, count, total = sorted(str(p) for p in path.glob("*.tar")), 0, 0
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        count, total = count + 1, total + len(sample["jpg"])
    return count, total


def other_libraries(root: Path) -> tuple[list[Reader], list[str]]:
    """Readers of libraries that are installed, their own formats written first, and the names of those that are not."""
    makers = {"webdataset": _webdataset, "litdata": _litdata, "mosaicml-streaming": _streaming, "datasets": _datasets}
    readers, missing = [], []
    for name, make in makers.items():
        try:
            readers += make(root)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    return readers, missing


def _webdataset(root: Path) -> list[Reader]:
    import webdataset  # noqa: F401

    return [Reader("webdataset", lambda: read_webdataset(root / "tar"), "sequential")]


def _litdata(root: Path) -> list[Reader]:
    from litdata import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    folder = root / "litdata"
    writer = BinaryWriter(str(folder), chunk_bytes=64_000_000)
    count = 0
    for count, sample in enumerate(open_dataset(root / "tar"), 1):
        writer.add_item(count - 1, {"jpg": sample["jpg"]})
    writer.done()
    writer.merge()

    def in_order() -> tuple[int, int]:
        sizes = [len(sample["jpg"]) for sample in StreamingDataset(str(folder), shuffle=False)]
        return len(sizes), sum(sizes)

    def by_index() -> tuple[int, int]:
        data = StreamingDataset(str(folder), shuffle=False)
        indices = random.Random(SEED).sample(range(count), min(RANDOM_SAMPLES, count))
        return len(indices), sum(len(data[index]["jpg"]) for index in indices)

    return [Reader("litdata", in_order, "sequential"), Reader("litdata", by_index, "random")]


def _streaming(root: Path) -> list[Reader]:
    for name in ("streaming", "streaming.base"):  # without their own imports of torchvision and transformers
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"No module named {name!r}")
        sys.modules[name] = importlib.util.module_from_spec(spec)
    from streaming.base.format import MDSWriter
    from streaming.base.local import LocalDataset

    folder = root / "mds"
    with MDSWriter(out=str(folder), columns={"jpg": "bytes"}, size_limit=64_000_000) as writer:
        for sample in open_dataset(root / "tar"):
            writer.write({"jpg": sample["jpg"]})

    def in_order() -> tuple[int, int]:
        data = LocalDataset(str(folder))
        return len(data), sum(len(data[index]["jpg"]) for index in range(len(data)))

    def by_index() -> tuple[int, int]:
        data = LocalDataset(str(folder))
        indices = random.Random(SEED).sample(range(len(data)), min(RANDOM_SAMPLES, len(data)))
        return len(indices), sum(len(data[index]["jpg"]) for index in indices)

    return [Reader("mosaicml-streaming", in_order, "sequential"), Reader("mosaicml-streaming", by_index, "random")]


def _datasets(root: Path) -> list[Reader]:
    import datasets

    files = sorted(str(path) for path in (root / "parquet").glob("*.parquet"))
    data = datasets.Dataset.from_parquet(files, cache_dir=str(root / "datasets-cache"))

    def in_order() -> tuple[int, int]:
        sizes = [len(sample["jpg"]) for sample in data]
        return len(sizes), sum(sizes)

    def by_index() -> tuple[int, int]:
        indices = random.Random(SEED).sample(range(len(data)), min(RANDOM_SAMPLES, len(data)))
        return len(indices), sum(len(data[index]["jpg"]) for index in indices)

    return [Reader("datasets", in_order, "sequential"), Reader("datasets", by_index, "random")]


def own_readers(root: Path) -> list[Reader]:
    """The limits, and every layout of this package."""
    tokens = root / "tokens" / "shard-00000.npy"
    readers = [
        Reader("plain read", lambda: plain_read(root / "plain"), "sequential"),
        Reader("slice loop", lambda: slice_loop(tokens), "sequential"),
        Reader("tokens", lambda: token_blocks(root / "tokens"), "sequential"),
    ]
    for name in ("tar", "files", "parquet", "parquet-random"):
        readers.append(Reader(name, lambda name=name: read_in_order(root / name), "sequential"))
        readers.append(Reader(name, lambda name=name: read_by_index(root / name), "random"))
    return readers


def far_readers(root: Path) -> list[Reader]:
    """Shards and single files behind a round trip of 20 ms."""
    return [
        Reader("tar at +20 ms", lambda: read_from_afar(root / "tar", None), "sequential"),
        Reader("files at +20 ms", lambda: read_from_afar(root / "files", FAR_SAMPLES), "sequential"),
    ]


def rates(readers: list[Reader], rounds: int, clock: Callable[[], float]) -> dict[str, list[tuple[float, float]]]:
    """(samples a second, megabytes a second) of each reader in each round; the first round only warms up."""
    measured: dict[str, list[tuple[float, float]]] = {f"{r.name}, {r.order}": [] for r in readers}
    for number in range(rounds + 1):
        for reader in random.Random(number).sample(readers, len(readers)):
            began = clock()
            samples, size = reader.run()
            seconds = clock() - began
            if number:
                measured[f"{reader.name}, {reader.order}"].append((samples / seconds, size / seconds / 1e6))
    return measured


def ratios(measured: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Median over the rounds of each layout's bytes a second over those of its limit and of each library."""
    pairs = [("tokens", "slice loop", "sequential")]
    pairs += [(own, "plain read", "sequential") for own in ("tar", "files", "parquet")]
    pairs += [("tar at +20 ms", "files at +20 ms", "sequential")]
    theirs = {"tar": ("webdataset", "litdata", "mosaicml-streaming"), "parquet": ("datasets",)}
    pairs += [(own, other, "sequential") for own, others in theirs.items() for other in others]
    pairs += [("tar", other, "random") for other in ("litdata", "mosaicml-streaming")]
    pairs += [("parquet-random", "datasets", "random"), ("parquet-random", "parquet", "random")]
    found = {}
    for own, other, order in pairs:
        ours, other_rates = measured.get(f"{own}, {order}"), measured.get(f"{other}, {order}")
        if ours and other_rates:
            each = [a[1] / b[1] for a, b in zip(ours, other_rates, strict=True)]
            found[f"{own} / {other}" + (", random" if order == "random" else "")] = statistics.median(each)
    return found


def compare_layouts(root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates, ratios, and what was missed or missing, of reading without decoding."""
    prepare(root, arguments.megabytes, arguments.sample_bytes)
    others, missing = other_libraries(root)
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    far_away = [] if arguments.clock == "cpu" else far_readers(root)
    measured = rates(own_readers(root) + far_away + others, arguments.rounds, clock)
    found = ratios(measured)
    middle = {name: [statistics.median(v) for v in zip(*values, strict=True)] for name, values in measured.items()}
    missed = [name for name, target in TARGETS.items() if found.get(name, target) < target]
    return {"rates": middle, "ratios": found, "targets": TARGETS, "missed": missed, "missing": missing}


def compare_loaders(root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same for decoding loaders; only ``missing`` where the server is not installed."""
    try:
        found = far.measure(root, arguments.rounds, arguments.photographs, arguments.libraries)
    except ImportError as error:
        return {"missed": [], "missing": [str(error)]}
    missed = [name for name, target in found["targets"].items() if found["ratios"][name] < target]
    return {**found, "missed": missed, "missing": []}


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The results as lines for people."""
    layouts, loaders = found.get("layouts", {}), found.get("loaders", {})
    for name, (samples, megabytes) in layouts.get("rates", {}).items():
        yield f"{name:34} {samples:12,.0f} samples/s {megabytes:12,.0f} MB/s"
    for name, ratio in layouts.get("ratios", {}).items():
        yield f"{name:44} {ratio:8.2f}x" + (f"  (target {TARGETS[name]}x)" if name in TARGETS else "")
    if "ratios" in loaders:
        yield far.as_text(loaders)
    missing = [*layouts.get("missing", ()), *loaders.get("missing", ())]
    yield "left out: " + ", ".join(missing) if missing else "all libraries were there"


def main() -> int:
    """Measure and print; the exit code is 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("layouts", "loaders"), help="only this half")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--sample-bytes", type=int, default=40_000)
    parser.add_argument("--photographs", type=int, default=far.PHOTOGRAPHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--libraries", help="folder with more libraries to compare with")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    if arguments.libraries:
        sys.path.append(arguments.libraries)
    found = {}
    with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
        for name, compare in (("layouts", compare_layouts), ("loaders", compare_loaders)):
            if arguments.part in (None, name) and not (name == "loaders" and arguments.clock == "cpu"):
                found[name] = compare(Path(folder), arguments)
    if arguments.json:
        print(json.dumps({**found, "arguments": vars(arguments)}, indent=1))
    else:
        print("\n".join(as_text(found)))
    return any(part["missed"] for part in found.values())


if __name__ == "__main__":
    sys.exit(main())
