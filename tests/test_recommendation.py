"""What the recommendation says, and what it leaves unsaid, from known runs."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace

import pytest

from tests.scripted import probe_of, run_of
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun, Window
from workbench.measure.statistics import Ratio
from workbench.tuning.binding import binding_words
from workbench.tuning.gains import between, is_wide
from workbench.tuning.race import Race
from workbench.tuning.ranking import passed_over, rank
from workbench.tuning.results import Results
from workbench.tuning.rounds import Progress
from workbench.tuning.trials import trials_of

W0, W1, W2, W4 = (LoaderSettings(num_workers=n) for n in (0, 1, 2, 4))
MB = 1_000_000
TWO_CORES = {"usable_cores": 2.0}


def runs(settings: LoaderSettings, *rates: float, memory_mb: int = 100, **more) -> list[TrialRun]:
    return [run_of(settings, rate, memory_bytes=memory_mb * MB, **more) for rate in rates]


def results(*groups: list[TrialRun], current=W0, **more) -> Results:
    found = tuple(trials_of([run for group in groups for run in group], cores=2).values())
    known = {"probe": probe_of(), "machine": TWO_CORES, "name": "one", "current": current, "ending": "finished"}
    return Results(trials=found, **{**known, **more})


def three(rate: float) -> tuple[float, float, float]:
    return 0.99 * rate, rate, 1.01 * rate


def line_with(words: str, text: str) -> str:
    (line,) = (line for line in text.splitlines() if words in line)
    return line


# -- what binds --


def test_cores_that_are_nearly_all_in_use_bind_whatever_a_model_would_say():
    """Four workers no faster than two would look like something shared, were the cores not in use."""
    cpu_bound = [runs(one, *three(rate), cpu_cores_used=used) for one, rate, used in ((W0, 50, 1), (W1, 70, 1))]
    cpu_bound += [runs(W2, *three(90), cpu_cores_used=1.8), runs(W4, *three(85), cpu_cores_used=1.75)]

    (said,) = binding_words(results(*cpu_bound))

    assert said.startswith("What binds: the cores") and "1.8 of 2 cores in use" in said
    assert "storage" not in said


def test_storage_is_named_only_where_processes_were_seen_to_wait():
    def said(used):
        waiting = [runs(one, *three(rate), cpu_cores_used=0.2) for one, rate in ((W0, 50), (W1, 50), (W2, 100))]
        return binding_words(results(*waiting, runs(W4, *three(100), cpu_cores_used=used)))

    assert "storage" in said(0.3)[0] and "By a model fitted" in said(0.3)[0]
    assert said(1.5) == []


def test_a_plateau_whose_interval_leaves_room_for_growth_is_not_named():
    wide = [runs(W0, *three(50), cpu_cores_used=0.2), runs(W1, 30, 50, 70, cpu_cores_used=0.2)]
    wide += [runs(W2, 60, 100, 140, cpu_cores_used=0.2), runs(W4, 50, 100, 150, cpu_cores_used=0.2)]

    assert binding_words(results(*wide, current=W2)) == []


@pytest.mark.parametrize(
    ("starts", "more"),
    [
        ((90.0,), {}),
        ((89.0, 90.0, 91.0), {"noisy": True}),
        ((89.0, 90.0, 91.0), {"windows": (Window(0.0, 0.35, 2, 32),)}),
        ((89.0, 90.0, 91.0), {"cpu_cores_used": None}),
    ],
    ids=["one start", "other programs", "two batches a start", "cores unknown"],
)
def test_what_binds_is_left_unsaid_without_evidence(starts, more):
    known = [runs(W0, *three(50), cpu_cores_used=1.0), runs(W1, *three(50), cpu_cores_used=1.0)]

    assert binding_words(results(*known, runs(W2, *starts, **{"cpu_cores_used": 2.0, **more}))) == []
    assert binding_words(results(*known, runs(W2, *three(90), cpu_cores_used=2.0))) != []


def test_more_workers_are_not_advised_where_more_were_no_faster():
    cores = {"usable_cores": 16.0}
    scaling = [runs(one, *three(rate), cpu_cores_used=0.2) for one, rate in ((W0, 50), (W1, 50), (W2, 100))]

    assert "the workers" in binding_words(results(*scaling, machine=cores))[0]
    slower = runs(W4, *three(80), cpu_cores_used=0.2)
    assert not any("more workers." in said for said in binding_words(results(*scaling, slower, machine=cores)))
    failed = [TrialRun(W4, "failed", "out of files")]
    assert binding_words(results(*scaling, failed, machine=cores)) == []


def test_more_workers_are_not_ruled_out_while_some_look_faster():
    known = [runs(W0, *three(50), cpu_cores_used=1.0), runs(W2, *three(90), cpu_cores_used=1.9)]

    assert binding_words(results(*known, runs(W4, 130.0, cpu_cores_used=1.9, screened=True))) == []


# -- undecided --


def seconds_of(rate: float, foreign_cores: float) -> tuple[Window, ...]:
    """Four windows at this rate, while other programs used these cores."""
    return tuple(Window(float(at), 1600 / rate, 100, 1600, foreign_cores) for at in range(4))


def disturbed(settings: LoaderSettings, *rates: float, foreign_cores: float) -> list[TrialRun]:
    return [run_of(settings, rate, noisy=True, windows=seconds_of(rate, foreign_cores)) for rate in rates]


def undecided(**more) -> Results:
    return results(runs(W0, 18.0, 50.0), runs(W2, 40.0, 154.0), **{"ending": "budget", **more})


def test_what_looks_much_faster_and_is_not_certain_is_undecided_and_the_current_settings_stay():
    found = undecided(options={"budget_seconds": 45.0})
    head = found.recommendation.splitlines()[0]

    assert found.best == W0 and found.ranking.rival.settings == W2
    assert head.startswith("Undecided so far: 2 workers, prefetch 2 (4 batches in flight) looks 2.9 times as fast")
    assert "your current settings, 0 workers, but not for certain (95 % interval" in head
    assert "`workbench sweep ... --resume --budget 2m`" in head and "resume=True" in head
    assert head.endswith("until then your current settings are kept.")
    assert "gain nothing certain" not in found.recommendation and "Keep your" not in found.recommendation
    assert "may still be faster" not in found.recommendation


def test_the_way_out_of_an_undecided_sweep_is_one_that_works():
    assert "--budget 6m`" in undecided(options={"budget_seconds": 180.0}).recommendation
    stopped = undecided(ending="stopped").recommendation
    assert "--resume`" in stopped and "--budget" not in stopped
    assert "--resume --strategy grid`" in undecided(ending="finished", strategy="race").recommendation
    ended = undecided(ending="finished", strategy="grid", options={"measure_seconds": 0.5}).recommendation
    assert "measure_seconds=2)" in ended and "--resume" not in ended  # a finished grid would start nothing more
    assert "More time would settle it" in undecided(ending="").recommendation


def test_a_gain_that_only_short_looks_showed_is_undecided():
    head = results(runs(W0, *three(100)), runs(W2, *three(300), screened=True), ending="budget").recommendation

    assert head.startswith("Undecided so far: 2 workers") and "short looks alone" in head


def test_a_hair_more_is_no_reason_to_call_it_undecided():
    text = results(runs(W0, 80.0, 120.0), runs(W2, 90.0, 122.0)).recommendation

    assert text.startswith("Keep your current settings, 0 workers: nothing tried is faster for certain.")


# -- what beats the recommended settings and is not recommended --


def test_what_beats_the_pick_in_everything_from_short_looks_alone_is_named_with_the_reason():
    persistent = LoaderSettings(2, 4, persistent_workers=True)
    found = results(
        runs(W0, *three(30)),
        runs(W1, *three(72.8), memory_mb=442, screened=True),
        runs(persistent, *three(67.6), memory_mb=611),
        ending="budget",
    )
    text = found.recommendation

    assert found.best == persistent
    reason = line_with("Not 1 worker", text)
    assert "at 72.8/s and 442 MB" in reason and "short looks alone" in reason
    assert "--resume" in text.splitlines()[-1]


def test_what_beats_the_pick_but_for_the_restart_of_epochs_is_named_with_the_reason():
    kept = LoaderSettings(2, 4, persistent_workers=True)
    found = results(
        runs(W0, *three(30), epoch_edge_seconds=0.0),
        runs(W1, *three(72.8), memory_mb=442, epoch_edge_seconds=0.9),
        runs(kept, *three(67.6), memory_mb=611, epoch_edge_seconds=0.01),
        probe=probe_of(epoch_samples=200),
    )

    assert found.best == kept
    assert "loses by starting the next one (0.9 s an epoch)" in line_with("Not 1 worker", found.recommendation)


def test_nothing_is_passed_over_where_what_is_faster_costs_more():
    found = results(runs(W0, *three(30)), runs(W1, *three(70)), runs(W4, *three(72), memory_mb=900, screened=True))

    assert found.best == W1 and passed_over(found.ranking, found.probe) is None


def test_every_row_that_beats_the_pick_in_everything_has_a_reason():
    """Whatever edges and looks are: where rank passes over what dominates, `passed_over` says why."""
    many = [
        (edge, screened, rate)
        for edge in (0.0, 0.3, 2.0)
        for screened in (False, True)
        for rate in (60.0, 70.0, 71.0, 90.0)
    ]
    for edge, screened, rate in many:
        found = results(
            runs(W1, *three(rate), memory_mb=90, epoch_edge_seconds=None if screened else edge, screened=screened),
            runs(W2, *three(70.0), epoch_edge_seconds=0.1),
            current=None,
            probe=probe_of(epoch_samples=300),
        )
        beaten = found.best == W2 and rate > 1.02 * found.trial(W2).samples_per_second
        assert (passed_over(found.ranking, found.probe) is not None) == beaten, (edge, screened, rate)


@pytest.mark.parametrize(
    "kept_seconds, said",
    [
        (0.02, "persistent_workers=True makes it 20 ms after the first epoch."),
        (0.11, "persistent_workers=True spares hardly any of it."),
    ],
)
def test_what_keeping_the_workers_would_spare_of_an_epochs_start_is_told_as_it_was_measured(kept_seconds, said):
    found = results(
        runs(W1, *three(70), epoch_edge_seconds=0.13),
        runs(replace(W1, persistent_workers=True), *three(30), epoch_edge_seconds=kept_seconds),
        probe=probe_of(epoch_samples=200),
    )

    assert line_with("Every epoch begins with 0.13 s", found.recommendation).endswith(said)


@pytest.mark.parametrize(
    "edge, said",
    [
        (0.5, "and their first batch, which takes one of them about 0.23 s; persistent_workers=True, not measured, "
         "spares at most the rest."),
        (0.25, "most of it for their first batch, which persistent_workers=True does not spare."),
    ],
)  # fmt: skip
def test_where_keeping_the_workers_was_not_measured_loading_the_first_batch_is_not_promised_to_be_spared(edge, said):
    """A worker takes 16 samples / 70 samples/s for a batch."""
    found = results(runs(W1, *three(70), epoch_edge_seconds=edge), probe=probe_of(epoch_samples=200))

    assert line_with("Every epoch begins with", found.recommendation).endswith(said)


def test_what_decided_between_equals_is_named_and_nothing_else():
    groups = [runs(W1, *three(70), memory_mb=100), runs(replace(W1, prefetch_factor=4), *three(70), memory_mb=102)]
    assert "; it was chosen for a smaller prefetch." in results(*groups, current=None).recommendation
    kept = runs(replace(W1, persistent_workers=True), *three(70), memory_mb=100)
    assert "chosen for the fewest changes, and" in results(groups[0], kept, current=None).recommendation
    dear = runs(replace(W1, persistent_workers=True), *three(70), memory_mb=130)
    more = runs(W2, *three(70), memory_mb=150)
    assert "chosen for fewer workers and less memory." in results(groups[0], dear, more, current=None).recommendation


# -- rates and gains --


def test_a_choice_that_the_wait_between_epochs_decides_says_what_it_gains_over_epochs():
    kept = replace(W1, persistent_workers=True)
    groups = runs(W0, *three(1000), epoch_edge_seconds=0.1), runs(kept, *three(1000), epoch_edge_seconds=0.0)

    said = results(*groups, probe=probe_of(epoch_samples=1000)).recommendation

    assert said.startswith("Use 1 worker")
    assert "1.00 times" in line_with("current settings", said)
    assert "Over epochs of 1,000 samples, with the wait before each, it is 1.10 times." in said
    assert "Over epochs" not in results(*groups, probe=probe_of(epoch_samples=10**6)).recommendation


def test_a_gain_that_the_intervals_do_not_settle_looks_like_one():
    found = results(runs(W0, 10.0, 70.0), runs(W1, *three(40)), runs(W2, *three(97)), current=W1)

    assert found.best == W2
    gain = line_with("PyTorch's defaults", found.recommendation)
    assert "The intervals do not settle how it compares with PyTorch's defaults, 0 workers: it has between 0." in gain
    assert "about the rate" not in gain and "2.43" not in gain


def test_rates_far_apart_are_not_given_a_figure_that_their_interval_denies():
    wide = line_with("your current settings", results(runs(W0, 2.0, 14.0), runs(W2, 97.0)).recommendation)

    assert wide.startswith("It looks faster than your current settings (PyTorch's defaults), 0 workers, by more than")
    assert "but how much is open: anything up to" in wide and "12" not in wide.partition("(95 %")[0]


def test_a_gain_is_a_range_where_its_interval_is_wide():
    """12.25 times, with 4.9 to 31: what a user took for a figure."""
    times = Ratio(12.25, 4.86, 31.0)
    assert is_wide(times) and between(times) == "between 4.9 and 31 times"
    assert not is_wide(Ratio(1.98, 1.67, 2.36)) and is_wide(Ratio(2.04, 1.44, 2.88))
    assert between(Ratio(2.0, 1e-6, 1e6)) == "anything up to 1,000,000 times"

    found = results(runs(W0, 40.0, 50.0, 61.0), runs(W2, 300.0, 420.0, 500.0))

    gain = line_with("your current settings", found.recommendation)
    assert re.match(
        r"That is between [\d.]+ and [\d.]+ times the rate of your current settings .*\(95 % interval\)", gain
    )
    assert "Over epochs" not in gain


def test_a_wide_gain_is_a_range_over_epochs_too():
    groups = (
        runs(W0, 40.0, 50.0, 61.0, epoch_edge_seconds=0.0),
        runs(W2, 300.0, 420.0, 500.0, epoch_edge_seconds=0.5),
    )

    text = results(*groups, probe=probe_of(epoch_samples=1000)).recommendation

    assert re.search(r"Over epochs of 1,000 samples, .* it is between [\d.]+ and [\d.]+ times\.", text)


def test_other_programs_are_named_with_their_cores_where_the_gain_is_stated():
    busy = results(
        disturbed(W0, *three(50), foreign_cores=1.5), disturbed(W2, *three(95), foreign_cores=1.1), current=W0
    )
    gain = line_with("your current settings", busy.recommendation)
    assert gain.startswith("That is between 1.8") and " and 1.9" in gain
    assert "(95 % interval; other programs used 1.3 of 2 cores meanwhile)" in gain

    quiet = results(runs(W0, *three(50)), [*runs(W2, *three(95)), *disturbed(W2, 60.0, foreign_cores=1.9)])
    gain = line_with("your current settings", quiet.recommendation)
    assert gain.startswith("That is 1.90 times the rate") and "other programs" not in gain  # these starts do not count

    single = results(disturbed(W0, 50.0, foreign_cores=0.5), disturbed(W2, 200.0, foreign_cores=0.5)).recommendation
    assert "It looks 4.00 times as fast as your current settings" in single
    assert "(single starts; other programs used 0.5 of 2 cores meanwhile)" in single


def test_an_undecided_headline_names_other_programs_and_its_interval():
    open_ = [disturbed(W0, 18.0, 50.0, foreign_cores=1.0), disturbed(W2, 40.0, 154.0, foreign_cores=1.0)]
    assert "; other programs used 1 of 2 cores meanwhile)" in results(*open_).recommendation.splitlines()[0]
    looks = results(runs(W0, *three(100)), runs(W2, *three(300), screened=True)).recommendation.splitlines()[0]
    assert "are not checked (95 % interval 2.9 to 3.1)" in looks


# -- errors of the data --

FETCHED = 'File "/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n    data = [self.dataset[i]'
CORRUPT = "ValueError: corrupt image 700 (data.py:12 in __getitem__)"


def broken(settings: LoaderSettings, batches: int, reason: str = CORRUPT, **more) -> list[TrialRun]:
    known = {"error_type": reason.partition(":")[0], "traceback_text": FETCHED, "batches_total": batches}
    return [TrialRun(settings, "failed", reason, **{**known, **more})]


def test_an_error_of_the_data_is_not_blamed_on_workers():
    """Image 700 is in batch 22 of 94, which 0 workers did not come to."""
    found = results(
        runs(W0, *three(20), batches_total=12), broken(W1, 20), broken(W2, 21), probe=probe_of(epoch_batches=94)
    )
    text = found.recommendation

    head = text.splitlines()[0]
    assert head.startswith("Keep your current settings, 0 workers: nothing else got past an error of the data set")
    said = line_with("The data set raised an error", text)
    assert "says nothing about workers: 0 workers took only 12 of 94 batches and would meet it too" in said
    assert said.endswith(f"2 workers, prefetch 2 (4 batches in flight): {CORRUPT}") and "leave out what fails" in said
    assert "No settings with workers" not in text and "Left out: 2 failed." in text


def test_torch_names_the_fetching_of_a_batch_in_what_a_dataset_raises():
    from torch.utils.data import DataLoader

    def refuse(samples):
        raise ValueError("samples of different sizes")

    try:
        list(DataLoader([1, 2], collate_fn=refuse))
    except ValueError:
        raised = broken(W2, 5, "ValueError: samples of different sizes", traceback_text=traceback.format_exc())

    assert "says nothing about workers" in results(runs(W0, *three(20), batches_total=3), raised).recommendation


def test_where_more_was_read_without_it_an_error_of_the_data_may_come_later():
    found = results(runs(W0, *three(20), batches_total=50), broken(W2, 21), probe=probe_of(epoch_batches=94))

    text = found.recommendation

    assert "0 workers took 50 of 94 batches, and may meet it later" in text and "would meet it" not in text


@pytest.mark.parametrize(
    ("batches", "more"),
    [
        (94, {}),
        (12, {"reason": "spawn has to pickle the loader and cannot: lambda", "error_type": "PicklingError"}),
        (12, {"reason": "the dataset uses the accelerator inside a forked worker", "error_type": "RuntimeError"}),
        (12, {"traceback_text": 'File "/torch/utils/data/_utils/worker.py", line 90, in _worker_loop'}),
        (12, {"reason": "shared memory: Bus error", "error_type": ""}),
    ],
    ids=["a whole epoch went well", "pickling", "accelerator", "worker_init_fn", "no error of Python's"],
)
def test_what_workers_alone_can_meet_is_told_of_them(batches, more):
    found = results(
        runs(W0, *three(20), batches_total=batches), broken(W2, 21, **more), probe=probe_of(epoch_batches=94)
    )

    assert "No settings with workers could be rated." in found.recommendation
    assert "The data set raised" not in found.recommendation


def test_an_error_of_the_data_is_said_where_settings_with_workers_win_too():
    found = results(
        runs(W0, *three(20), batches_total=12), runs(W2, *three(90), batches_total=40), broken(W4, 60), current=W0
    )

    assert found.best == W2
    assert "(4 batches in flight) took only 40 batches and would meet it too" in found.recommendation


# -- why a search ended --


def test_a_race_that_ended_with_something_open_says_why():
    """Both were started three times; the faster one gains too little on average for a further start."""
    wide = [runs(W0, *three(50)), runs(W1, *three(52)), runs(W2, 95.0, 100.0, 104.0), runs(W4, 80.0, 91.0, 103.0)]
    found = results(*wide, strategy="race", options={"budget_seconds": 60.0})

    (said,) = [line for line in found.recommendation.splitlines() if "not settled, may still be faster" in line]

    assert "4 workers" in said and "(the search ended by itself before its time was up: one more start would" in said
    assert re.search(
        r"by (next to nothing|at most \d\.\d %) on average, and it makes none for less than \d\.\d %\)", said
    )
    assert "What would tell:" in said


def test_a_race_that_used_up_its_starts_says_so():
    progress = Progress((W0, W1), trials_of(runs(W0, *[40.0, 70.0] * 4) + runs(W1, *[40.0, 72.0] * 4), 2), W0)

    assert Race(max_starts=9, max_later_starts=14).why_over(progress).startswith("it had made all 14 starts")
    assert Race(max_starts=9, max_later_starts=99, gain=-1.0).why_over(progress) == ""  # it would go on


def test_why_it_ended_is_left_unsaid_where_that_is_not_known():
    wide = [runs(W0, *three(50)), runs(W2, 95.0, 100.0, 104.0), runs(W4, 80.0, 91.0, 103.0)]
    for more in ({"strategy": "grid"}, {"strategy": "race", "ending": "budget"}, {"strategy": "race", "ending": ""}):
        assert "ended by itself" not in results(*wide, **more).recommendation


def test_a_way_out_names_no_option_that_only_one_of_script_and_terminal_has():
    text = undecided(options={"budget_seconds": 45.0}).recommendation

    assert "(in Python: the same sweep with a larger budget, and run(resume=True))" in text
    assert "budget_seconds" not in text


def test_a_rate_from_one_start_with_the_spread_of_others_says_so():
    narrow = results(runs(W0, *three(40)), runs(W2, 97.0)).recommendation
    wide = results(runs(W0, 2.0, 14.0), runs(W2, 97.0)).recommendation

    assert "97 samples/s from one start; by the spread seen between starts of other settings" in narrow
    assert "another may give anything up to" in line_with("from one start", wide)


# -- lines --


def test_the_headline_rate_gain_and_memory_come_first_and_one_line_of_caution_last():
    found = results(
        runs(W0, *three(50), cpu_cores_used=1.0, noisy=True),
        runs(W1, 90.0, screened=True, noisy=True),
        runs(W2, 95.0, 96.0, cpu_cores_used=1.9, noisy=True, windows=(Window(0.0, 1.0, 3, 96),)),
        ending="budget",
        options={"budget_seconds": 60},
    )
    lines = found.recommendation.splitlines()

    assert lines[0].startswith("Use 2 workers") and "samples/s" in lines[1]
    assert lines[2].startswith("That is") and lines[3].startswith("Peak memory")
    cautions = [line for line in lines if line.startswith("Not certain yet")]
    assert cautions == lines[-1:]
    for words in ("budget ended first", "too few batches", "only 6", "other programs", "--resume --budget 2m"):
        assert words in lines[-1]
    assert "on a quiet machine" in lines[-1] and len(lines) <= 6


def test_a_settled_recommendation_ends_with_what_it_holds_for():
    text = results(runs(W0, *three(50)), runs(W2, *three(95))).recommendation

    assert text.splitlines()[-1].startswith("It holds for this loader and this machine; measure again when")
    assert "Not certain" not in text


def test_short_looks_are_counted_and_explained():
    text = results(runs(W0, *three(50), screened=True), runs(W2, *three(95), screened=True)).recommendation

    assert "all 3 starts of the chosen settings were short looks, in which neither the data that come out nor" in text


def test_epochs_of_two_batches_are_called_too_small_to_tune_for():
    found = results(
        runs(W0, *three(50), mode="epochs"), runs(W1, *three(20), mode="epochs"), probe=probe_of(epoch_batches=2)
    )

    small = line_with("An epoch is only 2 batches", found.recommendation)
    assert "whole epochs with their restarts" in small and "too small to tune" in small
    assert "whole epochs were measured" not in found.recommendation
    usual = replace(found, probe=probe_of(epoch_batches=200)).recommendation
    assert "too small" not in usual and "whole epochs were measured" in usual


def test_the_rival_is_none_where_the_current_settings_win():
    assert rank(results(runs(W0, *three(100)), runs(W2, *three(50))).trials, W0).rival is None
