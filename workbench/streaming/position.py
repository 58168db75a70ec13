"""Where a stream is: one worker's place, and the places of every rank and worker merged into one set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.errors import ResumeError
from workbench.streaming.spans import Spans, cut, outside, packed, size, united, unpacked
from workbench.streaming.split import Seat, share_of_seat

STATE_VERSION = 1
_NAMES = {
    "version": "format of states",
    "shards": "shard manifest",
    "samples": "samples",
    "length": "sample length",
    "seed": "seed",
    "order": "order",
    "remainder": "remainder policy",
    "batch_size": "batch size",
}
_OF_THE_SPLIT = ("remainder", "batch_size")


@dataclass(frozen=True)
class Identity:
    """What must be the same for a state to mean the same.

    Attributes:
        shards: Digest of the shard manifest.
        samples: Samples in an epoch.
        seed: Seed of the stream.
        order: Version and settings of the shuffle.
        remainder: What happens where ranks do not divide samples.
        batch_size: Samples in a batch that the stream forms itself; 1 where it yields samples.
        length: Length of one sample where all have the same (tokens); None elsewhere.
        version: Version of the state's format.
    """

    shards: str
    samples: int
    seed: int
    order: str
    remainder: str = "exact"
    batch_size: int = 1
    length: int | None = None
    version: int = STATE_VERSION

    def check(self, saved: Mapping[str, Any], *, split_anew: bool = False) -> None:
        """Do nothing if ``saved`` is the same identity.

        Args:
            saved: The identity in a state.
            split_anew: What is left will be split anew, so that the settings of the last split may differ.

        Raises:
            ResumeError: It is another; the sentence names everything that differs.
        """
        mine = self.as_dict()
        compared = [name for name in _NAMES if not (split_anew and name in _OF_THE_SPLIT)]
        differ = [name for name in compared if saved.get(name) != mine[name]]
        if differ:
            facts = ", ".join(f"{_NAMES[name]} {saved.get(name)!r} then and {mine[name]!r} now" for name in differ)
            raise ResumeError(
                f"The state belongs to another stream ({facts}): give this stream what it was saved with, "
                "or start without a state."
            )

    def as_dict(self) -> dict[str, Any]:
        """The identity as plain values."""
        return {name: getattr(self, name) for name in _NAMES}


@dataclass(frozen=True)
class Place:
    """How far one worker is.

    Attributes:
        seat: Which worker of which rank.
        epoch: The epoch that it is in.
        base: What of that epoch was already consumed when it was last split.
        taken: Samples that were handed out of the worker's own share.
        ahead: What of the epoch after it was already consumed at that split, by ranks that had come further.
    """

    seat: Seat
    epoch: int
    base: Spans = ()
    taken: int = 0
    ahead: Spans = ()

    def as_dict(self, identity: Identity) -> dict[str, Any]:
        """The place as plain values, about 0.5 kB unless many resumes with other counts have left many gaps.

        What stays the same all epoch is one text: ``StatefulDataLoader`` flattens and compares states at every step,
        and each value of its own would cost.
        """
        share = {**asdict(self.seat), "base": packed(self.base), "identity": identity.as_dict()}
        share |= {"ahead": packed(self.ahead)} if self.ahead else {}
        return {"epoch": self.epoch, "taken": self.taken, "share": json.dumps(share)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], identity: Identity) -> Place:
        """The place that ``as_dict`` wrote.

        Raises:
            ResumeError: The state is not one of a stream, or belongs to another.
        """
        if not isinstance(state, Mapping) or not {"epoch", "taken", "share"} <= set(state):
            raise ResumeError(f"{_shown(state)} is not the state of a ShardStream: load what its state_dict() gave.")
        try:
            share = json.loads(state["share"])
        except (TypeError, ValueError) as error:
            raise ResumeError(f"The state {_shown(state)} is damaged ({error}): load an older one.") from error
        identity.check(share.pop("identity"))
        base, ahead = unpacked(share.pop("base")), unpacked(share.pop("ahead", ""))
        return cls(Seat(**share), state["epoch"], base, state["taken"], ahead)


@dataclass(frozen=True)
class Consumed:
    """What has been consumed over all ranks and workers: all that is needed to go on with any number of either.

    Attributes:
        epoch: The first epoch that is not complete.
        spans: Per epoch that was begun, the positions that were handed out.
    """

    epoch: int
    spans: Mapping[int, Spans]

    def as_dict(self, identity: Identity) -> dict[str, Any]:
        """As plain values."""
        consumed = {str(epoch): packed(spans) for epoch, spans in self.spans.items()}
        return {"epoch": self.epoch, "consumed": consumed, "identity": identity.as_dict()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], identity: Identity) -> Consumed:
        """What ``as_dict`` wrote.

        Raises:
            ResumeError: The state belongs to another stream.
        """
        identity.check(state["identity"], split_anew=True)
        return cls(state["epoch"], {int(epoch): unpacked(text) for epoch, text in state["consumed"].items()})


def left_of(base: Spans, identity: Identity) -> Spans:
    """What of an epoch is left where ``base`` is consumed."""
    return outside(base, identity.samples)


def share_of(place: Place, identity: Identity) -> Spans:
    """All positions of a worker's share since the last split, those already handed out included."""
    return share_of_seat(left_of(place.base, identity), place.seat, identity.remainder, identity.batch_size)


