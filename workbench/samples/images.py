"""Photographs: read, decode, crop, resize, flip, normalise, as for training a classifier.

Pixels are computed by numpy on one thread: torch would use all cores at 0 workers and one in a worker, so that the two
would not be the same work.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from workbench.samples.epoch import data_loader, epoch, folder_of, require

SAMPLES_PER_EPOCH = 2048
LABELS = ("other", "animals", "fishes", "monuments", "renewable", "tools")
# Mean and deviation of ImageNet's channels, the values of the torchvision model zoo.
CHANNEL_MEAN = (0.485, 0.456, 0.406)
CHANNEL_DEVIATION = (0.229, 0.224, 0.225)
# Area and aspect of a crop, from "Going deeper with convolutions" (Szegedy et al. 2014), section 6.
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)


def photos(
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    multiprocessing_context: str | None = None,
    in_order: bool = True,
    batch_size: int = 32,
    *,
    data: str | Path | None = None,
    samples_per_epoch: int | None = None,
    size: int = 224,
    draft: bool = False,
    seed: int = 0,
) -> DataLoader:
    """A loader of batches {"image": float32 [B, 3, size, size], "label": int64 [B]} from JPEG files.

    Args:
        data: Folder with `photos/` or with JPEG files; None takes the sample data.
        samples_per_epoch: Length of an epoch; None goes once through the files, or to 2,048 where they are fewer.
        size: Pixels of the square that comes out.
        draft: Let the JPEG decoder scale by 1/2, 1/4 or 1/8 before the crop where that loses no wanted pixel.
        seed: Another seed, other crops.

    Raises:
        SamplesError: If there are no photographs, or Pillow is missing.
    """
    require("PIL")
    folder = folder_of(data)
    dataset = Photos(folder, samples_per_epoch, size, draft, seed)
    knobs = (num_workers, prefetch_factor, pin_memory, persistent_workers, multiprocessing_context, in_order)
    return data_loader(dataset, batch_size, *knobs)


class Photos(Dataset):
    """Map-style: one random crop of one photograph for an index."""

    def __init__(self, folder: Path, samples_per_epoch: int | None, size: int, draft: bool, seed: int) -> None:
        self.files = photo_files(folder)
        labels = photo_labels(folder)
        self.labels = [LABELS.index(labels.get(source_name(file), "other")) for file in self.files]
        self.epoch = epoch(len(self.files), samples_per_epoch, SAMPLES_PER_EPOCH, seed, f"JPEG files in {folder}")
        self.size = size
        self.draft = draft

    def __len__(self) -> int:
        return self.epoch.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        item, chance = self.epoch.visit(index)
        return {"image": self._crop(self.files[item], chance), "label": self.labels[item]}

    def _crop(self, file: str, chance: random.Random) -> torch.Tensor:
        import numpy as np
        from PIL import Image

        with Image.open(file) as image:
            box = crop_box(*image.size, chance)
            if self.draft:
                box = _draft(image, box, self.size)
            square = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if chance.random() < 0.5:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        scale, shift = (
            1 / (255 * np.float32(CHANNEL_DEVIATION)),
            -np.float32(CHANNEL_MEAN) / np.float32(CHANNEL_DEVIATION),
        )
        pixels = np.asarray(square, dtype=np.float32) * scale + shift
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def crop_box(width: int, height: int, chance: random.Random) -> tuple[float, float, float, float]:
    """A random box (left, top, right, bottom) of random area and aspect that lies inside the image, in pixels."""
    area = width * height * chance.uniform(*CROP_AREA)
    aspect = math.exp(chance.uniform(*map(math.log, CROP_ASPECT)))
    box_width, box_height = min(width, math.sqrt(area * aspect)), min(height, math.sqrt(area / aspect))
    left, top = chance.uniform(0, width - box_width), chance.uniform(0, height - box_height)
    return left, top, left + box_width, top + box_height


def photo_files(folder: Path) -> list[str]:
    """Paths of the JPEG files in `folder/photos` or, without one, in `folder`, sorted."""
    place = folder / "photos" if (folder / "photos").is_dir() else folder
    return sorted(str(path) for path in place.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))


def photo_labels(folder: Path) -> dict[str, str]:
    """Label of each photograph by its file name, from `photos.json`; empty without one."""
    facts = folder / "photos.json"
    entries = json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else []
    return {entry["file"]: entry.get("label", "other") for entry in entries}


def source_name(file: str) -> str:
    """The photograph that a file was cut from: "000012_gc_fish1.jpg" came from "gc_fish1.jpg"."""
    number, _, rest = Path(file).name.partition("_")
    return rest if number.isdigit() else Path(file).name


def _draft(image, box: tuple[float, ...], size: int) -> tuple[float, ...]:
    """Decode at a fraction of the size at which the crop still has `size` pixels; the box in the new pixels."""
    width, height = image.size
    keep = max(size / (box[2] - box[0]), size / (box[3] - box[1]))
    if keep < 1:
        image.draft("RGB", (math.ceil(width * keep), math.ceil(height * keep)))
    across, down = image.size[0] / width, image.size[1] / height
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down
