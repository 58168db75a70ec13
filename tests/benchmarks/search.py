"""How near the best each strategy's pick lies, and what finding it costs, beside other tuners and fixed rules.

    python tests/benchmarks/search.py [--quick] [--loaders photos,storage] [--json] [--picture search.html]
    python tests/benchmarks/search.py --record oracle.json       # measure every settings once, and keep it
    python tests/benchmarks/search.py --against oracle.json      # the searches for real, judged by what was kept
    python tests/benchmarks/search.py --replay oracle.json       # searches in virtual time over what was kept
    python tests/benchmarks/search.py --computed                 # the same over loaders whose truth is a formula

The oracle starts every settings of the space five times, alternating. After the searches, what they picked and what
may be best is started in turn up to sixteen times more. These starts alone say what a pick loses: the five before have
chosen what may be best, and these see the machine as it was for the searches. For each strategy and rival, in the same
run: seconds used (wall time from the first line to the answer), that as a share of the exhaustive cost (the tutorial's
protocol: 20 warm-up and 200 measured batches for every settings, with its start and end), regret of the pick with its
standard error (share of the best rate that it loses; `Oracle.regret` says how luck of the highest mean is kept out),
and what rate was stated against the oracle's.

Rivals: rules that need no measurement; Optuna's TPE over the same trial function, stopped at the race's seconds; and
loadtune, where it is installed and the loader is one it can rebuild (a map-style dataset).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.replay import Oracle, Record, ReplayServer, computed_oracles, load
from tests.benchmarks.search_report import picture, said, summary, table
from workbench import lab, machine, samples
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.measure.records import Probe, TrialRun
from workbench.measure.statistics import mean_rate
from workbench.measure.trial import TrialPlan, TrialServer
from workbench.tuning.forecast import forecast
from workbench.tuning.space import SearchSpace
from workbench.tuning.sweep import Sweep

STRATEGIES = ("race", "forecast", "guided")  # a grid costs more than the oracle itself; --strategies can name it
ORACLE_STARTS, QUICK_STARTS = 5, 3
MORE_STARTS = 16  # at most, of each finalist ...
FEWEST_MORE_STARTS = 4  # ... and at least
MOST_FINALISTS = 4  # by the oracle; what was picked comes on top ...
FAR_BELOW = 0.25  # ... unless it loses more than this, which luck cannot turn
ORACLE_SECONDS, MOST_ORACLE_SECONDS = 0.6, 2.5  # of windows, in each start ...
ORACLE_BATCHES = 16  # ... that hold about so many batches
NOISY = 0.05  # relative standard deviation between starts from which on finalists have the most seconds in each
RESOLVED = 0.01  # standard error of what picks lose, the largest, at which finalists need not be started on
SURELY_BELOW = 0.01  # a settings that loses less than this is a finalist, however surely it loses it
TPE_SEED = 0


@dataclass(frozen=True)
class Loader:
    """A loader of the benchmark.

    Attributes:
        make: Its factory.
        kind: What it stands for.
    """

    make: Callable[..., Any]
    kind: str


def _loaders() -> dict[str, Loader]:
    """Most of the lab take about 0.1 s for a batch without workers, as loaders do that hold training back; batches of
    "memory" and "table" are quick."""
    slow = {"decode_cpu_seconds": 0.002, "tail_every": 480, "tail_seconds": 0.5}
    long = partial(lab.loader, length=1 << 19)
    return {
        "photos": Loader(samples.photos, "sample"),
        "text": Loader(samples.text, "sample"),
        "audio": Loader(samples.audio, "sample"),
        "tables": Loader(samples.tables, "sample"),
        "decoding": Loader(long(decode_cpu_seconds=0.002, batch_size=48), "cpu"),
        "collating": Loader(long(decode_cpu_seconds=0.0005, collate_cpu_seconds=0.0015, batch_size=48), "cpu"),
        "storage": Loader(long(storage_seconds=0.003, batch_size=32), "storage"),
        "narrow": Loader(
            long(storage_seconds=0.002, storage_bytes=1500, storage_bytes_per_second=1_000_000, batch_size=32),
            "storage",
        ),
        "mixed": Loader(long(decode_cpu_seconds=0.001, storage_seconds=0.002, batch_size=32), "mixed"),
        "objects": Loader(long(objects=60, decode_cpu_seconds=0.001, batch_size=64), "hand-over"),
        "tail": Loader(long(**slow, batch_size=32), "tail"),
        "memory": Loader(long(decode_cpu_seconds=0.0005, sample_bytes=600_000, batch_size=32), "memory-bound"),
        "table": Loader(long(sample_bytes=64, batch_size=2048), "in-memory"),
        "noisy": Loader(long(decode_cpu_seconds=0.002, batch_size=48), "noisy"),
    }


QUICK = ("photos", "storage", "decoding")
NEIGHBOUR = ("noisy",)  # measured while another program uses a core half of the time


def benchmark_space(quick: bool) -> SearchSpace:
    """Worker counts up to twice two cores, three depths, workers kept or not, order kept or not: 37 settings; 7 when
    quick. Nothing is pinned on a machine without an accelerator."""
    if quick:
        return SearchSpace(num_workers=[0, 1, 2, 4], prefetch_factor=[2, 8])
    return SearchSpace(
        num_workers=[0, 1, 2, 4],
        prefetch_factor=[2, 4, 8],
        persistent_workers=[False, True],
        in_order=[True, False],
    )


# -- the oracle --


def record(name: str, loader: Loader, space: SearchSpace, starts: int) -> Oracle:
    """Starts every settings `starts` times, alternating."""
    begun = time.perf_counter()
    with _neighbour(name), TrialServer(loader.make) as server:
        probe = server.probe()
        probe_seconds = time.perf_counter() - begun
        current = LoaderSource.of(loader.make).current or probe.current or LoaderSettings()
        settings = space.resolve(None, False, current).settings
        seconds = _oracle_seconds(probe, server.cores)
        server.run(current, _oracle_plan(0, seconds, first=False))  # over cold files: not counted
        runs: list[list[_Start]] = [[] for _ in settings]
        for number in range(starts):
            for place in _there_and_back(range(len(settings)), number):
                before = time.perf_counter()
                run = server.run(settings[place], _oracle_plan(number, seconds, first=number == 0))
                runs[place].append(_Start(run, time.perf_counter() - before, number))
        cores = server.cores
    records = {one: made for one, many in zip(settings, runs, strict=True) if (made := _record(one, many)) is not None}
    size = statistics.median(w.samples / w.batches for many in runs for one in many for w in one.run.windows)
    return Oracle(name, loader.kind, round(size), float(cores), probe, records, probe_seconds, current)


def judged(oracle: Oracle, make: Any, picks: Sequence[LoaderSettings]) -> Oracle:
    """The oracle with more starts, alternated, of picks and what may be best: until it is known what a pick loses."""
    leaders = sorted(_may_be_best(oracle.right), key=lambda one: -oracle.records[one].rate)[:MOST_FINALISTS]
    near = [one for one in picks if oracle.regret_at_most(one) < FAR_BELOW]
    finalists, first_round = list(dict.fromkeys([*leaders, *near])), 1 + oracle.last_round
    judge = replace(oracle, records=dict(oracle.records), judged_from=first_round)
    spread = statistics.median(_relative_spread(oracle.records[one].rates) for one in leaders)
    seconds = MOST_ORACLE_SECONDS if spread > NOISY else _oracle_seconds(oracle.probe, oracle.cores)
    for round_ in range(first_round, first_round + MORE_STARTS):
        enough = round_ >= first_round + FEWEST_MORE_STARTS
        if enough and max(map(judge.regret_error, near), default=0.0) < RESOLVED:
            break
        with TrialServer(make) as server:  # another one a round: what it holds by chance is shared by all it starts
            server.run(oracle.current, _oracle_plan(round_, ORACLE_SECONDS, first=False))  # not counted
            for one in _there_and_back(finalists, round_):
                run = server.run(one, _oracle_plan(round_, seconds, first=False))
                if run.status == "ok" and run.windows:
                    known = judge.records[one]
                    rates, rounds = (*known.rates, mean_rate(run.windows)), (*known.rounds, round_)
                    judge.records[one] = replace(known, rates=rates, rounds=rounds)
    return judge


def _relative_spread(rates: Sequence[float]) -> float:
    return statistics.stdev(rates) / statistics.fmean(rates) if len(rates) > 1 else 0.0


def _there_and_back(places: Sequence[Any], round_: int) -> Sequence[Any]:
    return places if round_ % 2 == 0 else places[::-1]


@dataclass(frozen=True)
class _Start:
    """One start of the oracle, the seconds it took in all, and the round it was in."""

    run: TrialRun
    seconds: float
    round: int

    @property
    def counts(self) -> bool:
        return self.run.status == "ok" and bool(self.run.windows)


def _oracle_seconds(probe: Probe, cores: float) -> float:
    """Of windows, in each start: at least `ORACLE_BATCHES` as fast as all cores may bring them."""
    batch = (probe.batch_seconds or 0.0) / max(1, cores)
    return min(MOST_ORACLE_SECONDS, max(ORACLE_SECONDS, ORACLE_BATCHES * batch))


def _oracle_plan(number: int, seconds: float, first: bool) -> TrialPlan:
    return TrialPlan(
        measure_seconds=seconds,
        max_measure_seconds=1.25 * seconds,
        check_data=first,
        measure_edge=first,
        measure_growth=first,
        fill_queue=first,
        seed=number,
    )


def _may_be_best(records: Sequence[Record]) -> list[LoaderSettings]:
    """Settings that no other one beats, round for round, by two standard errors of the difference.

    Only those started in as many rounds as any.
    """
    most = max(len(record.rounds) for record in records)
    there = [record for record in records if len(record.rounds) == most]
    best = max(there, key=lambda record: record.rate)
    left = []
    for record in there:
        lost = [1 - record.rate_in(round_) / best.rate_in(round_) for round_ in best.rounds if round_ in record.rounds]
        error = statistics.stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else math.inf
        if statistics.fmean(lost) < max(SURELY_BELOW, 2 * error):
            left.append(record.settings)
    return left


def _record(settings: LoaderSettings, many: Sequence[_Start]) -> Record | None:
    good = [one for one in many if one.counts]
    bad = [one.run for one in many if one.run.status != "ok"]
    if not good:
        return None
    plain = [one for one in good if one.run.epoch_edge_seconds is None] or good
    first, middle = good[0].run, [one.run for one in good if one.run.batch_seconds_p50 is not None]
    return Record(
        settings,
        tuple(mean_rate(one.run.windows) for one in good),
        tuple(one.round for one in good),
        first_batch_seconds=statistics.median(one.run.first_batch_seconds or 0.0 for one in good),
        edge_seconds=first.epoch_edge_seconds,
        shutdown_seconds=statistics.median(one.run.shutdown_seconds or 0.0 for one in good),
        beside_seconds=statistics.median(_beside(one.run, one.seconds) for one in plain),
        window_spread=_window_spread([one.run for one in good]),
        pss_bytes=max((one.run.memory.peak_pss_bytes or 0 for one in good), default=0) or None,
        cpu_cores_used=_median([one.run.cpu_cores_used for one in good]),
        batch_seconds=tuple(
            statistics.median(getattr(run, name) for run in middle)
            for name in ("batch_seconds_p50", "batch_seconds_p95", "batch_seconds_max")
        )
        if middle
        else None,
        status=bad[-1].status if bad else "ok",
    )


def _beside(run: TrialRun, seconds: float) -> float:
    """What a run takes beside its first batch, warm-up, windows, queue and shutdown: its process and reading memory."""
    windows = sum(w.seconds for w in run.windows)
    batch = windows / max(1, sum(w.batches for w in run.windows))
    ahead = run.settings.batches_in_flight + max(1, run.settings.num_workers)
    warm = max(0.2, min(ahead * batch, 2 * windows))
    return max(0.05, seconds - windows - warm - (run.first_batch_seconds or 0.0) - (run.shutdown_seconds or 0.0))


def _window_spread(runs: Sequence[TrialRun]) -> float:
    """Relative standard deviation of windows inside a start, brought to windows of 0.25 s."""
    spreads = []
    for run in runs:
        rates = [w.samples_per_second for w in run.windows]
        if len(rates) > 1:
            length = statistics.fmean(w.seconds for w in run.windows)
            spreads.append(statistics.stdev(rates) / statistics.fmean(rates) * (length / 0.25) ** 0.5)
    return statistics.median(spreads) if spreads else 0.05


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@contextlib.contextmanager
def _neighbour(name: str) -> Iterator[None]:
    if name not in NEIGHBOUR:
        yield
        return
    with lab.noisy_neighbour(cores=1):
        yield


# -- searching --


@dataclass(frozen=True)
class Outcome:
    """What one search on one loader came to.

    Attributes:
        who: Strategy or rival.
        pick: Its settings, None when it gave none.
        seconds: What it took.
        stated: The rate it stated for its pick, None where it stated none.
        starts: Loaders started; None where not known.
        rate_errors: For a forecast: relative errors of predicted rates against the oracle, settings not run only.
        memory_errors: The same for peak memory.
    """

    who: str
    pick: LoaderSettings | None
    seconds: float
    stated: float | None = None
    starts: int | None = None
    rate_errors: tuple[float, ...] = ()
    memory_errors: tuple[float, ...] = ()


def sweep(oracle: Oracle, make: Any, space: SearchSpace, strategy: str, replayed: bool, seed: int = 0) -> Outcome:
    """One of our strategies, for real or in virtual time."""
    server = ReplayServer(oracle, seed) if replayed else None
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        results = Sweep(make, space, strategy, store=f"{folder}/s.db", seed=seed, server_factory=server).run(
            progress=False
        )
        seconds = server.seconds + oracle.probe_seconds if server else time.perf_counter() - begun
    trial = results.trial(results.best) if results.best else None
    starts = server.starts if server else results.starts
    errors = _forecast_errors(results, oracle) if strategy == "forecast" else ((), ())
    return Outcome(
        strategy, results.best, seconds, trial.samples_per_second if trial else None, starts, errors[0], errors[1]
    )


def _forecast_errors(results: Any, oracle: Oracle) -> tuple[tuple[float, ...], tuple[float, ...]]:
    ran = {trial.settings for trial in results.trials if trial.status == "ok"}
    left = [one for one in oracle.records if one not in ran]
    found = forecast(results, settings=left)
    rates, sizes = [], []
    for one in found.predictions:
        known = oracle.records[one.settings]
        if one.samples_per_second:
            rates.append(abs(one.samples_per_second / known.rate - 1))
        if one.peak_pss_bytes and known.pss_bytes:
            sizes.append(abs(one.peak_pss_bytes / known.pss_bytes - 1))
    return tuple(rates), tuple(sizes)


def rules(oracle: Oracle) -> Iterator[Outcome]:
    """Fixed rules: what people are told to set without measuring."""
    cores = round(oracle.cores)
    devices = max(1, machine.accelerator().count or 1)
    counts = {
        "usable cores": cores,
        "cores - 1": max(0, cores - 1),
        "2 workers": 2,
        "4 x GPUs": 4 * devices,
        "defaults": 0,
    }
    for who, workers in counts.items():
        pick = _nearest(oracle, LoaderSettings(num_workers=workers))
        yield Outcome(who, pick, 0.0, None, 0)


def _nearest(oracle: Oracle, wanted: LoaderSettings) -> LoaderSettings:
    """The settings of the oracle that a rule's pick stands for: same knobs, or the closest worker count."""
    return min(
        oracle.records,
        key=lambda one: (
            abs(one.num_workers - wanted.num_workers),
            abs((one.prefetch_factor or 0) - (wanted.prefetch_factor or 0)),
            one.persistent_workers != wanted.persistent_workers,
            one.in_order != wanted.in_order,
        ),
    )


