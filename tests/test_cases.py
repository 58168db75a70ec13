"""Faults that people report, each met by a small loader of its own: what the product must say, with known answers."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests import case_loaders
from tests.scripted import ScriptedServer, factory, probe_of, run_of
from workbench import machine
from workbench.errors import ProbeError, SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.measure.growth import Held, growth
from workbench.measure.records import Memory, TrialRun
from workbench.measure.slicing import batched_fetch_note
from workbench.measure.stages import measure_stages
from workbench.measure.stream import Stream
from workbench.measure.trial import TrialPlan, TrialServer
from workbench.measure.verdicts import project
from workbench.tuning.export import FORMATS, render
from workbench.tuning.ranking import rank
from workbench.tuning.results import Results
from workbench.tuning.space import SearchSpace
from workbench.tuning.sweep import Sweep
from workbench.tuning.trials import trials_of

CASES = sorted((Path(__file__).parents[2] / "shared" / "cases").glob("[0-9]*.py"))
QUICK = TrialPlan(
    measure_seconds=0.05,
    max_measure_seconds=0.2,
    window_seconds=0.02,
    warmup_seconds=0.0,
    deadline_seconds=60,
    silence_seconds=3,
    check_data=False,
    check_seconds=2.0,
    measure_edge=False,
    measure_growth=False,
)
UNKNOWN = probe_of(samples_per_batch=None)
ZERO, ONE, TWO, THREE = (LoaderSettings(num_workers=n) for n in range(4))
FORK = LoaderSettings(num_workers=1, multiprocessing_context="fork")
SPAWN = LoaderSettings(num_workers=1, multiprocessing_context="spawn")


class Bench:
    """One trial server for all loaders of this file; each is built in a trial's own process."""

    def __init__(self, choice: Path) -> None:
        self._choice = choice
        self.server = TrialServer(case_loaders.chosen)

    def probe(self, name: str) -> Any:
        """What the probe says about the loader of that name, or in that file."""
        self._choice.write_text(name)
        self.server._probe = None
        return self.server.probe()

    def run(self, name: str, settings: LoaderSettings, **changes: Any) -> TrialRun:
        """One run of it, after a look at it where the run compares its data or the last look was at this loader."""
        if self._choice.read_text() != name:
            if changes.get("check_data"):
                self.probe(name)
            else:
                self._choice.write_text(name)
                self.server._probe = UNKNOWN
        elif changes.get("check_data") and self.server._probe is UNKNOWN:
            self.probe(name)
        return self.server.run(settings, dataclasses.replace(QUICK, **changes))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    choice = tmp_path_factory.mktemp("case") / "name"
    choice.write_text("")
    before = os.environ.get(case_loaders.CHOICE)
    os.environ[case_loaders.CHOICE] = str(choice)
    made = Bench(choice)
    yield made
    made.server.close()
    if before is None:
        del os.environ[case_loaders.CHOICE]


def results_of(rates: dict[LoaderSettings, float], *, changes: dict | None = None, **known: Any) -> Results:
    """Results of three starts each around these rates, with what is known beside them."""
    runs = [
        run_of(one, rate * factor, memory_bytes=10**8, **(changes or {}).get(one, {}))
        for one, rate in rates.items()
        for factor in (0.99, 1.0, 1.01)
    ]
    facts = {"probe": probe_of(), "machine": {}, "name": "one", "current": ZERO, "ending": "finished"}
    return Results(trials=tuple(trials_of(runs, cores=4).values()), **{**facts, **known})


# -- memory --


@pytest.mark.parametrize(("settings", "in_workers"), [(ZERO, False), (ONE, True)])
def test_what_keeps_all_it_reads_grows_by_what_it_read_where_it_reads(bench, settings, in_workers):
    """A sample is 262,144 bytes, and 1,000 of them are kept for 1,000 read."""
    run = bench.run("hoard", settings, measure_growth=True, measure_seconds=0.5, max_measure_seconds=2.0)

    memory = run.memory
    assert run.status == "ok" and memory.growth_established and memory.growth_kind == "anonymous"
    # Freed batches leave holes between what is kept: the allocator holds up to a quarter more than the samples.
    assert 0.95 < memory.growth_bytes_per_1000_samples / 1000 / 262_144 < 1.35
    assert memory.growth_in_workers is in_workers
    assert any(f"seen over {memory.growth_samples:,} samples" in note for note in run.notes)


