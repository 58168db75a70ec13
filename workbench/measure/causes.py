"""Why a loader is slow: from the costs of its stages to one sub-cause, its evidence, and one next thing to do.

Pure functions. Every rule states the share of the loader's time that it explains; the first one below that explains
at least `EXPLAINS` of it wins, since the earlier ones change what the later ones mean: a worker without samples makes
every stage look innocent, and a single slow sample makes a mean that no batch has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from workbench.loaders.settings import workers
from workbench.machine import format_bytes
from workbench.measure.stage_costs import Stage, StageCosts

EXPLAINS = 0.35
"""Share of the time that a cause must explain to be named; below it the largest stage is named instead."""
TAIL_TIMES = 4.0
"""A batch that takes this many times the median belongs to the tail: a scheduler that shares a core between two or
three programs makes a batch two or three times slower, not more."""
TAIL_SHARE = 0.15
TAIL_NOTED = 0.04
"""Of the workers' time, idle or not, spent in the tail beyond the median: to blame it, and to mention it."""
TAIL_FEWEST = 8
MOST, IN_A_ROW = 0.5, 2.0
"""Share of slow batches with a slow neighbour, and times its expected value, above which they are a stretch of them."""
UNEVEN = 1.3
"""Batches of the busiest worker over the mean from which work is dealt out unevenly: DataLoader asks all of them in
turn, so that only a worker without data falls behind."""
OTHER_THREADS = 0.3
"""Share of a worker's CPU that goes to threads other than its own from which it counts as multi-threaded."""
MANY_TENSORS = 32
SMALL_TENSOR_BYTES = 64 << 10
MANY_OBJECT_BYTES = 16 << 10
"""Pickled bytes of a batch beside its references to tensors, which take 100 to 300 bytes each."""
REFERENCE_BYTES = 320
MANY_WORKERS = 16
"""Workers above which a number is no advice any more: each costs memory, and what they wait for has a limit."""
SLOW_FIRST_SECONDS = 0.5
SLOW_FIRST_TIMES = 10.0
PRESSURE = 0.10
"""Share of the time in which something waited for memory; the kernel's own documentation calls 10 % notable."""
GAIN_WORTH_SAYING = 1.2
"""Times the rate from which the gain of workers is put in numbers; less is left to the overlap with the step."""
WORTH_HANDING_OVER = 1e-3
"""Seconds that a batch must take to make before workers are advised to a loader that has none: less is about what
handing it over would cost."""
NOISY_SHARE = 0.3
"""Cores of other programs over usable ones above which they are a candidate for the blame."""


@dataclass(frozen=True)
class Cause:
    """A sub-cause of a verdict.

    Attributes:
        name: For instance "storage wait".
        evidence: The numbers, in a sentence.
        next_step: One thing to do.
        refuted_by: What would show that it is wrong.
    """

    name: str
    evidence: str
    next_step: str
    refuted_by: str


@dataclass(frozen=True)
class Scene:
    """What a cause is looked for in.

    Attributes:
        costs: Of the loader, running alone.
        num_workers: Of the loader.
        prefetch_factor: Batches ahead of each worker; None without workers.
        cores: That the processes may use.
        samples_per_second: The loader's rate alone.
        wanted_samples_per_second: The step's rate, which it would have to reach.
        foreign_share: Cores of other programs over `cores`; None when not known.
        memory_pressure: Share of the time in which something waited for memory; None when not known.
    """

    costs: StageCosts
    num_workers: int
    prefetch_factor: int | None
    cores: int
    samples_per_second: float
    wanted_samples_per_second: float
    foreign_share: float | None = None
    memory_pressure: float | None = None

    @property
    def batch_seconds(self) -> float:
        """Time between batches of the loader alone."""
        return self.costs.samples_per_batch / self.samples_per_second

    @property
    def worker_seconds(self) -> float:
        """Time of one loading process for a batch, hand-over included where it is the longer."""
        hand_over = self.costs.hand_over.wall_seconds if self.costs.hand_over else 0.0
        return max(self.costs.worker_seconds_per_batch, hand_over)

    @property
    def workers_needed(self) -> int:
        """Loading processes that would keep up with the step if nothing else held them up."""
        return max(1, math.ceil(self.worker_seconds * self.wanted_samples_per_second / self.costs.samples_per_batch))


