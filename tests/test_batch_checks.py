"""Batch checks: every fault is found where it was put, a good batch passes, and a check changes nothing."""

from __future__ import annotations

import random
import time
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import BatchCheckError, SettingsError
from workbench.review.batches import check_batch, check_first_batch
from workbench.review.expectations import (
    BatchExpectation,
    FieldExpectation,
    expectation_from,
    learn_expectations,
    load_expectations,
    save_expectations,
)
from workbench.review.fields import fields_of


def good_batch(samples: int = 8) -> dict:
    generator = torch.Generator().manual_seed(samples)
    ids = torch.randint(1, 900, (samples, 12), generator=generator)
    for row in range(samples):
        ids[row, 12 - row % 6 :] = 0
    return {
        "image": torch.rand(samples, 3, 8, 8, generator=generator),
        "ids": ids,
        "label": torch.arange(samples) % 4,
        "path": [f"{n}.jpg" for n in range(samples)],
    }


EXPECTED = learn_expectations([good_batch()])


def with_value(field: str, index: tuple[int, ...], value: float) -> dict:
    batch = good_batch()
    batch[field][index] = value
    return batch


def test_a_good_batch_passes_what_it_taught():
    report = check_batch(good_batch(), EXPECTED)
    assert report.ok and report.findings == () and report.samples == 8
    assert report.lengths["ids"] == (7, 10.5, 12)
    assert report.padding_share["ids"] == pytest.approx((0 + 1 + 2 + 3 + 4 + 5 + 0 + 1) / 96)
    assert "nothing wrong found" in report.text


@pytest.mark.parametrize(
    ("batch", "kind", "field", "sample", "index", "value"),
    [
        (with_value("image", (5, 2, 0, 7), float("nan")), "nan", "image", 5, (2, 0, 7), None),
        (with_value("image", (0, 0, 0, 0), float("inf")), "inf", "image", 0, (0, 0, 0), float("inf")),
        (with_value("image", (3, 1, 1, 1), 255.0), "range", "image", 3, (1, 1, 1), 255.0),
        (with_value("ids", (6, 2), -7), "range", "ids", 6, (2,), -7),
        (with_value("label", (4,), 900), "range", "label", 4, (), 900),
    ],
)
def test_a_bad_value_is_named_with_sample_field_index_and_value(batch, kind, field, sample, index, value):
    report = check_batch(batch, EXPECTED)
    finding = next(found for found in report.errors if found.kind == kind)
    assert (finding.field, finding.sample, finding.index) == (field, sample, index)
    assert finding.value == value or (value is None and np.isnan(finding.value))
    assert f"sample {sample}, field {field!r}" in finding.text
    with pytest.raises(BatchCheckError, match=f"sample {sample}, field '{field}'"):
        check_first_batch([batch], EXPECTED)


def test_the_first_of_many_bad_values_is_named_and_the_rest_counted():
    batch = good_batch()
    batch["image"][2:4, 1] = float("nan")
    finding = check_batch(batch).errors[0]
    assert (finding.sample, finding.index) == (2, (1, 0, 0))
    assert "128 such values in 2 samples" in finding.text


def changed(**fields) -> dict:
    return {**good_batch(), **fields}


@pytest.mark.parametrize(
    ("batch", "kind", "words"),
    [
        (changed(image=good_batch()["image"].double()), "dtype", "float64, not float32"),
        (changed(image=torch.rand(8, 1, 8, 8)), "shape", "[8, 1, 8, 8], not [any, 3, 8, 8]"),
        (changed(extra=torch.zeros(8)), "structure", "'extra' was not expected"),
        ({k: v for k, v in good_batch().items() if k != "ids"}, "structure", "'ids' is missing (there: image, label"),
        (good_batch(6), "samples", "6 samples, not 8"),
        (changed(ids=torch.cat([good_batch()["ids"][:, :2], torch.zeros(8, 10).long()], 1)), "padding", "% padding"),
    ],
)
def test_what_is_not_as_expected_is_an_error(batch, kind, words):
    texts = [found.text for found in check_batch(batch, EXPECTED).errors if found.kind == kind]
    assert texts and any(words in text for text in texts)


