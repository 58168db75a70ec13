"""Check a batch at the head of a training script: the sample, field, index and value that would fail at hour 20."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.errors import BatchCheckError
from workbench.loaders.counting import count_samples
from workbench.loaders.structure import describe_structure
from workbench.review.expectations import BatchExpectation, FieldExpectation, as_expectation
from workbench.review.fields import Field, fields_of
from workbench.review.traits import constant_samples, duplicate_samples, padding

_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or odd.

    Attributes:
        kind: ``structure``, ``samples``, ``dtype``, ``shape``, ``nan``, ``inf``, ``range``, ``constant``,
            ``duplicate``, ``padding`` or ``length``.
        is_error: Whether a training script should stop; what is only odd is told and let through.
        field: Name of the field, or None where it is about the batch.
        sample: Place of the sample in the batch, or None where it is about all.
        index: Place of the value in the sample, or None.
        value: The value found.
        text: For a person.
    """

    kind: str
    is_error: bool
    field: str | None
    sample: int | None
    index: tuple[int, ...] | None
    value: Any
    text: str


@dataclass(frozen=True)
class BatchReport:
    """What a check found.

    Attributes:
        findings: Errors first.
        samples: Samples in the batch, or None where they cannot be counted.
        structure: What the batch is, in one line.
        padding_share: Share of padding, by field.
        lengths: Shortest, median and longest sample without padding, by field.
        seconds: How long the check took, with getting the batch.
    """

    findings: tuple[Finding, ...]
    samples: int | None
    structure: str
    padding_share: Mapping[str, float]
    lengths: Mapping[str, tuple[int, float, int]]
    seconds: float

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that should stop a training script."""
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    @property
    def text(self) -> str:
        """The report for a person, a finding a line."""
        lines = [f"{self.samples if self.samples is not None else 'an unknown number of'} samples: {self.structure}"]
        lines += [f"{'error' if finding.is_error else 'odd'}: {finding.text}" for finding in self.findings]
        for name, (low, median, high) in self.lengths.items():
            share = self.padding_share.get(name, 0.0)
            lines.append(f"lengths of {name}: {low} / {median:g} / {high} (min / median / max), {share:.0%} padding")
        return "\n".join(lines if self.findings else [*lines, "nothing wrong found"])


def check_first_batch(loader: Iterable[Any], expect: Any = None, *, samples: int | None = None) -> BatchReport:
    """Take one batch of ``loader``, check it, and stop the script where it is wrong.

    The training run after it sees the batches that it would have seen without: random states, a sampler's generator
    and the state of a stateful loader are put back.

    Args:
        loader: What the training loop will iterate over.
        expect: Field names with what they must be, the path of a YAML file, or a ``BatchExpectation``; None only looks
            for what is wrong in any batch (NaN, Inf), and tells what is odd.
        samples: Samples in a batch; None counts them.

    Returns:
        The report; without ``expect``, constant or repeated samples are in it and raise nothing.

    Raises:
        BatchCheckError: The batch is wrong, or there is none; the text names sample, field, index and value.
    """
    expected = as_expectation(expect)
    began = time.monotonic()
    with _put_back(loader):
        iterator = iter(loader)
        batch = next(iterator, _NOTHING)
        del iterator
    if batch is _NOTHING:
        raise BatchCheckError("The loader yields no batch: its data set is empty, or drop_last drops the only one.")
    report = check_batch(batch, expected, samples=samples or _batch_size(loader, batch), began=began)
    if not report.ok:
        shown = "; ".join(finding.text for finding in report.errors[:_SHOWN])
        more = f"; and {len(report.errors) - _SHOWN} more" if len(report.errors) > _SHOWN else ""
        raise BatchCheckError(f"The first batch is wrong: {shown}{more}.")
    return report


def check_batch(
    batch: Any, expect: Any = None, *, samples: int | None = None, began: float | None = None
) -> BatchReport:
    """Check one batch; nothing is raised for what is found.

    Args:
        batch: Anything a loader yields.
        expect: As for ``check_first_batch``.
        samples: Samples in it; None counts them.
        began: When the check began, on the monotonic clock; None means now.
    """
    began = time.monotonic() if began is None else began
    expected = as_expectation(expect)
    count = samples if samples is not None else count_samples(batch).samples
    found = fields_of(batch, count)
    findings = list(_structure(found, count, expected))
    for name, one in found.items():
        findings += _field_findings(one, expected.fields.get(name, FieldExpectation()))
    findings += _duplicates(found, count, expected)
    pad_ids = {name: e.pad_id for name, e in expected.fields.items() if e.pad_id is not None}
    pads = padding(found, pad_ids)
    for name, pad in pads.items():
        findings += _padding_findings(name, pad, expected.fields.get(name, FieldExpectation()))
    lengths = {
        name: (int(p.lengths.min()), float(np.median(p.lengths)), int(p.lengths.max())) for name, p in pads.items()
    }
    return BatchReport(
        tuple(sorted(findings, key=lambda finding: not finding.is_error)),
        count,
        describe_structure(batch),
        {name: pad.share for name, pad in pads.items()},
        lengths,
        time.monotonic() - began,
    )


_NOTHING = object()


def _structure(found: Mapping[str, Field], samples: int | None, expected: BatchExpectation) -> Iterator[Finding]:
    for name in expected.fields:
        if name not in found:
            there = ", ".join(found) or "none"
            yield Finding("structure", True, name, None, None, None, f"field {name!r} is missing (there: {there})")
    if expected.only_these_fields:
        for name in found:
            if name not in expected.fields:
                yield Finding("structure", True, name, None, None, None, f"field {name!r} was not expected")
    if expected.samples is not None and samples != expected.samples:
        text = f"the batch holds {samples} samples, not {expected.samples}"
        yield Finding("samples", True, None, None, None, samples, text)


def _field_findings(one: Field, expected: FieldExpectation) -> Iterator[Finding]:
    name = one.name
    if expected.dtype is not None and one.dtype != expected.dtype:
        text = f"field {name!r} is {one.dtype}, not {expected.dtype}"
        yield Finding("dtype", True, name, None, None, one.dtype, text)
    if expected.shape is not None and not _fits(one.shape, expected.shape):
        text = f"field {name!r} has shape {_shape_text(one.shape)}, not {_shape_text(expected.shape)}"
        yield Finding("shape", True, name, None, None, one.shape, text)
    if expected.finite:
        yield from _first_bad(one, "nan", np.isnan, "{value}, which is not a number", floats_only=True)
        yield from _first_bad(one, "inf", np.isinf, "{value}", floats_only=True)
    if expected.range is not None:
        low, high = expected.range

        def outside(values: np.ndarray) -> np.ndarray:
            bad = (values < low) | (values > high)
            return bad if expected.ignore is None else bad & (values != expected.ignore)

        yield from _first_bad(one, "range", outside, f"{{value}}, outside {low:g} to {high:g}")
    yield from _constants(one, expected)


def _first_bad(one: Field, kind: str, test: Any, words: str, *, floats_only: bool = False) -> Iterator[Finding]:
    """The first value that ``test`` finds in the field, with how many more there are."""
    first: tuple[int | None, tuple[int, ...], Any] | None = None
    count = samples = 0
    for sample, values in one.numbered():
        if values.dtype.kind not in ("f" if floats_only else "iufb"):
            continue
        bad = test(values)
        if not bad.any():
            continue
        samples += 1
        count += int(bad.sum())
        if first is None:
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            first = (sample, index, values[index].item())
    if first is None:
        return
    sample, index, value = first
    where = f"sample {sample}, " if sample is not None else ""
    place = f", index {list(index)}" if index else ""
    others = f" ({count:,} such values in {samples} samples)" if count > 1 else ""
    text = f"{where}field {one.name!r}{place}: {words.format(value=value)}{others}"
    yield Finding(kind, True, one.name, sample, index, value, text)


def _constants(one: Field, expected: FieldExpectation) -> Iterator[Finding]:
    constant = constant_samples(one)
    rows = len(one.rows) if one.rows is not None else 0
    if not constant:
        return
    limit = expected.max_constant_share
    value = np.asarray(list(one.numbered())[constant[0]][1]).reshape(-1)[0].item()
    is_error = limit is not None and len(constant) / rows > limit
    others = f" ({len(constant)} of {rows} samples)" if len(constant) > 1 else ""
    allowed = "" if not is_error else f", and max_constant_share is {limit:g}"
    text = f"sample {constant[0]}, field {one.name!r}: every value is {value}{others}{allowed}"
    yield Finding("constant", is_error, one.name, constant[0], None, value, text)


def _duplicates(found: Mapping[str, Field], samples: int | None, expected: BatchExpectation) -> Iterator[Finding]:
    copies = duplicate_samples(found)
    if not copies or not samples:
        return
    sample, earlier = copies[0]
    limit = expected.max_duplicate_share
    is_error = limit is not None and len(copies) / samples > limit
    others = f" ({len(copies)} of {samples} samples repeat one)" if len(copies) > 1 else ""
    allowed = "" if not is_error else f", and max_duplicate_share is {limit:g}"
    text = f"sample {sample} repeats sample {earlier} in every field{others}{allowed}"
    yield Finding("duplicate", is_error, None, sample, None, earlier, text)


def _padding_findings(name: str, pad: Any, expected: FieldExpectation) -> Iterator[Finding]:
    limit = expected.max_padding_share
    if limit is not None and pad.share > limit + 1e-9:
        text = (
            f"field {name!r} is {pad.share:.0%} padding (told by {pad.told_by}), and max_padding_share is {limit:.0%}"
        )
        yield Finding("padding", True, name, int(pad.lengths.argmin()), None, pad.share, text)
    if expected.length is not None:
        low, high = expected.length
        bad = np.flatnonzero((pad.lengths < low) | (pad.lengths > high))
        if bad.size:
            sample, length = int(bad[0]), int(pad.lengths[bad[0]])
            text = f"sample {sample}, field {name!r}: {length} long, outside {low} to {high}"
            yield Finding("length", True, name, sample, None, length, text)


def _fits(shape: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(e is None or s == e for s, e in zip(shape, expected, strict=True))


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if axis is None else str(axis) for axis in shape) + "]"


def _batch_size(loader: Any, batch: Any) -> int | None:
    return count_samples(batch, getattr(loader, "batch_size", None)).samples


@contextmanager
def _put_back(loader: Any) -> Iterator[None]:
    """Random states, generators and loader state as they were, whatever taking a batch changes."""
    generators = _generators(loader)
    states = [generator.get_state() for generator in generators]
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    resumes_from = getattr(loader, "next_iter_state", None)
    dataset = getattr(loader, "dataset", None)
    in_process = getattr(loader, "num_workers", 0) == 0 and hasattr(dataset, "load_state_dict")
    dataset_state = dataset.state_dict() if in_process and hasattr(dataset, "state_dict") else None
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if hasattr(loader, "next_iter_state"):
            loader.next_iter_state = resumes_from
            if not getattr(loader, "persistent_workers", False):
                loader._iterator = None
        if dataset_state is not None:
            dataset.load_state_dict(dataset_state)


def _generators(loader: Any) -> list[torch.Generator]:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = [getattr(owner, "generator", None) for owner in (loader, sampler, inner)]
    unique = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}
    return list(unique.values())
