"""Loaders whose every answer is on record: a sweep runs on them in virtual time, whatever the machine is doing.

A record holds, for every settings, the rate of several starts and what a start costs. `ReplayServer` answers a sweep
with one of the recorded starts, spreads its windows as recorded, and adds up the seconds that the run would have taken.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench import lab
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Memory, Probe, TrialRun, Window, probe_from_json

WARMUP_BATCHES, MEASURED_BATCHES = 20, 200  # the tutorial's protocol for every settings
CHECK_TIMES = 2.0  # a data check may read for twice its time: under the settings, and again without workers


@dataclass(frozen=True)
class Record:
    """What is known of one settings.

    Attributes:
        settings: The knobs.
        rates: Samples per second of each start.
        rounds: In which round over all settings each of these starts was; empty where they were not alternated.
        first_batch_seconds: From asking for an iterator to the first batch.
        edge_seconds: From the last batch of an epoch to the first of the next; None where that is not defined.
        shutdown_seconds: Ending the workers.
        beside_seconds: The rest of a run: its process, and reading memory.
        window_spread: Relative standard deviation of windows of 0.25 s inside a start.
        pss_bytes: Peak memory.
        cpu_cores_used: Cores in use on average.
        batch_seconds: Median, 95th percentile and longest time between batches.
        status: "ok", or what a check finds out about these settings.
    """

    settings: LoaderSettings
    rates: tuple[float, ...]
    rounds: tuple[int, ...] = ()
    first_batch_seconds: float = 0.1
    edge_seconds: float | None = None
    shutdown_seconds: float = 0.05
    beside_seconds: float = 0.15
    window_spread: float = 0.05
    pss_bytes: int | None = None
    cpu_cores_used: float | None = None
    batch_seconds: tuple[float, float, float] | None = None
    status: str = "ok"

    @property
    def rate(self) -> float:
        """The truth: mean over starts."""
        return statistics.fmean(self.rates)

    def rate_in(self, round_: int) -> float:
        """The rate of the start in that round."""
        return self.rates[self.rounds.index(round_)]

    def rate_without(self, round_: int) -> float:
        """Mean over the other rounds."""
        return statistics.fmean(rate for rate, one in zip(self.rates, self.rounds, strict=True) if one != round_)


@dataclass(frozen=True)
class Oracle:
    """Everything on record about one loader.

    Attributes:
        name: Of the loader.
        kind: What it stands for: "cpu", "storage", "hand-over", "tail", "memory", ...
        samples: Samples in a batch.
        cores: Cores it ran on.
        probe: What the probe saw.
        records: One a settings.
        probe_seconds: Starting the trial server and probing.
        current: The user's settings.
        judged_from: The first of the rounds in which only what was picked or may be best was started, chosen by the
            rounds before; 0 where there are none.
    """

    name: str
    kind: str
    samples: int
    cores: float
    probe: Probe
    records: dict[LoaderSettings, Record] = field(default_factory=dict)
    probe_seconds: float = 2.0
    current: LoaderSettings = field(default_factory=LoaderSettings)
    judged_from: int = 0

    @property
    def right(self) -> list[Record]:
        """Records of settings that deliver the right data."""
        return [record for record in self.records.values() if record.status == "ok"]

    @property
    def best_rate(self) -> float:
        """The highest true rate."""
        return max(record.rate for record in self.right)

    @property
    def last_round(self) -> int:
        """The latest in which anything was started."""
        return max((round_ for record in self.right for round_ in record.rounds), default=-1)

    def regret(self, settings: LoaderSettings | None) -> float:
        """Share of the best rate that these settings lose; 1 for none, and for settings with wrong data.

        The highest of many measured means lies above every true rate, so that a pick among equals would seem to lose
        what luck gave another. Where starts were alternated, the best is therefore chosen from all rounds but one, and
        both are rated in that one, side by side; the mean over rounds says what the pick loses (cross-validation:
        Stone 1974, "Cross-validatory choice and assessment of statistical predictions"). It can lie below 0. Rounds by
        which finalists were chosen are among those held out only for settings that were in no round after them.
        """
        record = self._right_record(settings)
        if record is None:
            return 1.0
        return statistics.fmean(self._lost(record)) if record.rounds else 1 - record.rate / self.best_rate

    def regret_error(self, settings: LoaderSettings | None) -> float:
        """Standard error of that regret over rounds; 0 where there are no rounds."""
        record = self._right_record(settings)
        lost = self._lost(record) if record is not None and record.rounds else []
        return statistics.stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else 0.0

    def _lost(self, record: Record) -> list[float]:
        """Share of the best rate that these settings lose, in each round of theirs that judges."""
        lost, first = [], self.judged_from if max(record.rounds) >= self.judged_from else 0
        for held_out, rate in zip(record.rounds, record.rates, strict=True):
            if held_out < first:
                continue
            best = self._best_without(held_out)
            lost.append(1 - rate / best.rate_in(held_out) if best is not None else 0.0)
        return lost

    def regret_at_most(self, settings: LoaderSettings | None) -> float:
        """Share of the highest mean rate that these settings lose, whatever luck that mean contains."""
        record = self._right_record(settings)
        return 1.0 if record is None else 1 - record.rate / self.best_rate

    def _right_record(self, settings: LoaderSettings | None) -> Record | None:
        """What is on record of these settings; None for none, and for settings with wrong data."""
        record = self.records.get(settings) if settings is not None else None
        return record if record is not None and record.status == "ok" else None

    def _best_without(self, held_out: int) -> Record | None:
        """The highest mean over the other rounds, among settings started in this one, as often as any of them."""
        there = [record for record in self.right if held_out in record.rounds and len(record.rounds) > 1]
        most = max((len(record.rounds) for record in there), default=0)
        often = [record for record in there if len(record.rounds) == most]
        return max(often, key=lambda record: record.rate_without(held_out), default=None)

    def exhaustive_seconds(self) -> float:
        """What the tutorial's protocol takes for every settings: start, 20 batches of warm-up, 200 measured, end."""
        batches = WARMUP_BATCHES + MEASURED_BATCHES
        return sum(
            record.first_batch_seconds + batches * self.samples / record.rate + record.shutdown_seconds
            for record in self.records.values()
        )

    def to_json(self) -> dict[str, Any]:
        """Ready for a file; `oracle_from_json` reads it."""
        records = [asdict(record) | {"settings": record.settings.as_dict()} for record in self.records.values()]
        return asdict(replace(self, records={})) | {"records": records, "current": self.current.as_dict()}


