"""Passes that are stopped and gone on with from saved states: how many are drawn, and what each hands out in all."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, settings

from workbench.streaming.split import Seat

EXAMPLES = int(os.environ.get("WORKBENCH_STREAM_EXAMPLES", "60"))
"""Drawn by each property of streams; their benchmark runs them with tens of thousands."""

PROPERTY = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES <= 60
)


def cut_and_resumed(make: Callable[[], Any], cuts: Sequence[int]) -> Iterator[Any]:
    """Everything of one pass that is stopped after each of `cuts` things and resumed by another stream.

    Args:
        make: Makes the stream, anew for each resume.
        cuts: Things to take before the next stop; after the last, all that is left is taken.
    """
    state = None
    for things in [*cuts, None]:
        stream = make()
        if state is not None:
            stream.load_state_dict(state)
        yield from itertools.islice(stream, things)
        state = saved(stream)


def split_anew(make: Callable[[Seat], Any], legs: Sequence[tuple[int, int, int]]) -> Iterator[Any]:
    """Everything of one pass whose states are merged after each leg and loaded by other ranks and workers.

    Args:
        make: Makes the stream of one seat.
        legs: Ranks, workers of each, and things that each worker hands out; in the last leg it hands out all it has.
    """
    merged = None
    for number, (world_size, num_workers, things) in enumerate(legs):
        states = []
        for rank, worker in itertools.product(range(world_size), range(max(1, num_workers))):
            stream = make(Seat(rank, world_size, worker, num_workers))
            if merged is not None:
                stream.load_state_dict(merged)
            yield from itertools.islice(stream, None if number == len(legs) - 1 else things)
            states.append(saved(stream))
        merged = make(Seat()).merged_state(states)


def saved(stream: Any) -> dict[str, Any]:
    """The stream's state as a checkpoint gives it back."""
    return pickle.loads(pickle.dumps(stream.state_dict()))
