"""A space holds every combination once, refuses nonsense before the first trial, and knows what cannot run here."""

from __future__ import annotations

import pytest

from tests.scripted import factory, probe_of, run_of
from workbench.errors import SettingsError
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.tuning.feasibility import needs_at_least, queue_bytes, why_infeasible, why_too_large
from workbench.tuning.space import SearchSpace, default_worker_counts
from workbench.tuning.trials import trials_of

GIB = 1 << 30


def test_settings_no_loader_could_tell_apart_are_one():
    space = SearchSpace(num_workers=[0, 1, 2], prefetch_factor=[2, 4], persistent_workers=[False, True])

    found = space.settings()

    assert len(found) == len(set(found)) == 1 + 2 * 2 * 2 == len(space)
    assert sum(one.num_workers == 0 for one in found) == 1


def test_without_an_accelerator_that_pins_pinning_is_left_out_and_said_so():
    space = SearchSpace(num_workers=[0, 2], pin_memory=[False, True])

    without, with_one = space.resolve(pins=False), space.resolve(pins=True)

    assert [one.pin_memory for one in without.settings] == [False, False]
    assert len(with_one.settings) == 4
    assert "pin_memory" in without.notes[0] and not with_one.notes


def test_the_current_settings_are_always_in_and_come_first():
    mine = LoaderSettings(num_workers=7, prefetch_factor=3)

    found = SearchSpace(num_workers=[0, 1]).resolve(current=mine)

    assert found.settings[0] == found.current == mine
    assert len(found.settings) == 3


def test_current_settings_that_pin_for_nothing_are_the_same_as_not_pinning():
    mine = LoaderSettings(num_workers=1, pin_memory=True)

    found = SearchSpace(num_workers=[1]).resolve(current=mine, pins=False)

    assert found.settings == (LoaderSettings(num_workers=1),) and found.current == found.settings[0]


def test_knobs_that_are_not_listed_keep_what_the_loader_has():
    mine = LoaderSettings(num_workers=2, prefetch_factor=5, persistent_workers=True)

    found = SearchSpace(num_workers=[4]).settings(current=mine)

    assert LoaderSettings(num_workers=4, prefetch_factor=5, persistent_workers=True) in found


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"num_workers": [0, -1]}, r"num_workers=-1"),
        ({"num_workers": ["4"]}, r"num_workers='4'"),
        ({"prefetch_factor": [2, 0]}, r"prefetch_factor=0"),
        ({"pin_memory": ["yes"]}, r"pin_memory='yes'"),
        ({"multiprocessing_context": ["thread"]}, r"'thread'.*fork"),
        ({"num_workers": []}, r"num_workers=\[\]"),
        ({"num_worker": [1]}, r"did you mean num_workers"),
        ({"weather": [1]}, r"the knobs are num_workers"),
    ],
)
def test_nonsense_is_named_with_its_value_when_the_space_is_made(knobs, says):
    with pytest.raises(SettingsError, match=says):
        SearchSpace(**knobs)


def test_a_single_value_and_any_iterable_stand_for_a_list():
    assert SearchSpace(num_workers=3, multiprocessing_context="spawn").as_dict() == {
        "num_workers": [3],
        "multiprocessing_context": ["spawn"],
    }
    assert SearchSpace(num_workers=range(3)).as_dict() == {"num_workers": [0, 1, 2]}
    assert SearchSpace(num_workers=[2, 2, 0]).as_dict() == {"num_workers": [2, 0]}


def test_a_knob_the_factory_does_not_take_is_refused_by_name():
    source = LoaderSource.of(factory)

    with pytest.raises(SettingsError, match=r"layout='tar' cannot be tried: .*factory names no parameter layout"):
        SearchSpace(num_workers=[0, 1], layout=["tar"]).settings(source)
    source = source.as_seen("an iterator", ["pin_memory"])
    with pytest.raises(SettingsError, match=r"pin_memory=True.*returned an iterator, not a DataLoader, and names no"):
        SearchSpace(num_workers=[0, 1], pin_memory=[False, True]).settings(source, pins=True)


def test_a_fixed_knob_may_be_listed_with_the_value_it_has():
    found = SearchSpace(num_workers=[0, 1], pin_memory=[False]).settings(LoaderSource.of(factory))

    assert {one.num_workers for one in found} == {0, 1}


def test_a_default_space_drops_what_the_source_cannot_vary():
    space = SearchSpace.for_machine(cores=2).varied_only_by(lambda knob: knob == "num_workers")

    assert space.as_dict() == {"num_workers": [0, 1, 2, 4]}


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, [0, 1, 2]), (2, [0, 1, 2, 4]), (4, [0, 1, 2, 4, 8]), (8, [0, 2, 4, 8, 16]), (128, [0, 8, 16, 32, 64])],
)
def test_default_worker_counts_reach_twice_the_cores_and_stay_few(cores, counts):
    assert default_worker_counts(cores) == counts
    assert len(SearchSpace.for_machine(cores)) <= 17


