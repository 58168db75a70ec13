"""Loaders and steps with faults of known strength that can be switched on, and the answer that a measurement must find.

    pipeline = lab.loader(decode_cpu_seconds=0.002, batch_size=16, length=2048)    # a factory that takes knobs
    pipeline(num_workers=2)                                                        # a DataLoader
    pipeline.truth(num_workers=2, cores=2).samples_per_second                      # 1000.0
    pipeline.without("decode_cpu_seconds")                                         # the same, healthy
    lab.put_on(my_loader_or_factory, lab.LoaderFaults(storage_seconds=0.003))      # on any DataLoader
    step = lab.step(device_seconds=0.010, synchronise=True)                        # step(batch)

| fault              | switch (all off by default)                 | what is then known                              |
|--------------------|---------------------------------------------|-------------------------------------------------|
| slow decode        | `decode_cpu_seconds`                        | rate: min(workers, cores) / CPU seconds         |
| slow storage       | `storage_seconds`                           | rate: workers / seconds, beyond the cores       |
| narrow storage     | `storage_bytes`, `storage_bytes_per_second` | rate: never above bandwidth / bytes             |
| Python collate     | `collate_cpu_seconds` (a sample)            | as slow decode, but in `collate_fn`             |
| pickled payload    | `objects` (a sample)                        | Python objects a batch carries                  |
| many tensors       | `tensors` (a batch)                         | tensors a batch                                 |
| imbalance          | `shards`, `largest_shard`                   | seconds of an epoch: those of the largest shard |
| idle workers       | `shards` below the workers                  | how many idle                                   |
| leak               | `leak_bytes` (a sample)                     | growth per 1,000 samples in the loading process |
| heavy tail         | `tail_every`, `tail_seconds`                | rate behind the slow sample, batches in order   |
| slow first item    | `first_item_seconds`                        | first batch no sooner; steady rate the same     |
| oversubscription   | `threads` (a worker)                        | computing threads of all workers                |
| cold cache         | `cold_directory`, `cold_seconds`; `chill`   | rate, cold and warm                             |
| lost data          | `split="floor"`                             | samples an epoch                                |
| duplicate data     | `split="none"`                              | samples an epoch                                |
| corrupt data       | `corrupt_every`                             | `wrong_data` with workers only                  |
| slow step          | `lab.step(device_seconds=)`                 | step rate, combined rate, headroom              |
| busy step          | `lab.step(launch_seconds=)`                 | the same; it takes a core from the workers      |
| synchronising step | `lab.step(..., synchronise=True)`           | launch and device add up instead of overlapping |
| pageable copies    | `lab.step(copy_seconds=, pageable=True)`    | loop rate: copy, launch and device add up       |
| the same, real     | `pageable`                                  | what a trace made on an accelerator shows       |
| noisy neighbour    | `with lab.noisy_neighbour(cores=1):`        | cores taken                                     |

The lab's device is made of waits, so a machine without an accelerator shows what its copies do to a loop. What pinned
and pageable memory do to real ones only an accelerator shows: in `wb.diagnose` there, or in a trace recorded there.

Rates leave out what torch itself costs, 0.1 to 1 ms a batch: choose strengths well above that.
"""

from workbench.lab.answers import Combined, Truth, combined, truth
from workbench.lab.faults import LoaderFaults, StepFaults
from workbench.lab.loaders import LabLoader, loader, put_on
from workbench.lab.neighbour import noisy_neighbour
from workbench.lab.steps import LabStep, step
from workbench.lab.storage import SlowStorage, slow_storage
from workbench.lab.work import burn, chill, cold_files, is_warm

__all__ = [
    "Combined",
    "LabLoader",
    "LabStep",
    "LoaderFaults",
    "SlowStorage",
    "StepFaults",
    "Truth",
    "burn",
    "chill",
    "cold_files",
    "combined",
    "is_warm",
    "loader",
    "noisy_neighbour",
    "put_on",
    "slow_storage",
    "step",
    "truth",
]
