"""Work done once at conversion instead of every epoch: resizing images, tokenising text."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import LayoutError
from workbench.layouts.protocol import KEY, Sample
from workbench.layouts.tokens import TOKENS_FIELD, narrowest_dtype

IMAGE_FIELDS = ("jpg", "jpeg", "png", "webp")
_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}


@dataclass(frozen=True)
class ResizeImages:
    """Shrinks images whose shorter side is over ``shorter_side`` pixels to that; others stay as they are.

    Attributes:
        shorter_side: Pixels; a little over the training resolution leaves room for random crops.
        quality: Of JPEG and WebP, 1 to 95.
        fields: Which fields hold encoded images.
    """

    shorter_side: int
    quality: int = 90
    fields: tuple[str, ...] = IMAGE_FIELDS

    def __post_init__(self) -> None:
        if self.shorter_side < 1 or not 1 <= self.quality <= 95:
            raise LayoutError(
                f"shorter_side={self.shorter_side}, quality={self.quality}: at least 1 pixel, quality 1 to 95."
            )

    def __call__(self, sample: Sample) -> Sample:
        shrunk = {
            name: self._resized(value, name)
            for name, value in sample.items()
            if isinstance(value, bytes) and name.rpartition(".")[2].lower() in self.fields
        }
        return {**sample, **shrunk}

    def describe(self) -> str:
        """One line for the manifest."""
        return f"resize_images(shorter_side={self.shorter_side}, quality={self.quality})"

    def _resized(self, content: bytes, field: str) -> bytes:
        from PIL import Image, ImageOps

        with Image.open(io.BytesIO(content)) as image:
            if min(image.size) <= self.shorter_side:
                return content
            image.draft(None, (2 * self.shorter_side, 2 * self.shorter_side))
            upright = ImageOps.exif_transpose(image)
            scale = self.shorter_side / min(upright.size)
            size = tuple(max(self.shorter_side, round(side * scale)) for side in upright.size)
            format_name = _FORMATS.get(field.rpartition(".")[2].lower(), image.format or "JPEG")
            if upright.mode not in ("RGB", "L") and format_name == "JPEG":
                upright = upright.convert("RGB")
            buffer = io.BytesIO()
            upright.resize(size, Image.Resampling.LANCZOS).save(buffer, format_name, quality=self.quality)
        return buffer.getvalue()


class Tokenise:
    """Turns a sample's text into ids under ``tokens``; only the name is kept beside them.

    Args:
        tokenizer: Path of a ``tokenizer.json``, or any object whose ``encode(text)`` returns ids or has ``.ids``.
        field: The field that holds the text.
        eos: Id appended to every document; None appends nothing.

    Attributes:
        vocab_size: Number of ids the tokenizer has, or None where it does not tell.
    """

    def __init__(self, tokenizer: Any, field: str = "text", eos: int | None = None) -> None:
        self.field, self.eos = field, eos
        self._path = str(tokenizer) if isinstance(tokenizer, str | Path) else None
        self._tokenizer = None if self._path else tokenizer
        self.vocab_size = _vocab_size(self._loaded())

    def __call__(self, sample: Sample) -> Sample:
        text = sample.get(self.field)
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        if not isinstance(text, str):
            fields = ", ".join(sorted(set(sample) - {KEY})) or "none"
            raise LayoutError(f"Field {self.field!r} holds no text (fields: {fields}): name the field with text.")
        encoded = self._loaded().encode(text)
        ids = list(getattr(encoded, "ids", encoded))
        if self.eos is not None:
            ids.append(self.eos)
        dtype = narrowest_dtype(max(ids, default=0))
        kept = {KEY: sample[KEY]} if KEY in sample else {}
        return {**kept, TOKENS_FIELD: np.array(ids, dtype)}

    def describe(self) -> str:
        """One line for the manifest: it names the tokenizer by its content, not by its path."""
        loaded = self._loaded()
        text = loaded.to_str() if hasattr(loaded, "to_str") else f"{type(loaded).__qualname__}:{self.vocab_size}"
        digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()
        return f"tokenise(field={self.field!r}, eos={self.eos}, vocab_size={self.vocab_size}, tokenizer={digest})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokenizer": None} if self._path else self.__dict__

    def _loaded(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = _load_tokenizer(self._path or "")
        return self._tokenizer


def resize_images(shorter_side: int, quality: int = 90, fields: tuple[str, ...] = IMAGE_FIELDS) -> ResizeImages:
    """A transform that shrinks images to ``shorter_side`` pixels; see ``ResizeImages``."""
    return ResizeImages(shorter_side, quality, tuple(fields))


def tokenise(tokenizer: Any, field: str = "text", eos: int | None = None) -> Tokenise:
    """A transform that turns text into ids; see ``Tokenise``."""
    return Tokenise(tokenizer, field, eos)


def describe_transform(transform: Callable[[Sample], Any] | None) -> str | None:
    """One line that changes when the transform does, as far as that can be told: its name and a digest of its code."""
    if transform is None:
        return None
    if hasattr(transform, "describe"):
        return transform.describe()
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    code = getattr(transform, "__code__", None)
    if code is None:
        return f"{named.__module__}.{named.__qualname__}"
    constants = [repr(value) for value in code.co_consts if not hasattr(value, "co_code")]
    digest = hashlib.blake2b(code.co_code + "".join(constants).encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{named.__module__}.{named.__qualname__}:{digest}"


def _load_tokenizer(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise LayoutError(f"Tokenising needs tokenizers ({error}): pip install 'loader-workbench[samples]'.") from error
    try:
        return Tokenizer.from_file(path)
    except Exception as error:
        raise LayoutError(f"{path!r} is no tokenizer.json ({error}): pass one that `tokenizers` can load.") from error


def _vocab_size(tokenizer: Any) -> int | None:
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size())
    size = getattr(tokenizer, "vocab_size", None)
    if hasattr(tokenizer, "__len__"):
        return len(tokenizer)
    return int(size) if isinstance(size, int) else None


def vocabulary(transform: object) -> Mapping[str, int]:
    """``vocab_size`` and ``eos`` of a tokenising transform, as far as they are known."""
    known = {name: getattr(transform, name, None) for name in ("vocab_size", "eos")}
    return {name: value for name, value in known.items() if isinstance(value, int)}
