"""How far the stated rate lies from a plain loop's, how often the stated interval holds, and what measuring costs.

    python tests/benchmarks/fidelity.py [--repeats 30] [--loaders photos-2,memory-1] [--record FILE] [--json]

For each loader, stated rates and plain loops alternate in one run, since machines drift. A plain loop is what a user
would write: `for batch in loader`, in a process of its own that has imported torch, counting samples over a stretch
of at least 2 s and 60 batches after a warm-up. It begins with a collected heap, as a trial does: where an epoch's new
workers are forked from one that is due, each begins with a whole pass of the collector (a fifth of memory-1's rate).
The long-run rate of a loader is the mean of all its plain loops; a stated interval holds when it contains that rate.
The cost of sampling memory is processor time of the process that watches the trial while windows are timed, over what
all cores of the trial had to give. `--record` keeps every repeat; given again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from workbench import lab, samples
from workbench.loaders.settings import LoaderSettings
from workbench.measure import records
from workbench.measure.records import TrialRun
from workbench.measure.result import TrialResult
from workbench.measure.trial import TrialPlan, TrialServer

STARTS = 4
MEASURE_SECONDS, MAX_MEASURE_SECONDS = 0.75, 2.0
PLAIN_SECONDS = 2.0
PLAIN_WARMUP_SECONDS = 0.5
PLAIN_BATCHES = 60
"""A plain loop sees at least so many: with fewer, their differing content alone moves its rate by percents."""


def in_memory(**knobs: Any) -> DataLoader:
    """A small table in RAM: the loader's own overhead and nothing else."""
    data = TensorDataset(torch.arange(80_000.0).view(-1, 4))
    return DataLoader(data, batch_size=32, shuffle=True, **knobs)


LOADERS: dict[str, tuple[Any, LoaderSettings]] = {
    "photos-0": (samples.photos, LoaderSettings()),
    "photos-2": (samples.photos, LoaderSettings(num_workers=2)),
    "text-1": (samples.text, LoaderSettings(num_workers=1)),
    "audio-2": (samples.audio, LoaderSettings(num_workers=2)),
    "tables-0": (samples.tables, LoaderSettings()),
    "decode-1": (lab.loader(decode_cpu_seconds=0.001), LoaderSettings(num_workers=1)),
    "decode-2": (lab.loader(decode_cpu_seconds=0.001), LoaderSettings(num_workers=2, prefetch_factor=4)),
    "storage-0": (lab.loader(storage_seconds=0.001), LoaderSettings()),
    "storage-8": (lab.loader(storage_seconds=0.003, batch_size=8), LoaderSettings(num_workers=8)),
    "tail-2": (lab.loader(storage_seconds=0.001, tail_every=400, tail_seconds=0.15), LoaderSettings(num_workers=2)),
    "collate-1": (lab.loader(collate_cpu_seconds=0.001), LoaderSettings(num_workers=1)),
    "objects-1": (lab.loader(objects=40, decode_cpu_seconds=0.0005), LoaderSettings(num_workers=1)),
    "memory-0": (in_memory, LoaderSettings()),
    "memory-1": (in_memory, LoaderSettings(num_workers=1)),
}


def plain_loop(name: str) -> None:
    """In a process of its own: for each line on stdin, one plain loop over a fresh loader, its rate on stdout."""
    factory = LOADERS[name][0]
    gc.collect()
    for line in sys.stdin:
        seed, knobs = json.loads(line)
        settings = LoaderSettings.from_dict(knobs)
        torch.manual_seed(seed)
        print(_plain_rate(factory(**settings.loader_kwargs()), settings), flush=True)


def _plain_rate(loader: Any, settings: LoaderSettings) -> float:
    """Samples per second inside epochs; the wait from one epoch to the next is not in it.

    Workers that start together finish together, so batches come in bunches of `num_workers`: each stretch begins
    after the queue and one round of an epoch, and holds whole rounds.
    """
    warm = time.perf_counter() + PLAIN_WARMUP_SECONDS
    round_, skipped = max(1, settings.num_workers), settings.batches_in_flight + max(1, settings.num_workers)
    samples_counted, batches_counted, seconds = 0, 0, 0.0
    while True:
        opened = None
        for position, batch in enumerate(loader):
            now = time.perf_counter()
            if opened is None:
                if position >= skipped and now > warm:
                    opened, batches, samples_taken = now, 0, 0
                continue
            batches += 1
            samples_taken += _samples(batch)
            if batches % round_ == 0:
                whole = seconds + now - opened, samples_counted + samples_taken, batches_counted + batches
                if whole[0] >= PLAIN_SECONDS and whole[2] >= PLAIN_BATCHES:
                    return whole[1] / whole[0]
        if opened is not None and batches >= round_:
            seconds, samples_counted, batches_counted = whole


def _samples(batch: Any) -> int:
    while isinstance(batch, dict):
        batch = next(iter(batch.values()))
    return len(batch[0]) if isinstance(batch, list | tuple) else len(batch)


class PlainLoop:
    """The process that runs plain loops."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--plain", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rate(self, seed: int, settings: LoaderSettings) -> float:
        """Samples per second of one plain loop."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([seed, settings.as_dict()]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate("")


