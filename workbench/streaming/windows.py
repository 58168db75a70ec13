"""Samples of a source window by window, each window made into rows or batches, with a state after every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import ResumeError
from workbench.streaming.position import Consumed, Place, merged
from workbench.streaming.stream import ShardStream


@dataclass(frozen=True)
class WindowPlace:
    """Where the next thing is that a window is made into.

    Attributes:
        source: The source's state before the first sample of the window; None where it keeps none.
        read: Samples read in this pass before that one.
        given: Things of the window that were handed out.
    """

    source: dict[str, Any] | None
    read: int = 0
    given: int = 0


class Windows:
    """Reads a source window by window, and knows the place after each thing that was handed out.

    A resume reads the window that it falls into again: nothing of it needs to be in a state. A source with
    ``state_dict`` and ``load_state_dict`` is resumed by them; of another, what was read is read again and skipped.

    Args:
        source: An iterable of samples.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self.resumable = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self.place: WindowPlace | None = None
        self._pending: WindowPlace | None = None

    def begin(self) -> Iterator[Any]:
        """Begin a pass, where ``load`` said or anew; returns the samples."""
        samples = iter(self.source)
        begun, self._pending = self._pending, None
        if begun is not None and not self.resumable:
            for _ in range(begun.read):
                next(samples, None)
        self.place = begun or WindowPlace(self._source_state())
        return samples

    def things(
        self, samples: Iterator[Any], form: Callable[[Iterator[Any]], Iterable[Callable[[], Any]]]
    ) -> Iterator[tuple[WindowPlace, Any]]:
        """Everything that windows are made into, each with the place that follows it.

        Args:
            samples: What ``begin`` returned.
            form: Reads one window and gives functions that make one thing each, in an order that only the window
                determines; a window without a sample ends the pass.
        """
        begun = self.place
        while True:
            counted = _Counted(samples)
            for at, make in enumerate(form(counted)):
                if at >= begun.given:
                    yield WindowPlace(begun.source, begun.read, at + 1), make()
            if not counted.read:
                return
            begun = WindowPlace(self._source_state(), begun.read + counted.read)

    def state_dict(self) -> dict[str, Any]:
        """The place after what was handed out last, as plain values."""
        place = self.place or self._pending or WindowPlace(self._source_state())
        return {"source": place.source, "read": place.read, "given": place.given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there.

        Raises:
            ResumeError: The source refuses its part of the state.
        """
        if self.resumable:
            self.source.load_state_dict(state["source"])
        self._pending, self.place = WindowPlace(state["source"], state["read"], state["given"]), None

    def _source_state(self) -> dict[str, Any] | None:
        return self.source.state_dict() if self.resumable else None


def merged_at_windows(
    states: Sequence[Mapping[str, Any]],
    source: Any,
    *,
    check: Callable[[Mapping[str, Any]], None],
    finished: bool,
    samples: str,
    verb: str,
) -> tuple[list[Place], Consumed]:
    """Where the window of each state began, and what of the source was consumed by then; windows are not looked into.

    Args:
        states: Of all workers of all ranks.
        source: What the stream reads.
        check: Refuses a state of a stream that makes something else of windows.
        finished: Every rank had already ended the epoch.
        samples: What the stream calls the samples of its source, as a sentence begins.
        verb: What it does with them.

    Raises:
        ResumeError: The source is no ``ShardStream``; a state is missing or refused; or they are of several moments.
    """
    if not isinstance(source, ShardStream):
        raise ResumeError(
            f"{samples} of a {type(source).__name__} cannot be split anew: resume with the numbers of workers and "
            f"ranks that the state was saved with, or {verb} a ShardStream."
        )
    for state in states:
        check(state)
    places = [Place.from_dict(state["source"], source.identity) for state in states]
    return places, merged(places, source.identity, finished=finished)


class _Counted:
    """An iterator that knows how many samples it gave."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self._samples, self.read = samples, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        sample = next(self._samples)
        self.read += 1
        return sample


def check_made_alike(saved: Mapping[str, Any] | Any, key: str, mine: Mapping[str, Any], name: str) -> None:
    """Do nothing if a state was saved by a stream that makes the same of the same window.

    Args:
        saved: The state.
        key: Where in it the settings lie.
        mine: The settings of the stream that loads it.
        name: What the stream is called.

    Raises:
        ResumeError: It is another's state, or settings differ; the sentence names them.
    """
    if not isinstance(saved, Mapping) or not isinstance(saved.get(key), Mapping):
        raise ResumeError(f"{str(saved)[:80]} is not the state of a {name}: load what its state_dict() gave.")
    differ = [f"{k} {saved[key].get(k)!r} then and {v!r} now" for k, v in mine.items() if saved[key].get(k) != v]
    if differ:
        raise ResumeError(f"The state is of another {name} ({', '.join(differ)}): make it as it was saved.")
