"""Tokens/s of the stream against a plain loop and other loaders; costs of states, resumes and packing, as ratios.

    python tests/benchmarks/streaming.py [--rounds 5] [--megatokens 40] [--require litdata,mosaicml-streaming] [--json]
    python tests/benchmarks/streaming.py --examples 20000     # the properties of this room with so many draws each

Contenders of one comparison alternate, since machines drift; each round takes them in another order, and the ratio of
each to the plain loop is taken within a round. Litdata and mosaicml-streaming take part where they are installed; each
of them is compared, within a round, with the stream at the same number of workers. They may lie in a folder apart:

    pip install --target LIBRARIES --no-deps mosaicml-streaming Brotli python-snappy cramjam zstd xxhash catalogue
    python tests/benchmarks/streaming.py --libraries LIBRARIES --require mosaicml-streaming
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import multiprocessing
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from workbench.layouts.conversion import convert
from workbench.streaming.loader import StreamLoader
from workbench.streaming.packed import PackedStream
from workbench.streaming.packing import STRATEGIES, packing_report
from workbench.streaming.shards import ListShards, TokenBlocks
from workbench.streaming.stream import ShardStream

LENGTH = 1_024
BATCH = 32
WORKER_PASS = 0.25
"""Share of the tokens that loaders with workers go through: they are slower, and start-up is not counted."""
PASSES = 12
"""Of contenders without workers: one over 40 million tokens takes 20 ms, too short to tell."""
PROPERTIES = ("tests/test_stream.py", "tests/test_packing.py", "tests/test_buckets.py")
REPOSITORY = Path(__file__).resolve().parents[2]
RIVALS = ("litdata", "mosaicml-streaming")
Contender = Callable[[], float]


def token_files(folder: Path, tokens: int, shards: int) -> list[Path]:
    """Shards of random uint16 ids."""
    draw = np.random.default_rng(0)
    paths = [folder / f"part-{number:04d}.npy" for number in range(shards)]
    for path in paths:
        np.save(path, draw.integers(0, 50_000, tokens // shards, dtype=np.uint16))
    return paths


def rate(batches: Iterable[torch.Tensor], most: float = float("inf"), passes: int = 1) -> float:
    """Input tokens per second from the second batch on, over so many passes or so many tokens."""
    iterator = iter(batches)
    next(iterator)
    begun, tokens = time.perf_counter(), 0
    for number in range(passes):
        for batch in iter(batches) if number else iterator:
            tokens += batch[:, :-1].numel()
            if tokens >= most:
                break
    return tokens / (time.perf_counter() - begun)


class PlainLoop:
    """What one would write without a loader: consecutive batches out of memory maps."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[torch.Tensor]:
        step = BATCH * (LENGTH + 1)
        for path in self.paths:
            ids = np.load(path, mmap_mode="r")
            for begin in range(0, len(ids) - step + 1, step):
                yield torch.from_numpy(ids[begin : begin + step].astype(np.int64)).view(BATCH, LENGTH + 1)


def random_batches(path: Path, tokens: float) -> float:
    """Input tokens per second of batches at random offsets, one slice a row, inputs and labels apart."""
    ids = np.load(path, mmap_mode="r")
    begun, done = time.perf_counter(), 0
    while done < tokens:
        offsets = torch.randint(len(ids) - LENGTH, (BATCH,)).tolist()
        inputs = torch.stack([torch.from_numpy(ids[at : at + LENGTH].astype(np.int64)) for at in offsets])
        torch.stack([torch.from_numpy(ids[at + 1 : at + 1 + LENGTH].astype(np.int64)) for at in offsets])
        done += inputs.numel()
    return done / (time.perf_counter() - begun)


def stream(folder: Path, *, shuffle: bool = True) -> ShardStream:
    return ShardStream(TokenBlocks(folder, LENGTH), shuffle=shuffle, batch_size=BATCH)


def contenders(folder: Path, paths: list[Path], tokens: int) -> dict[str, Contender]:
    """Name -> a run that says its tokens per second."""
    few = tokens * WORKER_PASS
    by_sample = ShardStream(TokenBlocks(folder, LENGTH), shuffle=False)
    found: dict[str, Contender] = {
        "plain loop": lambda: rate(PlainLoop(paths), passes=PASSES),
        "random get_batch": lambda: random_batches(paths[0], tokens / 2),
        "stream, in order, 0 workers": lambda: rate(
            StreamLoader(stream(folder, shuffle=False), batch_size=None), passes=PASSES
        ),
        "stream, shuffled, 0 workers": lambda: rate(StreamLoader(stream(folder), batch_size=None), passes=PASSES),
        "samples, plain DataLoader, 1 worker": lambda: rate(
            DataLoader(by_sample, batch_size=BATCH, num_workers=1), few / 8
        ),
    }
    for workers in (1, 2):
        found[f"stream, shuffled, {workers} workers"] = lambda workers=workers: rate(
            StreamLoader(stream(folder), batch_size=None, num_workers=workers, snapshot_every_n_steps=50), few
        )
    return found | rivals(folder, paths, few)