@pytest.mark.parametrize("settings", [ZERO, TWO])
def test_memory_that_one_sample_needs_for_a_moment_is_in_the_peak(bench, settings):
    usual, spiked = (bench.run(name, settings, measure_growth=True).memory for name in ("small_table", "spikes"))

    assert 290 << 20 < spiked.peak_pss_bytes - usual.peak_pss_bytes < 400 << 20


def test_one_tensor_shared_by_forked_workers_is_counted_once_and_is_no_growth(bench):
    run = bench.run("one_table", TWO.replaced(multiprocessing_context="fork"), measure_growth=True)

    assert run.memory.peak_rss_bytes - run.memory.peak_pss_bytes > 64 << 20
    assert not run.memory.growth_established
    assert not any("grows" in note for note in run.notes)


def test_pages_that_workers_still_have_to_copy_are_projected_and_end_with_a_copy_in_each():
    """Two workers, 200 MiB to be copied by each; 100 MiB more at first, then 4 MiB a 1,000 samples."""
    mib = 1 << 20
    read = [
        Held(100 + 50 * 2 * step, 10 + 60 * step, (300 + more) * mib, 200 * mib, 900 * mib, processes=3)
        for step, more in enumerate((0, 100))
    ]
    later = Held(read[-1].samples + 1000, 1000, (300 + 104) * mib, 200 * mib, 900 * mib, processes=3)
    found = growth([*read, later])

    assert found.kind == "copy-on-write" and found.in_workers
    assert found.pace_bytes_per_1000_samples == pytest.approx(4 * mib)
    assert found.most_ahead_bytes == (2 * 200 - 104) * mib
    seen = Memory(
        peak_pss_bytes=500 * mib,
        growth_kind=found.kind,
        growth_bytes_per_1000_samples=found.bytes_per_1000_samples,
        growth_pace_bytes_per_1000_samples=found.pace_bytes_per_1000_samples,
        growth_most_ahead_bytes=found.most_ahead_bytes,
    )
    assert project(seen, 2000, 12_000).projected_peak_bytes == pytest.approx((500 + 40) * mib)
    assert project(seen, 2000, 10**9).projected_peak_bytes == (500 + 296) * mib


def test_many_tiny_tensors_are_counted_and_packing_is_suggested(bench):
    probe = bench.probe("confetti")

    assert (probe.samples_per_batch, probe.tensors_per_batch) == (16, 96)
    assert any("96 tensors" in note and "collate_fn" in note for note in probe.notes)
    assert bench.run("confetti", ONE).memory.peak_descriptors > 96


def test_batches_in_flight_that_do_not_fit_shared_memory_are_skipped_with_need_and_limit(monkeypatch, tmp_path):
    """Batches of 16 MiB, 64 MiB free: 2 x 4 batches alone are 128 MiB."""
    monkeypatch.setattr(machine, "shared_memory_bytes", lambda *_: machine.SharedMemory(64 << 20, 64 << 20))
    server = ScriptedServer(lambda settings: 100.0, probe=probe_of(batch_bytes=16 << 20))
    space = SearchSpace(num_workers=[0, 1, 2], prefetch_factor=[1, 4])
    sweep = Sweep(factory, space, "grid", store=tmp_path / "s.db", server_factory=server)

    found = sweep.run(progress=False)

    big = found.trial(LoaderSettings(num_workers=2, prefetch_factor=4))
    assert big.status == "skipped" and big.reason.startswith("shared memory")
    assert "168 MB" in big.reason and "67 MB" in big.reason
    assert found.trial(LoaderSettings(num_workers=1, prefetch_factor=1)).status == "ok"
    assert big.settings not in server.starts


# -- hangs, errors and deaths --


def test_a_lock_held_at_fork_is_a_hang_and_spawn_is_advised(bench):
    hung = bench.run("needs_lock", FORK, silence_seconds=2)

    assert hung.status == "timed_out" and hung.batches_total == 0
    assert "hang" in hung.reason and "spawn" in hung.reason
    assert bench.run("needs_lock", ZERO).status == "ok"


