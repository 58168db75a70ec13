"""The pick, the table and the words that follow from known runs."""

from __future__ import annotations

import json

import pandas
import pytest

from tests.scripted import probe_of, run_of
from workbench.errors import SettingsError
from workbench.loaders.settings import KNOBS, LoaderSettings
from workbench.measure.records import TrialRun, Window
from workbench.measure.result import RESULT_COLUMNS
from workbench.tuning.ranking import pareto, rank
from workbench.tuning.results import Results
from workbench.tuning.trials import surely_slower, trials_of

W0, W1, W2, W4 = (LoaderSettings(num_workers=n) for n in (0, 1, 2, 4))
DEEP = LoaderSettings(num_workers=2, prefetch_factor=4)
MB = 1_000_000


def trials(rates: dict[LoaderSettings, list[float]], memory_mb: dict[LoaderSettings, int] | None = None, **changes):
    memory = {one: (memory_mb or {}).get(one, 100) * MB for one in rates}
    runs = [run_of(one, rate, memory_bytes=memory[one], **changes) for one, many in rates.items() for rate in many]
    return tuple(trials_of(runs, cores=4).values())


def results(found, current=W0, **changes) -> Results:
    known = {"probe": probe_of(), "machine": {"cpu": "x"}, "name": "one", "current": current, "ending": "finished"}
    return Results(trials=found, **{**known, **changes})


def around(rate: float, spread: float = 0.01) -> list[float]:
    """Three starts with that mean and that relative standard deviation."""
    return [rate * (1 - spread), rate, rate * (1 + spread)]


# -- the pick --


def test_the_fastest_wins_when_it_is_faster_for_certain():
    ranking = rank(trials({W0: around(100), W2: around(190), W4: around(400)}), W0)

    assert [trial.settings for trial in ranking.order] == [W4, W2, W0]
    assert not ranking.tied and not ranking.unsettled and not ranking.kept_current


def test_rates_within_two_percent_are_a_tie_for_fewer_workers():
    ranking = rank(trials({W0: around(100), W2: around(395, 0.001), W4: around(400, 0.001)}), W0)

    assert ranking.order[0].settings == W2
    assert [trial.settings for trial in ranking.tied] == [W4]
    assert ranking.fastest.settings == W4


def test_what_cannot_be_told_apart_is_a_tie_for_fewer_workers():
    ranking = rank(trials({W0: around(100, 0.05), W2: around(380, 0.05), W4: around(400, 0.05)}), W0)

    assert ranking.order[0].settings == W2


def test_one_lucky_start_does_not_make_a_tie_of_what_another_one_surely_beats():
    known = [run_of(one, rate) for one, mean in ((W0, 100.0), (W2, 140.0)) for rate in (mean, mean * 1.02, mean * 0.98)]
    uneven = tuple(Window(float(at), 1600 / rate, 100, 1600) for at, rate in enumerate((80.0, 500.0, 120.0, 900.0)))
    trials = trials_of([*known, run_of(W4, 150.0, windows=uneven)], 2)
    assert not surely_slower(trials[W0].estimate, trials[W4].estimate)
    assert surely_slower(trials[W0].estimate, trials[W2].estimate)

    ranking = rank(list(trials.values()), W0)

    assert ranking.order[0].settings == W4 and not ranking.kept_current


def test_wide_intervals_do_not_make_half_the_rate_a_tie():
    ranking = rank(trials({W1: around(200, 0.4), W4: around(400, 0.4)}), None)

    assert ranking.order[0].settings == W4
    assert [trial.settings for trial in ranking.unsettled] == [W1]


def test_among_as_many_workers_less_memory_then_smaller_prefetch_wins():
    rates = {W2: around(400), DEEP: around(401)}

    assert rank(trials(rates, {W2: 300, DEEP: 200}), None).order[0].settings == DEEP
    assert rank(trials(rates, {W2: 202, DEEP: 200}), None).order[0].settings == W2


def test_the_current_settings_are_kept_unless_the_gain_is_certain():
    wide = {W2: around(400, 0.3), W4: around(500, 0.3)}

    ranking = rank(trials(wide), W2)

    assert ranking.order[0].settings == W2 and ranking.kept_current
    assert [trial.settings for trial in ranking.unsettled] == [W4]