def rivals(folder: Path, paths: list[Path], tokens: float) -> dict[str, Contender]:
    """Other token loaders that are installed here, over the same ids in their own format."""
    found: dict[str, Contender] = {}
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    if importlib.util.find_spec("litdata"):
        found |= _litdata(folder.with_name("litdata"), paths, tokens)
    if importlib.util.find_spec("streaming"):  # not this file, whose folder was taken off the path
        found |= _mosaic(folder.with_name("mosaic"), paths, tokens)
    return found


def _litdata(folder: Path, paths: list[Path], tokens: float) -> dict[str, Contender]:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes="64MB", item_loader=TokensLoader(block_size=LENGTH + 1))
    for number, path in enumerate(paths):
        writer[number] = torch.from_numpy(np.load(path).astype(np.int32))
    writer.done()
    writer.merge(1)

    def run(workers: int) -> float:
        data = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True)
        return rate(StreamingDataLoader(data, batch_size=BATCH, num_workers=workers), tokens / 8)

    return {f"litdata, {workers} workers": lambda workers=workers: run(workers) for workers in (0, 1, 2)}


def _mosaic(folder: Path, paths: list[Path], tokens: float) -> dict[str, Contender]:
    for package in ("streaming", "streaming.base"):  # not run: they import halves for images and text, and their needs
        sys.modules[package] = importlib.util.module_from_spec(importlib.util.find_spec(package))
    from streaming.base.dataset import StreamingDataset
    from streaming.base.format import MDSWriter

    with MDSWriter(out=str(folder), columns={"ids": "ndarray:uint16"}) as writer:
        for path in paths:
            ids = np.load(path)
            for begin in range(0, len(ids) - LENGTH, LENGTH + 1):
                writer.write({"ids": ids[begin : begin + LENGTH + 1]})

    def run(workers: int) -> float:
        data = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
        loader = DataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=_stacked)
        return rate(loader, tokens / 8)

    return {f"mosaicml-streaming, {workers} workers": lambda workers=workers: run(workers) for workers in (0, 1, 2)}


def _stacked(samples: list[dict[str, np.ndarray]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample["ids"] for sample in samples]).astype(np.int64))


def alone(run: Contender) -> float:
    """What ``run`` says in a process of its own: other loaders leave threads behind, which would slow down the next.

    It computes with one thread, as a worker does: the pool of threads does not survive the fork.
    """
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def answer() -> None:
        torch.set_num_threads(1)
        answers.put(run())

    process = context.Process(target=answer)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a contender ended with exit code {process.exitcode}")
    return answers.get()


def compare(found: dict[str, Contender], rounds: int) -> dict[str, dict[str, Any]]:
    """Median tokens/s of each, and its ratio to the plain loop of the same round: median, least and most."""
    rates: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + 1):
        names = list(found)
        random.Random(number).shuffle(names)
        for name in names:
            measured = alone(found[name])
            if number:  # the first round warms the page cache
                rates[name].append(measured)
    return {name: _compared(rates, name) for name in rates}


def _compared(rates: dict[str, list[float]], name: str) -> dict[str, Any]:
    ratios = _ratios(rates[name], rates["plain loop"])
    facts = {
        "tokens_per_second": statistics.median(rates[name]),
        "ratio_to_plain_loop": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }
    own = f"stream, shuffled, {name.partition(', ')[2]}"
    if name.startswith(RIVALS):
        times = _ratios(rates[own], rates[name])
        facts |= {"stream_is_times_as_fast": statistics.median(times), "times_range": [min(times), max(times)]}
    return facts


