"""What `RankMeter` adds to a step: `python tests/benchmarks/rank_meter.py [--json]`.

Two ranks over gloo run the same loop bare and metered, in turn; the difference of the medians is the cost of a step,
gatherings and log lines included. Promised are less than 20 microseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
import torch.multiprocessing

from workbench.review.rank_meter import RankMeter

STEPS, TURNS = 2000, 7


def rank(number: int, folder: str) -> None:
    """One of the two."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=number, world_size=2)
    batches = [torch.zeros(16, 4)] * STEPS
    costs: dict[str, list[float]] = {name: [] for name in ("bare", "metered", "bare CPU", "metered CPU")}
    for _ in range(TURNS):
        for kind in ("bare", "metered"):
            loop = batches if kind == "bare" else RankMeter(batches, path=f"{folder}/rates.jsonl", console=None)
            dist.barrier()
            begun, cpu = time.perf_counter(), time.process_time()
            for _ in loop:
                pass
            costs[kind].append((time.perf_counter() - begun) / STEPS)
            costs[f"{kind} CPU"].append((time.process_time() - cpu) / STEPS)
    if number == 0:
        microseconds = {kind: 1e6 * median(values) for kind, values in costs.items()}
        Path(folder, "found.json").write_text(json.dumps(microseconds))
    dist.destroy_process_group()


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (folder,), nprocs=2)
        found = json.loads(Path(folder, "found.json").read_text())
    added = {kind: found[f"metered{kind}"] - found[f"bare{kind}"] for kind in ("", " CPU")}
    if arguments.json:
        print(json.dumps(found | {"added": added[""], "added CPU": added[" CPU"]}))
    else:
        print(f"a step costs {added['']:.1f} microseconds more, {added[' CPU']:.1f} of them CPU")


if __name__ == "__main__":
    main()
