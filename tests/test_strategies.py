"""One behaviour suite over every strategy, on loaders whose truth is known; then what each does in its own way."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

import workbench.tuning.engine as engine
from tests.benchmarks.replay import Oracle, Record, ReplayServer, computed, computed_oracles, oracle_from_json
from tests.scripted import ScriptedServer, factory, probe_of, run_of
from workbench import lab
from workbench.errors import SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun
from workbench.tuning.belief import believe, has_tail
from workbench.tuning.fitting import fit
from workbench.tuning.ranking import counts, is_checked
from workbench.tuning.results import Results
from workbench.tuning.rounds import to_settle
from workbench.tuning.space import SearchSpace
from workbench.tuning.strategies import (
    STRATEGIES,
    Grid,
    Guided,
    Predicting,
    Progress,
    Race,
    Round,
    Strategy,
    strategy_named,
)
from workbench.tuning.sweep import Sweep
from workbench.tuning.trials import trials_of

EVERY = sorted(STRATEGIES)
SPACE = SearchSpace(num_workers=[0, 1, 2, 4], prefetch_factor=[2, 4, 8], persistent_workers=[False, True])
W0, W1, W2, W4 = (LoaderSettings(num_workers=n) for n in (0, 1, 2, 4))


def by_workers(settings: LoaderSettings) -> float:
    """100 samples/s in the main process, 90 for each of up to three workers."""
    return 90.0 * min(3, settings.num_workers) or 100.0


@pytest.fixture
def swept(tmp_path):
    """Runs a whole sweep over a server in virtual time or with scripted answers."""

    def sweep(server, strategy: str, space: SearchSpace = SPACE, **options) -> Results:
        known = {"store": tmp_path / "s.db", "server_factory": server}
        return Sweep(factory, space, strategy, **{**known, **options}).run(progress=False)

    return sweep


def play(
    strategy: Strategy, rate, candidates, current, *, spread: float = 0.0, rounds: int = 80, **known
) -> list[Round]:
    """The rounds of a whole sweep; the first run is over cold files."""
    server, runs, played = ScriptedServer(rate, spread=spread), [], []
    for _ in range(rounds):
        progress = Progress(tuple(candidates), trials_of(runs, 2), current, seed=1, cores=2.0, **known)
        following = strategy.next_round(progress)
        assert (strategy.runs_left(progress) > 0) == bool(following.settings)
        if not following.settings:
            return played
        played.append(following)
        for one in following.settings:
            if any(run.settings == one and run.status != "ok" for run in runs):
                continue
            run = server.run(one, None)
            runs.append(TrialRun(**{**vars(run), "screened": following.screen, "cold": not runs}))
    raise AssertionError("the strategy does not end")


def started(rounds: list[Round]) -> list[LoaderSettings]:
    return [one for following in rounds for one in following.settings]


# -- what holds for every strategy --


@pytest.mark.parametrize("strategy", EVERY)
def test_it_ends_and_says_how_many_runs_are_left(strategy):
    candidates = SPACE.settings()

    for spread in (0.0, 0.05, 0.3):
        assert play(strategy_named(strategy), by_workers, candidates, W0, spread=spread)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("current", [None, W0, W4], ids=["unknown", "none", "four"])
def test_it_finds_the_best_whatever_is_current(swept, strategy, current):
    rounds = play(strategy_named(strategy), by_workers, SPACE.settings(), current)

    assert any(one.num_workers == 4 for one in started(rounds))


@pytest.mark.parametrize("strategy", EVERY)
def test_nothing_is_recommended_that_was_only_looked_at(swept, strategy):
    for oracle in list(computed_oracles(SPACE.settings()))[::3]:
        results = swept(ReplayServer(oracle), strategy)

        assert is_checked(results.trial(results.best)), oracle.name


@pytest.mark.parametrize("strategy", EVERY)
def test_settings_with_wrong_data_never_win_though_they_are_the_fastest(swept, strategy):
    wrong = tuple(one for one in SPACE.settings() if one.num_workers == 4)
    oracle = computed("wrong", "storage", lab.loader(storage_seconds=0.004), SPACE.settings(), wrong=wrong)

    results = swept(ReplayServer(oracle), strategy)

    assert results.best.num_workers in (1, 2)
    assert any(trial.status == "wrong_data" for trial in results.trials)


@pytest.mark.parametrize("strategy", EVERY)
def test_settings_that_fail_are_not_started_again(strategy):
    def rate(settings):
        return TrialRun(settings, "failed", "x") if settings.num_workers >= 2 else by_workers(settings)

    rounds = play(strategy_named(strategy), rate, SPACE.settings(), W2, spread=0.02)

    many = [one for following in rounds for one in set(following.settings) if one.num_workers >= 2]
    assert len(many) == len(set(many))


@pytest.mark.parametrize("strategy", EVERY)
def test_where_everything_fails_it_ends(strategy):
    rounds = play(strategy_named(strategy), lambda one: TrialRun(one, "failed", "x"), SPACE.settings(), W0)

    tried = [one for following in rounds for one in set(following.settings)]
    assert len(tried) == len(set(tried)) and len(tried) <= len(SPACE.settings())


@pytest.mark.parametrize("strategy", EVERY)
def test_current_settings_are_kept_where_nothing_is_faster(swept, strategy):
    flat = ScriptedServer(lambda one: 100.0, spread=0.01)

    results = swept(flat, strategy)

    assert results.best == W0 and "Keep your current settings" in results.recommendation


@pytest.mark.parametrize("strategy", EVERY)
def test_a_space_of_one_settings_is_measured_and_recommended(swept, strategy):
    results = swept(ScriptedServer(by_workers, spread=0.01), strategy, SearchSpace(num_workers=[0]))

    assert results.best == W0 and results.ending == "finished"


@pytest.mark.parametrize("strategy", EVERY)
def test_the_same_seed_gives_the_same_runs(strategy):
    candidates = SPACE.settings()

    one, two = (play(strategy_named(strategy), by_workers, candidates, W0, spread=0.05) for _ in range(2))

    assert one == two


@pytest.mark.parametrize("strategy", EVERY)
def test_a_resumed_sweep_goes_on_where_the_first_one_stopped(swept, strategy):
    oracle = next(computed_oracles(SPACE.settings()))
    done = swept(ReplayServer(oracle), strategy, name="mine")
    again = ReplayServer(oracle, seed=1)

    resumed = Sweep(factory, SPACE, strategy, store=_store_of(swept), name="mine", server_factory=again)

    assert resumed.run(resume=True, progress=False).best == done.best and again.starts == 0


def _store_of(swept):
    return swept.__closure__[0].cell_contents / "s.db"


@pytest.mark.parametrize("strategy", EVERY)
def test_every_other_knob_of_a_space_is_tried(strategy):
    space = SearchSpace(num_workers=[0, 2], batch_on_worker=[False, True])

    def rate(one):
        return 100.0 + 50 * one.num_workers + 100 * (one.batch_on_worker and one.num_workers > 0)

    order = started(play(strategy_named(strategy), rate, space.settings(), W0))

    assert any(one.batch_on_worker for one in order) or strategy == "forecast"


def test_an_unknown_strategy_lists_those_there_are():
    with pytest.raises(SettingsError, match=r"'climb'.*race, guided, forecast, grid"):
        strategy_named("climb")
    assert strategy_named("race") == Race() and strategy_named("guided") == Guided()


# -- how good, at what price: ten kinds of loaders, several seeds --


def regrets(swept, strategy: str, seeds: int) -> tuple[list[float], list[float]]:
    lost, shares = [], []
    for oracle in computed_oracles(SPACE.settings()):
        for seed in range(seeds):
            server = ReplayServer(oracle, seed)
            results = swept(server, strategy, seed=seed)
            lost.append(oracle.regret(results.best))
            shares.append(server.seconds / oracle.exhaustive_seconds())
    return lost, shares


@pytest.mark.parametrize(
    ("strategy", "median", "worst", "share"),
    [("race", 0.015, 0.05, 0.10), ("forecast", 0.02, 0.08, 0.04)],
)
def test_the_pick_is_near_the_best_at_a_fraction_of_the_exhaustive_cost(swept, strategy, median, worst, share):
    lost, shares = regrets(swept, strategy, seeds=3)

    assert statistics.median(lost) <= median and max(lost) <= worst
    assert statistics.median(shares) <= share


def test_a_race_costs_less_than_a_grid_and_a_forecast_less_than_a_race(swept):
    seconds = {}
    for strategy in ("grid", "race", "forecast"):
        seconds[strategy] = 0.0
        for oracle in list(computed_oracles(SPACE.settings()))[::3]:
            server = ReplayServer(oracle)
            swept(server, strategy)
            seconds[strategy] += server.seconds

    assert 4 * seconds["race"] < seconds["grid"] and 1.3 * seconds["forecast"] < seconds["race"]


# -- grid --


def test_a_grid_starts_every_settings_once_a_round_in_an_order_drawn_anew():
    candidates = [LoaderSettings(num_workers=n) for n in range(8)]

    rounds = [one.settings for one in play(Grid(), by_workers, candidates, current=None, spread=0.2)]

    whole = [played for played in rounds if len(played) == 8]
    assert len(whole) >= 2 and all(sorted(one.num_workers for one in played) == list(range(8)) for played in whole)
    assert len(set(whole)) == len(whole)


def test_the_current_settings_are_started_more_often_and_spread_over_the_round():
    candidates = [LoaderSettings(num_workers=n) for n in range(13)]

    first = play(Grid(), by_workers, candidates, current=candidates[2], spread=0.2)[0].settings

    places = [place for place, one in enumerate(first) if one == candidates[2]]
    assert places[0] == 0 and len(places) >= 2 and places[-1] >= 7


def test_a_grid_stops_at_the_target_and_otherwise_at_the_most_starts():
    steady = started(play(Grid(), by_workers, (W0, W1, W2), current=W0))
    shaky = started(play(Grid(max_starts=4), by_workers, (W0, W1, W2), current=W0, spread=0.3))

    assert steady.count(W1) <= 2 and shaky.count(W1) >= 4


# -- race --


def test_a_race_looks_at_every_worker_count_and_goes_on_with_those_that_may_win():
    candidates = [LoaderSettings(num_workers=n) for n in range(9)]

    def rate(settings):
        return 1000.0 if settings.num_workers in (5, 6) else 300.0 + settings.num_workers

    rounds = play(Race(), rate, candidates, current=W0, spread=0.04)

    assert {one.num_workers for one in rounds[0].settings} == set(range(9))
    assert {one.num_workers for one in started(rounds[1:])} <= {5, 6}
    assert started(rounds).count(LoaderSettings(num_workers=5)) >= 2


def test_a_race_expects_as_many_runs_after_the_first_looks_as_before_and_fewer_with_each_one():
    candidates = [LoaderSettings(num_workers=n) for n in range(5)]
    server, runs, expected = ScriptedServer(lambda one: 100.0 + one.num_workers, spread=0.04), [], []
    for _ in range(80):
        progress = Progress(tuple(candidates), trials_of(runs, 2), W0, seed=1, cores=2.0)
        following = Race().next_round(progress)
        expected.append((len(runs), Race().runs_left(progress)))
        if not following.settings:
            break
        for one in following.settings:
            run = server.run(one, None)
            runs.append(TrialRun(**{**vars(run), "screened": following.screen, "cold": not runs}))

    assert expected[0] == (0, 15) and expected[-1][1] == 0
    looked = [left for ran, left in expected[1:-1]]
    assert looked == sorted(looked, reverse=True) and looked[0] >= 5


def test_looks_are_short_and_what_may_win_is_measured_longer_and_checked():
    rounds = play(Race(), by_workers, SPACE.settings(), W0, spread=0.01)

    assert rounds[0].screen and rounds[0].measure_share < 0.5
    assert not rounds[-1].screen and rounds[-1].settings[0].num_workers == 4


def test_one_unlucky_start_does_not_rule_out_the_best():
    """Four workers are the best by 15 %, and their first start shows hardly any of it."""
    first = [True]

    def rate(settings):
        if settings.num_workers == 4 and first:
            first.clear()
            return 0.88 * 230.0
        return {0: 100.0, 1: 100.0, 2: 200.0, 4: 230.0}[settings.num_workers]

    order = started(play(Race(), rate, [W0, W1, W2, W4], W0))

    assert order.count(W4) >= 2


def test_the_first_run_over_cold_files_is_done_again():
    order = started(play(Race(), by_workers, [W0, W2], W0))

    assert order[0] == W0 and order.count(W0) == 2


@pytest.mark.parametrize(("strategy", "faster", "spread"), [("guided", 115.0, 0.15), ("forecast", 120.0, 0.05)])
def test_what_looks_faster_and_the_current_settings_are_started_until_the_gain_is_certain(strategy, faster, spread):
    """Single starts that lie so far apart do not show so small a gain."""
    rate = {0: 100.0, 1: 100.0, 2: faster}
    rounds = play(strategy_named(strategy), lambda one: rate[one.num_workers], [W0, W1, W2], W0, spread=spread)

    order = started(rounds)
    assert order.count(W0) - 1 >= 2 and order.count(W2) >= 2  # the first run is over cold files


def test_a_race_looks_again_only_so_often():
    def later_looks(race):
        rounds = play(race, lambda one: 100.0 if one.num_workers else 60.0, SPACE.settings(), W0, spread=0.05)
        return sum(len(one.settings) for one in rounds[1:] if one.screen)

    assert later_looks(Race(max_later_starts=0)) == 0 < later_looks(Race(max_later_starts=2)) < later_looks(Race())


def test_where_an_epochs_edge_matters_the_other_way_of_restarting_is_measured_too(swept):
    short = computed(
        "short", "storage", lab.loader(storage_seconds=0.004), SPACE.settings(), epoch_samples=500, variation=0.0
    )
    long = computed(
        "long", "storage", lab.loader(storage_seconds=0.004), SPACE.settings(), epoch_samples=5_000_000, variation=0.0
    )

    kept, free = (swept(ReplayServer(oracle), "race") for oracle in (short, long))

    assert kept.best.persistent_workers
    assert sum(is_checked(trial) for trial in free.trials if counts(trial)) < sum(
        is_checked(trial) for trial in kept.trials if counts(trial)
    )


# -- guided --


def test_guided_changes_one_knob_at_a_time_in_the_tutorials_order():
    rounds = play(Guided(), by_workers, SPACE.settings(), W0)
    order = list(dict.fromkeys(started(rounds)))

    assert [one.num_workers for one in order[:4]] == [0, 1, 2, 4]
    assert order[4].persistent_workers and order[4].num_workers == 4
    assert {one.prefetch_factor for one in order[5:]} == {4, 8}


def test_guided_stops_raising_workers_once_two_counts_in_a_row_gain_nothing():
    candidates = [LoaderSettings(num_workers=n) for n in (0, 1, 2, 4, 8, 16, 32)]

    order = started(play(Guided(), by_workers, candidates, W0))

    assert max(one.num_workers for one in order) == 16


# -- forecast --


def test_forecast_measures_few_and_tests_the_best_prediction():
    order = started(play(Predicting(), by_workers, SPACE.settings(), W0, probe=probe_of()))

    assert len(order) <= 6
    assert {one.num_workers for one in order} >= {0, 1, 4}


def test_a_prediction_that_does_not_hold_makes_room_for_the_next(swept):
    oracle = computed("narrow", "storage", NARROW, SPACE.settings(), cores=16.0, variation=0.0)

    server = ReplayServer(oracle)
    results = swept(server, "forecast")

    assert oracle.regret(results.best) <= 0.02 and server.starts <= 8


NARROW = lab.loader(storage_seconds=0.001, storage_bytes=2000, storage_bytes_per_second=1_000_000)


# -- the belief behind the race --


def belief_of(rates: dict[LoaderSettings, list[float]], **changes):
    runs = [run_of(one, rate, **changes) for one, many in rates.items() for rate in many]
    return believe(SPACE.settings(), trials_of(runs, 2))


def test_a_belief_follows_what_was_measured_and_spreads_it_to_the_like():
    belief = belief_of({W0: [100.0], W2: [200.0, 202.0], W4: [400.0]})
    deep = LoaderSettings(num_workers=4, prefetch_factor=8)

    assert belief.leader.num_workers == 4
    assert belief.rate(W2) == pytest.approx(200, rel=0.03)
    assert belief.rate(deep) == pytest.approx(400, rel=0.05)
    assert belief.gain(W4, W0) < 1e-6 < belief.gain(W4, deep) < 0.03 < belief.gain(W0, W4)


def test_more_starts_leave_less_to_gain():
    once, often = (belief_of({W2: [200.0] * n, W4: [200.0] * n}) for n in (1, 6))

    assert often.gain(W2, W4) < 0.6 * once.gain(W2, W4)
    assert once.gain(W2, W4, beyond=0.01) < once.gain(W2, W4)


def test_on_a_busy_machine_a_start_says_less():
    quiet, busy = (belief_of({W2: [200.0], W4: [220.0]}, noisy=noisy) for noisy in (False, True))

    assert busy.gain(W4, W2) > 2 * quiet.gain(W4, W2)


def test_the_model_tells_of_what_nobody_ran():
    runs = [run_of(one, rate, cpu_cores_used=cores) for one, rate, cores in ((W0, 100.0, 1.0), (W1, 100.0, 1.0))]
    trials = trials_of(runs, 2)
    model = fit(list(trials.values()), probe_of(), 2.0)

    belief = believe(SPACE.settings(), trials, model)

    assert belief.rate(W4) == pytest.approx(200, rel=0.05)


def test_what_failed_is_no_candidate_and_nothing_rated_is_no_belief():
    bad = TrialRun(W4, "failed", "x")

    assert W4 not in believe((W0, W4), trials_of([run_of(W0, 100.0), bad], 2))
    assert believe((W0, W4), trials_of([bad], 2)) is None


def test_slow_batches_are_a_tail_where_they_cost_and_were_long_in_every_start():
    heavy = run_of(W0, 100.0, batch_seconds_p50=0.1, batch_seconds_max=2.0)
    once = run_of(W0, 100.0, batch_seconds_p50=0.16, batch_seconds_max=2.0)

    assert has_tail([heavy, heavy]) and not has_tail([heavy, once]) and not has_tail([run_of(W4, 100.0)])


def test_an_oracle_is_read_back_as_it_was_written():
    oracle = next(computed_oracles(SPACE.settings()))

    assert oracle_from_json(oracle.to_json()) == oracle and isinstance(oracle, Oracle)


def test_what_a_pick_loses_is_said_by_rounds_that_did_not_choose_what_may_be_best():
    rates = {W4: (130, 120, 125, 100, 104, 96), W2: (100, 100, 100, 100, 96, 104), W0: (50, 50, 50)}
    records = {one: Record(one, tuple(r), tuple(range(len(r)))) for one, r in rates.items()}
    oracle = replace(next(computed_oracles(SPACE.settings())), records=records)
    judge = oracle_from_json(replace(oracle, judged_from=3).to_json())

    assert oracle.regret(W2) > 0.08
    assert judge.regret(W2) == pytest.approx(statistics.fmean([0, 1 - 96 / 104, 1 - 104 / 96]))
    assert judge.regret_error(W2) == pytest.approx(statistics.stdev([0, 1 - 96 / 104, 1 - 104 / 96]) / 3**0.5)
    assert judge.regret(W0) == pytest.approx(statistics.fmean([1 - 50 / 130, 1 - 50 / 120, 1 - 50 / 125]))


@pytest.mark.parametrize("strategy", ["race", "forecast"])
def test_it_holds_on_sixteen_cores_with_up_to_thirty_two_workers(swept, strategy, monkeypatch):
    here = engine.machine.fingerprint()
    monkeypatch.setattr(engine.machine, "fingerprint", lambda: {**here, "usable_cores": 16.0})
    space = SearchSpace(num_workers=[0, 2, 4, 8, 16, 32], prefetch_factor=[2, 8], persistent_workers=[False, True])

    for oracle in list(computed_oracles(space.settings(), cores=16.0))[::2]:
        assert oracle.regret(swept(ReplayServer(oracle), strategy, space).best) <= 0.05, oracle.name


def test_a_forecast_starts_again_while_it_is_open_whether_a_change_gains_anything():
    def rate(settings):
        return 100.0 if settings.num_workers == 0 else 112.0

    order = started(play(Predicting(), rate, [W0, W1, W2], W0, spread=0.04))

    assert 2 <= max(order.count(W1), order.count(W2)) <= 4 and order.count(W0) >= 3


def _a_sweep_that_tested(w2_rate, *further):
    runs = [run_of(W0, 99.0, cold=True), run_of(W1, 100.0, screened=True), run_of(W0, 100.0, screened=True)]
    runs = [*runs, run_of(W2, w2_rate, cpu_cores_used=2.0), *further]
    return Progress((W0, W1, W2), trials_of(runs, 2), W0, cores=2.0)


def test_a_forecast_starts_once_more_what_fell_far_below_its_prediction():
    again = Predicting().next_round(_a_sweep_that_tested(104.0))
    assert again.settings == (W2,) and again.screen

    assert Predicting()._far_below_its_prediction(_a_sweep_that_tested(190.0)) is None
    assert Predicting()._far_below_its_prediction(_a_sweep_that_tested(104.0, run_of(W2, 103.0))) is None


def test_a_forecast_does_not_test_what_promises_hardly_more_than_what_was_tested():
    tested = _a_sweep_that_tested(190.0)
    deeper = replace(tested, candidates=(*tested.candidates, LoaderSettings(num_workers=2, prefetch_factor=8)))
    assert Predicting().next_round(deeper).settings == ()

    more = replace(tested, candidates=(*tested.candidates, W4), cores=16.0)
    assert Predicting().next_round(more).settings == (W4,)


def test_where_much_is_at_stake_more_starts_are_spent_on_settling_it():
    def due(mean, starts):
        runs = [run_of(one, rate * off) for one, rate in ((W0, 100.0), (W2, mean)) for off in (0.8, 1.0, 1.2, 0.8, 1.2)]
        kept = [run for one in (W0, W2) for run in [each for each in runs if each.settings == one][:starts]]
        return to_settle(Progress((W0, W2), trials_of(kept, 2), W0, cores=2.0))

    assert due(106.0, 2) and not due(106.0, 3)
    assert due(125.0, 3) and due(125.0, 4) and not due(125.0, 5)
