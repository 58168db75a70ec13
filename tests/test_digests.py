"""Digests agree exactly where data agree: across copies, processes' layouts and orders, and for odd kinds of leaves."""

import datetime
import pathlib

import numpy as np
import pytest
import torch

from workbench.measure.digests import SHAPE, combine, leaf_digests, sample_digests, structure

LEAVES = [
    torch.arange(6).reshape(2, 3),
    torch.tensor(3.0),
    torch.empty(0, 4),
    torch.tensor([float("nan"), 1.0]),
    torch.tensor([1 + 2j, 3j]).conj(),
    torch.ones(3, dtype=torch.bfloat16),
    torch.tensor(1.0, dtype=torch.bfloat16),
    torch.ones(3, requires_grad=True),
    torch.eye(3).to_sparse(),
    (2 * torch.eye(3)).to_sparse_csr(),
    torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
    torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    np.arange(5)[::2],
    np.array(["a", "bc"]),
    np.array([None, {"x": 1}], dtype=object),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.float32(2.5),
    "text \ud800",
    b"bytes",
    {"b", "a"},
    pathlib.Path("a/b.jpg"),
    datetime.date(2020, 1, 2),
    None,
]


def clone(leaf):
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: type(leaf).__name__)
def test_a_copy_has_the_same_digests_and_another_value_has_not(leaf):
    assert leaf_digests(clone(leaf)) == leaf_digests(leaf)
    others = [leaf_digests(other)[""] for other in LEAVES if other is not leaf]
    assert leaf_digests(leaf)[""] not in others


def test_layout_in_memory_is_no_difference():
    block = torch.arange(24.0).reshape(4, 6)
    assert leaf_digests(block.t().contiguous().t()) == leaf_digests(block)
    assert sample_digests(block[:, ::2], 4) == sample_digests(block[:, ::2].contiguous(), 4)


def test_shape_is_a_path_of_its_own():
    one, two = leaf_digests({"x": torch.zeros(2, 3)}), leaf_digests({"x": torch.zeros(3, 2)})
    assert one["x"] == two["x"]
    assert one["x" + SHAPE] != two["x" + SHAPE]


def rows(batch, samples):
    return {path: [d[i : i + 8] for i in range(0, len(d), 8)] for path, d in sample_digests(batch, samples).items()}


def test_samples_keep_their_digests_in_any_batch():
    x, names = torch.randn(6, 4), list("abcdef")
    together = rows({"x": x, "name": names, "epoch": 3}, 6)
    apart = [rows({"x": x[i : i + 1], "name": names[i : i + 1], "epoch": 4}, 1) for i in range(6)]
    assert together.keys() == {"x", "name"}
    assert together["x"] == [part["x"][0] for part in apart]
    assert together["name"] == [part["name"][0] for part in apart]


def test_a_list_of_samples_is_cut_by_entry_and_a_list_of_fields_by_row():
    ragged = rows([torch.ones(2), torch.ones(5)], 2)
    assert [len(column) for column in ragged.values()] == [2]
    fields = rows([torch.ones(2, 3), torch.tensor([0, 1])], 2)
    assert fields.keys() == {"0", "1"}
    records = rows([{"a": 1, "b": torch.ones(1)}, {"a": 2, "b": torch.ones(3)}, {"a": 1, "b": torch.ones(1)}], 3)
    assert records["[*].a"][0] == records["[*].a"][2] != records["[*].a"][1]


def test_what_cannot_be_cut_is_one_unit():
    batch = {"x": torch.ones(5, 2), "y": torch.ones(7)}
    assert sample_digests(batch, 4) == leaf_digests(batch)
    assert sample_digests(batch, None) == leaf_digests(batch)


def test_combining_columns_tells_their_order_apart():
    one, two = rows(torch.arange(3), 3)[""], rows(torch.arange(3, 6), 3)[""]
    forward, backward = combine([b"".join(one), b"".join(two)]), combine([b"".join(two), b"".join(one)])
    assert len(forward) == 3
    assert not set(forward) & set(backward)


def test_structure_names_types_and_dtypes_but_no_sizes():
    assert structure({"x": torch.ones(2), "n": [1, 2]}) == "dict{x: Tensor(float32), n: list[int]}"
    assert structure([torch.ones(2), torch.ones(5)]) == structure([torch.ones(1)] * 9) == "list[Tensor(float32)]"
    assert structure((np.ones(1), "a")) == "tuple{0: ndarray(float64), 1: str}"


def test_a_batch_that_holds_itself_ends():
    loop = {"x": torch.ones(2)}
    loop["self"] = loop
    assert leaf_digests(loop)
    assert sample_digests(loop, 2)
    assert structure(loop)
