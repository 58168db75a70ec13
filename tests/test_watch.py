"""When a run has measured enough: windows made up, no process is watched."""

from __future__ import annotations

import pytest

from workbench.loaders.settings import LoaderSettings
from workbench.measure.plan import TrialPlan, limits_of
from workbench.measure.watch import Watch


@pytest.fixture
def measured(tmp_path):
    """Whether windows of a tenth of a second with so many batches each suffice for a plan."""

    def suffices(plan, rates, batches=4, foreign_cores=0.0):
        watch = Watch(limits_of(plan, LoaderSettings(), None, 2), 2, str(tmp_path))
        watch._foreign_cores = lambda begin, end: foreign_cores
        for place, rate in enumerate(rates):
            watch.add_window([0.1 * place, 0.1, batches, 10 * rate])
        return watch.enough()

    return suffices


STEADY = [100, 101, 99, 100, 101, 99, 100, 101]
UNSTEADY = [100, 160, 90, 150, 80, 170, 110, 140]


def test_quiet_windows_suffice_once_they_are_long_and_precise_enough(measured):
    plan = TrialPlan(measure_seconds=0.35, max_measure_seconds=2.0)

    assert not measured(plan, STEADY[:3]) and measured(plan, STEADY[:4])
    assert not measured(plan, UNSTEADY)
    assert measured(TrialPlan(measure_seconds=0.35, max_measure_seconds=0.7), UNSTEADY)


def test_too_few_batches_do_not_suffice_however_precise_they_are(measured):
    plan = TrialPlan(measure_seconds=0.35, max_measure_seconds=2.0, least_batches=24)

    assert not measured(plan, STEADY[:5]) and measured(plan, STEADY[:6])


def test_twice_the_batches_in_twice_the_seconds_suffice_however_imprecise(measured):
    plan = TrialPlan(measure_seconds=0.35, max_measure_seconds=2.0, least_batches=12)

    assert not measured(plan, UNSTEADY[:6]) and measured(plan, UNSTEADY[:7])


def test_beside_other_programs_the_batches_are_waited_for_and_no_longer(measured):
    plan = TrialPlan(measure_seconds=0.15, max_measure_seconds=2.0, least_batches=24)

    assert not measured(plan, STEADY[:5], foreign_cores=1.5)
    assert measured(plan, UNSTEADY[:6], foreign_cores=1.5)