def input_cause(scene: Scene) -> Cause:
    """The sub-cause of a loader that is too slow."""
    for rule in (_pressure, _idle, _uneven, _hand_over, _tail, _threads):
        if (found := rule(scene)) is not None:
            return found
    return _largest_stage(scene)


def asides(scene: Scene) -> tuple[str, ...]:
    """What is worth knowing beside the sub-cause, a sentence each."""
    costs, found = scene.costs, []
    first = costs.first_batch_seconds
    if first is not None and first > max(SLOW_FIRST_SECONDS, SLOW_FIRST_TIMES * costs.worker_seconds_per_batch):
        found.append(
            f"slow first item: a worker's first batch took {duration(first)}, later ones {duration(_typical(scene))}; "
            "persistent_workers=True pays that once instead of every epoch"
        )
    share, told = _tail_of(scene)
    if TAIL_NOTED <= share < TAIL_SHARE:
        found.append(f"{told}; a larger prefetch_factor hides some of it" if scene.num_workers else told)
    if slow := _slow_stretch(scene.costs.batch_walls):
        found.append(
            f"{slow} of {len(scene.costs.batch_walls)} batches, most of them in a row, took far longer than the rest: "
            "something outside the loader held them up, or a stretch of the data is slow"
        )
    if (scene.foreign_share or 0.0) > NOISY_SHARE:
        found.append(
            f"other programs used {scene.foreign_share * scene.cores:.1f} of {scene.cores} cores meanwhile; "
            "figures that depend on the CPU will be better on a quiet machine"
        )
    starved = costs.starved_seconds_per_batch / max(costs.worker_seconds_per_batch, 1e-9)
    if scene.num_workers and starved > EXPLAINS and (scene.foreign_share or 0.0) <= NOISY_SHARE:
        found.append(f"workers waited for a core {starved:.0%} of their time: there are more of them than cores")
    return tuple(found)


# -- rules, in order --


def _pressure(scene: Scene) -> Cause | None:
    if (scene.memory_pressure or 0.0) < PRESSURE:
        return None
    return Cause(
        "memory pressure",
        f"processes of this machine waited for memory {scene.memory_pressure:.0%} of the time",
        "use fewer workers or a smaller prefetch_factor, so that what is read stays in memory",
        "the rate stays the same with half the workers and with more free memory",
    )


def _idle(scene: Scene) -> Cause | None:
    idle = sum(batches == 0 for batches in scene.costs.worker_batches)
    if not scene.num_workers or not idle:
        return None
    return Cause(
        "idle workers",
        f"{idle} of {workers(scene.num_workers)} delivered no batch",
        f"split the data into at least {scene.num_workers} shards, better several times as many; until then "
        f"num_workers={scene.num_workers - idle} does the same",
        "every worker delivers batches once there are more shards",
    )


def _uneven(scene: Scene) -> Cause | None:
    batches = scene.costs.worker_batches
    mean = sum(batches) / len(batches) if batches else 0.0
    if len(batches) < 2 or mean < TAIL_FEWEST or max(batches) < UNEVEN * mean:
        return None
    return Cause(
        "shard imbalance",
        f"the busiest worker delivered {max(batches)} batches and the least busy {min(batches)}",
        "write shards of equal size, several for each worker",
        "workers deliver equally many batches once the shards are equal",
    )


def _tail(scene: Scene) -> Cause | None:
    share, told = _tail_of(scene)
    if share < TAIL_SHARE:
        return None
    ahead = (scene.prefetch_factor or 2) * 2
    return Cause(
        "heavy tail",
        told,
        f"raise prefetch_factor to {ahead}, so that more finished batches lie ahead of a slow one (in_order=False lets "
        "them pass it, at the price of an order that changes from run to run: no exact resume)"
        if scene.num_workers
        else "load in a worker with num_workers=1, so that the step works on while a slow sample loads",
        "p95 and the median of the batch times are close, or the rate does not rise with prefetch_factor",
    )