def tpe(oracle: Oracle, make: Any, seconds: float, replayed: bool, seed: int = TPE_SEED) -> Outcome | None:
    """Optuna's TPE over the oracle's space with our trial function, stopped at that many seconds."""
    try:
        import optuna
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    choices = {knob: sorted({getattr(one, knob) for one in oracle.records}, key=str) for knob in _VARIED}
    plan = TrialPlan(measure_seconds=0.25, check_data=False, measure_edge=False, measure_growth=False)
    with contextlib.ExitStack() as stack:
        begun = time.perf_counter()
        server: Any = ReplayServer(oracle, seed) if replayed else stack.enter_context(TrialServer(make))
        server.probe()

        def spent() -> float:
            return server.seconds + oracle.probe_seconds if replayed else time.perf_counter() - begun

        tried: dict[LoaderSettings, float] = {}
        while spent() < seconds:
            trial = study.ask()
            knobs = {knob: trial.suggest_categorical(knob, values) for knob, values in choices.items()}
            one = LoaderSettings(**knobs)
            run = server.run(one, plan)
            if run.status != "ok" or not run.windows or one not in oracle.records:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            rate = mean_rate(run.windows)
            study.tell(trial, rate)
            tried[one] = max(rate, tried.get(one, 0.0))
        took = spent()
    pick = max(tried, key=tried.__getitem__, default=None)
    return Outcome("Optuna TPE", pick, took, tried.get(pick) if pick else None, len(study.trials))


