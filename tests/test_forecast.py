"""Loaders of known cost: what is predicted for settings nobody ran, what binds them, and what the words say."""

from __future__ import annotations

import dataclasses
import math

import pandas
import pytest

import workbench as wb
from tests.scripted import costs_of, probe_of, run_of
from workbench import lab
from workbench.errors import SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import Memory
from workbench.measure.stage_costs import StageCosts
from workbench.tuning.fitting import fit
from workbench.tuning.forecast import Forecast, forecast
from workbench.tuning.queueing import BOUND_WORDS, NEXT_WORDS, Costs, bounds, memory_bytes, rate
from workbench.tuning.results import Results
from workbench.tuning.trials import trials_of

MB = 1_000_000


def at(workers: int, prefetch: int | None = None, **knobs) -> LoaderSettings:
    return LoaderSettings(num_workers=workers, prefetch_factor=prefetch, **knobs)


def sweep(pipeline: lab.LabLoader, ran, cores: float = 2.0, *, options=None, error: float = 0.0, **found) -> Results:
    """A sweep over a loader of known faults: each settings ran at its true rate, memory by the formula."""
    runs = []
    cpu = (pipeline.faults.decode_cpu_seconds + pipeline.faults.collate_cpu_seconds) * pipeline.batch_size
    for number, one in enumerate(ran):
        true = pipeline.truth(one.num_workers, prefetch_factor=one.prefetch_factor or 2, cores=cores)
        value = true.samples_per_second * (1 + error * (-1) ** number)
        megabytes = 200 + one.num_workers * 30 + (one.batches_in_flight + 2) * bool(one.num_workers)
        runs.append(run_of(one, value, cpu_cores_used=max(0.01, cpu * value / pipeline.batch_size), **found))
        runs[-1] = _with(runs[-1], pipeline.batch_size, megabytes * MB)
    probe = probe_of(samples_per_batch=pipeline.batch_size, batch_bytes=MB)
    return Results(
        tuple(trials_of(runs, int(cores)).values()),
        probe,
        {"usable_cores": cores},
        "made-up",
        ending="finished",
        options=options or {},
    )


