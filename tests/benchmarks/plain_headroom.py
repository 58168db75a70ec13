"""What perfect loading would gain, timed by a plain loop in a process of its own: the truth where the CPU decides it.

The lab computes what waiting costs to the percent, but not what torch's own work adds where workers and the training
process share the cores: 15 % of a batch of 8 ms on two cores. There the exam asks a loop that a user would write.

A loop may slow down as it runs. With 500 objects a sample it went from 277 to 268, 250 and 230 batches/s in its first
0.4 s and until 2, 6 and 14 s; main process, workers and the thread that pickles all needed more CPU for a batch. Its
8,000 dicts are about as large as a second-level cache of 1 MiB; with 1,000 or more a sample nothing changes with age.
So the loop is timed at the age at which a start of the diagnosis times loader and step together.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.exam import BATCH, Question
from workbench import lab

WARMUP_SECONDS, SECONDS = 1.0, 3.4
"""A start's two laps of both together begin 1.1 and 3.3 s after its first lap and take about 1 s: an epoch each."""
STEP_SECONDS = 0.6
LEAST_ROUNDS = 8


def plain_headroom(question: Question) -> float:
    """Rate of the step alone over that of loader and step together, in a new process, as a training run is one."""
    ran = subprocess.run([sys.executable, __file__, json.dumps(asdict(question))], capture_output=True, check=True)
    return float(ran.stdout)


def main() -> None:
    """Prints the headroom that a loop of the loader and step of the question in the first argument shows."""
    question = Question(**json.loads(sys.argv[1]))
    loop = _loop_rate(question)
    print(_step_rate(question) / loop)


def _loader(question: Question) -> Any:
    made = lab.loader(batch_size=BATCH, length=question.length, **question.loader)
    workers = question.num_workers
    return made(workers, 2 if workers else None, persistent_workers=workers > 0)


def _step_rate(question: Question) -> float:
    """Batches per second of the step alone, on a batch that is already where it computes."""
    step, batch = lab.step(**question.step), next(iter(_loader(question)))
    batch = step.to_device(batch) if step.to_device is not None else batch
    step(batch)
    step.synchronize()
    begun, steps = time.perf_counter(), 0
    while steps < LEAST_ROUNDS or time.perf_counter() - begun < STEP_SECONDS:
        step(batch)
        steps += 1
    step.synchronize()
    return steps / (time.perf_counter() - begun)


def _loop_rate(question: Question) -> float:
    """Batches per second of a training loop, which holds a batch until it has the next one, over whole rounds."""
    loader, step = _loader(question), lab.step(**question.step)
    round_ = max(1, question.num_workers)
    begun, warmed_up, steps = time.perf_counter(), False, 0
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        step(step.to_device(batch) if step.to_device is not None else batch)
        steps += 1
        seconds = time.perf_counter() - begun
        if not warmed_up and seconds >= WARMUP_SECONDS and steps >= 4 * round_ and steps % round_ == 0:
            step.synchronize()
            begun, warmed_up, steps = time.perf_counter(), True, 0
        elif warmed_up and seconds >= SECONDS and steps >= LEAST_ROUNDS * round_ and steps % round_ == 0:
            break
    step.synchronize()
    return steps / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