@pytest.mark.parametrize("settings", [ZERO, ONE])
def test_an_item_that_never_comes_ends_the_trial_with_the_batches_before_it(bench, settings):
    run = bench.run("blocks", settings, silence_seconds=1.5)

    assert (run.status, run.batches_total) == ("timed_out", 10)
    assert "hang at batch 11" in run.reason


def test_an_error_of_several_arguments_is_the_same_at_0_and_1_workers(bench):
    runs = [bench.run("unreachable", settings) for settings in (ZERO, ONE)]

    for run in runs:
        assert (run.status, run.error_type) == ("failed", "StorageError")
        assert "bucket-12 did not answer 3 times" in run.reason and "case_loaders.py" in run.reason
        assert "raise StorageError" in run.traceback_text
    assert runs[0].reason == runs[1].reason
    assert "raised in worker 0" in runs[1].notes


def test_samples_of_unequal_length_fail_in_the_probe_with_batch_indices_and_sizes(bench):
    with pytest.raises(ProbeError) as failed:
        bench.probe("longer")

    for words in ("[16]", "[24]", "batch 3 (indices 16 to 23)", "collate_fn that pads"):
        assert words in str(failed.value)


# -- fetching --


def test_whole_batches_are_fetched_as_such_by_trials_checks_and_stages(bench):
    """The dataset raises when it is asked for a single sample."""
    runs = [bench.run("only_batches", settings, check_data=True) for settings in (ZERO, TWO)]

    assert [run.status for run in runs] == ["ok", "ok"]
    assert measure_stages(bench.server, ONE, 0.2).fetch.wall_seconds >= 0.002
    assert not any("batched fetch" in note for note in bench.probe("only_batches").notes)


def test_batched_fetch_is_offered_where_a_slice_is_cheap(bench):
    assert any("batched fetch" in note and "__getitems__" in note for note in bench.probe("small_table").notes)


def test_batched_fetch_is_not_offered_where_there_is_no_slice_to_take():
    lists = DataLoader([torch.zeros(2)] * 64, batch_size=32)

    assert batched_fetch_note(lists) == ""
    assert batched_fetch_note(case_loaders.confetti()) == ""
    assert batched_fetch_note(case_loaders.endless()) == ""


def test_workers_that_only_cost_are_called_per_item_overhead():
    found = results_of({ZERO: 50_000, ONE: 9_000, TWO: 8_000})

    assert found.best == ZERO
    assert "per-item overhead, not I/O" in found.recommendation and "batched fetching" in found.recommendation


@pytest.mark.parametrize("strategy", ["grid", "race", "guided"])
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_workers_win_only_after_three_starts(strategy, spread, tmp_path):
    server = ScriptedServer(lambda settings: 100.0 * (1 + settings.num_workers), spread=spread)
    space = SearchSpace(num_workers=[0, 1, 2])
    found = Sweep(factory, space, strategy, store=tmp_path / "s.db", server_factory=server).run(progress=False)

    assert found.best == TWO and server.starts.count(TWO) >= 3


# -- batches --


def test_a_batch_sampler_of_its_own_is_kept_and_real_samples_are_counted(bench):
    """Batches of 3, 8 and 13: 24 samples in three."""
    probe = bench.probe("growing")
    run = bench.run("growing", ONE, check_data=True)

    assert (probe.samples_per_batch, probe.epoch_batches, probe.epoch_samples) == (3, 30, 240)
    assert run.status == "ok" and run.worker_samples == (240,)
    assert all(3 * w.batches < w.samples < 13 * w.batches for w in run.windows if w.batches >= 3)
    source = LoaderSource.of(case_loaders.growing())
    assert isinstance(source.build(TWO).batch_sampler, case_loaders.Growing) and not source.accepts("batch_size")


def test_batches_from_the_dataset_are_counted_inside_and_offer_no_batch_size(bench):
    probe = bench.probe("ready")

    assert (probe.samples_per_batch, probe.epoch_batches, probe.epoch_samples) == (24, 20, 480)
    assert bench.run("ready", TWO, check_data=True).worker_samples == (240, 240)
    source = LoaderSource.of(case_loaders.ready())
    assert source.build(TWO).batch_size is None and not source.accepts("batch_size")


def test_a_dict_subclass_keeps_its_class_from_workers(bench):
    probe = bench.probe("fields")

    assert probe.samples_per_batch == 10 and probe.batch_structure.startswith("Fields(")
    assert bench.run("fields", ONE, check_data=True).status == "ok"