def test_current_settings_give_way_to_fewer_workers_of_the_same_rate():
    assert rank(trials({W2: around(400), W4: around(402)}), W4).order[0].settings == W2


def test_current_settings_of_as_many_workers_give_way_only_to_markedly_less_memory():
    rates = {W2: around(400), DEEP: around(401)}

    assert rank(trials(rates, {W2: 95, DEEP: 100}), DEEP).order[0].settings == DEEP
    assert rank(trials(rates, {W2: 50, DEEP: 100}), DEEP).order[0].settings == W2


def test_the_restart_of_an_epoch_counts_where_its_length_is_known():
    kept = LoaderSettings(num_workers=2, persistent_workers=True)
    found = trials({W2: around(1000, 0.001)}, epoch_edge_seconds=0.5) + trials(
        {kept: around(1000, 0.001)}, epoch_edge_seconds=0.0
    )

    assert rank(found, None, probe_of(epoch_samples=1000)).order[0].settings == kept
    assert rank(found, None, probe_of(epoch_samples=None)).order[0].settings == W2
    assert rank(found, None, probe_of(epoch_samples=1_000_000)).order[0].settings == W2


def test_only_settings_that_ran_without_fault_are_ranked():
    for status in ("failed", "timed_out", "killed", "over_memory", "wrong_data", "skipped"):
        bad = run_of(W4, 900.0, status=status, reason="why")
        found = trials({W0: around(100)}) + tuple(trials_of([bad], 4).values())

        assert [trial.settings for trial in rank(found, W0).order] == [W0]


def test_the_recommended_settings_come_first_and_the_others_by_the_rate_that_the_table_shows():
    """Ties are decided for the cheapest once, at the top: below, 488 comes before 474 however close they are."""
    three, eight = LoaderSettings(num_workers=3), LoaderSettings(num_workers=8)
    rates = {W0: around(100), W1: around(474), W2: around(746, 0.02), three: around(488), W4: around(765, 0.02)}

    ranking = rank(trials(rates | {eight: around(710, 0.02)}), W0)

    shown = [round(trial.samples_per_second) for trial in ranking.order]
    assert ranking.order[0].settings == W2 and shown == [746, 765, 710, 488, 474, 100]


def test_the_rest_goes_by_the_shown_rate_where_the_restart_of_epochs_decides_the_first():
    kept = LoaderSettings(num_workers=4, persistent_workers=True)
    found = trials({W0: around(100)}, epoch_edge_seconds=0.0) + trials({W4: around(500)}, epoch_edge_seconds=2.0)
    found += trials({W2: around(400)}, epoch_edge_seconds=0.5) + trials({kept: around(450)}, epoch_edge_seconds=0.0)

    order = [trial.settings for trial in rank(found, W0, probe_of(epoch_samples=500)).order]

    assert order == [kept, W4, W2, W0]


def test_the_front_holds_what_nothing_beats_in_rate_and_memory():
    found = trials(
        {W0: [100.0], W1: [90.0], W2: [200.0], W4: [300.0]},
        {W0: 100, W1: 110, W2: 150, W4: 400},
    )

    assert [trial.settings for trial in pareto(found)] == [W0, W2, W4]


def test_a_run_over_cold_files_gives_way_to_a_warm_one():
    cold, warm = run_of(W0, 10.0, cold=True), run_of(W0, 100.0)

    assert trials_of([cold], 2)[W0].samples_per_second == pytest.approx(10)
    assert trials_of([cold, warm], 2)[W0].samples_per_second == pytest.approx(100)


# -- the table --


def test_columns_are_the_contracts_in_order_and_unknown_is_na():
    run = TrialRun(W2, "failed", "ValueError: no file")
    frame = results(trials({W0: around(100)}) + tuple(trials_of([run], 4).values())).frame

    assert list(frame.columns) == [*KNOBS, *RESULT_COLUMNS, "rank"]
    row = frame[frame.num_workers == 2].iloc[0]
    for name in ("samples_per_second", "peak_pss_bytes", "first_batch_seconds", "cpu_cores_used", "rank"):
        assert row[name] is pandas.NA
    assert (row["status"], row["reason"]) == ("failed", "ValueError: no file")
    assert frame["rank"].dtype == "Int64" and frame["prefetch_factor"].dtype == "Int64"
    assert frame["samples_per_second"].dtype == "Float64"
    assert frame[frame.num_workers == 0].iloc[0]["prefetch_factor"] is pandas.NA
    assert frame[frame.num_workers == 0].iloc[0]["rank"] == 1


