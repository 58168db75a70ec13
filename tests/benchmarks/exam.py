"""The questions of the diagnosis exam: lab pipelines with the answers that follow from their faults."""

# ruff: noqa: E501  one question a line reads best

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench import lab
from workbench.lab.faults import faults_of

BATCH = 16
CORES = 2.0


@dataclass(frozen=True)
class Question:
    """One pipeline.

    Attributes:
        name: Of the question.
        loader: Switches of the lab's loader.
        step: Switches of the lab's step.
        num_workers: Of the loader.
        causes: Sub-causes that count as right; empty when none is asked for.
        bound: The right verdict; None takes the lab's own answer.
        length: Samples an epoch.
        headroom: The right headroom; None takes the lab's own answer, 0 asks for none.
    """

    name: str
    loader: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    num_workers: int = 2
    causes: tuple[str, ...] = ()
    bound: str | None = None
    length: int = 4096
    headroom: float | None = None

    def answer(self) -> lab.Combined:
        """The lab's answer on two free cores."""
        faults = faults_of(lab.LoaderFaults, self.loader)
        truth = lab.truth(faults, self.num_workers, 2, BATCH, self.length, CORES)
        return lab.combined(truth, faults_of(lab.StepFaults, self.step), self.num_workers, BATCH)

    @property
    def right_bound(self) -> str:
        """What the verdict must be."""
        return self.bound or self.answer().bound

    @property
    def right_headroom(self) -> float | None:
        """What the headroom must be, or None where torch's own cost decides it."""
        if self.headroom is not None or self.bound is not None:
            return self.headroom
        return self.answer().headroom

    @property
    def hands_much_over(self) -> bool:
        """Whether batches of many objects or tensors set the pace, which then differs by a tenth from start to start."""
        return self.bound == "input" and bool(self.loader.get("objects") or self.loader.get("tensors"))

    @property
    def only_waits(self) -> bool:
        """Whether the answer rests on waiting alone, which other programs do not slow down."""
        faults = faults_of(lab.LoaderFaults, self.loader)
        return not (faults.decode_cpu_seconds or faults.collate_cpu_seconds or self.step.get("launch_seconds"))


STORAGE, TAIL, IDLE, UNEVEN = ("storage wait",), ("heavy tail",), ("idle workers",), ("shard imbalance",)
DECODE, COLLATE = ("CPU in the dataset's __getitem__",), ("Python collate",)
OBJECTS, TENSORS, THREADS = ("pickled objects",), ("many small tensors",), ("thread oversubscription",)
UNPINNED, COPIES = ("unpinned copies",), ("transfer",)
STEP, SYNC, ALONE = ("step",), ("host synchronisation",), ("no overlap",)


def _faults() -> list[Question]:
    ten, five, two = {"device_seconds": 0.010}, {"device_seconds": 0.005}, {"device_seconds": 0.002}
    found = [
        Question(f"storage {1e3 * s:g} ms", {"storage_seconds": s}, ten, causes=STORAGE)
        for s in (0.002, 0.004, 0.008, 0.016)
    ]
    found += [
        Question(f"decode {1e3 * s:g} ms", {"decode_cpu_seconds": s}, two, causes=DECODE)
        for s in (0.0005, 0.001, 0.002)
    ]
    found += [
        Question(f"collate {1e3 * s:g} ms", {"collate_cpu_seconds": s}, two, causes=COLLATE)
        for s in (0.0005, 0.001, 0.002)
    ]
    found += [
        Question(f"{n} objects", {"objects": n}, {"device_seconds": 0.001}, causes=OBJECTS, bound="input")
        for n in (500, 1000, 2000)
    ]
    found += [
        Question(f"{n} tensors", {"tensors": n}, {"device_seconds": 0.001}, causes=TENSORS, bound="input")
        for n in (300, 600, 1200)
    ]
    found += [
        Question(
            f"one shard, {1e3 * s:g} ms", {"shards": 1, "storage_seconds": s}, {"device_seconds": 0.008}, causes=IDLE
        )
        for s in (0.002, 0.004)
    ]
    found += [
        Question(
            f"tail {1e3 * s:g} ms", {"tail_every": 64, "tail_seconds": s, "storage_seconds": 0.0005}, ten, causes=TAIL
        )
        for s in (0.15, 0.3, 0.5)
    ]
    found += [
        Question(f"{n} threads", {"threads": n, "decode_cpu_seconds": 0.002}, two, causes=THREADS) for n in (4, 8)
    ]
    found += [
        Question(
            f"narrow storage {mb} MB/s",
            {"storage_bytes": 40_000, "storage_bytes_per_second": mb * 1e6},
            five,
            causes=STORAGE,
        )
        for mb in (4.0, 16.0)
    ]
    found += [
        Question("imbalance 90 %", {"shards": 2, "largest_shard": 0.9, "storage_seconds": 0.002}, five, causes=UNEVEN + IDLE, bound="input", length=640),
        Question("imbalance 75 %", {"shards": 2, "largest_shard": 0.75, "storage_seconds": 0.004}, five, causes=UNEVEN + IDLE, bound="input", length=320),
        Question("storage, no workers", {"storage_seconds": 0.004}, ten, 0, causes=STORAGE),
        Question("decode, no workers", {"decode_cpu_seconds": 0.001}, five, 0, causes=DECODE),
    ]  # fmt: skip
    return found