def _tail_of(scene: Scene) -> tuple[float, str]:
    """Share of the workers' time that slow batches take beyond the median, and the pattern in words."""
    walls = sorted(scene.costs.batch_walls)
    if len(walls) < TAIL_FEWEST or _slow_stretch(scene.costs.batch_walls):
        return 0.0, ""
    typical, late = median(walls), walls[int(0.95 * len(walls))]
    slow = [wall for wall in walls if wall > TAIL_TIMES * typical]
    if len(slow) > len(walls) / 3:
        return 0.0, ""
    beyond = sum(slow) - typical * len(slow)
    whole = scene.batch_seconds * len(walls) * max(1, scene.num_workers)
    pattern = (
        f"{len(slow)} of {len(walls)} batches take far longer than the rest (median {duration(typical)}, "
        f"p95 {duration(late)}, longest {duration(walls[-1])})"
    )
    if not scene.num_workers:
        return beyond / whole, pattern
    return beyond / whole, f"head of line: {pattern}, and ready batches behind a slow one wait for it"


def _slow_stretch(walls: Sequence[float]) -> int:
    """How many batches took far longer where they came in a row, which slow samples, drawn at random, do not; else 0.

    Of batches that are slow with probability p, each on its own, a share 1 - (1 - p)**2 has a slow neighbour.
    """
    typical = median(walls) if walls else 0.0
    slow = [wall > TAIL_TIMES * typical for wall in walls]
    around = zip([False, *slow[:-1]], slow, [*slow[1:], False], strict=True)
    beside = sum(here and (before or after) for before, here, after in around)
    expected = 1 - (1 - sum(slow) / max(1, len(slow))) ** 2
    return sum(slow) if beside > max(MOST, IN_A_ROW * expected) * sum(slow) else 0


def _threads(scene: Scene) -> Cause | None:
    costs = scene.costs
    share = costs.other_threads_cpu_seconds / max(costs.worker_cpu_seconds_per_batch, 1e-9)
    threads = costs.threads_per_worker or 1
    if share < OTHER_THREADS or threads * scene.num_workers <= scene.cores:
        return None
    return Cause(
        "thread oversubscription",
        f"{workers(scene.num_workers)} with up to {threads} threads each on {scene.cores} cores; {share:.0%} of a "
        "worker's CPU time goes to threads beside its own",
        "call torch.set_num_threads(1) (and the like of other libraries) in worker_init_fn",
        "the rate does not rise with one thread a worker",
    )


def _hand_over(scene: Scene) -> Cause | None:
    costs = scene.costs
    if costs.hand_over is None:
        return None
    sending, making = costs.hand_over.wall_seconds, costs.worker_seconds_per_batch
    whole = scene.batch_seconds
    share = max(sending / max(sending + making, 1e-9), costs.main_seconds_per_batch / whole)
    if share < EXPLAINS:
        return None
    tensors = costs.tensors_per_batch
    objects = (costs.pickled_bytes_per_batch or 0.0) - REFERENCE_BYTES * tensors
    numbers = (
        f"pickling and copying a batch takes a worker {duration(sending)}, taking it "
        f"{duration(costs.main_seconds_per_batch)} of CPU, making it {duration(making)}"
    )
    refuted = "the rate stays the same when the batch is one tensor of the same size"
    if tensors >= MANY_TENSORS and costs.bytes_per_batch / tensors < SMALL_TENSOR_BYTES:
        advice = "pack the small tensors of a batch into one in collate_fn"
        return Cause("many small tensors", f"{numbers}; it holds {tensors} tensors", advice, refuted)
    if objects > MANY_OBJECT_BYTES:
        evidence = f"{numbers}; {format_bytes(int(objects))} of it are Python objects"
        advice = "send numbers as tensors and strings as one buffer, and leave out what training does not read"
        return Cause("pickled objects", evidence, advice, refuted)
    advice = "make larger batches, or try num_workers=0: making a batch costs less than sending it"
    return Cause("hand-over", f"{numbers}; it holds {format_bytes(costs.bytes_per_batch)}", advice, refuted)


def _largest_stage(scene: Scene) -> Cause:
    """Waiting of all stages against the CPU of each."""
    costs = scene.costs
    stages = [costs.fetch, *costs.transforms, costs.collate]
    waiting = max(stages, key=lambda stage: stage.waiting_seconds)
    working = max(stages, key=_work)
    if costs.waiting_seconds_per_batch >= sum(_work(stage) for stage in stages):
        return _waits(scene, waiting)
    if working is costs.collate:
        return _computes(scene, working, "Python collate", "stack once from an array that holds the whole batch")
    where = "the dataset's __getitem__" if working is costs.fetch else f"the transform {working.name}"
    advice = (
        f"do the work of {where} once, offline (resize, decode, tokenise), and store what comes out; or find a faster "
        "implementation of it"
    )
    return _computes(scene, working, f"CPU in {where}", advice)


