"""How far the stated rate lies from a plain loop's, how often the stated interval holds, and what measuring costs.

    python tests/benchmarks/fidelity.py [--repeats 30] [--loaders photos-2,waiting-2] [--json]

For each loader, stated rates and plain loops alternate in one run, since machines drift. A plain loop is what a user
would write: `for batch in loader`, in a process of its own that has imported torch, counting samples over a stretch
of time after a warm-up. The long-run rate of a loader is the mean of all its plain loops; a stated interval holds when
it contains that rate. The cost of sampling memory is the ratio of rates with the warden watching and without it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from workbench import lab, samples
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun
from workbench.measure.result import TrialResult
from workbench.measure.trial import TrialPlan, TrialServer

STARTS = 4
MEASURE_SECONDS = 0.75
PLAIN_SECONDS = 2.0
PLAIN_WARMUP_SECONDS = 0.5


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
    "objects-1": (lab.loader(objects=40, decode_cpu_seconds=0.0005), LoaderSettings(num_workers=1)),
    "memory-0": (in_memory, LoaderSettings()),
    "memory-1": (in_memory, LoaderSettings(num_workers=1)),
}


def plain_loop(name: str) -> None:
    """In a process of its own: for each line on stdin, one plain loop over a fresh loader, its rate on stdout."""
    factory, settings = LOADERS[name]
    for line in sys.stdin:
        torch.manual_seed(int(line))
        print(_plain_rate(factory(**settings.loader_kwargs())), flush=True)


def _plain_rate(loader: Any) -> float:
    """Samples per second inside epochs; the wait from one epoch to the next is not in it."""
    warm = time.perf_counter() + PLAIN_WARMUP_SECONDS
    samples_counted, seconds = 0, 0.0
    while True:
        before = float("-inf")
        for batch in loader:
            now = time.perf_counter()
            if before > warm:
                samples_counted += _samples(batch)
                seconds += now - before
            before = now
            if seconds >= PLAIN_SECONDS:
                return samples_counted / seconds


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

    def rate(self, seed: int) -> float:
        """Samples per second of one plain loop."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate("")


def examine(name: str, repeats: int) -> dict[str, Any]:
    """Alternates stated rates and plain loops over one loader."""
    factory, settings = LOADERS[name]
    plain, stated, plains, overheads, sampling = PlainLoop(name), [], [], [], []
    try:
        with TrialServer(factory) as server:
            server.probe()
            for repeat in range(repeats):
                plains.append(plain.rate(repeat))
                runs = [server.run(settings, _plan(repeat * STARTS + start)) for start in range(STARTS)]
                stated.append(TrialResult(settings, tuple(runs), None, server.cores))
                overheads += [run.overhead_seconds for run in runs if run.overhead_seconds is not None]
                sampling += [_sampling_share(run) for run in runs if run.status == "ok"]
    finally:
        plain.close()
    return _row(name, stated, plains, overheads, sampling)


def _plan(seed: int) -> TrialPlan:
    return TrialPlan(
        measure_seconds=MEASURE_SECONDS, seed=seed, check_data=False, measure_edge=False, measure_growth=False
    )


def _sampling_share(run: TrialRun) -> float:
    """CPU seconds of one core that the warden's sampling took, over the seconds of the windows it was taken in."""
    return (run.memory.sampling_seconds or 0.0) / sum(w.seconds for w in run.windows)


def _row(
    name: str, stated: list[TrialResult], plains: list[float], overheads: list[float], sampling: list[float]
) -> Any:
    failed = [result.reason for result in stated if result.estimate is None]
    if failed:
        return {"loader": name, "failed": failed[0]}
    rates = [result.estimate.samples_per_second for result in stated]
    truth = statistics.fmean(plains)
    held = [result.estimate.low <= truth <= result.estimate.high for result in stated]
    return {
        "loader": name,
        "stated_over_plain": statistics.median(s / p for s, p in zip(rates, plains, strict=True)),
        "mean_stated_over_long_run": statistics.fmean(rates) / truth,
        "coverage": statistics.fmean(held),
        "half_width": statistics.median(result.estimate.half_width for result in stated),
        "plain_spread": statistics.stdev(plains) / truth if len(plains) > 1 else None,
        "overhead_seconds": statistics.median(overheads),
        "sampling_share_of_a_core": statistics.median(sampling),
        "noisy_runs": statistics.fmean(run.noisy for result in stated for run in result.runs),
        "long_run_samples_per_second": truth,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        plain_loop(arguments.plain)
        return
    rows = []
    for name in arguments.loaders.split(","):
        rows.append(examine(name, arguments.repeats))
        if not arguments.json:
            print(_line(rows[-1]), flush=True)
    summary = _summary(rows)
    print(json.dumps({"loaders": rows, "summary": summary}) if arguments.json else summary)


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['loader']:10} failed: {row['failed']}"
    return (
        f"{row['loader']:10} stated/plain {row['stated_over_plain']:.3f}  coverage {row['coverage']:.0%}  "
        f"± {row['half_width']:.1%}  plain spread {row['plain_spread'] or 0:.1%}  "
        f"overhead {row['overhead_seconds']:.2f} s  "
        f"sampling {row['sampling_share_of_a_core']:.2%} of a core  noisy {row['noisy_runs']:.0%}  "
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
