"""Tables: stream Parquet row groups, turn columns into features, as for training on tabular data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from workbench.errors import SamplesError
from workbench.samples.epoch import data_loader, folder_of, require

SAMPLES_PER_EPOCH = 1_000_000
NUMBERS = ("dep_delay", "air_time", "distance")
CYCLES = {"month": 12, "day": 31, "hour": 24, "minute": 60}
CATEGORIES = ("carrier", "origin", "dest")
TARGET = "arr_delay"
COLUMNS = (*NUMBERS, *CYCLES, *CATEGORIES, TARGET)


def tables(
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    multiprocessing_context: str | None = None,
    in_order: bool = True,
    batch_size: int = 1024,
    batch_on_worker: bool = False,
    *,
    data: str | Path | None = None,
    samples_per_epoch: int | None = None,
    seed: int = 0,
) -> DataLoader:
    """A loader of batches {"numbers": float32 [B, 14], "categories": int64 [B, 3], "target": float32 [B]}.

    A stream: each worker reads every `num_workers`-th row group, again and again until the epoch has its rows. A row is
    handed to collation alone or, with `batch_on_worker`, arrives as part of a batch cut from its row group.

    Args:
        batch_on_worker: Cut whole batches in the worker instead of collating rows one by one.
        data: Folder with Parquet files of nycflights13's columns; None takes the sample data.
        samples_per_epoch: Rows of an epoch; None goes once through the rows, or to 1,000,000 where they are fewer.
        seed: Another seed, another order.

    Raises:
        SamplesError: If there are no such rows, or the package pyarrow is missing.
    """
    require("pyarrow")
    dataset = Rows(folder_of(data), samples_per_epoch, batch_size if batch_on_worker else None, seed)
    knobs = (num_workers, prefetch_factor, pin_memory, persistent_workers, multiprocessing_context, in_order)
    return data_loader(dataset, None if batch_on_worker else batch_size, *knobs)


class Rows(IterableDataset):
    """Rows, or batches of `rows_per_batch` rows, of Parquet files in an order that depends on the seed alone."""

    def __init__(self, folder: Path, samples_per_epoch: int | None, rows_per_batch: int | None, seed: int) -> None:
        self.groups, self.vocabularies = _survey(sorted(folder.rglob("*.parquet")), folder)
        rows = sum(size for _, _, size in self.groups)
        self.samples = max(rows, SAMPLES_PER_EPOCH) if samples_per_epoch is None else samples_per_epoch
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise SamplesError(f"samples_per_epoch={samples_per_epoch!r} must be a whole number of at least 1")
        self.rows_per_batch = rows_per_batch
        self.seed = seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        mine, of = (worker.id, worker.num_workers) if worker else (0, 1)
        stretches = (self._features(*visit) for number, visit in enumerate(self._visits()) if number % of == mine)
        if self.rows_per_batch:
            return _batches(stretches, self.rows_per_batch)
        return (
            {key: column[row] for key, column in stretch.items()}
            for stretch in stretches
            for row in range(len(stretch["target"]))
        )

    def _visits(self) -> Iterator[tuple[int, int, random.Random]]:
        """(row group, rows to take of it, how to shuffle them), until the epoch's rows are dealt out."""
        left, visit = self.samples, 0
        while left > 0:
            order = list(range(len(self.groups)))
            random.Random(f"{self.seed} round {visit // len(order)}").shuffle(order)
            for group in order:
                if left > 0:
                    taken = min(left, self.groups[group][2])
                    yield group, taken, random.Random(f"{self.seed} visit {visit}")
                    left, visit = left - taken, visit + 1

    def _features(self, group: int, rows: int, chance: random.Random) -> dict[str, torch.Tensor]:
        import pyarrow.parquet

        file, number, _ = self.groups[group]
        with pyarrow.parquet.ParquetFile(file) as opened:  # opened for each group: nothing is shared across a fork
            table = opened.read_row_group(number, columns=list(COLUMNS), use_threads=False)
        chosen = torch.randperm(len(table), generator=torch.Generator().manual_seed(chance.getrandbits(63)))[:rows]
        return {key: column[chosen] for key, column in features(table, self.vocabularies).items()}


def features(table: Any, vocabularies: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A table of flights as tensors: numbers with a flag where unknown, sines of what is cyclic, codes of names.

    Args:
        table: pyarrow.Table with `COLUMNS`.
        vocabularies: pyarrow.Array of known names for each of `CATEGORIES`; the code of an unknown name is 0.
    """
    import pyarrow.compute as compute

    numbers = []
    for name in NUMBERS:
        value, unknown = _numbers(table[name])
        numbers += [value.sign() * value.abs().log1p(), unknown]
    for name, period in CYCLES.items():
        angle = _numbers(table[name])[0] * (2 * torch.pi / period)
        numbers += [angle.sin(), angle.cos()]
    codes = [compute.index_in(table[name], value_set=vocabularies[name]) for name in CATEGORIES]
    return {
        "numbers": torch.stack(numbers, dim=1),
        "categories": torch.stack(
            [torch.tensor(compute.fill_null(code, -1).to_numpy()) + 1 for code in codes], 1
        ).long(),
        "target": _numbers(table[TARGET])[0],
    }


def _numbers(column: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A column as float32, 0 where unknown, and where it was unknown."""
    unknown = torch.tensor(column.is_null().to_numpy())
    return torch.tensor(column.fill_null(0).to_numpy()).float(), unknown.float()


def _batches(stretches: Iterator[dict[str, torch.Tensor]], size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Stretches cut anew into batches of `size` rows; only the last may be shorter."""
    rest: dict[str, torch.Tensor] = {}
    for stretch in stretches:
        joined = {key: torch.cat([rest[key], column]) if rest else column for key, column in stretch.items()}
        whole = len(joined["target"]) // size * size
        for start in range(0, whole, size):
            yield {key: column[start : start + size].clone() for key, column in joined.items()}  # a view would ship all
        rest = {key: column[whole:].clone() for key, column in joined.items()}
    if rest and len(rest["target"]):
        yield rest


def _survey(files: list[Path], folder: Path) -> tuple[list[tuple[str, int, int]], dict[str, Any]]:
    """(file, row group, rows) of every row group, and the names that the first one knows."""
    import pyarrow
    import pyarrow.parquet

    groups, vocabularies = [], {}
    for file in files:
        try:
            opened = pyarrow.parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError) as error:
            raise SamplesError(f"{file} is not Parquet, or damaged ({error}): copy or grow it again") from None
        with opened:
            if missing := sorted(set(COLUMNS) - set(opened.schema_arrow.names)):
                raise SamplesError(
                    f"{file} lacks the columns {', '.join(missing)} of nycflights13: choose another data="
                )
            if not vocabularies and opened.num_row_groups:
                first = opened.read_row_group(0, columns=list(CATEGORIES), use_threads=False)
                vocabularies = {name: first[name].unique() for name in CATEGORIES}
            groups += [(str(file), n, opened.metadata.row_group(n).num_rows) for n in range(opened.num_row_groups)]
    if not groups:
        raise SamplesError(f"no Parquet rows in {folder}: pass data= a folder made by workbench.samples.grow")
    return groups, vocabularies