_VARIED = ("num_workers", "prefetch_factor", "persistent_workers", "in_order")


def loadtune(oracle: Oracle, make: Any) -> Outcome | None:
    """loadtune's own search; it rebuilds a DataLoader around the dataset, so it needs one with random access."""
    try:
        from loadtune import Workload, tune
    except ImportError:
        return None
    import torch

    loader = make()
    dataset = getattr(loader, "dataset", None)
    if dataset is None or not hasattr(dataset, "__getitem__") or isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    workload = Workload(
        "benchmark",
        make_dataset=lambda: dataset,
        make_model=lambda: torch.nn.Linear(1, 1),
        train_step=lambda model, batch, optimizer, device: None,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.0),
        default_batch_size=oracle.samples,
    )
    begun = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        result = tune(workload, steps=100, warmup=10, max_trials=6)
    knobs = result.best.knobs.loader_kwargs()
    pick = _nearest(
        oracle,
        LoaderSettings(
            num_workers=knobs.get("num_workers", 0),
            prefetch_factor=knobs.get("prefetch_factor"),
            persistent_workers=bool(knobs.get("persistent_workers")),
        ),
    )
    return Outcome("loadtune", pick, time.perf_counter() - begun, float(result.best.throughput))


# -- the whole --


def examine(
    oracle: Oracle, make: Any, space: SearchSpace, replayed: bool, seeds: int, strategies: Sequence[str] = STRATEGIES
) -> tuple[list[dict[str, Any]], Oracle]:
    """Every strategy and rival on one loader; one row each, the median search of several seeds, and the oracle that
    judged them."""
    outcomes: list[list[Outcome]] = []
    for strategy in strategies:
        outcomes.append([sweep(oracle, make, space, strategy, replayed, seed) for seed in range(seeds)])
    seconds = statistics.median(one.seconds for one in outcomes[0])
    outcomes += [[one] for one in rules(oracle)]
    outcomes.append([one for seed in range(seeds) if (one := tpe(oracle, make, seconds, replayed, seed)) is not None])
    if not replayed:
        try:
            outcomes.append([one for one in [loadtune(oracle, make)] if one is not None])
        except Exception as error:  # a rival that fails on a loader has no row there
            print(f"loadtune failed on {oracle.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        oracle = judged(oracle, make, [one.pick for many in outcomes for one in many if one.pick in oracle.records])
    return [_row(oracle, many) for many in outcomes if many], oracle


def _row(oracle: Oracle, many: Sequence[Outcome]) -> dict[str, Any]:
    regrets = [oracle.regret(one.pick) for one in many]
    at_most = [oracle.regret_at_most(one.pick) for one in many]
    stated = [one.stated / oracle.records[one.pick].rate for one in many if one.stated and one.pick in oracle.records]
    return {
        "loader": oracle.name,
        "kind": oracle.kind,
        "who": many[0].who,
        "seconds": statistics.median(one.seconds for one in many),
        "share": statistics.median(one.seconds for one in many) / oracle.exhaustive_seconds(),
        "share_without_server": statistics.median(max(0.0, one.seconds - oracle.probe_seconds) for one in many)
        / oracle.exhaustive_seconds(),
        "regret": statistics.median(regrets),
        "worst_regret": max(regrets),
        "regret_error": statistics.median(oracle.regret_error(one.pick) for one in many),
        "regret_of_highest_mean": statistics.median(at_most),
        "stated_over_oracle": statistics.median(stated) if stated else None,
        "starts": _median([one.starts for one in many]),
        "pick": many[0].pick.describe() if many[0].pick else None,
        "exhaustive_seconds": oracle.exhaustive_seconds(),
        "rate_error": _median([error for one in many for error in one.rate_errors]),
        "memory_error": _median([error for one in many for error in one.memory_errors]),
    }


def _from_loaders(names: Sequence[str], quick: bool, starts: int) -> Iterator[tuple[Oracle, Any]]:
    loaders = _loaders()
    for name in names:
        print(f"oracle of {name} ...", file=sys.stderr, flush=True)
        yield record(name, loaders[name], benchmark_space(quick), starts), loaders[name].make


def _plain_factory(
    num_workers: int = 0, prefetch_factor: Any = None, persistent_workers: bool = False, in_order: bool = True
) -> Any:
    """Stands for a loader that is only replayed."""
    return iter(())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="three loaders, 7 settings, 3 starts")
    parser.add_argument("--loaders", help="names, with commas between them")
    parser.add_argument("--starts", type=int, help="starts of every settings for the oracle")
    parser.add_argument("--seeds", type=int, default=1, help="searches of each strategy")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--record", help="keep the oracle in this file, and do not search")
    parser.add_argument("--against", help="search for real, and judge by the oracles of this file")
    parser.add_argument("--replay", help="search in virtual time over this file")
    parser.add_argument("--computed", action="store_true", help="search in virtual time over loaders of known truth")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", help="an HTML file")
    chosen = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    names = chosen.loaders.split(",") if chosen.loaders else list(QUICK if chosen.quick else _loaders())
    starts = chosen.starts or (QUICK_STARTS if chosen.quick else ORACLE_STARTS)
    if chosen.record:
        _record_all(Path(chosen.record), names, chosen.quick, starts)
        return
    rows, judges = [], []
    for oracle, make, replayed in _oracles(chosen, names, starts):
        space = _space_of(oracle)
        with _neighbour(oracle.name) if not replayed else contextlib.nullcontext():
            found, judge = examine(oracle, make, space, replayed, chosen.seeds, chosen.strategies.split(","))
        rows += found
        judges.append(judge.to_json())
        if not chosen.json:
            print(said(rows[-1]["loader"], rows), flush=True)
    document = {"machine": machine.fingerprint(), "rows": rows, "summary": summary(rows), "oracles": judges}
    print(json.dumps(document) if chosen.json else table(document["summary"]))
    if chosen.picture:
        picture(rows, chosen.picture)


