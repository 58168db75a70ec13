"""Decoders of photographs, one name each: Pillow, its draft mode, simplejpeg, and on CUDA torchvision and DALI."""

from __future__ import annotations

import importlib.util
import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.errors import SettingsError

Decoder = Callable[[bytes], torch.Tensor]
"""Encoded image -> uint8 tensor, shape ``[3, height, width]``, RGB."""

_JPEG = b"\xff\xd8\xff"
_CMYK = "CMYK"
_NEEDS = {
    "simplejpeg": ("simplejpeg", "pip install simplejpeg, or use 'pillow-draft'"),
    "torchvision-cuda": ("torchvision", "install the build that fits your torch, or use 'simplejpeg'"),
    "dali": ("nvidia.dali", "pip install the nvidia-dali package for your CUDA, or use 'torchvision-cuda'"),
}
"""Module that a decoder needs, and the way out where it is not installed."""
_ON_CUDA = ("torchvision-cuda", "dali")


def decoder(name: str = "pillow", shortest_side: int | None = None) -> Decoder:
    """A function that decodes one image.

    Args:
        name: ``pillow`` reads every format. ``pillow-draft`` lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size
            where ``shortest_side`` allows it (2.4 times as fast above 3 megapixels, for a target of 224 pixels).
            ``simplejpeg`` does the same and lets threads run (1.5 to 2.4 times as fast as Pillow); what is no JPEG, or
            one in CMYK, goes to Pillow. ``torchvision-cuda`` and ``dali`` decode on the GPU, in the training process
            only, and give tensors that lie there; ``dali`` reads more formats than JPEG. ``compare_decoders`` measures
            these ratios on images of your own.
        shortest_side: The image is never smaller than this along its shorter side, unless it was; it may be larger,
            since nothing is resized here. None keeps the full size.

    Raises:
        SettingsError: There is no such decoder, or what it needs is not installed or not there.
    """
    if name not in DECODERS:
        raise SettingsError(f"decoder={name!r} does not decode: use one of {', '.join(DECODERS)}.")
    if shortest_side is not None and shortest_side < 1:
        raise SettingsError(f"shortest_side={shortest_side} leaves no pixel: use 1 or more, or None.")
    problem = why_not(name)
    if problem:
        raise SettingsError(problem)
    return DECODERS[name](shortest_side)


def why_not(name: str) -> str | None:
    """Why a decoder cannot be used here, and the way out; None if it can."""
    module, way_out = _NEEDS.get(name, (None, None))
    if module is not None and not _is_installed(module):
        return f"decoder={name!r} needs {module}: {way_out}."
    if name in _ON_CUDA and not torch.cuda.is_available():
        return f"decoder={name!r} needs a CUDA device, and there is none: use 'simplejpeg' on the CPU."
    return None


@dataclass(frozen=True)
class DecoderSpeed:
    """How fast a decoder is over given images.

    Attributes:
        name: The decoder.
        images_per_second: Median over the rounds, in this process; None where it cannot be used.
        reason: Why it cannot; None where it can.
    """

    name: str
    images_per_second: float | None
    reason: str | None = None


def compare_decoders(
    images: Sequence[bytes], shortest_side: int | None = None, *, rounds: int = 3
) -> tuple[DecoderSpeed, ...]:
    """How fast every decoder is over ``images``, decoders alternating within each round.

    Raises:
        SettingsError: There is no image.
    """
    if not images:
        raise SettingsError("No image was given: pass the bytes of some of your own.")
    usable = {name: decoder(name, shortest_side) for name in DECODERS if why_not(name) is None}
    seconds: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(rounds):
        for name, decode in usable.items():
            begun = time.perf_counter()
            for image in images:
                decode(image)
            seconds[name].append(time.perf_counter() - begun)
    rates = {name: len(images) / statistics.median(measured) for name, measured in seconds.items()}
    return tuple(DecoderSpeed(name, rates.get(name), why_not(name)) for name in DECODERS)


class Pillow:
    """Decodes with Pillow at full size."""

    def __init__(self, shortest_side: int | None) -> None:
        self.shortest_side = shortest_side

    def __call__(self, encoded: bytes) -> torch.Tensor:
        from PIL import Image

        with Image.open(io.BytesIO(encoded)) as image:
            return _as_tensor(np.array(self.drafted(image).convert("RGB")))

    def drafted(self, image):
        """The image to decode, as Pillow opened it."""
        return image


