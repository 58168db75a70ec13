"""Speech: decode a stretch of a clip, resample, pad, log-mel spectrogram, as for training a recogniser.

Signals are computed by numpy on one thread: torch would use all cores at 0 workers and one in a worker, with other
rounding, so that the two would be neither the same work nor the same bits.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from workbench.samples.epoch import data_loader, epoch, folder_of, require

SAMPLES_PER_EPOCH = 4096
LABELS = ("other", "it", "ru")
SAMPLE_RATE = 16_000
# Window, hop and bands that speech models agree on at 16 kHz: 25 ms, 10 ms, 80 (Radford et al. 2022, section 2.2).
WINDOW, HOP, BANDS = 400, 160, 80
SMALLEST_POWER = 1e-10


def audio(
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    multiprocessing_context: str | None = None,
    in_order: bool = True,
    batch_size: int = 16,
    *,
    data: str | Path | None = None,
    samples_per_epoch: int | None = None,
    seconds: float = 3.0,
    seed: int = 0,
) -> DataLoader:
    """A loader of batches {"mel": float32 [B, 80, T], "label": int64 [B]}; T is 100 frames a second and one more.

    Args:
        data: Folder with FLAC or WAV files; None takes the sample data.
        samples_per_epoch: Length of an epoch; None goes once through the clips, or to 4,096 where they are fewer.
        seconds: Longer clips give a random stretch of this length, shorter ones are padded with silence.
        seed: Another seed, other stretches and another order.

    Raises:
        SamplesError: If there are no clips, or the package soundfile is missing.
    """
    require("soundfile")
    dataset = Clips(folder_of(data), samples_per_epoch, seconds, seed)
    knobs = (num_workers, prefetch_factor, pin_memory, persistent_workers, multiprocessing_context, in_order)
    return data_loader(dataset, batch_size, *knobs)


class Clips(Dataset):
    """Map-style: the spectrogram of one stretch of one clip for an index."""

    def __init__(self, folder: Path, samples_per_epoch: int | None, seconds: float, seed: int) -> None:
        self.files = clip_files(folder)
        self.labels = [LABELS.index(language(file)) for file in self.files]
        self.epoch = epoch(
            len(self.files), samples_per_epoch, SAMPLES_PER_EPOCH, seed, f"FLAC or WAV files in {folder}"
        )
        self.seconds = seconds

    def __len__(self) -> int:
        return self.epoch.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        import soundfile

        item, chance = self.epoch.visit(index)
        with soundfile.SoundFile(self.files[item]) as clip:
            wanted = round(self.seconds * clip.samplerate)
            clip.seek(chance.randint(0, max(0, clip.frames - wanted)))
            wave = clip.read(wanted, dtype="float32", always_2d=True).mean(axis=1)
            wave = resample(wave, clip.samplerate, SAMPLE_RATE)
        padded = np.zeros(round(self.seconds * SAMPLE_RATE), dtype=np.float32)
        padded[: len(wave)] = wave[: len(padded)]
        return {"mel": torch.from_numpy(log_mel(padded)), "label": self.labels[item]}


def resample(wave: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """`wave` ([T] float32, `rate` a second) at `new_rate` a second, by cutting or extending its spectrum."""
    if rate == new_rate or len(wave) < 2:
        return wave
    length = round(len(wave) * new_rate / rate)
    return (np.fft.irfft(np.fft.rfft(wave), n=length) * (length / len(wave))).astype(np.float32)


def log_mel(wave: np.ndarray) -> np.ndarray:
    """Log of the power in 80 mel bands ([80, T // 160 + 1] float32) of a wave ([T] float32, 16 kHz)."""
    padded = np.pad(wave, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * np.hanning(WINDOW + 1)[:-1]
    power = np.square(np.abs(np.fft.rfft(frames))).T
    bands = [weights @ power[first : first + len(weights)] for first, weights in mel_bands()]
    return np.log10(np.maximum(bands, SMALLEST_POWER)).astype(np.float32)


@functools.cache
def mel_bands() -> list[tuple[int, np.ndarray]]:
    """For each band, the first bin of the spectrum that it takes up, and the weights of those from there on.

    Triangles evenly spaced in mel; mel = 2595 log10(1 + Hz / 700) (O'Shaughnessy 1987).
    """
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    hertz = np.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    bands = []
    for left, middle, right in zip(corners, corners[1:], corners[2:], strict=False):
        weights = np.minimum((hertz - left) / (middle - left), (right - hertz) / (right - middle)).clip(min=0)
        inside = np.flatnonzero(weights)
        first, last = (inside[0], inside[-1]) if len(inside) else (0, 0)
        bands.append((int(first), weights[first : last + 1]))
    return bands


def clip_files(folder: Path) -> list[str]:
    """Paths of the FLAC and WAV files in `folder/audio` or, without one, in `folder`, sorted."""
    place = folder / "audio" if (folder / "audio").is_dir() else folder
    return sorted(str(path) for path in place.rglob("*") if path.suffix.lower() in (".flac", ".wav"))


def language(file: str) -> str:
    """Language that a clip's name says, whether original ("it_...") or grown ("000012_it_...")."""
    parts = Path(file).name.split("_")
    said = parts[1] if parts[0].isdigit() and len(parts) > 1 else parts[0]
    return said if said in LABELS else "other"
