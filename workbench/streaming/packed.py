"""PackedStream: documents of any length as rows of one length, none lost or mixed, resumable at every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from workbench.errors import SettingsError
from workbench.streaming.order import shuffled
from workbench.streaming.packing import Row, rows_of
from workbench.streaming.running import Running
from workbench.streaming.windows import Windows, check_made_alike

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

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return self._running.begin(self._handed_out(self._windows.begin()))

    def set_epoch(self, epoch: int) -> None:
        """Pass ``epoch`` on to the source."""
        self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The source's state where the window began, and the rows handed out since."""
        return {**self._windows.state_dict(), "packing": self._packing()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on after the last row handed out.

        Raises:
            ResumeError: A pass is running; the state was saved under other packing; or the source refuses its part.
        """
        self._running.refuse()
        check_made_alike(state, "packing", self._packing(), "PackedStream")
        self._windows.load_state_dict(state)

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
        for place, row in self._windows.things(documents, self._window, self._rows):
            batch.append(row)
            if len(batch) == (self.batch_size or 1):
                self._windows.place = place
                yield self._as_tensors(batch)
                batch = []
        if batch:
            self._windows.place = place
            yield self._as_tensors(batch)

    def _rows(self, window: list[np.ndarray]) -> list[Callable[[], dict[str, np.ndarray]]]:
        rows = rows_of([len(document) for document in window], self.length, self.strategy, self.overlong)
        order = shuffled(len(rows), sum(map(len, window))).tolist()
        return [partial(self._row, window, rows[number]) for number in order]

    def _window(self, documents: Iterator[Any]) -> tuple[list[np.ndarray], int]:
        """The documents to pack together, empty ones left out, and how many were read."""
        window, tokens, read = [], 0, 0
        for document in documents:
            read += 1
            ids = _ids(document, self.field)
            if self.overlong == "truncate":
                ids = ids[: self.length]
            if len(ids):
                window.append(ids)
                tokens += len(ids)
            if tokens >= self.window_rows * self.length:
                break
        return window, read

    def _row(self, window: Sequence[np.ndarray], row: Row) -> dict[str, np.ndarray]:
        inputs = np.full(self.length, self.pad_id, dtype=np.int64)
        labels = np.full(self.length, NO_LABEL, dtype=np.int64)
        documents = np.full(self.length, NO_DOCUMENT, dtype=np.int64)
        positions = np.zeros(self.length, dtype=np.int64)
        at = 0
        for number, piece in enumerate(row):
            ids, end = window[piece.document], at + len(piece)
            inputs[at:end] = ids[piece.begin : piece.end]
            if self.labels == "next":
                following = ids[piece.begin + 1 : piece.end + 1]
                labels[at : at + len(following)] = following
            else:
                labels[at + 1 : end] = inputs[at + 1 : end]
            documents[at:end] = number
            first = piece.begin if self.positions == "document" else 0
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