def test_the_table_can_be_written_as_csv_and_json_without_zeros_for_the_unknown():
    frame = results(tuple(trials_of([TrialRun(W2, "failed", "x")], 4).values())).frame

    assert json.loads(frame.to_json(orient="records"))[0]["samples_per_second"] is None
    assert frame.to_csv(index=False).splitlines()[1].startswith("2,2,False,False")


def test_an_empty_sweep_has_an_empty_table_with_all_columns():
    frame = results(()).frame

    assert len(frame) == 0 and list(frame.columns) == [*KNOBS, *RESULT_COLUMNS, "rank"]


def test_the_best_within_a_memory_limit_is_the_best_of_those_that_fit():
    found = results(trials({W0: around(100), W2: around(200), W4: around(400)}, {W0: 100, W2: 500, W4: 2000}))

    assert found.best_within("1GB") == W2
    assert found.best_within(memory=2_000_000_000) == W4
    assert found.best_within("50MB") is None
    with pytest.raises(SettingsError, match="'much'"):
        found.best_within("much")


def test_failed_rows_are_listed_with_their_reasons():
    bad = TrialRun(W4, "timed_out", "no batch for 15 s")
    found = results(trials({W0: around(100)}) + tuple(trials_of([bad], 4).values()))

    assert list(found.failed["reason"]) == ["no batch for 15 s"]
    assert list(found.pareto["num_workers"]) == [0]


# -- the words --


def test_the_recommendation_says_what_how_much_how_sure_and_at_what_price():
    found = results(trials({W0: around(100), W2: around(190), W4: around(400)}, {W0: 100, W2: 300, W4: 500}))
    text = found.recommendation

    assert text.startswith("Use 4 workers, prefetch 2 (8 batches in flight).")
    assert "400 samples/s, 95 % interval" in text and "(3 starts)" in text
    assert "4.00 times the rate of your current settings (PyTorch's defaults), 0 workers" in text
    assert "for 400 MB more memory" in text
    assert "Peak memory of all its processes: 500 MB" in text
    assert "batches per worker: 4 x 2 = 8 batches in flight of 1.0 MB each, 8 MB in all" in text


def test_current_settings_and_defaults_are_both_compared_when_they_differ():
    text = results(trials({W0: around(100), W2: around(190), W4: around(400)}), current=W2).recommendation

    assert "times the rate of your current settings, 2 workers" in text
    assert "times the rate of PyTorch's defaults, 0 workers" in text


def test_a_cheaper_tie_that_was_only_looked_at_is_not_said_to_have_lost_for_its_price():
    text = results(
        trials({W0: around(100), W4: around(400, 0.001)}) + trials({W2: [401.0]}, screened=True), ending="budget"
    ).recommendation

    assert text.startswith("Use 4 workers")
    assert "Tied with it" not in text
    assert (
        "from short looks that check neither data nor memory: 2 workers, prefetch 2 (4 batches in flight) at 401/s"
        in text
    )


def test_ties_and_why_the_winner_was_taken_are_said():
    text = results(trials({W0: around(100), W2: around(398, 0.001), W4: around(400, 0.001)})).recommendation

    assert "Tied with it" in text and "4 workers, prefetch 2 (8 batches in flight) at 400/s" in text
    assert "chosen for fewer workers" in text


def test_where_no_workers_are_best_the_advice_is_batched_fetching_and_never_more_workers():
    found = results(trials({W0: around(50_000), W1: around(9_000), W2: around(8_000)}), current=W0)
    text = found.recommendation

    assert found.best == W0
    assert "per-item overhead, not I/O" in text and "batched fetching" in text and "__getitems__" in text
    assert "Keep your current settings, 0 workers" in text
    assert "increase" not in text.lower() and "more workers" not in text.lower()


def test_where_workers_lose_by_the_restart_of_short_epochs_that_is_the_reason_given():
    """100 samples an epoch: 0.1 s of work and, with workers, 0.2 s of starting them."""
    none = trials({W0: around(1000)}, mode="epochs", epoch_edge_seconds=0.0)
    some = trials({W2: around(100 / 0.25)}, mode="epochs", epoch_edge_seconds=0.2)

    text = results(none + some, probe=probe_of(epoch_samples=100)).recommendation

    assert "starting them anew costs more than they save" in text and "per-item overhead" not in text