def test_constant_and_repeated_samples():
    batch = good_batch()
    batch["image"][3] = 0.25
    for field in ("image", "ids", "label"):
        batch[field][6] = batch[field][1]
    report = check_batch(batch, EXPECTED)
    constant, copy = (next(f for f in report.errors if f.kind == kind) for kind in ("constant", "duplicate"))
    assert (constant.field, constant.sample, constant.value) == ("image", 3, 0.25)
    assert (copy.sample, copy.value) == (6, 1) and "sample 6 repeats sample 1" in copy.text
    plain = check_first_batch([batch])
    assert plain.ok and {found.kind for found in plain.findings} == {"constant", "duplicate"}


def test_labels_alone_are_not_called_constant_or_repeated():
    assert check_batch({"label": torch.zeros(8).long()}).findings == ()


def test_lengths_are_held_and_told_by_a_mask_or_the_pad_id():
    ids = torch.full((4, 10), 5)
    mask = torch.zeros(4, 10).long()
    for row, length in enumerate((10, 7, 2, 9)):
        mask[row, :length] = 1
    expected = {"ids": {"length": [3, 10]}}
    finding = check_batch({"ids": ids, "attention_mask": mask}, expected).errors[0]
    assert (finding.kind, finding.sample, finding.value) == ("length", 2, 2)
    padded = torch.where(mask == 1, ids, 9)
    report = check_batch({"ids": padded}, {"ids": {"pad_id": 9, "max_padding_share": 0.25}})
    assert report.padding_share["ids"] == pytest.approx(12 / 40) and report.errors[0].kind == "padding"
    ragged = {"ids": [torch.arange(n) for n in (3, 1, 8)]}
    assert check_batch(ragged, samples=3).lengths["ids"] == (1, 3.0, 8)


def test_ignored_labels_are_allowed_beside_the_range():
    labels = torch.arange(400).reshape(4, 100) % 10
    labels[:, 90:] = -100
    expected = learn_expectations([{"labels": labels}])
    assert expected.fields["labels"].range == (0, 9) and expected.fields["labels"].ignore == -100
    labels[2, 3] = 10
    finding = check_batch({"labels": labels}, expected).errors[0]
    assert (finding.sample, finding.index, finding.value) == (2, (3,), 10)


Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Record:
    x: torch.Tensor
    y: torch.Tensor


def rows(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(samples, 5), torch.arange(samples)


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (rows(4), {"[0]": True, "[1]": True}),
        (list(rows(2)), {"[0]": True, "[1]": True}),
        (Pair(*rows(4)), {"x": True, "y": True}),
        (Record(*rows(4)), {"x": True, "y": True}),
        ({"t": {"x": rows(4)[0]}, "scale": torch.tensor(2.0)}, {"t.x": True, "scale": False}),
        ([{"x": torch.rand(3)} for _ in range(4)], {"x": True}),
        ([torch.rand(n) for n in (3, 4, 5, 6)], {"the batch": True}),
        ({"x": [torch.rand(n) for n in (3, 4, 5, 6)], "id": list("abcd")}, {"x": True, "id": True}),
        ((rows(4)[0], [{"box": torch.rand(n, 4)} for n in (1, 2, 0, 3)]), {"[0]": True, "[1].box": True}),
    ],
)
def test_fields_of_every_kind_of_batch(batch, names):
    samples = 2 if isinstance(batch, list) and torch.is_tensor(batch[0]) and batch[0].shape[0] == 2 else 4
    assert {name: one.per_sample for name, one in fields_of(batch, samples).items()} == names


def test_a_bad_value_in_a_list_of_records_is_named():
    batch = [{"box": torch.rand(n, 4)} for n in (1, 2, 3, 4)]
    batch[2]["box"][1, 3] = float("nan")
    finding = check_batch(batch, samples=4).errors[0]
    assert (finding.field, finding.sample, finding.index) == ("box", 2, (1, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.complex64])
def test_every_dtype_is_checked_or_left_alone(dtype):
    batch = {"x": torch.ones(4, 6).to(dtype), "n": torch.rand(4, 6)}
    assert check_batch(batch, {"x": {"dtype": str(dtype).removeprefix("torch.")}}).ok


def test_sparse_and_nested_tensors_do_not_end_the_check():
    sparse = torch.eye(4).to_sparse()
    assert check_batch({"x": torch.rand(4, 6), "s": sparse}, samples=4).ok


def test_axes_that_differ_between_batches_are_left_free():
    batches = [{"ids": torch.randint(0, 50, (4, length))} for length in (9, 12, 7)]
    learnt = learn_expectations(batches)
    assert learnt.fields["ids"].shape == (None, None) and learnt.samples == 4
    assert not [f for f in check_batch({"ids": torch.randint(0, 50, (4, 30))}, learnt).errors if f.kind == "shape"]