class PillowDraft(Pillow):
    """Decodes with Pillow, JPEGs at the smallest of their 1/1, 1/2, 1/4 and 1/8 that is large enough."""

    def drafted(self, image):
        """The image, told to decode smaller where that is enough."""
        if self.shortest_side is not None:
            image.draft("RGB", _least_size(*image.size, self.shortest_side))
        return image


class SimpleJpeg:
    """Decodes JPEGs with simplejpeg; everything else with Pillow."""

    def __init__(self, shortest_side: int | None) -> None:
        self.shortest_side = shortest_side
        self._other = Pillow(shortest_side)

    def __call__(self, encoded: bytes) -> torch.Tensor:
        import simplejpeg

        if not encoded.startswith(_JPEG):
            return self._other(encoded)
        height, width, colours, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        if colours.upper() == _CMYK or colours.upper() == "YCCK":
            return self._other(encoded)
        smallest: dict[str, float] = {}
        if self.shortest_side is not None:
            least_width, least_height = _least_size(width, height, self.shortest_side)
            smallest = {"min_width": least_width, "min_height": least_height}
        pixels = simplejpeg.decode_jpeg(encoded, "RGB", strict=False, **smallest)
        return _as_tensor(pixels)


class TorchvisionCuda:
    """Decodes JPEGs on the current CUDA device, at full size."""

    def __init__(self, shortest_side: int | None) -> None:
        self.shortest_side = shortest_side

    def __call__(self, encoded: bytes) -> torch.Tensor:
        _refuse_in_worker("torchvision-cuda")
        if not encoded.startswith(_JPEG):
            raise SettingsError(
                f"An image begins with {encoded[:4]!r} and is no JPEG, and decoder='torchvision-cuda' reads nothing "
                "else: use 'dali', or 'pillow' on the CPU."
            )
        from torchvision.io import ImageReadMode, decode_jpeg

        data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        return decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")


class Dali:
    """Decodes with NVIDIA DALI on the current CUDA device, at full size."""

    def __init__(self, shortest_side: int | None) -> None:
        self.shortest_side = shortest_side
        self._pipeline: Any = None

    def __call__(self, encoded: bytes) -> torch.Tensor:
        _refuse_in_worker("dali")
        from nvidia.dali.plugin.pytorch import feed_ndarray

        if self._pipeline is None:
            self._pipeline = _dali_pipeline(torch.cuda.current_device())
        self._pipeline.feed_input("encoded", [np.frombuffer(encoded, dtype=np.uint8)])
        (batch,) = self._pipeline.run()
        pixels = torch.empty(tuple(batch[0].shape()), dtype=torch.uint8, device="cuda")
        feed_ndarray(batch[0], pixels, cuda_stream=torch.cuda.current_stream())
        return pixels.permute(2, 0, 1).contiguous()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipeline": None}


DECODERS: dict[str, Callable[[int | None], Decoder]] = {
    "pillow": Pillow,
    "pillow-draft": PillowDraft,
    "simplejpeg": SimpleJpeg,
    "torchvision-cuda": TorchvisionCuda,
    "dali": Dali,
}


def _dali_pipeline(device: int) -> Any:
    """A pipeline of one image at a time, without prefetching: what is fed is what the next ``run`` gives.

    Like the other decoders it leaves an image as it lies, whatever its EXIF orientation.
    """
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=device, exec_pipelined=False, exec_async=False)
    with pipeline:
        encoded = fn.external_source(name="encoded", device="cpu")
        pipeline.set_outputs(
            fn.decoders.image(encoded, device="mixed", output_type=types.RGB, adjust_orientation=False)
        )
    pipeline.build()
    return pipeline


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not there
        return False


def _refuse_in_worker(name: str) -> None:
    if torch.utils.data.get_worker_info() is not None:
        raise SettingsError(
            f"decoder={name!r} cannot run in a loader's worker: let the loader yield encoded bytes, and decode in the "
            "training process."
        )


def _least_size(width: int, height: int, shortest_side: int) -> tuple[int, int]:
    """The smallest width and height of the same shape whose shorter side is at least ``shortest_side``."""
    scale = min(1.0, shortest_side / min(width, height))
    return max(1, int(width * scale)), max(1, int(height * scale))


def _as_tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
