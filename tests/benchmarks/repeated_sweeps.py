"""Whether the same sweep, run again, recommends settings that are as fast, at the rate that a plain loop then sees.

    python tests/benchmarks/repeated_sweeps.py [--sweeps 3] [--loaders photos-2,decode-2] [--json]

Sweeps alternate in one run with plain loops over what they recommend (see `fidelity.py` for what a plain loop is).
Then the settings that were recommended are looped over in turns, which gives their long-run rates. Printed are each
stated rate over the plain loop beside it, and how far the slowest recommendation lies below the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from typing import Any

from tests.benchmarks.fidelity import LOADERS, PlainLoop
from workbench.loaders.settings import LoaderSettings
from workbench.tuning.space import SearchSpace
from workbench.tuning.sweep import Sweep

CHOSEN = ("photos-2", "text-1", "decode-2", "storage-8")
TURNS = 5
SPACE = {"num_workers": [0, 1, 2, 4], "prefetch_factor": [2, 4]}


def repeat(name: str, sweeps: int) -> dict[str, Any]:
    """Sweeps one loader several times."""
    factory, plain = LOADERS[name][0], PlainLoop(name)
    stated, beside, chosen = [], [], []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(sweeps):
                store = os.path.join(folder, f"{number}.db")
                results = Sweep(factory, SearchSpace(**SPACE), store=store, seed=number).run()
                chosen.append(results.best)
                stated.append(results.trial(results.best).samples_per_second)
                beside.append(plain.rate(number, results.best))
        rates = _long_run(plain, list(dict.fromkeys(chosen)))
    finally:
        plain.close()
    fastest = max(rates.values())
    return {
        "loader": name,
        "recommended": [settings.describe() for settings in chosen],
        "stated_over_plain": [s / p for s, p in zip(stated, beside, strict=True)],
        "median_stated_over_plain": statistics.median(s / p for s, p in zip(stated, beside, strict=True)),
        "long_run_samples_per_second": [rates[settings] for settings in chosen],
        "slowest_below_fastest": 1 - min(rates.values()) / fastest,
    }


def _long_run(plain: PlainLoop, settings: list[LoaderSettings]) -> dict[LoaderSettings, float]:
    """Mean rate of each over alternating plain loops; one alone is as fast as itself and needs no loop."""
    turns = TURNS if len(settings) > 1 else 1
    seen: dict[LoaderSettings, list[float]] = {one: [] for one in settings}
    for turn in range(turns):
        for one in settings[::-1] if turn % 2 else settings:
            seen[one].append(plain.rate(turn, one))
    return {one: statistics.fmean(rates) for one, rates in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--loaders", default=",".join(CHOSEN))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.loaders.split(","):
        rows.append(repeat(name, arguments.sweeps))
        if not arguments.json:
            print(_line(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows))


def _line(row: dict[str, Any]) -> str:
    ratios = ", ".join(f"{ratio:.3f}" for ratio in row["stated_over_plain"])
    return (
        f"{row['loader']:10} stated/plain {row['median_stated_over_plain']:.3f} ({ratios})  "
        f"slowest recommendation {row['slowest_below_fastest']:.1%} below the fastest: "
        + "; ".join(dict.fromkeys(row["recommended"]))
    )


if __name__ == "__main__":
    main()