def test_no_workers_win_by_default_when_all_others_failed_and_the_text_says_so():
    bad = TrialRun(W2, "failed", "RuntimeError: lambda cannot be pickled")
    text = results(trials({W0: around(100)}) + tuple(trials_of([bad], 4).values())).recommendation

    assert "No settings with workers could be rated" in text and "lambda cannot be pickled" in text
    assert "per-item overhead" not in text


def test_what_was_not_settled_is_said():
    wide = results(trials({W0: around(100, 0.3), W2: around(400, 0.3), W4: around(500, 0.3)})).recommendation
    ended = results(trials({W0: around(100)}), ending="budget").recommendation

    assert "not settled, may still be faster: 2 workers" in wide
    assert "the time budget ended first" in ended
    assert "nothing else could be measured, since the time budget ended" in ended and "nothing tried" not in ended
    begun = results(trials({W0: around(100)}), ending="").recommendation
    assert "0 workers: nothing else has been measured yet." in begun


def test_a_single_start_is_called_that():
    text = results(trials({W0: [100.0], W4: [400.0]})).recommendation

    assert "400 samples/s in its only start" in text and "(single starts)" in text
    assert "95 % interval" not in text


def test_notes_of_the_probe_short_epochs_busy_machines_and_steps_are_passed_on():
    found = results(
        trials({W2: around(100)}, mode="epochs", noisy=True),
        probe=probe_of(notes=("The sampler serves rank 1 of 3: the cores are shared with the other ranks.",)),
        options={"step": "train.py:step"},
    )

    for words in ("rank 1 of 3", "whole epochs were measured", "other programs used the cores", "pace of your step"):
        assert words in found.recommendation


def test_slow_batches_that_hold_up_ready_ones_are_named_with_the_price_of_letting_them_pass():
    tail = {"batch_seconds_p50": 0.016, "batch_seconds_p95": 0.02, "batch_seconds_max": 0.165}
    found = trials({W0: around(100)}, **tail) + trials({W2: around(200)})

    text = results(found).recommendation

    assert "head of line" in text and "median 16 ms" in text and "longest 165 ms" in text
    assert "prefetch_factor evens that out" in text and "cannot be resumed exactly" in text
    assert "head of line" not in results(trials({W0: around(100)})).recommendation


def test_settings_that_change_training_are_recommended_with_a_warning():
    free = LoaderSettings(num_workers=2, in_order=False, batch_size=64)
    text = results(trials({W0: around(100), free: around(300)})).recommendation

    assert "in_order=False changes the order" in text and "batch_size=64 changes the training itself" in text


def test_where_nothing_counts_there_is_no_best_and_the_reason_names_a_fault():
    bad = [TrialRun(one, "failed", "ValueError: no such file a.jpg") for one in (W0, W2)]
    found = results(tuple(trials_of(bad, 4).values()))

    assert found.best is None
    assert "none of 2 settings could be measured (2 failed)" in found.reason
    assert "ValueError: no such file a.jpg" in found.recommendation
    assert results((), ending="budget").reason.startswith("Nothing can be recommended: the time budget ended")


def test_a_notebook_shows_text_and_a_table_without_scripts_and_escapes_what_users_wrote():
    bad = TrialRun(W4, "failed", "<script>alert(1)</script>")
    shown = results(trials({W0: around(100)}) + tuple(trials_of([bad], 4).values()))._repr_html_()

    assert "<table>" in shown and "95 % interval" in shown
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def test_the_text_form_carries_the_recommendation():
    assert "Keep your current settings, 0 workers" in repr(results(trials({W0: around(100)})))


def test_what_binds_and_what_would_help_next_is_said():
    cpu = {"cpu_cores_used": 1.0}
    found = trials({W0: around(100), W1: around(100)}, **cpu) + trials(
        {W2: around(200), W4: around(201)}, cpu_cores_used=2.0
    )

    text = results(found, machine={"usable_cores": 2.0}).recommendation

    assert "What binds: the cores" in text and "more workers cannot help" in text
    assert "Predicted: twice the cores (4) and 4 workers would give 2 times this rate" in text


