"""Counting samples: batches whose number is known, the evidence shown for it, and counting without touching them."""

from __future__ import annotations

import collections
import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from workbench.loaders.counting import (
    BatchCount,
    batch_bytes,
    count_samples,
    count_tensors,
    describe_structure,
    leaves,
    make_counter,
)
from workbench.loaders.structure import path_name


def zeros(*shape):
    return torch.zeros(*shape)


def ragged(*lengths):
    return [torch.arange(n) for n in lengths]


class Fields(dict):
    """A dict whose constructor takes something else."""

    def __init__(self, rows):
        super().__init__(ids=torch.tensor(rows), mask=torch.ones(len(rows), 7))


@dataclasses.dataclass(frozen=True)
class Pair:
    ids: torch.Tensor
    mask: torch.Tensor


Point = collections.namedtuple("Point", "x y")


class Slotted:
    __slots__ = ("left", "missing", "right")

    def __init__(self, n):
        self.left, self.right = zeros(n, 2), zeros(n)


class HomeMade:
    def __init__(self, n):
        self.images, self.scale, self.name = zeros(n, 3, 4, 4), 0.5, "val"

    @property
    def trap(self):
        raise AssertionError("properties are not for looking at")


class Graphs:
    """Nodes of several graphs in one tensor; its len is the number of graphs."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.nodes = zeros(sum(sizes), 8)
        self.edges = zeros(2, 40)

    def __len__(self):
        return len(self.sizes)


def detection(*counts):
    """Images of one size and ragged targets, as torchvision's reference collate makes them."""
    images = tuple(zeros(3, 8, 8) for _ in counts)
    return images, tuple({"boxes": zeros(n, 4), "id": i} for i, n in enumerate(counts))


