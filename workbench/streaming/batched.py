"""BatchedStream: a source's samples as whole batches that the samples themselves determine, resumed at every batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset

from workbench.errors import SettingsError
from workbench.streaming.leftovers import positions_of
from workbench.streaming.position import Consumed, Place, share_of
from workbench.streaming.running import Running
from workbench.streaming.spans import Spans, cut, united
from workbench.streaming.windows import Windows, check_made_alike, merged_at_windows

Group = tuple[Sequence[int], int | None]
"""Numbers of the samples of one batch within their window, and the length to pad them to (None: their longest)."""


class BatchedStream(IterableDataset):
    """Whole batches of a source, window by window, for ``batch_size=None`` in the loader.

    Batches are formed inside windows of ``window`` samples, and which samples share one depends on nothing but the
    samples of the window. A state is therefore the source's state where the window began and the batches handed out
    since: a resume reads that one window again. With a ``ShardStream`` as source, ``StreamLoader`` (or
    ``merge_states``) goes on with any other number of workers and ranks: windows begin anew over what is left.

    Args:
        source: Samples: an iterable data set that splits itself over workers (a ``ShardStream``), as in ``Windows``.
        window: Samples in a window.
        length_of: Length of a sample, in tokens.
        collate: Makes a batch of a list of samples; None pads with ``padded``.

    Raises:
        SettingsError: A number is below 1.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        window: int,
        length_of: Callable[[Any], int] = len,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        check_at_least_one(window=window)
        self.source, self.window, self.length_of, self.collate = source, window, length_of, collate
        self._windows = Windows(source)
        self._running = Running()

    @abstractmethod
    def groups(self, lengths: Iterator[int]) -> Iterator[Group]:
        """The batches of one window, each handed out as soon as enough of ``lengths`` was read to know it."""

    @abstractmethod
    def batching(self) -> dict[str, Any]:
        """The settings that must be the same for a state to mean the same."""

    def __iter__(self) -> Iterator[Any]:
        return self._running.begin(self._handed_out(self._windows.begin()))

    def set_epoch(self, epoch: int) -> None:
        """Pass ``epoch`` on to the source."""
        self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The source's state where the window began, and the batches handed out since."""
        return {**self._windows.state_dict(), "batching": self.batching()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on after the last batch handed out.

        Args:
            state: What ``state_dict`` gave in the same worker, or what ``merged_state`` made of those of all workers.

        Raises:
            ResumeError: A pass is running; the state was saved under other settings; or the source refuses its part.
        """
        self._running.refuse()
        self._check(state)
        if "consumed" in state:
            self.source.load_state_dict(state)
            self._windows = Windows(self.source)
        else:
            self._windows.load_state_dict(state)

    def merged_state(self, states: Sequence[Mapping[str, Any]], *, finished: bool = False) -> dict[str, Any]:
        """One state for any number of ranks and workers, made of the states of all workers of all ranks.

        The window that each of them was in is read again, to tell which samples were handed out.

        Raises:
            ResumeError: The source is no ``ShardStream``; a state is missing; or they are of several moments.
        """
        places, consumed = merged_at_windows(
            states, self.source, check=self._check, finished=finished, samples="Samples", verb="batch"
        )
        spans = {epoch: list(held) for epoch, held in consumed.spans.items()}
        for state, place in zip(states, places, strict=True):
            if place.epoch in spans:
                spans[place.epoch] += self._handed_out_of_window(place, state["given"])
        after = Consumed(consumed.epoch, {epoch: united(held) for epoch, held in spans.items()})
        return {**after.as_dict(self.source.identity), "batching": self.batching()}

    def planned_state(self) -> dict[str, Any]:
        """The state before the next pass, for any number of ranks and workers."""
        return {**self.source.planned_state(), "batching": self.batching()}

    def _check(self, state: Any) -> None:
        check_made_alike(state, "batching", self.batching(), type(self).__name__)

    def _handed_out_of_window(self, place: Place, given: int) -> Spans:
        """Positions of the samples in the first ``given`` batches of the window that begins at ``place``."""
        share = share_of(place, self.source.identity)
        path = cut(share, place.taken, place.taken + self.window)
        positions = list(positions_of(path))
        lengths = map(self.length_of, self.source.samples_at(place.epoch, path))
        members = (member for group, _ in islice(self.groups(lengths), given) for member in group)
        return tuple((positions[member], positions[member] + 1) for member in members)

    def _handed_out(self, samples: Iterator[Any]) -> Iterator[Any]:
        for place, batch in self._windows.things(samples, self._batches):
            self._windows.place = place
            yield batch

    def _batches(self, samples: Iterator[Any]) -> Iterator[Callable[[], Any]]:
        held: dict[int, Any] = {}

        def lengths() -> Iterator[int]:
            for number, sample in enumerate(islice(samples, self.window)):
                held[number] = sample
                yield self.length_of(sample)

        for members, length in self.groups(lengths()):
            yield partial(self._batch, [held.pop(member) for member in members], length)

    def _batch(self, samples: list[Any], length: int | None) -> Any:
        return padded(samples, length) if self.collate is None else self.collate(samples)


def padded(samples: Sequence[Any], length: int | None = None) -> dict[str, torch.Tensor]:
    """Samples of 1-d ids as ``input_ids``, 0 behind each, and their ``lengths``.

    Args:
        samples: Ids of each sample.
        length: Columns; None takes the longest sample's.

    Returns:
        ``input_ids`` of shape ``[samples, length]`` and ``lengths`` of shape ``[samples]``, both int64.
    """
    lengths = torch.tensor([len(sample) for sample in samples], dtype=torch.int64)
    ids = torch.zeros(len(samples), int(lengths.max()) if length is None else length, dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = torch.as_tensor(sample)
    return {"input_ids": ids, "lengths": lengths}


def check_at_least_one(**values: int | None) -> None:
    """Do nothing if every value is None or a whole number of 1 or more.

    Raises:
        SettingsError: One is not; the sentence names it.
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise SettingsError(f"{name}={value!r} holds nothing: use a whole number of 1 or more.")