# -- streams and epochs --


def test_a_stream_that_every_worker_gives_in_full_is_wrong_data(bench):
    run = bench.run("copied", TWO, check_data=True)

    assert run.status == "wrong_data"
    assert "dataset is not sharded by worker: each sample came 2.0 times" in run.reason


def test_workers_without_a_shard_are_counted_and_never_recommended(bench):
    run = bench.run("shards", THREE, check_data=True)

    assert (run.idle_workers, run.worker_samples) == (1, (80, 80, 0))
    assert any("1 of 3 workers delivered nothing (2 shards)" in note and "more shards" in note for note in run.notes)

    found = results_of({ZERO: 100, TWO: 190, THREE: 250}, changes={THREE: {"idle_workers": 1, "notes": run.notes}})
    assert found.best == TWO
    assert "cannot win: 1 of 3 workers delivered nothing" in found.recommendation


def test_an_endless_stream_has_no_epoch_and_its_trials_end(bench):
    probe = bench.probe("endless")

    assert (probe.samples_per_batch, probe.epoch_batches, probe.epoch_samples) == (12, None, None)
    assert bench.run("endless", TWO).status == "ok"


def test_epochs_of_three_batches_are_measured_whole(bench):
    probe, run = bench.probe("few"), bench.run("few", ONE)

    assert (probe.epoch_batches, probe.epoch_samples) == (3, 48)
    assert run.mode == "epochs" and all(window.samples % 48 == 0 for window in run.windows)


def test_a_rate_over_a_handful_of_batches_is_flagged():
    windows = tuple(dataclasses.replace(window, batches=1) for window in run_of(ZERO, 100.0).windows)
    found = results_of({ZERO: 100}, changes={ZERO: {"windows": windows}})

    assert "too few batches to rest on, only 12 were timed" in found.recommendation
    assert "too few" not in results_of({ZERO: 100}).recommendation


def test_an_epochs_number_that_living_workers_never_hear_of_is_wrong_data(bench):
    runs = [bench.run("reshuffled", TWO.replaced(persistent_workers=kept), check_data=True) for kept in (False, True)]

    assert [run.status for run in runs] == ["ok", "wrong_data"]
    assert "set_epoch() changes the data" in runs[1].reason and "persistent_workers off" in runs[1].reason


def test_a_dataset_that_keeps_what_it_has_read_is_told_since_later_epochs_are_faster(bench):
    def told(name):
        return [note for note in bench.probe(name).notes if "something keeps what was read" in note]

    assert "the rates here are of a first epoch" in told("keeps")[0]
    assert told("reads") == []


def test_set_up_of_workers_is_in_the_first_batch_and_in_every_edge_unless_they_live_on(bench):
    anew, kept = (
        bench.run("sets_up", ONE.replaced(persistent_workers=kept), measure_edge=True) for kept in (False, True)
    )

    for seconds in (anew.first_batch_seconds, kept.first_batch_seconds, anew.epoch_edge_seconds):
        assert seconds >= case_loaders.SET_UP_SECONDS
    assert kept.epoch_edge_seconds < anew.epoch_edge_seconds


@pytest.mark.parametrize("keep", [False, True])
def test_what_every_epoch_pays_for_new_workers_is_said(keep):
    chosen, other = (TWO.replaced(persistent_workers=kept) for kept in (keep, not keep))
    edges = {one: {"epoch_edge_seconds": 0.02 if one.persistent_workers else 0.66} for one in (chosen, other)}
    found = results_of({chosen: 1000, other: 300}, changes=edges, current=chosen, probe=probe_of(epoch_samples=10_000))

    assert found.best == chosen
    assert "0.66 s" in found.recommendation and "20 ms" in found.recommendation


def test_one_rank_of_several_is_measured_as_such(bench):
    """100 samples for 3 ranks are 34 for each: 6 batches of 5 and one of 4."""
    probe = bench.probe("one_rank")

    assert (probe.epoch_batches, probe.epoch_samples) == (7, 34)
    assert any("one rank of 3" in note and "share its CPU cores" in note for note in probe.notes)