def oracle_from_json(data: dict[str, Any]) -> Oracle:
    """The oracle that `to_json` wrote."""
    records = {}
    for found in data["records"]:
        settings = LoaderSettings.from_dict(found["settings"])
        seconds = found["batch_seconds"]
        values = found | {"settings": settings, "rates": tuple(found["rates"]), "rounds": tuple(found["rounds"])}
        records[settings] = Record(**values | {"batch_seconds": tuple(seconds) if seconds else None})
    known = {name: data[name] for name in ("name", "kind", "samples", "cores", "probe_seconds", "judged_from")}
    current = LoaderSettings.from_dict(data["current"])
    return Oracle(**known, probe=probe_from_json(dict(data["probe"])), records=records, current=current)


def load(path: str | Path) -> list[Oracle]:
    """All oracles of a file."""
    return [oracle_from_json(one) for one in json.loads(Path(path).read_text())["oracles"]]


class ReplayServer:
    """Stands in for `TrialServer`; time passes only in `seconds`.

    Args:
        oracle: What is on record.
        seed: Which starts are drawn, and how windows spread.
    """

    def __init__(self, oracle: Oracle, seed: int = 0) -> None:
        self.oracle, self.seconds, self.starts = oracle, 0.0, 0
        self.batches = 0.0
        self._chance = random.Random(f"{oracle.name}/{seed}")
        self._started = False

    def __call__(self, source: Any, **options: Any) -> ReplayServer:
        return self

    def __enter__(self) -> ReplayServer:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def probe(self) -> Probe:
        """The recorded probe."""
        return self.oracle.probe

    def cancel(self) -> None:
        """Nothing to cancel: a run takes no time."""

    def run(self, settings: LoaderSettings, plan: Any) -> TrialRun:
        """A run drawn from the record, measured as `plan` says."""
        record, chance = self.oracle.records[settings], self._chance
        rate = chance.choice(record.rates)
        seconds = self.oracle.samples / rate
        windows, measured = self._windows(record, rate, seconds, plan)
        ahead = settings.batches_in_flight + max(1, settings.num_workers)
        self.starts += 1
        self.seconds += record.first_batch_seconds + record.shutdown_seconds + record.beside_seconds
        self.seconds += max(plan.warmup_seconds, min(ahead * seconds, plan.max_measure_seconds))
        self.seconds += measured + (min(2.0, settings.batches_in_flight * seconds) if plan.fill_queue else 0.0)
        self.seconds += (record.edge_seconds or 0.0) + settings.batches_in_flight * seconds if plan.measure_edge else 0
        checks = plan.check_data and settings.num_workers > 0
        self.seconds += CHECK_TIMES * plan.check_seconds if checks else 0.0
        wrong = checks and record.status != "ok"
        middle = record.batch_seconds or (seconds, seconds * 1.05, seconds * 1.2)
        cold, self._started = not self._started, True
        return TrialRun(
            settings,
            record.status if wrong else "ok",
            reason="2 of 64 samples differ from those without workers" if wrong else "",
            windows=windows,
            first_batch_seconds=record.first_batch_seconds,
            epoch_edge_seconds=record.edge_seconds if plan.measure_edge else None,
            shutdown_seconds=record.shutdown_seconds,
            batch_seconds_p50=middle[0],
            batch_seconds_p95=middle[1],
            batch_seconds_max=middle[2],
            memory=Memory(peak_pss_bytes=record.pss_bytes, peak_rss_bytes=record.pss_bytes),
            cpu_cores_used=record.cpu_cores_used,
            cold=cold,
        )

    def _windows(self, record: Record, rate: float, seconds: float, plan: Any) -> tuple[tuple[Window, ...], float]:
        """Whole rounds, each at least as long as the plan says, until what suffices is measured."""
        workers = max(1, record.settings.num_workers)
        batches = workers * max(1, math.ceil(plan.window_seconds / (workers * seconds)))
        length = batches * seconds
        spread = record.window_spread * math.sqrt(0.25 / length)
        windows, passed = [], 0.0
        while passed < plan.measure_seconds or (
            len(windows) * batches < plan.least_batches and passed < plan.max_measure_seconds
        ):
            took = length * math.exp(self._chance.gauss(0, min(spread, 0.5)))
            windows.append(Window(self.seconds + passed, took, batches, batches * self.oracle.samples, 0.0))
            passed += took
        return tuple(windows), passed


