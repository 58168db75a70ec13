"""A rate that changes within a start is told, noise and other programs are not."""

from __future__ import annotations

import random

import pytest

from workbench.measure.records import Window
from workbench.measure.steadiness import why_not_steady


def windows(*rates: float, foreign: float = 0.0) -> list[Window]:
    """Windows of half a second with these rates."""
    return [Window(0.5 * n, 0.5, 10, round(rate / 2), foreign) for n, rate in enumerate(rates)]


def test_a_source_that_throttles_is_told_with_both_rates():
    told = why_not_steady(windows(2000, 1990, 2010, 1400, 700, 660, 640, 650, 660), cores=2)

    assert "fell from 2,000 to 650 samples/s" in told and "measure_seconds" in told


def test_a_cache_that_fills_is_told():
    assert "rose from 100 to 1,000" in why_not_steady(windows(100, 100, 100, 600, 1000, 1000, 1000), cores=2)


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.3])
def test_noise_about_one_rate_is_no_change(spread):
    draw = random.Random(1)
    told = sum(
        bool(why_not_steady(windows(*(draw.gauss(1000, 1000 * spread) for _ in range(9))), 2)) for _ in range(1000)
    )

    assert told < 20


def test_too_few_windows_or_a_busy_machine_tell_nothing():
    assert not why_not_steady(windows(2000, 2000, 2000, 700, 700, 700), cores=2)
    assert not why_not_steady(windows(*[2000] * 5, *[700] * 5, foreign=1.0), cores=2)
    assert not why_not_steady([], cores=2)