def test_a_sampler_hears_of_every_epoch_and_is_left_with_the_number_it_had():
    sampler = DistributedSampler(case_loaders.Numbers(), num_replicas=2, rank=0)
    sampler.set_epoch(5)
    stream = Stream(DataLoader(sampler.dataset, batch_size=100, sampler=sampler), len, None, [0])
    stream.start()
    heard = []
    for _ in range(6):
        stream.take()
        heard.append(sampler.epoch)
    stream.shut_down()

    assert len(set(heard)) > 1 and stream.epochs_ended == 3
    assert sampler.epoch == 5


# -- how workers start --


def test_a_lambda_is_named_with_its_line_and_what_rests_on_fork_says_so(bench):
    probe = bench.probe("with_lambda")
    for method in ("spawn", "forkserver"):
        assert "collate_fn <lambda> at case_loaders.py:" in probe.pickle_problems[method]
    assert bench.run("with_lambda", FORK).status == "ok"

    forked = {TWO: {"start_method": "fork"}}
    found = results_of({ZERO: 100, TWO: 190}, changes=forked, probe=probe)
    for text in (found.recommendation, *(render(found, format) for format in FORMATS)):
        assert "relies on fork" in text and "<lambda> at case_loaders.py:" in text
    clean = results_of({ZERO: 100, TWO: 190}, changes=forked)
    assert "relies on fork" not in clean.recommendation + render(clean, "python")


def test_spawned_workers_of_an_unpicklable_loader_are_recommended_with_a_warning():
    problem = "collate_fn <lambda> at train.py:3 cannot be pickled"
    probe = probe_of(pickle_problems={"spawn": problem, "forkserver": None})
    found = results_of({ZERO: 100, SPAWN: 190}, probe=probe)

    assert "in a program of your own torch pickles it for spawn" in found.recommendation
    assert problem in found.recommendation and problem in render(found, "yaml")


# -- workers --


def test_random_numbers_that_repeat_from_worker_to_worker_are_a_note_and_no_fault(bench):
    run = bench.run("own_generator", TWO, check_data=True)

    assert run.status == "ok"
    assert any("get_worker_info().seed" in note for note in run.notes)


def test_threads_of_the_whole_tree_are_counted_under_the_users_worker_init_fn(bench):
    run = bench.run("threaded", ONE)

    assert run.status == "ok" and run.peak_threads >= 6


def test_slow_batches_are_head_of_line_and_prefetch_comes_before_workers():
    tail = {"batch_seconds_p50": 0.016, "batch_seconds_p95": 0.02, "batch_seconds_max": 0.16}
    text = results_of({ZERO: 100, TWO: 190}, changes={ZERO: tail}).recommendation
    (text,) = (line for line in text.splitlines() if "head of line" in line)
    hiccup = {"batch_seconds_p50": 0.0001, "batch_seconds_p95": 0.0002, "batch_seconds_max": 0.01}

    assert "median 16 ms" in text and "longest 160 ms" in text
    assert text.index("larger prefetch_factor") < text.index("more workers") < text.index("in_order=False")
    assert "head of line" not in results_of({ZERO: 100, TWO: 190}, changes={ZERO: hiccup}).recommendation


@pytest.mark.parametrize(("longest", "said"), [((0.15, 0.16), True), ((0.15, 0.6), False)])
def test_a_slow_sample_that_short_starts_miss_is_told_from_delays_of_the_machine(longest, said):
    usual = {"batch_seconds_p50": 0.016, "batch_seconds_p95": 0.018}
    runs = [run_of(ZERO, 100.0, **usual, batch_seconds_max=most) for most in (0.02, 0.02, *longest)]
    found = results_of({TWO: 190})
    found = dataclasses.replace(found, trials=(*trials_of(runs, cores=4).values(), *found.trials))

    assert ("head of line" in found.recommendation) is said


def test_workers_that_gain_within_an_epoch_what_restarts_cost_are_explained():
    """160 samples an epoch: 1.6 s without workers; with two, 0.8 s and a restart of 0.8 s."""
    edges = {ZERO: {"epoch_edge_seconds": 0.0}, TWO: {"epoch_edge_seconds": 0.8}}
    found = results_of({ZERO: 100, TWO: 200}, changes=edges, probe=probe_of(epoch_samples=160))

    assert found.best == ZERO
    assert "Within an epoch workers would be faster" in found.recommendation
    assert "persistent_workers=True" in found.recommendation