# -- loaders whose truth is computed --


def computed(
    name: str,
    kind: str,
    pipeline: lab.LabLoader,
    space: list[LoaderSettings],
    *,
    cores: float = 2.0,
    start_spread: float = 0.03,
    variation: float = 0.01,
    batch_overhead_seconds: float = 0.0005,
    wrong: tuple[LoaderSettings, ...] = (),
    epoch_samples: int | None = None,
    seed: int = 0,
) -> Oracle:
    """An oracle for a lab loader, from its closed-form truth and the spread between starts of a quiet machine.

    Args:
        name: Of the loader.
        kind: What it stands for.
        pipeline: The lab loader.
        space: All settings.
        cores: Cores it is computed for.
        start_spread: Relative standard deviation between starts.
        variation: Relative standard deviation of what no formula knows about a settings.
        batch_overhead_seconds: What torch adds to a batch in a worker and again in the main process.
        wrong: Settings that deliver wrong data.
        epoch_samples: Length of an epoch.
        seed: Of the spread.
    """
    chance = random.Random(f"{name}/{seed}")
    records = {}
    for one in space:
        rate = _true_rate(pipeline, one, cores, batch_overhead_seconds) * math.exp(chance.gauss(0, variation))
        rates = _around(rate, start_spread, chance)
        seconds = pipeline.batch_size / rate
        edge = 0.0 if one.num_workers == 0 else 0.002 if one.persistent_workers else 0.04 + 0.02 * one.num_workers
        faults = pipeline.faults
        cpu = (faults.decode_cpu_seconds + faults.collate_cpu_seconds) * pipeline.batch_size + batch_overhead_seconds
        tail = faults.tail_seconds if faults.tail_every else seconds * 0.2
        usual = seconds - (faults.tail_seconds / faults.tail_every * pipeline.batch_size if faults.tail_every else 0.0)
        records[one] = Record(
            one,
            rates,
            first_batch_seconds=0.03 + 0.02 * one.num_workers + seconds * max(1, one.num_workers),
            edge_seconds=edge + seconds * max(1, one.num_workers) * (one.num_workers > 0),
            shutdown_seconds=0.02 + 0.01 * one.num_workers,
            window_spread=0.05 + (0.2 if faults.tail_every else 0.0),
            pss_bytes=200_000_000 + 40_000_000 * one.num_workers + 1_000_000 * one.batches_in_flight,
            cpu_cores_used=min(cores, cpu / seconds + 0.01),
            batch_seconds=(usual, seconds * 1.1, usual + tail),
            status="wrong_data" if one in wrong else "ok",
        )
    probe = _probe(pipeline, records, epoch_samples)
    return Oracle(name, kind, pipeline.batch_size, cores, probe, records)


