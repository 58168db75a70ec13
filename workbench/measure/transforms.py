"""Finds the transforms inside a dataset and puts a clock around each for the few batches that are timed in detail.

Looked for are attributes whose name speaks of a transform, in the dataset and in datasets that it wraps. What holds
several (a list, a `Compose` with `.transforms`, an `nn.Sequential`) is opened, so that each has a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

SPEAKING = ("transform", "augment", "preprocess")
"""Parts of an attribute's name by which it is taken for a transform."""
WRAPPED = ("dataset", "datasets", "user_dataset")
"""Attributes under which datasets keep the datasets that they wrap (Subset, ConcatDataset and the like)."""
DEEPEST = 6

Clock = Callable[[int, Callable[..., Any], tuple, dict], Any]


class TimedCall:
    """A transform behind a clock; it still passes for what it wraps in `isinstance` and for every attribute."""

    def __init__(self, inner: Callable[..., Any], number: int, clock: Clock) -> None:
        self.__dict__["_timed"] = (inner, number, clock)

    @property
    def __class__(self) -> type:
        return type(self.__dict__["_timed"][0])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner, number, clock = self.__dict__["_timed"]
        return clock(number, inner, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_timed"][0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_timed"][0], name, value)

    def __repr__(self) -> str:
        return repr(self.__dict__["_timed"][0])


class Clocks:
    """The transforms that were found in a dataset; their clocks are put on and taken off as a whole.

    Between `on` and `off` everything is as the user made it, and costs nothing.

    Attributes:
        names: Of the transforms, in the order of their numbers.
    """

    def __init__(self, dataset: Any, clock: Clock, most: int) -> None:
        self._clock, self._most = clock, most
        self._seen: set[int] = set()
        self._switches: list[tuple[Callable[[Any], None], Any, Any]] = []  # how to put, bare, timed
        self.names: list[str] = []
        self._look_through(dataset, 0)

    def on(self) -> None:
        """Puts every clock on."""
        for put, _, timed in self._switches:
            put(timed)

    def off(self) -> None:
        """Takes every clock off."""
        for put, bare, _ in self._switches:
            put(bare)

    def _look_through(self, dataset: Any, depth: int) -> None:
        """Looks through a dataset's own attributes, then into what it wraps."""
        if depth > DEEPEST or not self._first_time(dataset):
            return
        own = getattr(dataset, "__dict__", {})
        for name in [name for name in own if any(part in name.lower() for part in SPEAKING)]:
            self._open(own[name], partial(own.__setitem__, name), depth)
        for name in WRAPPED:
            inner = own.get(name)
            for item in inner if isinstance(inner, list | tuple) else [inner]:
                if item is not None:
                    self._look_through(item, depth + 1)

    def _open(self, value: Any, put: Callable[[Any], None], depth: int) -> None:
        """Opens what holds transforms; what is one itself gets a clock."""
        if depth > DEEPEST:
            return
        if isinstance(value, tuple):
            timed = list(value)
            self._open_each(timed, depth, now=True)
            if any(new is not old for new, old in zip(timed, value, strict=True)):
                self._switches.append((put, value, tuple(timed)))
            return
        holder = _holder(value)
        if holder is not None:
            if self._first_time(value):
                self._open_each(holder, depth)
            return
        if not callable(value) or isinstance(value, type):
            return
        inside = [name for name in getattr(value, "__dict__", {}) if "transform" in name.lower()]
        if inside and all(callable(value.__dict__[name]) or value.__dict__[name] is None for name in inside):
            self._look_through(value, depth + 1)  # torchvision's StandardTransform: holds those of input and target
        elif len(self.names) < self._most:
            self._switches.append((put, value, self._timed(value)))

    def _open_each(self, holder: Any, depth: int, *, now: bool = False) -> None:
        """Opens what a list or dict holds; `now` puts the clocks on for good, in what is a copy."""
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            self._open(holder[key], partial(holder.__setitem__, key), depth + 1)
            if now and self._switches and self._switches[-1][1] is holder[key]:
                holder[key] = self._switches.pop()[2]

    def _timed(self, value: Callable[..., Any]) -> TimedCall:
        name = getattr(value, "__qualname__", None) or type(value).__name__
        name = name.rpartition("<locals>.")[2]
        same = sum(known.split(" #")[0] == name for known in self.names)
        self.names.append(f"{name} #{same + 1}" if same else name)
        return TimedCall(value, len(self.names) - 1, self._clock)

    def _first_time(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True


def _holder(value: Any) -> Any:
    """The list or dict in which `value` keeps its transforms, to be written to; None when it holds none."""
    if isinstance(value, list):
        return value
    inner = getattr(value, "__dict__", {}).get("transforms")
    if isinstance(inner, list):
        return inner
    if type(value).__name__ == "Sequential":
        return value.__dict__.get("_modules")
    return None