def _steps() -> list[Question]:
    found = [
        Question(f"slow step {1e3 * s:g} ms", {"storage_seconds": 0.0005}, {"device_seconds": s}, causes=STEP)
        for s in (0.015, 0.030, 0.060, 0.120)
    ]
    found += [
        Question(f"busy step {1e3 * s:g} ms", {"storage_seconds": 0.0005}, {"launch_seconds": s}, causes=STEP)
        for s in (0.030, 0.060)
    ]
    for launch, device in ((0.010, 0.010), (0.020, 0.020), (0.020, 0.010), (0.010, 0.020), (0.030, 0.050)):
        costs = {"launch_seconds": launch, "device_seconds": device}
        named = f"{1e3 * launch:g} + {1e3 * device:g} ms"
        found.append(Question(f"synchronising step {named}", {}, costs | {"synchronise": True}, causes=SYNC))
        found.append(Question(f"the same without {named}", {}, costs, causes=STEP))
    found += [
        Question("step of 40 ms, no workers", {"storage_seconds": 0.001}, {"device_seconds": 0.040, "synchronise": True}, 0, causes=ALONE),
        Question("step of 60 ms, no workers", {"storage_seconds": 0.002}, {"device_seconds": 0.060, "synchronise": True}, 0, causes=ALONE),
    ]  # fmt: skip
    return found


def _copies() -> list[Question]:
    found = []
    for copy, costs in (
        (0.010, {"device_seconds": 0.010}),
        (0.008, {"device_seconds": 0.020}),
        (0.005, {"launch_seconds": 0.008, "device_seconds": 0.012}),
    ):
        named = f"{1e3 * copy:g} ms before {1e3 * costs['device_seconds']:g} ms"
        costs = costs | {"copy_seconds": copy}
        found.append(Question(f"pageable copy, {named}", {}, costs | {"pageable": True}, causes=UNPINNED))
        if copy < costs["device_seconds"]:
            found.append(Question(f"pinned copy, {named}", {}, costs, causes=STEP))
    narrow = {"device_seconds": 0.010, "copy_seconds": 0.030}
    found.append(Question("pinned copy, 30 ms beside 10 ms", {}, narrow, causes=COPIES))
    found.append(Question("storage before a pageable copy", {"storage_seconds": 0.010}, {"device_seconds": 0.010, "copy_seconds": 0.005, "pageable": True}, causes=STORAGE))  # fmt: skip
    return found


def _controls() -> list[Question]:
    twenty = {"device_seconds": 0.020}
    found = [
        Question(f"healthy, step {1e3 * s:g} ms", {}, {"device_seconds": s}, causes=STEP) for s in (0.010, 0.025, 0.050)
    ]
    found += [Question(f"healthy, {n} workers", {}, twenty, n, causes=STEP) for n in (1, 4)]
    found += [
        Question("slow first item", {"first_item_seconds": 1.0}, twenty, causes=STEP),
        Question("leak", {"leak_bytes": 4096}, twenty, causes=STEP),
        Question("two shards for two workers", {"shards": 2, "storage_seconds": 0.0005}, twenty, causes=STEP),
        Question("weak tail", {"tail_every": 64, "tail_seconds": 0.002, "storage_seconds": 0.0002}, twenty, causes=STEP),
        Question("few tensors", {"tensors": 8}, twenty, causes=STEP, bound="compute"),
        Question("few objects", {"objects": 4}, twenty, causes=STEP, bound="compute"),
    ]  # fmt: skip
    found += [
        Question(
            f"balanced {1e3 * s:g} ms", {"storage_seconds": 2 * s / BATCH}, {"device_seconds": s}, causes=("balanced",)
        )
        for s in (0.020, 0.040, 0.080)
    ]
    return found


def _pairs() -> list[Question]:
    sync = {"launch_seconds": 0.010, "device_seconds": 0.010, "synchronise": True}
    return [
        Question("storage and collate", {"storage_seconds": 0.006, "collate_cpu_seconds": 0.0005}, {"device_seconds": 0.010}, causes=STORAGE),
        Question("collate and storage", {"storage_seconds": 0.0005, "collate_cpu_seconds": 0.0015}, {"device_seconds": 0.005}, causes=COLLATE),
        Question("storage before sync", {"storage_seconds": 0.010}, sync, causes=STORAGE),
        Question("sync before storage", {"storage_seconds": 0.0005}, sync, causes=SYNC),
        Question("idle and storage", {"shards": 1, "storage_seconds": 0.006}, {"device_seconds": 0.010}, causes=IDLE),
        Question("tensors under a slow step", {"tensors": 100}, {"device_seconds": 0.120}, causes=STEP, bound="compute"),
        Question("objects under a slow step", {"objects": 100}, {"device_seconds": 0.120}, causes=STEP, bound="compute"),
        Question("decode and storage", {"decode_cpu_seconds": 0.0005, "storage_seconds": 0.010}, {"device_seconds": 0.010}, causes=STORAGE),
    ]  # fmt: skip


