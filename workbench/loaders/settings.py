"""LoaderSettings: one frozen combination of the knobs that a DataLoader is rebuilt with."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workbench.errors import SettingsError

DEFAULT_PREFETCH_FACTOR = 2  # what DataLoader uses when workers are on and nothing is said
START_METHODS = ("fork", "spawn", "forkserver")
SHARING_STRATEGIES = ("file_descriptor", "file_system")
NOT_FOR_DATALOADER = ("batch_on_worker", "layout", "worker_threads", "sharing_strategy", "non_blocking")
STEP_KNOBS = ("non_blocking",)  # turned on the training step, not on the loader
IN_ORDER_SINCE = (2, 6)  # first torch whose DataLoader takes `in_order`


@dataclass(frozen=True)
class LoaderSettings:
    """One combination of knobs; equal combinations compare equal.

    What means nothing at 0 workers (`prefetch_factor`, `persistent_workers`, `multiprocessing_context`, `in_order`,
    `worker_threads`, `sharing_strategy`) is put to one value there, so that settings a DataLoader could not tell apart
    are one settings here. With workers, a `prefetch_factor` of None becomes the 2 that DataLoader would use.

    Attributes:
        num_workers: Worker processes; 0 loads in the training process.
        prefetch_factor: Batches each worker keeps ready (batches, not samples); None at 0 workers.
        pin_memory: Copy batches into page-locked memory, for faster and overlapping copies to an accelerator.
        persistent_workers: Keep workers alive between epochs.
        batch_on_worker: Let the worker's dataset yield whole batches (`batch_size=None`).
        multiprocessing_context: "fork", "spawn" or "forkserver"; None keeps what the loader has. A multiprocessing
            context object is read as its start method.
        in_order: False lets a batch that is ready pass one that is not.
        batch_size: Samples a batch; None keeps what the loader has. Changing it changes training.
        layout: Which copy of the data is read ("files", "tar", "parquet", or any word the factory knows); None keeps
            what the loader has. Only a factory that names `layout` can turn it.
        worker_threads: Threads that a worker computes with (`torch.set_num_threads`, and OpenCV's where a worker has
            imported it), set after the loader's own `worker_init_fn`; None keeps what the worker has, which is 1 unless
            something else is said there.
        sharing_strategy: How tensors travel between processes: "file_descriptor" or "file_system"
            (`torch.multiprocessing.set_sharing_strategy`); None keeps what the process has.
        non_blocking: Whether the training step copies batches to its device without waiting for the copy. Only a step
            that names `non_blocking` can be told; None calls the step as it stands.

    Raises:
        SettingsError: If a value is one that no DataLoader accepts.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_on_worker: bool = False
    multiprocessing_context: str | None = None
    in_order: bool = True
    batch_size: int | None = None
    layout: str | None = None
    worker_threads: int | None = None
    sharing_strategy: str | None = None
    non_blocking: bool | None = None

    def __post_init__(self) -> None:
        checked = {
            "num_workers": _whole_number("num_workers", self.num_workers, at_least=0),
            "prefetch_factor": _whole_number("prefetch_factor", self.prefetch_factor, at_least=1, or_none=True),
            "multiprocessing_context": _one_of(
                "multiprocessing_context", _method_name(self.multiprocessing_context), START_METHODS, "forkserver"
            ),
            "batch_size": _whole_number("batch_size", self.batch_size, at_least=1, or_none=True),
            "layout": _word("layout", self.layout),
            "worker_threads": _whole_number("worker_threads", self.worker_threads, at_least=1, or_none=True),
            "sharing_strategy": _one_of("sharing_strategy", self.sharing_strategy, SHARING_STRATEGIES, "file_system"),
            "non_blocking": None if self.non_blocking is None else _truth("non_blocking", self.non_blocking, True),
        }
        for knob in ("pin_memory", "persistent_workers", "batch_on_worker", "in_order"):
            checked[knob] = _truth(knob, getattr(self, knob))
        if checked["num_workers"] == 0:
            checked |= {"prefetch_factor": None, "persistent_workers": False}
            checked |= {"multiprocessing_context": None, "in_order": True}
            checked |= {"worker_threads": None, "sharing_strategy": None}
        elif checked["prefetch_factor"] is None:
            checked["prefetch_factor"] = DEFAULT_PREFETCH_FACTOR
        for knob, value in checked.items():
            object.__setattr__(self, knob, value)

    @property
    def batches_in_flight(self) -> int:
        """Most batches that all workers together keep ready: `num_workers * prefetch_factor`, 0 without workers."""
        return self.num_workers * (self.prefetch_factor or 0)

    def loader_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for `torch.utils.data.DataLoader`, and only those it accepts for these values.

        What DataLoader has no argument for (`NOT_FOR_DATALOADER`) is never among them; `batch_size` and
        `multiprocessing_context` are there only when they are set.

        Raises:
            SettingsError: If `in_order` is False and the installed torch has no such argument.
        """
        kwargs: dict[str, Any] = {"num_workers": self.num_workers, "pin_memory": self.pin_memory}
        if self.num_workers:
            kwargs |= {"prefetch_factor": self.prefetch_factor, "persistent_workers": self.persistent_workers}
        if self.multiprocessing_context is not None:
            kwargs["multiprocessing_context"] = self.multiprocessing_context
        if not self.in_order:
            _require_in_order()
            kwargs["in_order"] = False
        if self.batch_size is not None:
            kwargs["batch_size"] = self.batch_size
        return kwargs

    def replaced(self, **knobs: Any) -> LoaderSettings:
        """These settings with some knobs changed.

        Raises:
            SettingsError: If a name is no knob, or a value is refused.
        """
        return LoaderSettings.from_dict({**self.as_dict(), **knobs})

    def as_dict(self) -> dict[str, Any]:
        """Every knob and its value, in the order of `KNOBS`; all values are JSON types."""
        return {knob: getattr(self, knob) for knob in KNOBS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoaderSettings:
        """Settings from knob names and values; knobs left out keep their defaults.

        Raises:
            SettingsError: If a name is no knob, or a value is refused.
        """
        for name in values:
            if name not in KNOBS:
                raise SettingsError(f"{name!r} is not a knob; {_closest(name)}")
        return cls(**values)

    def describe(self) -> str:
        """The settings in words, for instance "4 workers, prefetch 2 (8 batches in flight), pinned, persistent"."""
        parts = [workers(self.num_workers)]
        if self.num_workers:
            parts.append(f"prefetch {self.prefetch_factor} ({self.batches_in_flight} batches in flight)")
        words = {
            "pinned": self.pin_memory,
            "persistent": self.persistent_workers,
            "whole batches on the worker": self.batch_on_worker,
            f"started by {self.multiprocessing_context}": self.multiprocessing_context is not None,
            "any order": not self.in_order,
            f"batch size {self.batch_size}": self.batch_size is not None,
            f"layout {self.layout}": self.layout is not None,
            f"{self.worker_threads} thread{'' if self.worker_threads == 1 else 's'} a worker": self.worker_threads
            is not None,
            f"tensors shared by {self.sharing_strategy}": self.sharing_strategy is not None,
            "non-blocking copies": self.non_blocking is True,
            "blocking copies": self.non_blocking is False,
        }
        return ", ".join(parts + [word for word, said in words.items() if said])


def workers(count: int) -> str:
    """So many workers in words: "1 worker", "4 workers"."""
    return f"{count} worker{'' if count == 1 else 's'}"


KNOBS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(LoaderSettings))


def _whole_number(knob: str, value: Any, *, at_least: int, or_none: bool = False) -> int | None:
    if value is None and or_none:
        return None
    rule = f"a whole number of {at_least} or more" + (", or None" if or_none else "")
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise SettingsError(f"{knob}={value!r} must be {rule}; give for instance {knob}={max(at_least, 2)}")
    return number


def _truth(knob: str, value: Any, or_none: bool = False) -> bool:
    if isinstance(value, bool):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.shape == ():
        return bool(value)  # a cell of a pandas or numpy table
    raise SettingsError(
        f"{knob}={value!r} must be True or False{', or None' if or_none else ''}; give for instance {knob}=True"
    )


def _method_name(value: Any) -> Any:
    return value.get_start_method(allow_none=True) if hasattr(value, "get_start_method") else value


def _one_of(knob: str, value: Any, words: tuple[str, ...], example: str) -> str | None:
    if value is None or (isinstance(value, str) and value in words):
        return value
    names = ", ".join(map(repr, words))
    raise SettingsError(f"{knob}={value!r} must be one of {names}, or None; give for instance {example!r}")


def _word(knob: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value and value == value.strip()):
        return value
    raise SettingsError(f"{knob}={value!r} must be a word, or None; give for instance {knob}='tar'")


def _closest(name: Any) -> str:
    near = difflib.get_close_matches(str(name), KNOBS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the knobs are {', '.join(KNOBS)}"


def _require_in_order() -> None:
    version = _torch_version()
    if version is not None and version < IN_ORDER_SINCE:
        raise SettingsError(
            f"in_order=False needs torch {'.'.join(map(str, IN_ORDER_SINCE))} or later and torch "
            f"{'.'.join(map(str, version))} is installed; leave in_order at True or upgrade torch"
        )


@lru_cache(maxsize=1)
def _torch_version() -> tuple[int, ...] | None:
    """Major and minor number of the installed torch, read without importing it; None where it cannot be told."""
    try:
        numbers = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(map(int, numbers.groups())) if numbers else None
