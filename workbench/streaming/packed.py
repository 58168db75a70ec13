"""PackedStream: documents of any length as rows of one length, none lost or mixed, resumable at every row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from workbench.errors import ResumeError, SettingsError
from workbench.streaming.leftovers import Document, Leftover, own_leftovers, positions_of, what_is_left
from workbench.streaming.order import shuffled
from workbench.streaming.packing import Row, rows_of
from workbench.streaming.position import Consumed, Place, share_of
from workbench.streaming.running import Running
from workbench.streaming.spans import cut, size, united
from workbench.streaming.stream import ShardStream
from workbench.streaming.windows import Windows, check_made_alike, merged_at_windows

NO_LABEL = -100
"""What ``torch.nn.functional.cross_entropy`` ignores unless told otherwise."""
NO_DOCUMENT = -1
LABELS = ("next", "same")
POSITIONS = ("piece", "document")


class PackedStream(IterableDataset):
    """Rows of ``length`` tokens, each holding whole documents (or pieces of documents longer than a row).

    Documents are read until they make up ``window_rows`` rows, packed, and handed out in a shuffled order that the
    window itself determines. A state is the source's state where the window began and the number of rows handed out
    since: a resume reads that one window again. Memory is one window and, at most, one document more.

    Each row is a dict of int64 tensors, shape ``[length]`` (``[batch_size, length]`` where batches are formed here):

    * ``input_ids``: the tokens, then ``pad_id``;
    * ``labels``: with ``labels="next"`` the token that follows in the same document, also where it went into another
      row, and -100 after a document's last; with ``labels="same"`` the tokens themselves, for models that shift by
      one on their own, with -100 on the first token of each piece, which has nothing before it;
    * ``document_ids``: 0, 1, 2 ... for the documents of the row, and -1 on padding: what an attention mask needs;
    * ``position_ids``: 0, 1, 2 ... anew for each piece, or going on within a document with ``positions="document"``.

    Args:
        source: Documents: an iterable data set (a ``ShardStream``, or any that splits itself over workers) of 1-d
            arrays or tensors of ids, or of dicts that hold one. With ``state_dict``/``load_state_dict`` it is resumed
            by them; without, what was read is read again and skipped.
        length: Tokens in a row.
        strategy: ``best_fit``, ``first_fit`` or ``concatenate``.
        window_rows: Rows' worth of tokens that are packed together.
        overlong: ``split`` or ``truncate`` documents longer than a row.
        field: The key of the ids where a document is a dict.
        batch_size: Rows in a batch formed here, for ``batch_size=None`` in the loader; None yields rows.
        pad_id: What stands in ``input_ids`` where there is no token.
        labels: ``next`` or ``same``.
        positions: ``piece`` or ``document``.

    Raises:
        SettingsError: A value is impossible.
    """

    def __init__(
        self,
        source: Iterable[Any],
        length: int,
        *,
        strategy: str = "best_fit",
        window_rows: int = 256,
        overlong: str = "split",
        field: str = "tokens",
        batch_size: int | None = None,
        pad_id: int = 0,
        labels: str = "next",
        positions: str = "piece",
    ) -> None:
        rows_of([], length, strategy, overlong)
        for name, value, allowed in (("labels", labels, LABELS), ("positions", positions, POSITIONS)):
            if value not in allowed:
                raise SettingsError(f"{name}={value!r} is no choice: use one of {', '.join(allowed)}.")
        if window_rows < 1 or (batch_size is not None and batch_size < 1):
            raise SettingsError(f"window_rows={window_rows}, batch_size={batch_size}: use 1 or more.")
        self.source, self.length, self.strategy = source, length, strategy
        self.window_rows, self.overlong, self.field = window_rows, overlong, field
        self.batch_size, self.pad_id, self.labels, self.positions = batch_size, pad_id, labels, positions
        self._windows = Windows(source)
        self._running = Running()
        self._left_by_epoch: dict[int, list[Leftover]] = {}
        self._loaded: list[Leftover] | None = None
        self._own: list[Leftover] = []

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        documents = self._windows.begin()
        self._own, self._loaded = self._next_leftovers(), None
        place = self._source_place()
        if place is not None:
            documents = chain(self._left_over(place.epoch, self._own[self._windows.place.read :]), documents)
        return self._running.begin(self._handed_out(documents))

    def set_epoch(self, epoch: int) -> None:
        """Pass ``epoch`` on to the source."""
        self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The source's state where the window began, and the rows handed out since."""
        left = self._own if self._loaded is None else self._loaded
        return {**self._windows.state_dict(), "left": json.dumps(left), "packing": self._packing()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on after the last row handed out.

        Args:
            state: What ``state_dict`` gave in the same worker, or what ``merged_state`` made of those of all workers.

        Raises:
            ResumeError: A pass is running; the state was saved under other packing; or the source refuses its part.
        """
        self._running.refuse()
        self._check(state)
        left = [tuple(one) for one in json.loads(state["left"])]
        if "consumed" in state:
            self.source.load_state_dict(state)
            self._windows = Windows(self.source)
            self._left_by_epoch, self._loaded, self._own = {state["epoch"]: left}, None, []
        else:
            self._windows.load_state_dict(state)
            self._loaded = left

    def merged_state(self, states: Sequence[Mapping[str, Any]], *, finished: bool = False) -> dict[str, Any]:
        """One state for any number of ranks and workers, made of the states of all workers of all ranks.

        The window that each of them was in is read again, to tell which documents were handed out, and which tokens
        are left of those that were begun.

        Raises:
            ResumeError: The source is no ``ShardStream``; a state is missing; or they are of several moments.
        """
        places, consumed = merged_at_windows(
            states, self.source, check=self._check, finished=finished, samples="Documents", verb="pack"
        )
        if len({place.epoch for place in places}) > 1:
            raise ResumeError("Some ranks were in the next epoch already: load states that all saved in one epoch.")
        spans, left = list(consumed.spans.get(consumed.epoch, ())), []
        for state, place in zip(states, places, strict=True) if consumed.epoch == places[0].epoch else ():
            done, rest = self._left_by(state, place)
            spans += done
            left += rest
        after = Consumed(consumed.epoch, {consumed.epoch: united(spans)})
        return {**after.as_dict(self.source.identity), "left": json.dumps(sorted(left)), "packing": self._packing()}

    def planned_state(self) -> dict[str, Any]:
        """The state before the next pass, for any number of ranks and workers."""
        planned = self.source.planned_state()
        left = self._left_by_epoch.get(planned["epoch"], [])
        return {**planned, "left": json.dumps(left), "packing": self._packing()}

    def _check(self, state: Any) -> None:
        check_made_alike(state, "packing", self._packing(), "PackedStream")

    def _left_by(self, state: Mapping[str, Any], place: Place) -> tuple[list[tuple[int, int]], list[Leftover]]:
        """What one worker was through with, and what it left of documents that it had begun."""
        own = [tuple(one) for one in json.loads(state["left"])]
        share = share_of(place, self.source.identity)
        path = cut(share, place.taken, size(share))
        samples = zip(positions_of(path), self.source.samples_at(place.epoch, path), strict=True)
        fresh = (self._document(sample, position) for position, sample in samples)
        read: list[Document] = []
        documents = chain(self._left_over(place.epoch, own[state["read"] :]), fresh)
        window, count = self._window(document for document in documents if not read.append(document))
        rows, order = self._packed(window)
        used = (piece for number in order[: state["given"]] for piece in rows[number])
        done, left = what_is_left(read, window, used)
        return done, left + own[state["read"] + count :]

    def _next_leftovers(self) -> list[Leftover]:
        place = self._source_place()
        if self._loaded is not None or place is None:
            return self._loaded or []
        return own_leftovers(self._left_by_epoch.get(place.epoch, []), place.seat)

    def _source_place(self) -> Place | None:
        return self.source.place() if isinstance(self.source, ShardStream) else None

    def _left_over(self, epoch: int, leftovers: Sequence[Leftover]) -> Iterator[Document]:
        for position, begin, end in leftovers:
            sample = next(self.source.samples_at(epoch, ((position, position + 1),)))
            yield Document(_ids(sample, self.field), begin, end, position, left_over=True)

    def _document(self, sample: Any, position: int | None = None) -> Document:
        ids = _ids(sample, self.field)
        end = min(len(ids), self.length) if self.overlong == "truncate" else len(ids)
        return Document(ids, 0, end, position)

    def _packing(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "strategy": self.strategy,
            "window_rows": self.window_rows,
            "overlong": self.overlong,
            "batch_size": self.batch_size,
        }

    def _handed_out(self, documents: Iterator[Any]) -> Iterator[dict[str, torch.Tensor]]:
        batch: list[dict[str, np.ndarray]] = []
        for place, row in self._windows.things(documents, self._rows):
            batch.append(row)
            if len(batch) == (self.batch_size or 1):
                self._windows.place = place
                yield self._as_tensors(batch)
                batch = []
        if batch:
            self._windows.place = place
            yield self._as_tensors(batch)

    def _rows(self, documents: Iterator[Any]) -> list[Callable[[], dict[str, np.ndarray]]]:
        window, _ = self._window(documents)
        rows, order = self._packed(window)
        return [partial(self._row, window, rows[number]) for number in order]

    def _packed(self, window: list[Document]) -> tuple[list[Row], list[int]]:
        """The rows of a window, and the order that they are handed out in."""
        rows = rows_of([len(document) for document in window], self.length, self.strategy, self.overlong)
        return rows, shuffled(len(rows), sum(map(len, window))).tolist()

    def _window(self, documents: Iterator[Any]) -> tuple[list[Document], int]:
        """The documents to pack together, empty ones left out, and how many were read."""
        window, tokens, read = [], 0, 0
        for sample in documents:
            read += 1
            document = sample if isinstance(sample, Document) else self._document(sample)
            if len(document):
                window.append(document)
                tokens += len(document)
            if tokens >= self.window_rows * self.length:
                break
        return window, read

    def _row(self, window: Sequence[Document], row: Row) -> dict[str, np.ndarray]:
        inputs = np.full(self.length, self.pad_id, dtype=np.int64)
        labels = np.full(self.length, NO_LABEL, dtype=np.int64)
        documents = np.full(self.length, NO_DOCUMENT, dtype=np.int64)
        positions = np.zeros(self.length, dtype=np.int64)
        at = 0
        for number, piece in enumerate(row):
            document, end = window[piece.document], at + len(piece)
            begin = document.begin + piece.begin
            inputs[at:end] = document.ids[begin : begin + len(piece)]
            if self.labels == "next":
                following = document.ids[begin + 1 : begin + len(piece) + 1]
                labels[at : at + len(following)] = following
            else:
                labels[at + 1 : end] = inputs[at + 1 : end]
            documents[at:end] = number
            first = begin if self.positions == "document" else 0
            positions[at:end] = np.arange(first, first + len(piece))
            at = end
        return {"input_ids": inputs, "labels": labels, "document_ids": documents, "position_ids": positions}

    def _as_tensors(self, batch: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        if self.batch_size is None:
            return {name: torch.from_numpy(values) for name, values in batch[0].items()}
        return {name: torch.from_numpy(np.stack([row[name] for row in batch])) for name in batch[0]}


def _ids(document: Any, field: str) -> np.ndarray:
    ids = document
    if isinstance(document, Mapping):
        if field not in document:
            raise SettingsError(
                f"A document has the fields {', '.join(map(str, document))} and no {field!r}: name the one that holds "
                "ids with field=."
            )
        ids = document[field]
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise SettingsError(
            f"A document is {ids.dtype} of shape {list(ids.shape)}: give a flat list of token ids; tokenise first."
        )
    return ids
