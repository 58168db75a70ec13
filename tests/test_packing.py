"""Packing: no token lost, no document mixed up, resumed at the next row, and attention as if each stood alone."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.resumed import PROPERTY, cut_and_resumed, split_anew
from workbench.errors import ResumeError, SettingsError
from workbench.streaming.loader import StreamLoader
from workbench.streaming.masks import block_mask, dense_mask
from workbench.streaming.packed import NO_DOCUMENT, NO_LABEL, PackedStream
from workbench.streaming.packing import STRATEGIES, packing_report, rows_of
from workbench.streaming.shards import ListShards
from workbench.streaming.split import Seat
from workbench.streaming.stream import ShardStream

CASE_LENGTHS = [2, 8, 9, 31, 1, 16, 0, 5]
BASE = 1_000  # token t of document d is BASE * (d + 1) + t

strategies_drawn = st.sampled_from(sorted(STRATEGIES))
lengths_drawn = st.lists(st.integers(0, 40), max_size=30)


def documents(lengths: list[int]) -> list[np.ndarray]:
    return [np.arange(length) + BASE * (number + 1) for number, length in enumerate(lengths)]


def stream_of(lengths: list[int], shards: int = 3, **options: Any) -> ShardStream:
    made = documents(lengths)
    return ShardStream(ListShards([made[at::shards] for at in range(shards)]), window=4, **options)


class Plain(IterableDataset):
    """Documents that split themselves over workers and keep no state, as in case 52."""

    def __iter__(self):
        info = get_worker_info()
        for number, document in enumerate(documents(CASE_LENGTHS)):
            if info is None or number % info.num_workers == info.id:
                yield torch.from_numpy(document)


def tokens_of(rows: list[dict[str, torch.Tensor]]) -> list[int]:
    """Every token of every row, padding left out, sorted."""
    return sorted(itertools.chain(*(row["input_ids"][row["document_ids"] >= 0].tolist() for row in rows)))


def expected_tokens(lengths: list[int]) -> list[int]:
    return sorted(itertools.chain(*(document.tolist() for document in documents(lengths))))


# --------------------------------------------------------------------------------------------------------------- rows


@PROPERTY
@given(lengths_drawn, st.integers(1, 20), strategies_drawn)
def test_every_token_is_in_one_row_and_no_row_is_too_long(lengths, capacity, strategy):
    rows = rows_of(lengths, capacity, strategy)
    held = [(piece.document, at) for row in rows for piece in row for at in range(piece.begin, piece.end)]
    assert sorted(held) == [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    assert all(0 < sum(map(len, row)) <= capacity for row in rows)
    assert len(rows) >= -(-sum(lengths) // capacity)
    if strategy == "concatenate":
        assert len(rows) == -(-sum(lengths) // capacity)


@PROPERTY
@given(st.lists(st.integers(1, 20), max_size=40))
def test_best_fit_keeps_documents_whole_and_leaves_at_most_one_row_half_empty(lengths):
    rows = rows_of(lengths, 20, "best_fit")
    assert sorted(piece.document for row in rows for piece in row) == list(range(len(lengths)))
    assert sum(2 * sum(map(len, row)) <= 20 for row in rows) <= 1, "two rows that are half empty would fit in one"


def test_known_packings():
    assert [sorted(len(piece) for piece in row) for row in rows_of([3, 7, 5, 5], 10, "best_fit")] == [[3, 7], [5, 5]]
    assert [[len(piece) for piece in row] for row in rows_of([3, 5, 7, 5], 10, "first_fit")] == [[3, 5], [7], [5]]
    assert [[len(piece) for piece in row] for row in rows_of([3, 5, 7, 5], 10, "concatenate")] == [[3, 5, 2], [5, 5]]


def test_the_report_says_what_is_dropped_and_saved():
    report = packing_report(CASE_LENGTHS, 8)
    assert (report.tokens, report.tokens_dropped, report.rows) == (72, 0, 9)
    assert report.fill == 1.0 and report.rows_unpacked == 1 + 1 + 2 + 4 + 1 + 2 + 0 + 1
    assert report.padding_saved == pytest.approx(1 - 9 / 12)
    assert report.tokens_per_second == 72 / report.seconds and "million tokens/s" in report.describe()
    untimed = replace(report, seconds=None)
    assert untimed == report and untimed.tokens_per_second is None and "tokens/s" not in untimed.describe()
    cut = packing_report(CASE_LENGTHS, 8, overlong="truncate")
    assert cut.tokens_dropped == 72 - (2 + 8 + 8 + 8 + 1 + 8 + 5) and "32 tokens dropped" in cut.describe()
    nothing = packing_report([0, 0], 8)
    assert nothing.fill is None and "no rows" in nothing.describe()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "worst"}, "strategy='worst'"),
        ({"overlong": "hide"}, "overlong='hide'"),
        ({"length": 0}, "length=0"),
        ({"labels": "none"}, "labels='none'"),
        ({"window_rows": 0}, "window_rows=0"),
    ],
)
def test_impossible_settings_are_refused(options, named):
    with pytest.raises(SettingsError, match=named):
        PackedStream([], **{"length": 8, **options})


# ------------------------------------------------------------------------------------------------------------- tensors


@PROPERTY
@given(lengths_drawn, st.integers(1, 12), strategies_drawn, st.integers(1, 5))
def test_labels_stay_in_their_document_and_none_is_missing(lengths, length, strategy, window_rows):
    rows = list(PackedStream(documents(lengths), length, strategy=strategy, window_rows=window_rows))
    assert tokens_of(rows) == expected_tokens(lengths)
    pairs = []
    for row in rows:
        inputs, labels, numbers = row["input_ids"], row["labels"], row["document_ids"]
        assert all(values.shape == (length,) and values.dtype == torch.int64 for values in row.values())
        assert bool((labels[numbers == NO_DOCUMENT] == NO_LABEL).all())
        labelled = labels != NO_LABEL
        pairs += list(zip(inputs[labelled].tolist(), labels[labelled].tolist(), strict=True))
        for number in range(int(numbers.max()) + 1 if length else 0):
            of_document = inputs[numbers == number]
            assert len(set((of_document // BASE).tolist())) == 1
            assert row["position_ids"][numbers == number].tolist() == list(range(len(of_document)))
    assert sorted(pairs) == [
        (BASE * (d + 1) + t, BASE * (d + 1) + t + 1) for d, n in enumerate(lengths) for t in range(n - 1)
    ]


def test_labels_for_models_that_shift_themselves_and_positions_that_go_on():
    rows = list(PackedStream(documents([5, 2]), 4, labels="same", positions="document", pad_id=7))
    by_first = {int(row["input_ids"][0]): row for row in rows}
    whole, rest = by_first[1000], by_first[2000] if 2000 in by_first else by_first[1004]
    assert whole["labels"].tolist() == [NO_LABEL, 1001, 1002, 1003]
    assert sorted(rest["input_ids"].tolist()) == [7, 1004, 2000, 2001]
    assert rest["labels"].tolist().count(NO_LABEL) == 3
    assert rest["position_ids"][rest["input_ids"] == 1004].tolist() == [4]


def test_the_ids_of_a_document_are_where_field_says():
    plain = [{"text": "skipped", "ids": ids} for ids in documents([5, 2])]
    rows = list(PackedStream(plain, 4, field="ids"))
    assert sorted(tokens_of(rows)) == [1000, 1001, 1002, 1003, 1004, 2000, 2001]
    with pytest.raises(SettingsError, match="'tokens'"):
        list(PackedStream(plain, 4))


def test_truncation_drops_what_the_report_says():
    rows = list(PackedStream(documents(CASE_LENGTHS), 8, overlong="truncate"))
    assert len(tokens_of(rows)) == 72 - packing_report(CASE_LENGTHS, 8, overlong="truncate").tokens_dropped


def test_batches_run_on_across_windows():
    lengths = [7] * 50
    batches = list(PackedStream(documents(lengths), 8, window_rows=3, batch_size=4))
    assert [len(batch["input_ids"]) for batch in batches] == [4] * 12 + [2]
    singles = list(PackedStream(documents(lengths), 8, window_rows=3))
    assert torch.equal(torch.cat([b["labels"] for b in batches]), torch.stack([row["labels"] for row in singles]))


@pytest.mark.parametrize("document", [np.zeros((2, 2), dtype=int), np.array([0.5]), {"text": "hello"}])
def test_what_is_no_list_of_ids_is_refused(document):
    with pytest.raises(SettingsError, match="ids"):
        list(PackedStream([document], 8))


# -------------------------------------------------------------------------------------------------- case 52 and resume


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("num_workers", [0, 2])
def test_case_52_loses_nothing_with_any_number_of_workers(strategy, num_workers):
    loader = DataLoader(PackedStream(Plain(), 8, strategy=strategy), batch_size=None, num_workers=num_workers)
    rows = list(loader)
    assert tokens_of(rows) == expected_tokens(CASE_LENGTHS) and len(tokens_of(rows)) == 72
    assert len(rows) >= 9


def test_case_52_as_it_stands():
    folder = Path(__file__).resolve().parent.parent.parent / "shared" / "cases"
    found = sorted(folder.glob("52_*.py")) if folder.is_dir() else []
    source = Plain()
    if found:
        sys.path.insert(0, str(folder))
        try:
            source = __import__(found[0].stem).make_loader().dataset
        finally:
            sys.path.remove(str(folder))
    rows = list(PackedStream(source, 8))
    by_document = defaultdict(int)
    for token in tokens_of(rows):
        by_document[token // BASE - 1] += 1
    assert [by_document[number] for number in range(8)] == CASE_LENGTHS


@PROPERTY
@given(
    lengths_drawn,
    st.integers(1, 12),
    strategies_drawn,
    st.integers(1, 4),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(1, 3)),
    st.booleans(),
)
def test_a_resume_in_the_middle_of_a_window_or_a_document_goes_on_at_the_next_row(
    lengths, length, strategy, window_rows, cuts, batch_size, stateful
):
    def make() -> PackedStream:
        source = stream_of(lengths) if stateful else documents(lengths)
        return PackedStream(source, length, strategy=strategy, window_rows=window_rows, batch_size=batch_size)

    whole = [row["input_ids"].tolist() for row in make()]
    assert [row["input_ids"].tolist() for row in cut_and_resumed(make, cuts)] == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_under_a_stateful_loader_with_batches_in_flight(num_workers):
    lengths = [3, 30, 9, 14, 1, 0, 22, 8] * 6

    def make() -> StatefulDataLoader:
        packed = PackedStream(stream_of(lengths), 16, window_rows=4, batch_size=2)
        return StatefulDataLoader(packed, batch_size=None, num_workers=num_workers)

    whole = [batch["input_ids"].tolist() for batch in make()]
    loader = make()
    iterator = iter(loader)
    before = [next(iterator)["input_ids"].tolist() for _ in range(7)]
    state = loader.state_dict()
    del iterator
    assert len(pickle.dumps(state)) < 4_000
    loader = make()
    loader.load_state_dict(state)
    assert before + [batch["input_ids"].tolist() for batch in loader] == whole
    second = list(loader)
    assert sorted(itertools.chain(*(tokens_of([batch]) for batch in second))) == expected_tokens(lengths)
    assert [batch["input_ids"].tolist() for batch in second] != whole


def test_a_state_of_other_packing_or_loaded_too_late_is_refused():
    state = PackedStream(stream_of([5, 6]), 8).state_dict()
    with pytest.raises(ResumeError, match="length 8 then and 16 now"):
        PackedStream(stream_of([5, 6]), 16).load_state_dict(state)
    with pytest.raises(ResumeError, match="is not the state of a PackedStream"):
        PackedStream(stream_of([5, 6]), 8).load_state_dict({})
    running = PackedStream(stream_of([5, 6]), 8)
    rows = iter(running)
    next(rows)
    with pytest.raises(ResumeError, match=r"before iter\(\)"):
        running.load_state_dict(state)


@PROPERTY
@given(
    lengths=st.lists(st.integers(0, 30), max_size=24),
    length=st.integers(1, 12),
    strategy=strategies_drawn,
    window_rows=st.integers(1, 4),
    batch_size=st.one_of(st.none(), st.integers(1, 3)),
    legs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 6)), min_size=2, max_size=4),
)
def test_no_token_is_lost_when_what_is_half_packed_is_split_anew(
    lengths, length, strategy, window_rows, batch_size, legs
):
    def make(seat: Seat) -> PackedStream:
        source = stream_of(lengths)
        source.seat = lambda: seat
        return PackedStream(source, length, strategy=strategy, window_rows=window_rows, batch_size=batch_size)

    tokens, labelled = [], 0
    for row in split_anew(make, legs):
        tokens += row["input_ids"][row["document_ids"] >= 0].tolist()
        labelled += int((row["labels"] != NO_LABEL).sum())
    assert sorted(tokens) == expected_tokens(lengths)
    assert labelled == sum(max(0, count - 1) for count in lengths)


def test_the_stream_loader_guards_packed_streams_too():
    def make(num_workers: int) -> StreamLoader:
        return StreamLoader(PackedStream(stream_of([5, 6] * 9), 8), batch_size=None, num_workers=num_workers)

    whole = [row["input_ids"].tolist() for row in make(0)]
    loader = make(0)
    rows = iter(loader)
    before = [next(rows)["input_ids"].tolist() for _ in range(4)]
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="already being iterated"):
        loader.load_state_dict(state)
    resumed = make(0)
    resumed.load_state_dict(state)
    assert before + [row["input_ids"].tolist() for row in resumed] == whole
    elsewhere = make(2)
    elsewhere.load_state_dict(state)
    rest = [row["input_ids"].tolist() for row in elsewhere]
    assert sorted(itertools.chain(*rest, *before)) == sorted(itertools.chain(*whole))
    with pytest.raises(TypeError, match="PackedStream does not know"):
        len(make(0))
    fresh = make(1)
    again = make(1)
    again.load_state_dict(fresh.state_dict())
    assert [row["input_ids"].tolist() for row in again] == [row["input_ids"].tolist() for row in make(1)]


def test_memory_is_bounded_by_the_window():
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield np.arange(5)

    rows = iter(PackedStream(endless(), 16, window_rows=4))
    next(rows)
    assert len(read) == -(-4 * 16 // 5)


# ----------------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_attention_over_a_packed_row_is_attention_over_its_documents(strategy):
    torch.manual_seed(0)
    rows = list(PackedStream(documents([20, 60, 7, 1, 33, 90, 2]), 64, strategy=strategy, batch_size=4))
    numbers = torch.cat([batch["document_ids"] for batch in rows])
    shape = (len(numbers), 2, 64, 16)
    query, key, value = (torch.randn(shape) for _ in range(3))
    dense = scaled_dot_product_attention(query, key, value, attn_mask=dense_mask(numbers))
    flex = flex_attention(query, key, value, block_mask=block_mask(numbers, block_size=32))
    torch.testing.assert_close(dense, flex, atol=1e-5, rtol=1e-5)
    assert not dense.isnan().any()
    for row in range(len(numbers)):
        for number in range(int(numbers[row].max()) + 1):
            at = (numbers[row] == number).nonzero()[:, 0]
            alone = scaled_dot_product_attention(
                query[row : row + 1, :, at], key[row : row + 1, :, at], value[row : row + 1, :, at], is_causal=True
            )
            torch.testing.assert_close(dense[row, :, at], alone[0], atol=1e-5, rtol=1e-5)


def test_masks_of_a_known_row():
    mask = dense_mask(torch.tensor([0, 0, 1, -1]))[0, 0]
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    blocks = block_mask(torch.tensor([0] * 32 + [1] * 32), block_size=32)
    assert blocks.to_dense()[0, 0].int().tolist() == [[1, 0], [0, 1]]
