"""Decoders agree on what they decode, never go below the size asked for, and say what they lack."""

from __future__ import annotations

import importlib.util
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from workbench.errors import SettingsError
from workbench.streaming import decoding
from workbench.streaming.decoding import DECODERS, compare_decoders, decoder, why_not

ON_CPU = ("pillow", "pillow-draft", "simplejpeg")


def picture(width: int = 640, height: int = 480, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    """Smooth gradients, which no decoder's rounding changes by much."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([across, down, (across + down) / 2], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG")])
def test_decoders_agree(name, mode, kind):
    encoded = picture(mode=mode, kind=kind)
    with Image.open(io.BytesIO(encoded)) as image:
        expected = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    decoded = decoder(name)(encoded)
    assert decoded.shape == (3, 480, 640) and decoded.dtype == torch.uint8 and decoded.is_contiguous()
    assert (decoded.int() - expected.int()).abs().float().mean() < 2


@pytest.mark.parametrize("name", ["pillow-draft", "simplejpeg"])
@pytest.mark.parametrize(
    ("size", "shortest_side", "expected"),
    [
        ((640, 480), 120, (120, 160)),
        ((640, 480), 121, (240, 320)),
        ((480, 640), 60, (80, 60)),
        ((640, 480), 480, (480, 640)),
        ((64, 48), 500, (48, 64)),
    ],
)
def test_smaller_decoding_is_large_enough(name, size, shortest_side, expected):
    decoded = decoder(name, shortest_side)(picture(*size))
    assert tuple(decoded.shape[1:]) == expected or (
        name == "simplejpeg" and shortest_side <= min(decoded.shape[1:]) <= min(expected)
    )
    assert min(decoded.shape[1:]) >= min(shortest_side, *size)


def test_decoders_travel_to_workers():
    images = [picture(64, 48)] * 4
    loader = DataLoader(images, batch_size=2, num_workers=1, collate_fn=Collate("pillow-draft"))
    assert [tuple(batch.shape) for batch in loader] == [(2, 3, 48, 64)] * 2


class Collate:
    def __init__(self, name: str) -> None:
        self.decode = decoder(name)

    def __call__(self, images: list[bytes]) -> torch.Tensor:
        return torch.stack([self.decode(image) for image in images])


def test_what_is_missing_is_said_with_the_way_out(monkeypatch):
    with pytest.raises(SettingsError, match="decoder='magic'"):
        decoder("magic")
    with pytest.raises(SettingsError, match="shortest_side=0"):
        decoder("pillow", 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="pip install simplejpeg, or use 'pillow-draft'"):
        decoder("simplejpeg")
    assert "needs torchvision" in why_not("torchvision-cuda") and "needs nvidia.dali" in why_not("dali")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "needs a CUDA device" in why_not("torchvision-cuda") and why_not("pillow") is None
    with pytest.raises(SettingsError, match="decoder='dali' needs a CUDA device"):
        decoder("dali")


def test_a_module_inside_a_package_that_is_not_there_is_missing():
    assert not decoding._is_installed("no_such_package.inside") and decoding._is_installed("torch.utils.data")


@pytest.mark.parametrize("decode", [decoding.TorchvisionCuda(None), decoding.Dali(None)])
def test_a_gpu_decoder_refuses_to_run_in_a_worker(monkeypatch, decode):
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())
    with pytest.raises(SettingsError, match="cannot run in a loader's worker"):
        decode(b"")


def test_what_a_gpu_cannot_decode_is_said_before_it_is_tried():
    with pytest.raises(SettingsError, match="is no JPEG"):
        decoding.TorchvisionCuda(None)(b"\x89PNG and so on")


def test_every_decoder_is_compared_or_says_why_not():
    speeds = compare_decoders([picture(320, 240)] * 2, 60, rounds=1)
    assert [speed.name for speed in speeds] == list(DECODERS)
    for speed in speeds:
        assert (speed.images_per_second is None) == (speed.reason is not None)
    assert speeds[0].images_per_second > 0
    with pytest.raises(SettingsError, match="No image"):
        compare_decoders([])