def test_no_more_batches_are_looked_at_than_was_said():
    batches = iter([{"ids": torch.zeros(4, length, dtype=torch.int64)} for length in (9, 9, 7, 5)])
    assert learn_expectations(batches, most_batches=2).fields["ids"].shape == (None, 9)
    assert [batch["ids"].shape[1] for batch in batches] == [7, 5]


def test_ranges_get_room_where_little_was_seen_and_none_where_much_was():
    few = learn_expectations([{"label": torch.tensor([0, 3, 7]), "x": torch.tensor([-1.0, 0.0, 3.0])}])
    assert few.fields["label"].range == (0, 14) and few.fields["x"].range == (-5.0, 7.0)
    many = learn_expectations([{"label": torch.arange(200) % 10}])
    assert many.fields["label"].range == (0, 9)
    assert learn_expectations([{"x": torch.zeros(8, 3, 4, dtype=torch.uint8)}]).fields["x"].range is None


def test_yaml_holds_everything_and_can_be_read_by_people(tmp_path):
    path = save_expectations(EXPECTED, tmp_path / "batch.yaml")
    assert load_expectations(path) == EXPECTED
    text = path.read_text()
    assert "shape: [null, 3, 8, 8]" in text and "dtype: float32" in text
    assert check_first_batch([good_batch()], str(path)).ok
    with pytest.raises(BatchCheckError, match="'label'"):
        check_first_batch([with_value("label", (4,), 900)], path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fields: {x: {rnage: [0, 1]}}", "'rnage' of field 'x'"),
        ("fields: {x: {range: [1, 0]}}", "lowest and the highest"),
        ("fields: {x: 3}", "3 of field 'x'"),
        ("{fields: {}, samplse: 3}", "'samplse'"),
        ("[1, 2]", "holds list"),
        ("a: [", "not YAML"),
    ],
)
def test_yaml_that_says_nothing_known_is_refused(tmp_path, text, words):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(SettingsError, match=words.replace("[", r"\[")):
        load_expectations(tmp_path / "x.yaml")


def test_expectations_are_taken_in_every_form():
    by_hand = expectation_from({"label": {"range": [0, 3], "dtype": "int64"}})
    assert by_hand == BatchExpectation({"label": FieldExpectation("int64", range=(0, 3))})
    assert check_batch(good_batch(), by_hand).ok
    with pytest.raises(SettingsError, match="cannot be read"):
        check_batch(good_batch(), "nowhere.yaml")
    with pytest.raises(SettingsError, match="expect=int"):
        check_batch(good_batch(), 3)
    with pytest.raises(SettingsError, match="no batch"):
        learn_expectations([])


def test_a_loader_without_batches():
    with pytest.raises(BatchCheckError, match="drop_last"):
        check_first_batch(DataLoader(TensorDataset(torch.zeros(3)), batch_size=8, drop_last=True))


class Noisy(Dataset):
    """Samples that draw from every random source there is."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("own_generator", [False, True])
def test_training_after_the_check_sees_what_it_would_have_seen(kind, num_workers, own_generator):
    def epochs(check: bool) -> list[torch.Tensor]:
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4) if own_generator else None
        loader = kind(Noisy(), batch_size=6, shuffle=True, num_workers=num_workers, generator=generator)
        if check:
            check_first_batch(loader)
        return [batch for _ in range(2) for batch in loader]

    plain, checked = epochs(False), epochs(True)
    assert len(plain) == len(checked) == 8
    assert all(torch.equal(a[:, 0], b[:, 0]) for a, b in zip(plain, checked, strict=True))
    if num_workers == 0:
        assert all(torch.equal(a, b) for a, b in zip(plain, checked, strict=True))


def test_a_state_to_resume_from_is_kept_for_training():
    def loader():
        return StatefulDataLoader(TensorDataset(torch.arange(24)), batch_size=4)

    first = loader()
    iterator = iter(first)
    next(iterator), next(iterator)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    report = check_first_batch(resumed)
    assert report.samples == 4
    assert next(iter(resumed))[0].tolist() == [8, 9, 10, 11]


def test_the_report_says_how_long_the_check_took():
    batch = {"image": torch.rand(64, 3, 224, 224), "label": torch.arange(64)}
    began = time.monotonic()
    learnt = learn_expectations([batch])
    assert check_first_batch([batch], learnt).seconds <= time.monotonic() - began
