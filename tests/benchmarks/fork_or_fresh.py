"""Whether a trial forked from the trial server measures what a trial in a fresh interpreter does.

    python tests/benchmarks/fork_or_fresh.py [--rounds 8] [--json]

Starts of both kinds alternate in one run, over loaders bound by the processor, by waiting and by the loader's own
overhead. Prints the ratio of rates (1 is the same) with its 95 % interval, the ratio of peak memory, and what a start
of each kind takes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from typing import Any

from tests.benchmarks.fidelity import LOADERS
from workbench.measure.statistics import mean_rate, t975
from workbench.measure.trial import TrialPlan, TrialServer

CHOSEN = ("photos-0", "photos-2", "text-1", "decode-2", "storage-8", "memory-0")
PLAN = TrialPlan(measure_seconds=0.75, check_data=False, measure_edge=False, measure_growth=False)


def compare(name: str, rounds: int) -> dict[str, Any]:
    """Alternates starts of both kinds over one loader."""
    factory, settings = LOADERS[name]
    rates: dict[bool, list[float]] = {True: [], False: []}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    memory: dict[bool, list[int]] = {True: [], False: []}
    with TrialServer(factory) as forked, TrialServer(factory, fresh=True) as fresh:
        for server in (forked, fresh):
            server.run(settings, PLAN)
        for number in range(rounds):
            order = (forked, fresh) if number % 2 else (fresh, forked)
            for server in order:
                begun = time.perf_counter()
                run = server.run(settings, PLAN)
                seconds[server is forked].append(time.perf_counter() - begun)
                rates[server is forked].append(mean_rate(run.windows))
                memory[server is forked].append(run.memory.peak_pss_bytes or 0)
    logs = [math.log(a / b) for a, b in zip(rates[True], rates[False], strict=True)]
    reach = t975(rounds - 1) * statistics.stdev(logs) / math.sqrt(rounds)
    centre = statistics.fmean(logs)
    return {
        "loader": name,
        "rate_ratio": math.exp(centre),
        "low": math.exp(centre - reach),
        "high": math.exp(centre + reach),
        "memory_ratio": statistics.median(memory[True]) / statistics.median(memory[False]),
        "forked_seconds": statistics.median(seconds[True]),
        "fresh_seconds": statistics.median(seconds[False]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [compare(name, arguments.rounds) for name in CHOSEN]
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['loader']:10} forked/fresh rate {row['rate_ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})  "
            f"memory {row['memory_ratio']:.3f}  a start {row['forked_seconds']:.2f} s / {row['fresh_seconds']:.2f} s"
        )


if __name__ == "__main__":
    main()