def test_a_factory_of_something_else_than_a_loader_takes_what_it_names_and_says_why_not_more():
    seen = LoaderSource.of(lambda num_workers=0: []).as_seen("a list", ["num_workers", "prefetch_factor"])

    assert list(SearchSpace.for_machine(2).varied_only_by(seen.accepts).knobs) == ["num_workers", "persistent_workers"]
    assert len(SearchSpace(num_workers=[0, 1]).settings(seen)) == 2
    with pytest.raises(SettingsError, match=r"prefetch_factor=2 cannot be tried: .* returned a list, not a DataLoader"):
        SearchSpace(num_workers=[1], prefetch_factor=[2, 4]).settings(seen)


def test_a_space_knows_what_it_turns():
    space = SearchSpace(num_workers=[0], prefetch_factor=[2], pin_memory=[False, True], in_order=True, layout=["tar"])

    assert space.turned() == ("pin_memory", "layout")
    assert SearchSpace(num_workers=[0, 1], prefetch_factor=4, non_blocking=[True]).turned() == (
        "num_workers",
        "prefetch_factor",
    )


def test_a_queue_that_shared_memory_cannot_hold_is_named_with_need_and_limit():
    probe = probe_of(batch_bytes=16 << 20)
    free = 64 << 20

    fits = why_infeasible(LoaderSettings(num_workers=1), probe, free_shared_memory_bytes=free)
    why = why_infeasible(LoaderSettings(num_workers=2, prefetch_factor=4), probe, free_shared_memory_bytes=free)

    assert fits is None
    assert why is not None
    assert why.startswith("shared memory: 2 workers x prefetch 4 and 2 more batches of 17 MB need 168 MB")
    assert "67 MB free" in why and "lower prefetch_factor" in why
    one = why_infeasible(LoaderSettings(num_workers=1), probe, free_shared_memory_bytes=1)
    assert one is not None and one.startswith("shared memory: 1 worker x prefetch 2 and")


def test_without_workers_nothing_travels_through_shared_memory():
    assert queue_bytes(LoaderSettings(), probe_of(batch_bytes=GIB)) == 0
    assert why_infeasible(LoaderSettings(), probe_of(batch_bytes=GIB), free_shared_memory_bytes=0) is None


def test_a_changed_batch_size_changes_the_need():
    probe = probe_of(batch_bytes=1000, samples_per_batch=10)

    assert queue_bytes(LoaderSettings(num_workers=1, batch_size=20), probe) == (2 + 2) * 2000


def test_a_queue_larger_than_the_memory_limit_is_not_started():
    why = why_infeasible(
        LoaderSettings(num_workers=4, prefetch_factor=8), probe_of(batch_bytes=GIB), memory_limit_bytes=8 * GIB
    )

    assert why is not None and "memory" in why and "8.6 GB" in why


def test_what_needs_as_much_as_settings_over_the_limit_is_not_started():
    over = LoaderSettings(num_workers=2, prefetch_factor=2)

    def why(settings):
        return why_infeasible(settings, probe_of(), memory_limit_bytes=GIB, over_memory=[over])

    assert why(LoaderSettings(num_workers=4, prefetch_factor=2))
    assert why(LoaderSettings(num_workers=2, prefetch_factor=4))
    assert why(LoaderSettings(num_workers=1, prefetch_factor=8)) is None
    assert why(LoaderSettings(num_workers=4, prefetch_factor=2, persistent_workers=True)) is None
    assert why(over) is None
    assert not needs_at_least(over, over)


def test_settings_that_the_trials_show_to_be_too_large_are_not_started():
    """200 MB and 100 MB a worker, seen with 0 and 1 workers: 8 need 1,000 MB."""
    runs = [
        run_of(LoaderSettings(num_workers=n), 100.0, memory_bytes=(200 + 100 * n + (n > 0) * (2 * n + 2)) * 1_000_000)
        for n in (0, 1)
    ]
    many = LoaderSettings(num_workers=8)

    found = list(trials_of(runs, 4).values())

    assert "1.0 GB predicted from 2 settings" in why_too_large(many, found, probe_of(), 500_000_000)
    assert why_too_large(many, found, probe_of(), 950_000_000) is None
    assert why_too_large(many, found, probe_of(), None) is None
    assert why_too_large(many, found[:1], probe_of(), 500_000_000) is None
