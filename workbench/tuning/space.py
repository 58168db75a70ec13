"""SearchSpace: which settings a sweep may try, checked before the first trial and free of duplicates."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench import machine
from workbench.errors import SettingsError
from workbench.loaders.settings import KNOBS, STEP_KNOBS, LoaderSettings
from workbench.measure.step_copies import why_not_told

if TYPE_CHECKING:
    from workbench.loaders.source import LoaderSource

# A default space is worth a minute, not an hour: 4 worker counts above 0, 2 depths, kept or restarted = 17 settings.
DEFAULT_WORKER_COUNTS_ABOVE_ZERO = 4
# A loader that waits for storage gains from more workers than cores; one that computes does not, and loses little.
MOST_WORKERS_PER_CORE = 2
MOST_DEFAULT_WORKERS = 64

NO_PINNING_NOTE = (
    "pin_memory was left out of the search: no accelerator on this machine copies from pinned memory, "
    "so True and False are the same settings here."
)
NO_COPY_NOTE = (
    "non_blocking was left out of the search: no accelerator on this machine copies from pinned memory, so there is no "
    "copy that a step could go on beside."
)


@dataclass(frozen=True)
class Candidates:
    """The settings of one space for one source on one machine.

    Attributes:
        settings: Unique settings, the current ones first where they are known.
        current: The user's current settings as they count on this machine, or None when unknown.
        notes: Sentences about what was collapsed or added, worth showing once.
    """

    settings: tuple[LoaderSettings, ...]
    current: LoaderSettings | None
    notes: tuple[str, ...] = ()


class SearchSpace:
    """The product of the values listed for each knob, every value checked on its own.

    A knob that is not listed keeps the value the user's loader has. Combinations a DataLoader could not tell apart
    are one settings: prefetch depth and persistence at 0 workers, pinning and `non_blocking` where no accelerator pins.

    Args:
        **knobs: For each field of `LoaderSettings`, a list of values; a single value stands for a list of one.

    Raises:
        SettingsError: If a knob is unknown (close names are offered), has no values, or has one no DataLoader takes.
    """

    def __init__(self, **knobs: Any) -> None:
        self.knobs: dict[str, tuple[Any, ...]] = {name: _checked_values(name, given) for name, given in knobs.items()}

    @classmethod
    def for_machine(cls, cores: int | None = None) -> SearchSpace:
        """A space for when nothing is known: at most 17 settings around the cores this process may use.

        Threads in a worker and the sharing strategy are left out: torch gives each worker one thread, and a strategy
        is chosen for what the system allows (open descriptors, names in /dev/shm) more than for speed. Where workers
        crowd the cores with threads of their own, the recommendation says so and names the values to try.

        Args:
            cores: Usable cores; None asks `machine.usable_cores`.
        """
        return cls(
            num_workers=default_worker_counts(machine.usable_cores() if cores is None else cores),
            prefetch_factor=[2, 4],
            persistent_workers=[False, True],
        )

    def varied_only_by(self, accepts: Callable[[str], bool]) -> SearchSpace:
        """The same space without the knobs that `accepts` refuses; for spaces nobody typed."""
        return SearchSpace(**{name: values for name, values in self.knobs.items() if accepts(name)})

    def resolve(
        self,
        source: LoaderSource | None = None,
        pins: bool = False,
        current: LoaderSettings | None = None,
        own_with_workers: Mapping[str, Any] | None = None,
    ) -> Candidates:
        """The unique settings of this space, with the current settings among them.

        Args:
            source: The loader to be varied; None skips the check that it can vary these knobs.
            pins: Whether an accelerator of this machine copies from pinned memory.
            current: The user's settings; None takes them from the source.
            own_with_workers: Knobs that the loader turns by itself as soon as there are workers (`Probe`).

        Raises:
            SettingsError: If the source cannot vary a knob of this space.
        """
        if current is None and source is not None:
            current = source.current
        base = current or LoaderSettings()
        if source is not None:
            self._refuse_fixed_knobs(source, base)
        plain = {} if pins else {"pin_memory": False, "non_blocking": None}
        own = dict(own_with_workers or {})
        found = dict.fromkeys(base.replaced(**own | one).replaced(**plain) for one in self._combinations())
        notes = () if pins else self._notes_without_pinning()
        if current is None:
            return Candidates(tuple(found), None, notes)
        current = current.replaced(**plain)
        return Candidates((current, *(one for one in found if one != current)), current, notes)

    def turned(self) -> tuple[str, ...]:
        """The loader's knobs that some settings of this space turn away from PyTorch's defaults."""
        plain = {name: getattr(LoaderSettings(1 if name != "num_workers" else 0), name) for name in self.knobs}
        return tuple(n for n, values in self.knobs.items() if n not in STEP_KNOBS and set(values) - {plain[n]})

    def refuse_for(self, step: Callable[..., Any] | None) -> None:
        """Checks that the training step can be told what this space turns on it.

        Raises:
            SettingsError: If `non_blocking` is to be tried and there is no step, or one that does not name it.
        """
        for value in self.knobs.get("non_blocking", ()):
            if value is not None and (why := why_not_told(step, value)):
                raise SettingsError(why)

    def settings(
        self, source: LoaderSource | None = None, pins: bool = False, current: LoaderSettings | None = None
    ) -> list[LoaderSettings]:
        """The settings of `resolve` as a list."""
        return list(self.resolve(source, pins, current).settings)

    def as_dict(self) -> dict[str, list[Any]]:
        """The values of each knob, ready for JSON."""
        return {name: list(values) for name, values in self.knobs.items()}

    def __len__(self) -> int:
        """Unique settings of the product on a machine that pins, before the current settings are added."""
        return len(self.resolve(pins=True).settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchSpace) and self.knobs == other.knobs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={list(values)!r}" for name, values in self.knobs.items())
        return f"SearchSpace({inside})"

    def _combinations(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.knobs.values()):
            yield dict(zip(self.knobs, values, strict=True))

    def _notes_without_pinning(self) -> tuple[str, ...]:
        asked = {NO_PINNING_NOTE: True in self.knobs.get("pin_memory", ())}
        asked[NO_COPY_NOTE] = any(value is not None for value in self.knobs.get("non_blocking", ()))
        return tuple(note for note, said in asked.items() if said)

    def _refuse_fixed_knobs(self, source: LoaderSource, base: LoaderSettings) -> None:
        for name, values in self.knobs.items():
            asked = [value for value in values if value != getattr(base, name)]
            if asked and name not in STEP_KNOBS and not source.accepts(name):
                raise SettingsError(
                    f"{name}={asked[0]!r} cannot be tried: {source.why_fixed(name)}, or leave {name} out of the space."
                )


def default_worker_counts(cores: int) -> list[int]:
    """Worker counts worth trying with that many usable cores: 0, then halvings down from twice the cores.

    >>> default_worker_counts(2), default_worker_counts(8)
    ([0, 1, 2, 4], [0, 2, 4, 8, 16])
    """
    count, counts = min(max(cores, 1) * MOST_WORKERS_PER_CORE, MOST_DEFAULT_WORKERS), []
    while count >= 1 and len(counts) < DEFAULT_WORKER_COUNTS_ABOVE_ZERO:
        counts.append(count)
        count //= 2
    return [0, *sorted(counts)]


def _checked_values(name: str, given: Any) -> tuple[Any, ...]:
    if name not in KNOBS:
        close = difflib.get_close_matches(name, KNOBS, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"the knobs are {', '.join(KNOBS)}."
        raise SettingsError(f"{name!r} is not a knob of a DataLoader that can be searched; {hint}")
    values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict)) else (given,)
    if not values:
        raise SettingsError(f"{name}=[] leaves nothing to try; list at least one value, or leave {name} out.")
    for value in values:
        _check_alone(name, value)
    unique: list[Any] = []
    for value in values:
        if not any(value == seen and type(value) is type(seen) for seen in unique):
            unique.append(value)
    return tuple(unique)


def _check_alone(name: str, value: Any) -> None:
    """Raises SettingsError where no DataLoader takes that value, whatever the other knobs are."""
    if name == "num_workers":
        LoaderSettings(num_workers=value)
    else:
        LoaderSettings(num_workers=1, **{name: value})