def _ratios(mine: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def state_cost() -> dict[str, Any]:
    """What a state costs against a step of 10 ms: one call, and a snapshot at every step under workers."""
    shards = [range(at, at + 1_000) for at in range(0, 1_000_000, 1_000)]
    loader = StreamLoader(ShardStream(ListShards(shards)), batch_size=8)
    batches = iter(loader)
    calls = []
    for _ in itertools.islice(batches, 500):
        begun = time.perf_counter()
        state = loader.state_dict()
        calls.append(time.perf_counter() - begun)
    seconds: dict[int, list[float]] = {1: [], 10**9: []}
    for every in (1, 10**9, 10**9, 1, 1, 10**9):
        loader = StreamLoader(
            ShardStream(ListShards(shards)), batch_size=8, num_workers=1, snapshot_every_n_steps=every
        )
        batches = iter(loader)
        next(batches)
        begun = time.perf_counter()
        for _ in itertools.islice(batches, 2_000):
            pass
        seconds[every].append((time.perf_counter() - begun) / 2_000)
    added = min(seconds[1]) - min(seconds[10**9])
    return {
        "state_bytes_at_1000_shards": len(pickle.dumps(state)),
        "state_dict_share_of_10_ms": statistics.median(calls) / 0.010,
        "snapshot_every_step_share_of_10_ms": max(added, 0.0) / 0.010,
    }


RESUME = """
import json, sys, time
folder, length, opened = sys.argv[1], int(sys.argv[2]), []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from workbench.streaming.shards import TokenBlocks
from workbench.streaming.stream import ShardStream
opened.clear()
begun = time.perf_counter()
stream = ShardStream(TokenBlocks(folder, length), batch_size=8)
made = time.perf_counter() - begun
stream.load_state_dict(json.loads(sys.argv[3]))
next(iter(stream))
whole = time.perf_counter() - begun
shards = {name.removesuffix(".borders.npy") for name in opened if name.startswith(folder) and name.endswith(".npy")}
print(json.dumps({"resume_seconds": whole, "of_it_making_the_stream_seconds": made, "shards_opened": len(shards)}))
"""


def resume_at_99_percent(folder: Path) -> dict[str, Any]:
    """A process that resumes at 99 % of 1,000 token shards: seconds to its first batch, and the shards that it opens.

    The data set is a converted one, with a manifest; every file that the process opens is seen by an audit hook, from
    before the stream is made.
    """
    data = folder / "data"
    convert(_Documents(1_000), data, "tokens", shards=1_000, vocab_size=50_000)
    stream = ShardStream(TokenBlocks(data, LENGTH), batch_size=8)
    state = stream.state_dict() | {"taken": int(0.99 * len(stream) * 8)}
    command = [sys.executable, "-c", RESUME, str(data), str(LENGTH), json.dumps(state)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {**found, "state_bytes": len(pickle.dumps(state))}


class _Documents:
    """Documents of forty blocks of random ids."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        draw = np.random.default_rng(index)
        return {"tokens": draw.integers(0, 50_000, 40 * (LENGTH + 1), dtype=np.uint16)}


def packing(rounds: int = 3) -> dict[str, dict[str, Any]]:
    """Fill and tokens/s of each strategy over the sample texts at 2,048 tokens, rows made, strategies in turn."""
    lengths = sample_lengths()
    documents = [np.zeros(length, dtype=np.uint16) for length in lengths]
    reports = {name: packing_report(lengths, 2_048, name) for name in sorted(STRATEGIES)}
    rates: dict[str, list[float]] = {name: [] for name in reports}
    for number in range(rounds):
        for strategy in sorted(reports, reverse=bool(number % 2)):
            begun = time.perf_counter()
            rows = sum(1 for _ in PackedStream(documents, 2_048, strategy=strategy))
            rates[strategy].append(sum(lengths) / (time.perf_counter() - begun))
            assert rows == reports[strategy].rows
    return {
        name: {
            "fill": report.fill,
            "padding_saved": report.padding_saved,
            "tokens_per_second": statistics.median(rates[name]),
            "speed_ratio_to_first_fit": statistics.median(_ratios(rates[name], rates["first_fit"])),
        }
        for name, report in reports.items()
    }


def sample_lengths() -> list[int]:
    """Tokens of the sample texts, in a shuffled order."""
    from tokenizers import Tokenizer

    folder = REPOSITORY / "data_samples"
    tokenizer = Tokenizer.from_file(str(folder / "bpe8k.json"))
    with gzip.open(folder / "text.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    lengths = [len(encoded.ids) for encoded in tokenizer.encode_batch(texts)]
    random.Random(0).shuffle(lengths)
    return lengths


def run_properties(examples: int) -> int:
    """The property tests of this room with so many draws each."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "", *PROPERTIES],
        cwd=REPOSITORY,
        env={**os.environ, "WORKBENCH_STREAM_EXAMPLES": str(examples)},
        check=False,
    ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megatokens", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--examples", type=int)
    parser.add_argument("--libraries", action="append", default=[], help="a folder with rivals; may be given again")
    parser.add_argument("--require", default="", help="rivals that must be installed, with commas between them")
    arguments = parser.parse_args()
    if arguments.examples:
        return run_properties(arguments.examples)
    warnings.filterwarnings("ignore", message=".*set_vital.*|.*worker processes.*")
    sys.path += arguments.libraries
    tokens = arguments.megatokens * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        few, many = Path(name) / "tokens", Path(name) / "many"
        few.mkdir()
        many.mkdir()
        paths = token_files(few, tokens, 8)
        taking_part = contenders(few, paths, tokens)
        for rival in filter(None, arguments.require.split(",")):
            if not any(name.startswith(rival) for name in taking_part):
                parser.error(f"{rival} is not installed here, and --require asks for it")
        found = {
            "tokens": compare(taking_part, arguments.rounds),
            "state": state_cost(),
            "resume": resume_at_99_percent(many),
            "packing": packing(),
        }
    print(json.dumps(found, indent=2) if arguments.json else as_text(found))
    return 0


def as_text(found: dict[str, dict[str, Any]]) -> str:
    """The results as lines for people."""
    lines = []
    for part, facts in found.items():
        lines.append(part)
        for name, value in facts.items():
            if isinstance(value, dict):
                value = ", ".join(f"{key} {_shown(number)}" for key, number in value.items())
            lines.append(f"  {name}: {_shown(value)}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_shown(one) for one in value)
    if isinstance(value, float):
        return f"{value / 1e6:,.0f} M" if value >= 1e6 else f"{value:.4g}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