def _with(run, batch: int, size: int):
    windows = tuple(dataclasses.replace(w, batches=w.samples // batch) for w in run.windows)
    return dataclasses.replace(run, windows=windows, memory=Memory(peak_pss_bytes=size))


DECODING = lab.loader(decode_cpu_seconds=0.002)
WAITING = lab.loader(storage_seconds=0.004)
NARROW = lab.loader(storage_seconds=0.002, storage_bytes=1000, storage_bytes_per_second=1_000_000)
MIXED = lab.loader(decode_cpu_seconds=0.001, storage_seconds=0.003)


# -- the model itself --


def test_each_station_bounds_the_rate_and_the_smallest_binds():
    costs = Costs(worker_seconds=0.04, cpu_seconds=0.02, cores=2, shared_seconds=0.005, step_seconds=0.008)

    assert bounds(at(2), costs) == pytest.approx({"workers": 50, "cores": 100, "storage": 200, "step": 125})
    assert rate(at(2), costs) == (pytest.approx(50), "workers")
    assert rate(at(8), costs) == (pytest.approx(100), "cores")
    assert rate(at(0), costs) is None


def test_a_step_waits_for_loading_where_there_are_no_workers_and_overlaps_it_where_there_are():
    costs = Costs(alone_seconds=0.03, worker_seconds=0.03, step_seconds=0.02)

    assert rate(at(0), costs) == (pytest.approx(20), "alone")
    assert rate(at(4), costs) == (pytest.approx(50), "step")


def test_slow_batches_hold_up_ready_ones_and_a_deeper_queue_or_any_order_helps():
    costs = Costs(worker_seconds=0.02, tail_share=0.05, tail_times=20.0, cores=8)
    free = 4 / 0.02

    shallow, deep = (rate(at(4, depth), costs)[0] for depth in (1, 8))

    assert rate(at(4, 1), costs)[1] == "order"
    assert shallow < 0.85 * deep <= 0.85 * free * 1.1
    assert rate(at(4, 1, in_order=False), costs) == (pytest.approx(free), "workers")


def test_workers_of_uneven_batches_wait_for_each_other_less_with_a_deeper_queue_and_not_in_any_order():
    costs = Costs(worker_seconds=0.02, spread=0.5, cores=8)
    free = 4 / 0.02

    rates = [rate(at(4, depth), costs)[0] for depth in (1, 2, 8, 64)]

    assert rates == sorted(rates) and rates[1] < 0.92 * free and rates[-1] == pytest.approx(free, rel=0.03)
    assert rate(at(4, 2, in_order=False), costs)[0] == pytest.approx(free)
    assert rate(at(1, 2), costs)[0] == pytest.approx(1 / 0.02)
    assert rate(at(4, 2), dataclasses.replace(costs, spread=0.05))[0] == pytest.approx(free)


def test_how_uneven_batches_are_is_told_by_the_start_that_was_disturbed_least():
    def fitted(p95, p50=0.01, longest=0.02, beside=(), **known):
        times = {"batch_seconds_p50": p50, "batch_seconds_max": longest}
        runs = [*(run_of(at(0), 1600.0, batch_seconds_p95=each, **times) for each in p95), *beside]
        return fit(list(trials_of(runs, 2).values()), probe_of(), 2.0, **known).costs

    one_worker = run_of(at(1), 1600.0, batch_seconds_p50=0.01, batch_seconds_p95=0.02, batch_seconds_max=0.02)
    assert fitted([0.0164], beside=[one_worker]).spread == pytest.approx(math.log(2.0) / 1.645)
    assert fitted([0.0164, 0.03]).spread == pytest.approx(math.log(1.64) / 1.645)
    assert fitted([0.0164], paced=True).spread == 0.0  # the step's time is in between
    assert fitted([0.0164], p50=0.005, longest=0.2).spread == 0.0  # a tail, which is played through by itself


def test_memory_is_base_plus_workers_times_own_and_prefetched_batches():
    costs = Costs(base_bytes=200.0 * MB, worker_bytes=30.0 * MB, batch_bytes=5 * MB)

    assert memory_bytes(at(0), costs) == 200 * MB
    assert memory_bytes(at(4, 2), costs) == 200 * MB + 4 * 30 * MB + (8 + 2) * 5 * MB
    assert memory_bytes(at(4), Costs()) is None
    assert memory_bytes(at(4), Costs(base_bytes=200.0 * MB)) is None


def test_every_bound_has_words_for_itself_and_for_what_helps():
    assert set(BOUND_WORDS) == set(NEXT_WORDS)


# -- predictions from few trials --


@pytest.mark.parametrize("cores", [2.0, 4.0, 16.0])
@pytest.mark.parametrize("pipeline", [DECODING, WAITING, MIXED], ids=["decoding", "waiting", "mixed"])
def test_none_one_and_two_workers_tell_of_eight(pipeline, cores):
    found = forecast(sweep(pipeline, [at(0), at(1), at(2)], cores), settings=[at(4), at(8)])

    for workers in (4, 8):
        true = pipeline.truth(workers, cores=cores)
        predicted = found.prediction(at(workers))
        assert predicted.samples_per_second == pytest.approx(true.samples_per_second, rel=0.02)
        together = predicted.limits["workers"] == pytest.approx(predicted.limits.get("cores", 0.0), rel=0.05)
        assert predicted.bound == ("cores" if together else true.bound)


def test_a_line_that_all_workers_share_is_seen_once_more_workers_gain_nothing():
    found = forecast(sweep(NARROW, [at(0), at(1), at(4), at(8)], 16.0), settings=[at(6), at(16)])

    assert found.prediction(at(16)).bound == "storage"
    assert found.prediction(at(16)).samples_per_second == pytest.approx(1000, rel=0.02)
    assert found.prediction(at(6)).samples_per_second == pytest.approx(1000, rel=0.02)


def test_handing_over_binds_where_loading_alone_is_faster_than_any_number_of_workers():
    quick = {at(0): 40_000.0, at(1): 9_000.0, at(2): 9_200.0, at(4): 9_100.0}
    runs = [run_of(one, value, cpu_cores_used=1.2) for one, value in quick.items()]
    results = Results(tuple(trials_of(runs, 4).values()), probe_of(), {"usable_cores": 4}, "quick", ending="finished")

    found = forecast(results, settings=[at(8)])

    assert found.prediction(at(8)).bound == "hand-over"
    assert found.best == at(8) and "handing batches over" in found.explanation


@pytest.mark.parametrize(("foreign", "bound"), [(0.0, "storage"), (0.9, "cores")])
def test_cores_that_other_programs_took_are_not_taken_for_something_that_workers_wait_for(foreign, bound):
    """One worker keeps a core busy, four get little more than one: something is shared, or the rest was taken."""
    rates = {at(0): (500.0, 1.0), at(1): (500.0, 1.0), at(4): (550.0, 1.1)}
    runs = [run_of(one, rate, cpu_cores_used=used) for one, (rate, used) in rates.items()]
    seen = [tuple(dataclasses.replace(w, foreign_cores=foreign) for w in run.windows) for run in runs]
    runs = [dataclasses.replace(run, windows=windows) for run, windows in zip(runs, seen, strict=True)]
    results = Results(tuple(trials_of(runs, 2).values()), probe_of(), {"usable_cores": 2}, "busy", ending="finished")

    assert forecast(results, settings=[at(4)]).predictions[0].bound == bound


def test_the_list_of_predictions_says_in_words_what_binds():
    words = repr(forecast(sweep(DECODING, [at(0), at(1)])))

    assert "0 workers: 500 samples/s predicted, measured 500, memory" in words
    assert "bound by the training process\n" in words and "bound by the cores\n" in words


def test_memory_of_settings_nobody_ran_is_predicted():
    found = forecast(sweep(DECODING, [at(0), at(1), at(2)]), settings=[at(4, 8)])

    assert found.prediction(at(4, 8)).peak_pss_bytes == pytest.approx((200 + 4 * 30 + 34) * MB, rel=0.001)


def test_more_cores_a_larger_batch_and_a_slower_step_can_be_supposed():
    results = sweep(DECODING, [at(0), at(1), at(2), at(4)])
    sixteen = forecast(results, settings=[at(4), at(16)], cores=16)
    double = forecast(results, settings=[at(4)], batch_size=32)
    paced = forecast(results, settings=[at(0), at(4)], step_seconds=0.1)

    assert sixteen.prediction(at(16)).samples_per_second == pytest.approx(8000, rel=0.03)
    assert sixteen.prediction(at(16)).bound == "cores" or sixteen.prediction(at(16)).bound == "workers"
    assert double.prediction(at(4)).samples_per_second == pytest.approx(1000, rel=0.03)
    assert double.prediction(at(4)).peak_pss_bytes == pytest.approx((200 + 4 * 30 + 10 * 2) * MB, rel=0.001)
    assert paced.prediction(at(4)).bound == "step"
    assert paced.prediction(at(4)).samples_per_second == pytest.approx(160, rel=0.01)
    assert paced.prediction(at(0)).samples_per_second == pytest.approx(16 / 0.132, rel=0.01)
    assert "with 16 cores" in repr(sixteen) and "a step of 100 ms" in repr(paced)
    assert all(one.measured_samples_per_second is None for one in sixteen.predictions)


def test_where_a_step_set_the_pace_that_is_what_binds():
    pipeline = lab.loader(decode_cpu_seconds=0.0005)
    results = sweep(pipeline, [at(0)], options={"step": "train.py:step"})
    runs = [run_of(at(w), 160.0, cpu_cores_used=0.2) for w in (1, 2, 4)]
    results = Results((*results.trials, *trials_of(runs, 2).values()), results.probe, results.machine, "paced",
                      options=results.options)  # fmt: skip

    found = forecast(results, settings=[at(1), at(8)])

    assert found.prediction(at(8)).samples_per_second == pytest.approx(160, rel=0.02)


def test_a_sweep_at_the_pace_of_a_step_tells_what_another_step_would_give():
    """Loading takes 20 ms a batch and the step 50: without workers in turn, with one worker at the pace of the step."""
    paces = {at(0): 0.07, at(1): 0.05, at(2): 0.05}
    runs = [run_of(one, 16 / seconds, cpu_cores_used=0.5) for one, seconds in paces.items()]
    probe = probe_of(samples_per_batch=16, batch_seconds=0.02)
    known = {"options": {"step": "train.py:step"}, "ending": "finished"}
    results = Results(tuple(trials_of(runs, 8).values()), probe, {"usable_cores": 8.0}, "paced", **known)
    wanted = [at(0), at(1), at(2)]

    fast, slow = (forecast(results, settings=wanted, step_seconds=seconds) for seconds in (0.001, 0.1))

    assert [fast.prediction(one).samples_per_second for one in wanted] == pytest.approx([16 / 0.021, 800, 1600])
    assert [slow.prediction(one).samples_per_second for one in wanted] == pytest.approx([16 / 0.12, 160, 160])
    assert fast.prediction(at(1)).bound == "workers" and slow.prediction(at(1)).bound == "step"


# -- honesty --


def test_what_was_run_is_predicted_from_the_others_and_that_error_is_shown():
    exact = forecast(sweep(WAITING, [at(0), at(1), at(2), at(4)], 8.0))
    rough = forecast(sweep(WAITING, [at(0), at(1), at(2), at(4)], 8.0, error=0.1))

    assert exact.rate_error == pytest.approx(0, abs=0.01) and exact.memory_error == pytest.approx(0, abs=0.01)
    assert 0.05 < rough.rate_error < 0.4
    assert f"median {rough.rate_error:.0%} of the rate" in repr(rough)
    wide, narrow = (found.prediction(at(8, 2)) for found in (rough, exact))
    assert narrow.low < WAITING.truth(8, cores=8.0).samples_per_second < narrow.high
    assert wide.high / wide.low > narrow.high / narrow.low


def test_two_trials_are_enough_to_predict_and_too_few_to_know_the_error():
    found = forecast(sweep(DECODING, [at(0), at(1)]), settings=[at(2)])

    assert found.prediction(at(2)).samples_per_second == pytest.approx(1000, rel=0.01)
    assert found.rate_error is None and "Error not known" in repr(found)
    assert (found.prediction(at(2)).low, found.prediction(at(2)).high) == (None, None)
    assert "1,000 samples/s.\n" in found.explanation


def test_measured_and_predicted_stand_side_by_side_and_the_unknown_is_na():
    results = sweep(DECODING, [at(0), at(1)])
    frame = forecast(results, settings=[at(1), at(2)]).frame

    row = frame[frame.num_workers == 1].iloc[0]
    assert row["measured_samples_per_second"] == pytest.approx(500)
    other = frame[frame.num_workers == 2].iloc[0]
    assert other["predicted_samples_per_second"] == pytest.approx(1000, rel=0.01)
    assert pandas.isna(other["measured_samples_per_second"]) and pandas.isna(other["measured_pss_bytes"])


def test_without_naming_settings_those_of_the_sweep_and_more_worker_counts_are_predicted():
    found = wb.forecast(sweep(DECODING, [at(0), at(1)], 8.0))

    assert isinstance(found, Forecast)
    assert {0, 1, 4, 8, 16} <= {one.settings.num_workers for one in found.predictions}
    assert "predicted" in repr(found) and "What binds" in found.explanation
    assert "<pre>" in found._repr_html_()


@pytest.mark.parametrize("name", ["cores", "batch_size", "step_seconds"])
@pytest.mark.parametrize("value", [-1, float("nan"), True, "4"])
def test_nonsense_cannot_be_supposed(name, value):
    with pytest.raises(SettingsError, match=f"{name}="):
        forecast(sweep(DECODING, [at(0), at(1)]), **{name: value})


def test_a_sweep_without_a_rate_predicts_nothing():
    failed = run_of(at(2), 100.0, status="failed", reason="x", windows=())
    results = Results(tuple(trials_of([failed], 2).values()), probe_of(), {}, "none")

    with pytest.raises(SettingsError, match="no trial of this sweep has a rate"):
        forecast(results)


def stages_of(worker: float, cpu: float, main: float, starved: float = 0.0) -> StageCosts:
    return costs_of((worker, cpu, starved), collate=(0.0, 0.0), main_seconds_per_batch=main, bytes_per_batch=MB)


def test_costs_seen_inside_the_workers_take_the_place_of_guesses():
    """One trial alone cannot tell waiting from computing; its stages do: 10 ms of CPU and 54 ms of waiting."""
    results = sweep(WAITING, [at(1)], 2.0)
    seen = forecast(results, settings=[at(4), at(32)], stages=stages_of(0.064, 0.010, 0.004))

    assert seen.prediction(at(4)).samples_per_second == pytest.approx(1000, rel=0.02)
    assert seen.prediction(at(32)).bound == "cores"
    assert seen.prediction(at(32)).samples_per_second == pytest.approx(16 * 2 / 0.014, rel=0.02)


def test_time_without_a_core_is_not_taken_for_the_workers_own():
    found = forecast(sweep(DECODING, [at(4)]), settings=[at(1)], stages=stages_of(0.064, 0.032, 0.0, starved=0.032))

    assert found.model.costs.worker_seconds == pytest.approx(0.032)


def test_the_main_process_binds_where_taking_a_batch_in_takes_longest():
    found = forecast(sweep(DECODING, [at(1)], 64.0), settings=[at(32)], stages=stages_of(0.032, 0.032, 0.008))

    assert found.prediction(at(32)).bound == "hand-over"
    assert found.prediction(at(32)).limits["hand-over"] == pytest.approx(125)


def test_where_batches_are_formed_or_read_in_a_way_nobody_ran_nothing_is_predicted():
    found = forecast(sweep(DECODING, [at(0), at(1)]), settings=[at(2, batch_on_worker=True), at(2)])

    unknown = found.prediction(at(2, batch_on_worker=True))
    assert unknown.samples_per_second is None and unknown.peak_pss_bytes is None and unknown.bound == ""
    assert found.best == at(2)
    assert "Not predicted: 2 workers, prefetch 2 (4 batches in flight), whole batches on the worker." in repr(found)


def test_of_settings_predicted_alike_the_plainest_is_best():
    results = sweep(DECODING, [at(0), at(1)])
    turned = [at(2, in_order=False), at(2, persistent_workers=True), at(2), at(2, in_order=False)]
    assert forecast(results, settings=turned).best == at(2)


def test_threads_in_a_worker_are_predicted_only_where_some_settings_had_as_many():
    ran = [at(0), at(1), at(2), at(1, worker_threads=1)]

    found = forecast(sweep(DECODING, ran), settings=[at(4), at(4, worker_threads=1), at(4, worker_threads=2)])

    known = {one.settings.worker_threads for one in found.predictions if one.samples_per_second}
    assert known == {None, 1}
    assert "Not predicted: 4 workers, prefetch 2 (8 batches in flight), 2 threads a worker." in found.explanation


def two_layouts() -> Results:
    """Current layout "files" at the pace of WAITING, "tar" at that of DECODING; a probe that saw files."""
    files, tar = (sweep(p, ran).trials for p, ran in ((WAITING, [at(0), at(1), at(2)]), (DECODING, [at(1), at(2)])))
    runs = [run for trial in files for run in trial.runs]
    runs += [
        dataclasses.replace(run, settings=run.settings.replaced(layout="tar")) for trial in tar for run in trial.runs
    ]
    probe = probe_of(samples_per_batch=16, batch_bytes=MB, current=at(0, layout="files"), batch_seconds=0.064)
    return Results(tuple(trials_of(runs, 2).values()), probe, {"usable_cores": 2.0}, "made-up", ending="finished")


def test_each_layout_is_predicted_from_its_own_trials():
    wanted = [at(4), at(4, layout="files"), at(4, layout="tar"), at(0, layout="tar")]

    found = forecast(two_layouts(), settings=wanted)

    rates = {one.settings: one.samples_per_second for one in found.predictions}
    assert rates[at(4)] == rates[at(4, layout="files")] == pytest.approx(WAITING.truth(4).samples_per_second, rel=0.02)
    assert rates[at(4, layout="tar")] == pytest.approx(DECODING.truth(2, cores=2.0).samples_per_second, rel=0.02)
    assert rates[at(0, layout="tar")] == pytest.approx(DECODING.truth(0).samples_per_second, rel=0.1)


def test_a_layout_nobody_prepared_has_no_prediction_and_the_words_say_so():
    wanted = [at(2, layout="files"), at(2, layout="parquet"), at(4, layout="parquet")]

    for supposed in ({}, {"cores": 16}, {"batch_size": 64}):
        found = forecast(two_layouts(), settings=wanted, **supposed)

        none = [one for one in found.predictions if one.settings.layout == "parquet"]
        assert [(one.samples_per_second, one.low, one.peak_pss_bytes, one.bound) for one in none] == [
            (None, None, None, "")
        ] * 2
        assert found.best.layout == "files"
        assert found.explanation.count("Not predicted: layout parquet.") == 1
        assert "parquet: " not in repr(found)
        assert found.frame["predicted_samples_per_second"].isna().sum() == 2


def test_no_layout_is_tested_on_what_another_one_showed():
    """From one trial of tar alone there is no error to show; the three of files predict each other."""
    results = two_layouts()
    alone = dataclasses.replace(results, trials=tuple(t for t in results.trials if t.settings != at(2, layout="tar")))

    assert len(forecast(results).rate_errors) == 4
    assert len(forecast(alone).rate_errors) == 2