def _around(rate: float, spread: float, chance: random.Random) -> tuple[float, ...]:
    """Five starts with that very mean and about that spread."""
    off = [chance.gauss(0, spread) for _ in range(5)]
    return tuple(rate * (1 + one - statistics.fmean(off)) for one in off)


def _true_rate(pipeline: lab.LabLoader, one: LoaderSettings, cores: float, overhead: float) -> float:
    """Closed-form rate with torch's own cost: in a worker it is CPU like decoding, in the main process a ceiling."""
    share = overhead / pipeline.batch_size
    extra = share * (1 + 0.02 * max(0.0, one.num_workers - cores)) if one.num_workers else share / 4
    faults = replace(pipeline.faults, decode_cpu_seconds=pipeline.faults.decode_cpu_seconds + extra)
    true = lab.truth(faults, one.num_workers, one.prefetch_factor or 2, pipeline.batch_size, pipeline.length, cores)
    ceiling = math.inf if one.num_workers == 0 else pipeline.batch_size / overhead
    return min(true.samples_per_second or math.inf, ceiling)


def _probe(pipeline: lab.LabLoader, records: dict[LoaderSettings, Record], epoch_samples: int | None) -> Probe:
    alone = records.get(LoaderSettings())
    return Probe(
        samples_per_batch=pipeline.batch_size,
        samples_evidence="first dimension",
        samples_ambiguous=False,
        batch_bytes=1_000_000,
        tensors_per_batch=1,
        batch_structure="tensor",
        epoch_batches=None,
        epoch_samples=epoch_samples,
        iterable=False,
        start_method="fork",
        batches_seen=3,
        batch_seconds=pipeline.batch_size / alone.rate if alone else None,
        current=LoaderSettings(),
    )


def computed_oracles(space: list[LoaderSettings], seed: int = 0, cores: float = 2.0) -> Iterator[Oracle]:
    """Ten kinds of loaders with known truth on that many cores, batches of 16 to 64 samples taking 6 to 200 ms."""
    kinds = {
        "decoding": ("cpu", lab.loader(decode_cpu_seconds=0.003)),
        "heavy decoding": ("cpu", lab.loader(decode_cpu_seconds=0.006, batch_size=32)),
        "collating": ("cpu", lab.loader(decode_cpu_seconds=0.001, collate_cpu_seconds=0.002)),
        "storage": ("storage", lab.loader(storage_seconds=0.004)),
        "slow storage": ("storage", lab.loader(storage_seconds=0.010, batch_size=16)),
        "narrow storage": (
            "storage",
            lab.loader(storage_seconds=0.001, storage_bytes=2000, storage_bytes_per_second=1_000_000),
        ),
        "mixed": ("mixed", lab.loader(decode_cpu_seconds=0.001, storage_seconds=0.003)),
        "light": ("light", lab.loader(decode_cpu_seconds=0.0004)),
        "heavy tail": ("tail", lab.loader(decode_cpu_seconds=0.001, tail_every=160, tail_seconds=0.3)),
        "in memory": ("memory", lab.loader(decode_cpu_seconds=0.00002, batch_size=64)),
    }
    for name, (kind, pipeline) in kinds.items():
        overhead = 0.003 if name == "in memory" else 0.0005
        number = zlib.crc32(name.encode()) % 1000 + seed
        yield computed(name, kind, pipeline, space, cores=cores, batch_overhead_seconds=overhead, seed=number)
