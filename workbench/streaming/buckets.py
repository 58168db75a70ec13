"""BudgetStream: batches of samples of like length, as many as a budget of tokens holds, formed on the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from workbench.errors import SettingsError
from workbench.streaming.order import shuffled
from workbench.streaming.running import Running
from workbench.streaming.windows import Windows, check_made_alike

DEFAULT_WINDOW = 1_024


class BudgetStream(IterableDataset):
    """Whole batches of samples of variable length, for ``batch_size=None`` in the loader.

    ``window`` samples are read, sorted by length, and cut into batches whose padded size (samples times the longest)
    stays within ``token_budget``; the batches are handed out in a shuffled order that the window itself determines. A
    sample that is longer than the budget is a batch of its own: nothing is left out. A state is the source's state
    where the window began and the batches handed out since.

    Args:
        source: Samples: an iterable data set that splits itself over workers (a ``ShardStream``), as in ``Windows``.
        token_budget: Most tokens in a batch, padding included.
        most_samples: Most samples in a batch; None leaves it to the budget.
        window: Samples sorted together: more waste less padding, and mix batches less by order of the source.
        length_of: Length of a sample, in tokens.
        collate: Makes a batch of a list of samples; None pads with ``padded``.

    Raises:
        SettingsError: A number is below 1.
    """

    def __init__(
        self,
        source: Iterable[Any],
        token_budget: int,
        *,
        most_samples: int | None = None,
        window: int = DEFAULT_WINDOW,
        length_of: Callable[[Any], int] = len,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        for name, value in (("token_budget", token_budget), ("most_samples", most_samples), ("window", window)):
            if value is not None and value < 1:
                raise SettingsError(f"{name}={value} holds nothing: use 1 or more.")
        self.source, self.token_budget, self.most_samples = source, token_budget, most_samples
        self.window, self.length_of, self.collate = window, length_of, collate or padded
        self._windows = Windows(source)
        self._running = Running()

    def __iter__(self) -> Iterator[Any]:
        return self._running.begin(self._handed_out(self._windows.begin()))

    def set_epoch(self, epoch: int) -> None:
        """Pass ``epoch`` on to the source."""
        self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The source's state where the window began, and the batches handed out since."""
        return {**self._windows.state_dict(), "batching": self._batching()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on after the last batch handed out.

        Raises:
            ResumeError: A pass is running; the state was saved under other settings; or the source refuses its part.
        """
        self._running.refuse()
        check_made_alike(state, "batching", self._batching(), "BudgetStream")
        self._windows.load_state_dict(state)

    def _batching(self) -> dict[str, Any]:
        return {"token_budget": self.token_budget, "most_samples": self.most_samples, "window": self.window}

    def _handed_out(self, samples: Iterator[Any]) -> Iterator[Any]:
        for place, batch in self._windows.things(samples, self._window, self._batches):
            self._windows.place = place
            yield batch

    def _window(self, samples: Iterator[Any]) -> tuple[list[Any], int]:
        window = list(islice(samples, self.window))
        return window, len(window)

    def _batches(self, window: list[Any]) -> list[Callable[[], Any]]:
        lengths = [self.length_of(sample) for sample in window]
        batches = batches_within(lengths, self.token_budget, self.most_samples)
        order = shuffled(len(batches), sum(lengths)).tolist()
        return [partial(self._batch, window, batches[number]) for number in order]

    def _batch(self, window: list[Any], members: Sequence[int]) -> Any:
        return self.collate([window[member] for member in members])


@dataclass(frozen=True)
class PaddingReport:
    """How much of padded batches is padding.

    Attributes:
        batches: Batches.
        tokens: Tokens in them.
        positions: Tokens and padding.
    """

    batches: int
    tokens: int
    positions: int

    @property
    def padding(self) -> float | None:
        """Share of all positions that is padding; None without positions."""
        return 1 - self.tokens / self.positions if self.positions else None


def batches_within(lengths: Sequence[int], token_budget: int, most_samples: int | None = None) -> list[list[int]]:
    """Sample numbers in batches: sorted by length, cut where one more would exceed the budget.

    Args:
        lengths: Tokens in each sample.
        token_budget: Most positions in a batch: samples times the longest of them.
        most_samples: Most samples in a batch; None has no limit.
    """
    batches: list[list[int]] = []
    for sample in np.argsort(np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        last = batches[-1] if batches else []
        fits = (len(last) + 1) * lengths[sample] <= token_budget and len(last) != most_samples
        if last and fits:
            last.append(sample)
        else:
            batches.append([sample])
    return batches


def padding_report(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> PaddingReport:
    """What padding each batch to its longest sample costs."""
    positions = sum(len(batch) * max(lengths[sample] for sample in batch) for batch in batches)
    return PaddingReport(len(batches), sum(lengths[sample] for batch in batches for sample in batch), positions)


def padded(samples: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Samples of 1-d ids as ``input_ids`` of shape ``[samples, longest]``, 0 behind each, and ``lengths``, int64."""
    lengths = torch.tensor([len(sample) for sample in samples], dtype=torch.int64)
    ids = torch.zeros(len(samples), int(lengths.max()), dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = torch.as_tensor(sample)
    return {"input_ids": ids, "lengths": lengths}