# -- settings --


def test_a_sweep_of_the_full_product_builds_only_what_dataloader_accepts():
    strict = case_loaders.Strict()
    source = LoaderSource.of(strict)
    space = SearchSpace(
        num_workers=[0, 1, 2],
        prefetch_factor=[2, 4],
        persistent_workers=[False, True],
        multiprocessing_context=[None, "spawn"],
    )
    found = space.settings(source, current=ZERO)
    for settings in found:
        source.build(settings)

    assert [settings.num_workers for settings in found].count(0) == 1 and len(found) == 1 + 2 * 2 * 2 * 2
    without = [call for call in strict.calls if call[0] == 0]
    assert without and all(call == (0, None, False, None) for call in without)
    with pytest.raises(SettingsError, match="prefetch_factor=0"):
        SearchSpace(num_workers=[1], prefetch_factor=[0])


# -- output --


def test_a_loader_that_prints_without_end_is_drained_and_its_warning_told_once(bench):
    run = bench.run("chatty", ONE)

    assert run.status == "ok" and run.output_bytes > len(run.output_tail)
    assert len(run.output_tail) < 70_000
    told = [note for note in run.notes if "an old codec is in use" in note]
    assert len(told) == 1 and "times)" in told[0]


def test_a_sweep_over_chatty_trials_says_little(capsys, monkeypatch, tmp_path):
    """Thirty runs, each with 64 kB of output; a cell may grow by 50 kB."""
    loud = {"output_tail": "x" * 65_536, "output_bytes": 10**8, "notes": ("RuntimeWarning: slow (at least 40 times)",)}
    server = ScriptedServer(lambda settings: run_of(settings, 100.0 * (1 + settings.num_workers), **loud))
    space = SearchSpace(num_workers=list(range(10)))
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)

    found = Sweep(factory, space, "grid", store=tmp_path / "s.db", server_factory=server).run()

    assert len(server.starts) >= 10
    assert len(shown.getvalue()) + len(repr(found)) + len(found._repr_html_()) < 50_000
    assert found.recommendation.count("RuntimeWarning") == 1
    assert capsys.readouterr().out == ""


# -- the collected cases, where they are at hand --


def is_what_its_facts_say(bench, path):
    truth = case_loaders.module_of(path).META["truth"]
    if truth.get("status") == "error" and truth["good_batches"] < 3:
        with pytest.raises(ProbeError):
            bench.probe(str(path))
        return
    probe = bench.probe(str(path))
    facts = {
        "samples_per_batch": probe.samples_per_batch,
        "tensors_per_batch": probe.tensors_per_batch,
        "batch_bytes": probe.batch_bytes,
        "tensor_bytes_per_batch": probe.batch_bytes,
        "samples_per_epoch": probe.epoch_samples,
        "unique_samples": probe.epoch_samples,
        "batches_per_epoch": probe.epoch_batches,
    }
    for name in facts.keys() & truth.keys():
        assert facts[name] in (truth[name], None if "epoch" in name or name == "unique_samples" else truth[name]), name
    if truth.get("endless"):
        assert probe.epoch_samples is None
    if "batch_sizes_cycle" in truth:
        assert probe.samples_per_batch == truth["batch_sizes_cycle"][0]
    assert truth.get("batch_type", "") in probe.batch_structure

    bad = truth.get("hangs_with") or "good_batches" in truth
    run = bench.run(str(path), ONE, silence_seconds=1.5 if bad else 10)
    assert (run.status == "ok") is not bool(bad), run.reason
    assert bool(run.reason) is bool(bad)
    if "error_type" in truth:
        assert truth["error_text"] in run.reason and run.error_type == truth["error_type"]


if CASES:

    @pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
    def test_collected_cases_are_what_their_facts_say(bench, path):
        is_what_its_facts_say(bench, path)


def test_results_never_prefer_idle_workers_even_when_only_they_are_faster():
    idle = results_of({ZERO: 100, THREE: 300}, changes={THREE: {"idle_workers": 1}})
    alone = rank(results_of({THREE: 300}, changes={THREE: {"idle_workers": 1}}).trials)

    assert idle.best == ZERO
    assert [trial.settings for trial in alone.order] == [THREE]
    assert list(itertools.chain(idle.ranking.tied, idle.ranking.unsettled)) == []
