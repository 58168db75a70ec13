"""How many samples a batch holds, and how that is known.

There is no rule in PyTorch that says which dimension of which part of a batch runs over samples, so the parts vote:

    tensor, array     its first dimension; without dimensions it abstains
    list of values    its length (paths, labels)
    list of tensors   fields, each voting for itself, or samples, one an entry: samples when the loader's batch size
                      says so, or when entries are alike but for their first dimension
    list of records   the same choice: samples when the records hold single values, or disagree in size
    home-made object  its attributes vote, and its len; an integer attribute `samples_per_batch` decides alone

The number with most votes wins; the loader's own batch size wins over all when at least one part has it. What remains
undecided is told as ambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from workbench.loaders.structure import (
    MAX_DEPTH,
    PLAIN,
    Step,
    batch_bytes,
    count_tensors,
    describe_structure,
    is_array,
    is_plain_list,
    leaf_bytes,
    leaves,
    parts_of,
    path_name,
)

__all__ = [
    "BatchCount",
    "batch_bytes",
    "count_samples",
    "count_tensors",
    "describe_structure",
    "leaves",
    "make_counter",
]

DECLARED = "samples_per_batch"  # attribute by which a batch says its own number
FEW_FIELDS = 3  # equal entries up to this many are taken as fields (views of one sample), more as samples
ALIKE_LOOKED_AT = 64  # entries of a list that are compared with each other
NAMES_SHOWN = 4


@dataclass(frozen=True)
class BatchCount:
    """How many samples a batch holds.

    Attributes:
        samples: The number; None when no part of the batch has a length.
        evidence: Why, for people: "first dimension of image, label (2 of 4 leaves agree)".
        ambiguous: True when the parts disagree and nothing decides between them; `samples` is then a guess.
        path: Steps to the part that was counted, the last one saying how: `("count", "first dimension")` or
            `("count", "length")` and so on. Empty when nothing was found.
    """

    samples: int | None
    evidence: str
    ambiguous: bool = False
    path: tuple[Step, ...] = ()


class _Vote(NamedTuple):
    path: tuple[Step, ...]
    size: int
    weight_bytes: int
    doubtful: bool = False


def count_samples(batch: Any, hint_batch_size: int | None = None) -> BatchCount:
    """How many samples a batch holds, with the evidence.

    Args:
        batch: Anything a loader yields.
        hint_batch_size: The loader's `batch_size`, if it has one. A batch may be smaller, so it decides only between
            numbers that are found in the batch.
    """
    declared = getattr(batch, DECLARED, None) if not isinstance(batch, Mapping) else None
    if isinstance(declared, int) and not isinstance(declared, bool):
        return BatchCount(declared, f"its attribute {DECLARED}", path=(Step("attribute", DECLARED), _HOW["value"]))
    if isinstance(batch, list | tuple) and not batch:
        return BatchCount(0, f"an empty {type(batch).__name__}")
    votes, leaves_seen = _votes(batch, (), hint_batch_size, frozenset())
    if not votes:
        return BatchCount(None, f"no part of the {type(batch).__name__} has a length; give samples_per_batch", True)
    tally = Counter(vote.size for vote in votes)
    size, settled = _winner(tally, votes, hint_batch_size)
    agreeing = [vote for vote in votes if vote.size == size]
    doubtful = all(vote.doubtful for vote in agreeing) and size != hint_batch_size
    evidence = _evidence(agreeing, max(leaves_seen, len(votes)), size, hint_batch_size)
    if not settled:
        others = ", ".join(str(other) for other in tally if other != size)
        evidence += f"; other parts say {others}: give samples_per_batch if {size} is wrong"
    elif doubtful:
        evidence += "; its entries could also be read the other way: give samples_per_batch if wrong"
    return BatchCount(size, evidence, not settled or doubtful, agreeing[0].path)


def make_counter(first_batch: Any, hint_batch_size: int | None = None) -> Callable[[Any], int]:
    """A function that counts further batches of the same loader by looking at one part only.

    A batch that lacks that part is counted from scratch; one without any length counts as 0.
    """
    found = count_samples(first_batch, hint_batch_size)

    def from_scratch(batch: Any) -> int:
        return count_samples(batch, hint_batch_size).samples or 0

    if not found.path:
        return from_scratch
    steps = [itemgetter(s.name) if s.kind in ("key", "index") else attrgetter(s.name) for s in found.path[:-1]]
    measure = _MEASURES[found.path[-1].name]

    def count(batch: Any) -> int:
        try:
            part = batch
            for step in steps:
                part = step(part)
            return measure(part)
        except (LookupError, AttributeError, TypeError, ValueError):
            return from_scratch(batch)

    return count


_HOW = {name: Step("count", name) for name in ("first dimension", "length", "number of entries", "sequences", "value")}
_MEASURES: dict[str, Callable[[Any], int]] = {
    "first dimension": lambda part: int(part.shape[0]) if not getattr(part, "is_nested", False) else part.size(0),
    "length": len,
    "number of entries": len,
    "sequences": lambda part: int(part.batch_sizes[0]),
    "value": int,
}


def _votes(node: Any, path: tuple[Step, ...], hint: int | None, above: frozenset[int]) -> tuple[list[_Vote], int]:
    """Votes of a part of the batch, and how many leaves it has."""
    if isinstance(node, PackedSequence):
        return [_vote(node, path, "sequences", leaf_bytes(node.data))], 1
    if is_array(node):
        dimensions = node.dim() if isinstance(node, torch.Tensor) else len(node.shape)
        return ([_vote(node, path, "first dimension", leaf_bytes(node))] if dimensions else []), 1
    if is_plain_list(node):
        return [_vote(node, path, "length", 0)], 1
    parts = parts_of(node) if len(path) < MAX_DEPTH and id(node) not in above else None
    if not parts:
        return [], 1
    below = [_votes(part, (*path, step), hint, above | {id(node)}) for step, part in parts]
    inside = [vote for votes, _ in below for vote in votes]
    count = sum(n for _, n in below)
    if isinstance(node, list | tuple) and not hasattr(node, "_fields"):
        rows, doubtful = _are_samples(node, below, hint)
        if rows:
            return [_vote(node, path, "number of entries", sum(v.weight_bytes for v in inside), doubtful)], 1
        return [vote._replace(doubtful=vote.doubtful or doubtful) for vote in inside], count
    if _has_length_of_its_own(node):
        inside.append(_vote(node, path, "length", 0))
        count += 1
    return inside, count


def _vote(node: Any, path: tuple[Step, ...], how: str, weight_bytes: int, doubtful: bool = False) -> _Vote:
    return _Vote((*path, _HOW[how]), _MEASURES[how](node), weight_bytes, doubtful)


def _has_length_of_its_own(node: Any) -> bool:
    if isinstance(node, Mapping | tuple) or not hasattr(type(node), "__len__"):
        return False
    try:
        return isinstance(len(node), int)
    except Exception:  # the user's own __len__
        return False


def _are_samples(node: Any, below: list[tuple[list[_Vote], int]], hint: int | None) -> tuple[bool, bool]:
    """Whether the entries of a list are samples (one an entry) and not fields, and whether that is doubtful."""
    entries, length = list(node), len(node)
    sizes = [{vote.size for vote in votes} for votes, _ in below]
    every = set().union(*sizes)
    if hint is not None and (hint in every) != (hint == length):
        return hint == length and _alike(entries), False
    if not _alike(entries):
        return False, False
    if all(is_array(entry) for entry in entries):
        if len(every) > 1:
            return True, False
        if not every:
            return True, False  # a list of numbers kept as tensors without dimensions
    elif len(every) != 1 or any(len(votes) < count for votes, count in below):
        return True, False  # records of single values, or of parts that differ in size
    if every == {length} or length == 1:
        return False, False
    return length > FEW_FIELDS, True


def _alike(entries: list[Any]) -> bool:
    """Whether entries have one kind: what is stacked sample by sample, and not field by field."""
    first = _kind(entries[0])
    return all(_kind(entry) == first for entry in entries[1:ALIKE_LOOKED_AT])


def _kind(entry: Any, depth: int = 0) -> Any:
    if isinstance(entry, torch.Tensor):
        return ("array", str(entry.dtype), entry.dim(), () if entry.is_nested else tuple(entry.shape[2:]))
    if is_array(entry):
        return ("array", str(getattr(entry, "dtype", type(entry))), len(entry.shape), tuple(entry.shape[2:]))
    if isinstance(entry, PLAIN):
        return type(entry)
    parts = parts_of(entry)
    if parts is None or depth > 2:
        return type(entry)
    if isinstance(entry, list | tuple) and not hasattr(entry, "_fields"):
        kinds = tuple(_kind(part, depth + 1) for _, part in parts[:ALIKE_LOOKED_AT])
        return (type(entry), kinds[:1] if len(set(map(repr, kinds))) == 1 else kinds)
    return (type(entry), tuple(step.name for step, _ in parts))


def _winner(tally: Counter[int], votes: list[_Vote], hint: int | None) -> tuple[int, bool]:
    """The number that wins, and whether it does so clearly."""
    if hint in tally:
        return int(hint), True  # type: ignore[arg-type]
    most = max(tally.values())
    first = [size for size, count in tally.items() if count == most]
    if len(first) == 1:
        return first[0], True
    weight = {size: max(v.weight_bytes for v in votes if v.size == size) for size in first}
    return max(first, key=lambda size: weight[size]), False


def _evidence(agreeing: list[_Vote], leaves_seen: int, size: int, hint: int | None) -> str:
    texts = []
    for how in _HOW:
        names = [path_name(vote.path[:-1]) for vote in agreeing if vote.path[-1].name == how]
        if names:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            texts.append(f"{how} of {', '.join(names[:NAMES_SHOWN])}{more}")
    text = ", ".join(texts)
    if leaves_seen > 1:
        text += f" ({len(agreeing)} of {leaves_seen} leaves agree)"
    return f"{text}, as batch_size={hint} says" if size == hint else text