@dataclass(frozen=True)
class Repeat:
    """One plain loop over a loader and the runs beside it."""

    loader: str
    cores: int
    plain: float
    runs: tuple[TrialRun, ...]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self) | {"runs": [records.to_json(run) for run in self.runs]})

    @classmethod
    def from_json(cls, line: str) -> Repeat:
        """What `to_json` wrote."""
        values = json.loads(line)
        return cls(**values | {"runs": tuple(records.run_from_json(run) for run in values["runs"])})


def repeats_of(name: str, first: int, end: int) -> Iterator[Repeat]:
    """Alternates a plain loop and the starts of one stated rate."""
    if first >= end:
        return
    factory, settings = LOADERS[name]
    plain = PlainLoop(name)
    try:
        with TrialServer(factory) as server:
            server.probe()
            for repeat in range(first, end):
                rate = plain.rate(repeat, settings)
                runs = [server.run(settings, _plan(repeat * STARTS + start)) for start in range(STARTS)]
                yield Repeat(name, server.cores, rate, tuple(runs))
    finally:
        plain.close()


def _plan(seed: int) -> TrialPlan:
    return TrialPlan(
        measure_seconds=MEASURE_SECONDS,
        max_measure_seconds=MAX_MEASURE_SECONDS,
        seed=seed,
        check_data=False,
        measure_edge=False,
        measure_growth=False,
        fill_queue=seed % STARTS == 0,
    )


def _sampling_share(run: TrialRun, cores: int) -> float | None:
    """CPU seconds that watching took while windows were timed, over what all cores had to give meanwhile."""
    spent, seconds = run.memory.sampling_seconds, run.memory.sampled_seconds
    return spent / seconds / cores if spent is not None and seconds else None


def row_of(name: str, repeats: Sequence[Repeat]) -> dict[str, Any]:
    """What the repeats of one loader say."""
    settings = LOADERS[name][1]
    stated = [TrialResult(settings, one.runs, None, one.cores) for one in repeats]
    failed = [result.reason for result in stated if result.estimate is None]
    if failed:
        return {"loader": name, "failed": failed[0]}
    runs = [run for one in repeats for run in one.runs if run.status == "ok"]
    plains = [one.plain for one in repeats]
    rates = [result.estimate.samples_per_second for result in stated]
    truth = statistics.fmean(plains)
    shares = [share for run in runs if (share := _sampling_share(run, repeats[0].cores)) is not None]
    held = [result.estimate.low <= truth <= result.estimate.high for result in stated]
    return {
        "loader": name,
        "repeats": len(repeats),
        "stated_over_plain": statistics.median(s / p for s, p in zip(rates, plains, strict=True)),
        "mean_stated_over_long_run": statistics.fmean(rates) / truth,
        "coverage": statistics.fmean(held),
        "half_width": statistics.median(result.estimate.half_width for result in stated),
        "stated_spread": statistics.stdev(rates) / statistics.fmean(rates) if len(rates) > 1 else None,
        "plain_spread": statistics.stdev(plains) / truth if len(plains) > 1 else None,
        "overhead_seconds": statistics.median(r.overhead_seconds for r in runs if r.overhead_seconds is not None),
        "sampling_share": statistics.median(shares) if shares else None,
        "noisy_runs": statistics.fmean(run.noisy for run in runs),
        "long_run_samples_per_second": truth,
    }


def examine(name: str, repeats: int, path: str | None) -> dict[str, Any]:
    """Makes the repeats that the record lacks, and says what all of them say."""
    known: list[Repeat] = []
    if path and os.path.exists(path):
        with open(path) as file:
            known = [one for line in file if (one := Repeat.from_json(line)).loader == name]
    for one in repeats_of(name, len(known), repeats):
        known.append(one)
        if path:
            with open(path, "a") as file:
                file.write(one.to_json() + "\n")
    return row_of(name, known[:repeats])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--record", help="a file that keeps every repeat")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        plain_loop(arguments.plain)
        return
    rows = []
    for name in arguments.loaders.split(","):
        rows.append(examine(name, arguments.repeats, arguments.record))
        if not arguments.json:
            print(_line(rows[-1]), flush=True)
    summary = _summary(rows)
    print(json.dumps({"loaders": rows, "summary": summary}) if arguments.json else summary)


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['loader']:10} failed: {row['failed']}"
    sampling = (
        "sampling unknown" if row["sampling_share"] is None else f"sampling {row['sampling_share']:.2%} of all cores"
    )
    return (
        f"{row['loader']:10} stated/plain {row['stated_over_plain']:.3f}  "
        f"coverage {row['coverage']:.0%} of {row['repeats']}  "
        f"± {row['half_width']:.1%}  spread {row['stated_spread'] or 0:.1%}, plain {row['plain_spread'] or 0:.1%}  "
        f"overhead {row['overhead_seconds']:.2f} s  "
        f"{sampling}  noisy {row['noisy_runs']:.0%}  "
        f"{row['long_run_samples_per_second']:,.0f}/s"
    )


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    good = [row for row in rows if "failed" not in row]
    errors = [abs(row["stated_over_plain"] - 1) for row in good]
    return {
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "mean_coverage": statistics.fmean(row["coverage"] for row in good),
        "worst_overhead_seconds": max(row["overhead_seconds"] for row in good),
        "failed": len(rows) - len(good),
    }


if __name__ == "__main__":
    main()