KNOWN = {
    # name: (batch, batch_size of the loader, samples, ambiguous)
    "tensor": (zeros(32, 3), None, 32, False),
    "array": (np.zeros((7, 2)), None, 7, False),
    "list of one tensor": ([zeros(17)], None, 17, False),
    "image and label": ([zeros(24, 3), zeros(24)], None, 24, False),
    "dict subclass": (Fields(list(range(10))), 10, 10, False),
    "ragged list": (ragged(3, 10, 17, 24), None, 4, False),
    "ragged list, one of the size of the batch": (ragged(4, 10, 17, 24), 4, 4, False),
    "ragged list of a single sample": (ragged(17), 1, 1, False),
    "scalar field first": (
        {
            "temperature": torch.tensor(0.7),
            "class_table": torch.eye(5, 3),
            "paths": [f"/data/{i:05d}.png" for i in range(14)],
            "image": zeros(14, 3),
            "target": {"label": zeros(14)},
        },
        None,
        14,
        False,
    ),
    "two against one": ({"a": zeros(5), "b": zeros(9), "c": zeros(9, 2)}, None, 9, False),
    "one against one": ({"table": zeros(5, 3), "x": zeros(8, 100)}, None, 8, True),
    "one against one, batch size known": ({"table": zeros(5, 300), "x": zeros(8)}, 8, 8, False),
    "batch size of no part": ([zeros(6, 2), zeros(6)], 16, 6, False),
    "dataclass": (Pair(zeros(9, 33), zeros(9, 33)), 9, 9, False),
    "UserDict": (collections.UserDict(input_ids=zeros(9, 33), attention_mask=zeros(9, 33)), None, 9, False),
    "named tuple": (Point(zeros(6, 2), zeros(6)), None, 6, False),
    "named tuple of two tensors of different length": (Point(zeros(6, 2), zeros(4)), 6, 6, False),
    "slots": (Slotted(11), None, 11, False),
    "attributes": (HomeMade(12), None, 12, False),
    "simple namespace": (SimpleNamespace(x=zeros(5, 2), y=zeros(5)), None, 5, False),
    "own number": (SimpleNamespace(x=zeros(40, 2), samples_per_batch=4), 40, 4, False),
    "graphs": (Graphs([4, 5, 6]), 3, 3, False),
    "strings": (["a", "bc", "def"], None, 3, False),
    "numbers": ((1.5, 2.5), None, 2, False),
    "tensors without dimensions": ([torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)], None, 3, False),
    "list of records": ([(zeros(3, 8, 8), i) for i in range(6)], None, 6, False),
    "list of dicts": ([{"image": zeros(3, 8, 8), "caption": "x"} for _ in range(5)], None, 5, False),
    "list of dicts of ragged parts": ([{"a": zeros(1), "b": zeros(2)} for _ in range(64)], None, 64, False),
    "two views": ([{"image": zeros(32, 3)}, {"image": zeros(32, 3)}], 32, 32, False),
    "equal images in a list": ([zeros(3, 8, 8) for _ in range(16)], 16, 16, False),
    "equal images, batch size unknown": ([zeros(3, 8, 8) for _ in range(16)], None, 16, True),
    "two equal tensors, batch size unknown": ([zeros(32, 5), zeros(32, 5)], None, 32, True),
    "detection": (detection(2, 5, 1, 9), 4, 4, False),
    "detection, batch size unknown": (detection(2, 5, 1, 9, 4), None, 5, False),
    "packed sequence": (pack_sequence([zeros(5), zeros(3), zeros(2)]), None, 3, False),
    "nested tensor": (torch.nested.nested_tensor([zeros(2), zeros(5)], layout=torch.jagged), None, 2, False),
    "sparse tensor": (torch.eye(6).to_sparse(), None, 6, False),
    "empty list": ([], 8, 0, False),
    "tensor of no rows": (zeros(0, 4), None, 0, False),
    "number": (3, None, None, True),
    "string": ("a text", None, None, True),
    "nothing": (None, 4, None, True),
    "tensor without dimensions": (torch.tensor(1.0), None, None, True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_batches_are_counted(name):
    batch, hint, samples, ambiguous = KNOWN[name]
    found = count_samples(batch, hint)
    assert (found.samples, found.ambiguous) == (samples, ambiguous), found.evidence
    assert found.evidence
    if samples is not None and samples > 0:
        assert make_counter(batch, hint)(batch) == samples


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("scalar field first", "first dimension of image, target.label, length of paths (3 of 5 leaves agree)"),
        ("tensor", "first dimension of the batch"),
        ("image and label", "first dimension of [0], [1] (2 of 2 leaves agree)"),
        ("ragged list", "number of entries of the batch"),
        ("dataclass", "first dimension of ids, mask (2 of 2 leaves agree), as batch_size=9 says"),
        ("own number", "its attribute samples_per_batch"),
        ("packed sequence", "sequences of the batch"),
        ("number", "no part of the int has a length; give samples_per_batch"),
        ("empty list", "an empty list"),
        (
            "one against one",
            "first dimension of x (1 of 2 leaves agree); other parts say 5: give samples_per_batch if 8 is wrong",
        ),
        (
            "equal images, batch size unknown",
            "number of entries of the batch; its entries could also be read the other way: "
            "give samples_per_batch if wrong",
        ),
    ],
)
def test_evidence_reads_as_a_reason(name, evidence):
    batch, hint, *_ = KNOWN[name]
    assert count_samples(batch, hint).evidence == evidence


def test_long_evidence_names_some_and_counts_the_rest():
    batch = {f"field_{i}": zeros(3) for i in range(9)}
    assert count_samples(batch).evidence == (
        "first dimension of field_0, field_1, field_2, field_3 and 5 more (9 of 9 leaves agree)"
    )


def test_a_counter_follows_batches_of_other_sizes():
    uneven = make_counter([zeros(5)])
    assert [uneven([zeros(n)]) for n in (5, 11, 17, 23)] == [5, 11, 17, 23]
    lists = make_counter(ragged(3, 10, 17), 3)
    assert lists(ragged(2, 2)) == 2 and lists([]) == 0
    nested = make_counter(KNOWN["scalar field first"][0])
    assert nested({"paths": ["a", "b"], "image": zeros(2, 3)}) == 2
    slots = make_counter(Slotted(4))
    assert slots(Slotted(2)) == 2
    packed = make_counter(KNOWN["packed sequence"][0])
    assert packed(pack_sequence([zeros(4), zeros(1)])) == 2


def test_a_counter_looks_again_when_a_batch_has_another_shape():
    counter = make_counter({"x": zeros(4, 2)})
    assert counter([zeros(6), zeros(6)]) == 6
    assert counter({"y": zeros(3)}) == 3
    assert counter(None) == 0
    first_was_empty = make_counter([])
    assert first_was_empty([zeros(6, 2), zeros(6)]) == 6