QUESTIONS = tuple(_faults() + _steps() + _copies() + _controls() + _pairs())

STRENGTHS = (0.7, 1.6)
"""Fresh questions have every time and count multiplied by a number between these, the same for all of a question..."""
OWN = (0.9, 1.15)
"""... and by another for each, so that the ratio of loader to step is new as well."""
NEAR = 0.10
"""A fresh question whose answer changes when loader or step are this much slower or faster is drawn again: no
measurement of a second could tell it."""
FALLS = ("tail_every", "storage_bytes_per_second", "shards", "largest_shard")  # no strengths, or weaker when larger


def fresh(seed: int) -> tuple[Question, ...]:
    """The questions of the exam at other strengths, drawn with `seed`; the same faults bound them."""
    return tuple(_redrawn(question, random.Random(f"{seed} {question.name}")) for question in QUESTIONS)


def flips(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Of the first question for each sub-cause of "input", "sync" and "transfer": healthy, faulty, healthy again."""
    firsts: dict[tuple[Any, ...], Question] = {}
    for question in questions:
        if question.right_bound in ("input", "sync", "transfer"):
            firsts.setdefault((question.causes, bool(question.num_workers)), question)
    return tuple(
        replace(asked, name=f"{faulty.name}: {when}")
        for faulty in firsts.values()
        for when, asked in (("off", _healthy(faulty)), ("on", faulty), ("off again", _healthy(faulty)))
    )


def _healthy(question: Question) -> Question:
    """The same step without its faults, after a loader that torch's own cost alone slows down: 8 ms are plenty.

    A copy that was pageable takes half of the step, beside which it then runs: one as long as the step would balance it.
    """
    step = {name: value for name, value in question.step.items() if name.endswith("_seconds")}
    step |= {name: max(step[name], 0.008) for name in ("device_seconds",) if name in step}
    if not question.step.get("pageable"):
        step.pop("copy_seconds", None)
    elif "copy_seconds" in step:
        step["device_seconds"] = max(step["device_seconds"], 2 * step["copy_seconds"])
    return replace(question, loader={}, step=step, causes=(), bound="compute")


def _redrawn(question: Question, draw: random.Random) -> Question:
    while True:
        common = draw.uniform(*STRENGTHS)
        other = replace(
            question,
            name=f"{question.name} x{common:.2f}",
            loader=_scaled(question.loader, common, draw),
            step=_scaled(question.step, common, draw),
        )
        if question.causes == ("balanced",):  # made to be so: loader and step stay in step
            other = replace(other, loader={"storage_seconds": 2 * other.step["device_seconds"] / BATCH})
        if question.bound is not None or _is_clear(other, question.right_bound):
            return other


def _scaled(switches: dict[str, Any], common: float, draw: random.Random) -> dict[str, Any]:
    scaled = {}
    for name, value in switches.items():
        if name in FALLS or isinstance(value, bool):
            scaled[name] = value
        elif isinstance(value, int):  # counts: large ones are faults and grow, small ones are controls and shrink
            scaled[name] = max(1, round(value * (max(1.0, common) if value > 100 else min(1.0, common))))
        else:
            scaled[name] = value * common * draw.uniform(*OWN)
    return scaled


def _is_clear(question: Question, bound: str) -> bool:
    """Whether the lab's answer is `bound`, also with loader or step slightly slower."""
    if bound == "balanced":
        return True
    step, names = question.step, ("device_seconds", "launch_seconds")
    sides = {
        replace(question, step=step | {name: step[name] * factor for name in names if name in step}).answer().bound
        for factor in (1 - NEAR, 1.0, 1 + NEAR)
    }
    return sides == {bound}


class Asked:
    """A loader factory, and a step, that are those of the question in a file; so one server asks them all."""

    def __init__(self, path: str) -> None:
        self.path = path

    def put(self, question: Question) -> None:
        """Makes it the question of the trials that start from now on."""
        values = {"loader": question.loader, "step": question.step, "length": question.length}
        Path(self.path).write_text(json.dumps(values))

    def read(self) -> dict[str, Any]:
        """The question asked."""
        return json.loads(Path(self.path).read_text())


class AskedLoader(Asked):
    """Builds the loader of the question."""

    def __call__(self, num_workers: int = 0, prefetch_factor: int | None = None, persistent_workers: bool = False):
        asked = self.read()
        made = lab.loader(batch_size=BATCH, length=asked["length"], **asked["loader"])
        return made(num_workers, prefetch_factor, persistent_workers=persistent_workers)


class AskedStep(Asked):
    """Takes the step of the question."""

    _step: Any = None

    @property
    def real(self) -> lab.LabStep:
        """The lab's step, made on first use."""
        if self._step is None:
            self._step = lab.step(**self.read()["step"])
        return self._step

    def __call__(self, batch: Any) -> None:
        self.real(batch)

    @property
    def to_device(self) -> Any:
        """What copies a batch to the device of the question; None where it copies nothing."""
        return self.real.to_device

    def synchronize(self) -> None:
        """Waits for the device."""
        self.real.synchronize()