def _oracles(chosen: argparse.Namespace, names: Sequence[str], starts: int) -> Iterator[tuple[Oracle, Any, bool]]:
    if chosen.computed:
        for oracle in computed_oracles(benchmark_space(chosen.quick).settings()):
            yield oracle, _plain_factory, True
    elif chosen.replay:
        for oracle in load(chosen.replay):
            if not chosen.loaders or oracle.name in names:
                yield replace(oracle, current=LoaderSettings()), _plain_factory, True
    elif chosen.against:
        for oracle in load(chosen.against):
            if oracle.name in names:
                yield oracle, _loaders()[oracle.name].make, False
    else:
        for oracle, make in _from_loaders(names, chosen.quick, starts):
            yield oracle, make, False


def _space_of(oracle: Oracle) -> SearchSpace:
    knobs = {
        knob: sorted({getattr(one, knob) for one in oracle.records if one.num_workers or knob == "num_workers"})
        for knob in _VARIED
    }
    return SearchSpace(**knobs)


def _record_all(path: Path, names: Sequence[str], quick: bool, starts: int) -> None:
    """Records loaders one after another; those that the file already holds are kept, so that it can be resumed."""
    known = {oracle.name: oracle for oracle in load(path)} if path.exists() else {}
    for oracle, _ in _from_loaders([name for name in names if name not in known], quick, starts):
        known[oracle.name] = oracle
        document = {"machine": machine.fingerprint(), "oracles": [one.to_json() for one in known.values()]}
        path.write_text(json.dumps(document))


if __name__ == "__main__":
    main()