def merged(places: Iterable[Place], identity: Identity, *, finished: bool = False) -> Consumed:
    """What all workers of all ranks have consumed together.

    Args:
        places: The place of every worker of every rank, each exactly as far as its rank had come.
        identity: Of the stream.
        finished: Every rank had already ended the epoch: the next one begins, and what ``drop`` left out stays out.

    Raises:
        ResumeError: A place is missing or is given twice, or they are not of one moment.
    """
    places = list(places)
    _check_complete(places)
    first = min(place.epoch for place in places)
    now = [place for place in places if place.epoch == first]
    if len({(place.base, place.ahead) for place in now}) > 1 or max(place.epoch for place in places) > first + 1:
        raise ResumeError("The states given are not of one moment: load states that all ranks saved at the same step.")
    base, following = now[0].base, now[0].ahead
    behind = {place.seat for place in now}
    placed = [*now, *(replace(p, epoch=first, base=base, taken=-1) for p in places if p.seat not in behind)]
    spans = {first: _handed_out(base, placed, identity)}
    ahead = [place for place in places if place.epoch > first]
    begun = _handed_out(ahead[0].base, ahead, identity) if ahead else following
    spans_after = {first + 1: begun} if begun else {}
    return Consumed(first + 1, spans_after) if finished and not ahead else Consumed(first, spans | spans_after)


def _handed_out(base: Spans, places: list[Place], identity: Identity) -> Spans:
    """Union of what each place has handed out since ``base``; ``taken`` below zero means all of its share."""
    spans, through = list(base), True
    for place in places:
        share = share_of(place, identity)
        taken = size(share) if place.taken < 0 else place.taken
        spans.extend(cut(share, 0, taken))
        through = through and taken >= size(share)
    complete = through and len(places) == places[0].seat.world_size * places[0].seat.shares
    return ((0, identity.samples),) if complete and identity.samples else united(spans)


def _check_complete(places: list[Place]) -> None:
    if not places:
        raise ResumeError("No state was given: pass the state of every rank.")
    shapes = {(place.seat.world_size, place.seat.num_workers) for place in places}
    if len(shapes) > 1:
        kinds = " and ".join(f"{ranks} ranks with {workers} workers" for ranks, workers in sorted(shapes))
        raise ResumeError(f"The states given are of several runs ({kinds}): pass the states of one checkpoint.")
    world_size, _ = shapes.pop()
    ranks = [place.seat.rank for place in places if place.seat.worker == 0]
    missing = sorted(set(range(world_size)) - set(ranks))
    if (
        missing
        or len({place.seat for place in places}) != len(places)
        or len(places) != (world_size * places[0].seat.shares)
    ):
        which = f"those of rank {', '.join(map(str, missing))} are missing" if missing else "some are given twice"
        raise ResumeError(
            f"The run that was saved had {world_size} ranks, and {which}: pass the state of every rank once."
        )


def _shown(state: Any) -> str:
    return repr(state)[:80]