def test_more_workers_than_were_tried_are_held_out_where_workers_bind():
    found = trials({W0: around(100), W1: around(99), W2: around(198), W4: around(396)}, cpu_cores_used=0.1)

    text = results(found, machine={"usable_cores": 16.0}).recommendation

    assert "What binds: the workers" in text and "8 workers, more than were tried, would give 2 times" in text


def test_what_was_only_looked_at_waits_for_a_check_before_it_is_recommended():
    checked, looked = trials({W2: around(200)}), trials({W4: [400.0]}, screened=True)

    ranking = rank(checked + looked, None)

    assert ranking.order[0].settings == W2
    assert rank(checked + looked, None, checked_only=False).order[0].settings == W4
    assert rank(looked, None).order[0].settings == W4


def test_settings_that_were_only_looked_at_get_the_edge_of_those_that_restart_alike():
    kept = LoaderSettings(num_workers=2, persistent_workers=True)
    found = (
        trials({W2: around(1000, 0.001)}, epoch_edge_seconds=0.5)
        + trials({W4: [1010.0]}, screened=True)
        + trials({kept: around(1000, 0.001)}, epoch_edge_seconds=0.0)
    )

    ranking = rank(found, None, probe_of(epoch_samples=1000), checked_only=False)

    assert ranking.order[0].settings == kept and ranking.order[-1].settings in (W2, W4)


def test_an_edge_that_nobody_measured_is_not_taken_to_be_none():
    kept = LoaderSettings(num_workers=2, persistent_workers=True)
    found = trials({W2: around(1000, 0.001)}, epoch_edge_seconds=0.5) + trials({kept: [1000.0]}, screened=True)

    ranking = rank(found, None, probe_of(epoch_samples=1000), checked_only=False)

    assert [one.settings for one in ranking.order] == [W2, kept]


def test_a_pick_that_nobody_checked_is_said_to_be_that():
    looked = results(trials({W0: [100.0], W4: [400.0]}, screened=True), ending="budget")
    checked = results(trials({W0: [100.0], W4: [400.0]}))

    assert looked.best == W4 and "the only start of the chosen settings was a short look" in looked.recommendation
    assert "short look" not in checked.recommendation


def test_without_any_spread_only_a_rate_below_a_third_is_surely_lower():
    def once(rate):
        return trials({W0: [rate]}, windows=(Window(0.0, 0.1, 1, max(1, round(rate / 10))),))[0].estimate

    fast = once(1000.0)

    assert surely_slower(once(200.0), fast) and not surely_slower(once(500.0), fast)


def test_current_settings_that_were_only_looked_at_may_still_be_kept():
    found = trials({W2: [100.0, 101.0]}, screened=True) + trials({W4: [100.5, 101.5]})

    assert rank(found, W2).order[0].settings == W2


def test_defaults_that_were_not_run_are_compared_as_predicted():
    found = trials({W1: around(100), W2: around(200)}, cpu_cores_used=1.0)
    slow = probe_of(batch_seconds=0.16)  # 16 samples: 100 samples/s without workers

    text = results(found, current=W1, probe=slow, machine={"usable_cores": 4}).recommendation

    assert (
        "PyTorch's defaults, 0 workers, were not measured; about 100 samples/s are predicted for them, so that this is "
        "about 2 times their rate." in text
    )
    assert "defaults" not in results(found, current=W1, probe=slow, options={"step": "train"}).recommendation


def test_defaults_read_the_layout_that_the_loader_has():
    files, tar = W0.replaced(layout="files"), W2.replaced(layout="tar")

    text = results(trials({files: around(100), tar: around(200)}), current=files).recommendation

    assert "2.00 times the rate of your current settings (PyTorch's defaults), 0 workers, layout files" in text


def test_defaults_that_failed_are_not_predicted():
    broken = TrialRun(W0, "failed", "ValueError: no file")
    found = trials({W1: around(100), W2: around(200)}) + tuple(trials_of([broken], 4).values())

    assert "PyTorch's defaults" not in results(found, current=W1).recommendation


def test_where_no_workers_were_tried_they_are_what_would_help_next():
    alone = results(trials({W0: around(100), LoaderSettings(batch_size=8): around(50)})).recommendation

    assert "What binds: the training process, which loads every batch itself" in alone
    assert "What would help next: worker processes." in alone
    assert "the training process" not in results(trials({W0: around(100), W1: around(50)})).recommendation