def _waits(scene: Scene, stage: Stage) -> Cause:
    waited = scene.costs.waiting_seconds_per_batch / max(scene.costs.worker_seconds_per_batch, 1e-9)
    needed = max(scene.workers_needed, scene.num_workers + 1)
    if needed > MANY_WORKERS:
        many = "raise num_workers" if scene.num_workers else "give it workers: raise num_workers from 0"
        advice = f"{many} as far as the rate follows, since waiting takes no core; keeping up would take {needed}"
    elif scene.num_workers:
        advice = f"raise num_workers to {needed}: waiting takes no core, so more workers wait side by side"
    else:
        advice = f"give it workers: num_workers={needed}, since waiting takes no core and workers wait side by side"
    where = "" if stage is scene.costs.fetch else f" in {stage.name}"
    waiting, whole = scene.costs.waiting_seconds_per_batch, scene.costs.worker_seconds_per_batch
    return Cause(
        "storage wait",
        f"a loading process waits{where} {min(1.0, waited):.0%} of the time it takes for a batch "
        f"({duration(waiting)} of {duration(whole)}) without using a core",
        f"{advice}; then larger, sequential reads (shards)",
        "the rate does not rise with num_workers although cores are free: then what is waited for has its limit",
    )


def _computes(scene: Scene, stage: Stage, name: str, advice: str) -> Cause:
    share = _work(stage) / max(scene.costs.worker_seconds_per_batch, 1e-9)
    evidence = (
        f"{stage.name} takes {duration(stage.cpu_seconds)} of CPU a batch, {min(1.0, share):.0%} of the time of a "
        "loading process with its waits for a core"
    )
    cpu = scene.costs.worker_cpu_seconds_per_batch * scene.wanted_samples_per_second / scene.costs.samples_per_batch
    if scene.num_workers and scene.num_workers < scene.cores and cpu <= scene.cores:
        advice = (
            f"raise num_workers to {min(scene.cores, max(scene.workers_needed, scene.num_workers + 1))}; then {advice}"
        )
    elif cpu > scene.cores:
        evidence += f"; keeping up with the step would take {cpu:.1f} cores and there are {scene.cores}"
    if not scene.num_workers and (first := _give_workers(scene)):
        advice = f"{first}; then {advice}"
    return Cause(name, evidence, advice, _tested_without(scene, stage))


def _give_workers(scene: Scene) -> str:
    """Workers for a loader that has none, as far as its stages' costs and the cores predict a gain from them."""
    costs = scene.costs
    wanted = min(scene.cores, scene.workers_needed)
    cores = scene.cores * costs.worker_seconds_per_batch / max(costs.worker_cpu_seconds_per_batch, 1e-9)
    gain = min(wanted, cores)
    if scene.cores < 2 or costs.worker_seconds_per_batch < WORTH_HANDING_OVER:
        return ""
    if gain < GAIN_WORTH_SAYING:
        return f"give it workers: num_workers={wanted}, so that batches are loaded while the step runs"
    return (
        f"give it workers: num_workers={wanted} would load up to {gain:.2g} times as fast, by what its stages cost, "
        "and while the step runs"
    )


def _tested_without(scene: Scene, stage: Stage) -> str:
    """How to leave a stage out for a test, and what would speak against the cause."""
    if stage is scene.costs.fetch:
        how = "__getitem__ loads its first sample once and returns that one for every index"
    elif stage is scene.costs.collate:
        how = "collate_fn makes its first batch once and returns that one every time"
    else:
        how = f"{stage.name} computes its first result once and returns that one every time"
    return f"the rate does not rise in a test in which {how}"


def _work(stage: Stage) -> float:
    """CPU, and the time spent in want of it."""
    return stage.cpu_seconds + (stage.starved_seconds or 0.0)


def _typical(scene: Scene) -> float:
    walls = scene.costs.batch_walls
    return median(walls) if walls else scene.costs.worker_seconds_per_batch


def duration(value: float) -> str:
    """A duration with its best unit and three figures."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"
