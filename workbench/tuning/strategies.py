"""Strategies by name: which settings to start next, given what is known.

First looks are taken in an order drawn anew, so that a machine that slows down slows all alike. The user's current
settings are among them, and are started again: how far two starts of the same settings lie apart on this machine is
what every interval of the sweep needs. What may win is measured longer, and checked for right data, memory and the
edge of an epoch; where the budget ends before that, the recommendation says so.
"""

from __future__ import annotations

from workbench.errors import SettingsError
from workbench.tuning.grid import Grid
from workbench.tuning.guided import Guided
from workbench.tuning.predicting import Predicting
from workbench.tuning.race import Race
from workbench.tuning.rounds import Progress, Round, Strategy

__all__ = ["STRATEGIES", "Grid", "Guided", "Predicting", "Progress", "Race", "Round", "Strategy", "strategy_named"]

STRATEGIES: dict[str, type[Grid] | type[Race] | type[Guided] | type[Predicting]] = {
    "race": Race,
    "guided": Guided,
    "forecast": Predicting,
    "grid": Grid,
}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name with its default numbers.

    Raises:
        SettingsError: If there is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise SettingsError(f"strategy={name!r} is not available; choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]()