@given(
    samples=st.integers(1, 40),
    names=st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5, unique=True),
    scalars=st.integers(0, 4),
)
def test_fields_that_agree_give_their_size_whatever_surrounds_them(samples, names, scalars):
    batch = {name: zeros(samples, index + 1) for index, name in enumerate(names)}
    batch |= {f"scalar_{i}": torch.tensor(float(i)) for i in range(scalars)}
    for hint in (None, samples, samples + 1):
        found = count_samples(batch, hint)
        assert (found.samples, found.ambiguous) == (samples, False)


@given(lengths=st.lists(st.integers(1, 50), min_size=2, max_size=30).filter(lambda n: len(set(n)) > 1))
def test_unequal_tensors_in_a_list_are_samples(lengths):
    assert count_samples(ragged(*lengths)).samples == len(lengths)
    assert count_samples(ragged(*lengths), len(lengths)).samples == len(lengths)


@pytest.mark.parametrize("name", KNOWN)
def test_looking_changes_nothing(name):
    batch = KNOWN[name][0]
    before = copy.deepcopy(batch) if "nested" not in name else batch
    count_samples(batch, 4)
    make_counter(batch)(batch)
    batch_bytes(batch), count_tensors(batch), describe_structure(batch), list(leaves(batch))
    assert repr(batch) == repr(before) or type(batch).__repr__ is object.__repr__
    assert getattr(batch, "__dict__", {}).keys() == getattr(before, "__dict__", {}).keys()


def test_bytes_and_tensors_are_those_of_all_leaves():
    assert batch_bytes(KNOWN["dataclass"][0]) == 2 * 9 * 33 * 4
    assert batch_bytes(KNOWN["UserDict"][0]) == 2 * 9 * 33 * 4
    assert batch_bytes({"a": np.zeros(5), "b": [b"12345", b"6"], "c": "text", "d": 7}) == 40 + 6
    assert batch_bytes(KNOWN["nested tensor"][0]) == 7 * 4
    assert batch_bytes(torch.eye(6).to_sparse()) == 6 * 4 + 2 * 6 * 8
    assert batch_bytes(torch.eye(6).to_sparse_csr()) == 6 * 4 + 7 * 8 + 6 * 8
    assert batch_bytes(KNOWN["packed sequence"][0]) >= 10 * 4
    assert count_tensors(detection(2, 5, 1)) == 6
    assert count_tensors(HomeMade(2)) == 1 and count_tensors("text") == 0


def test_leaves_come_with_the_way_to_them():
    batch = {"x": (zeros(2), ["a", "b"]), "p": Pair(zeros(1), 5)}
    assert [(path_name(path), type(leaf).__name__) for path, leaf in leaves(batch)] == [
        ("x[0]", "Tensor"),
        ("x[1]", "list"),
        ("p.ids", "Tensor"),
        ("p.mask", "int"),
    ]
    assert [path_name(path) for path, _ in leaves(zeros(2))] == ["the batch"]
    assert path_name(next(iter(leaves({3: zeros(1)})))[0]) == "[3]"


def test_structure_reads_in_one_line():
    assert describe_structure(KNOWN["scalar field first"][0]) == (
        "dict(temperature: float32[], class_table: float32[5, 3], paths: list of 14 str, image: float32[14, 3], "
        "target: dict(label: float32[14]))"
    )
    assert describe_structure(ragged(3, 10, 17, 4, 5, 6, 7)) == "list of 7: int64[3], int64[10], int64[17], …"
    assert describe_structure((zeros(2), 3, None)) == "tuple(float32[2], int, NoneType)"
    assert describe_structure(Pair(zeros(2), np.zeros(2))) == "Pair(ids: float32[2], mask: float64[2])"
    assert describe_structure(KNOWN["nested tensor"][0]) == "float32[2, jagged]"
    assert describe_structure([1, "a"]) == "list of 2 values"
    wide = describe_structure({f"a_rather_long_name_{i}": {f"inner_{k}": zeros(k) for k in range(9)} for i in range(9)})
    assert len(wide) <= 600 and wide.endswith("…") and "\n" not in wide


def test_a_batch_that_contains_itself_ends():
    batch = {"x": zeros(3)}
    batch["self"] = batch
    deep = [zeros(4)]
    for _ in range(40):
        deep = [deep]
    assert count_samples(batch).samples == 3 and count_tensors(batch) == 1
    assert describe_structure(batch) and describe_structure(deep)
    assert isinstance(count_samples(deep), BatchCount)


def test_tables_of_data_frame_libraries_count_their_rows():
    assert count_samples(pandas.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]})).samples == 3
    assert count_samples({"table": pandas.Series([1.0, 2.0])}).samples == 2
