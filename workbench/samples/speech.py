"""Speech: decode a stretch of a clip, resample, pad, log-mel spectrogram, as for training a recogniser."""

from __future__ import annotations

import functools
import math
from pathlib import Path

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
            wave = torch.from_numpy(clip.read(wanted, dtype="float32", always_2d=True)).mean(dim=1)
            wave = resample(wave, clip.samplerate, SAMPLE_RATE)
        wave = torch.nn.functional.pad(wave, (0, round(self.seconds * SAMPLE_RATE) - len(wave)))
        return {"mel": log_mel(wave), "label": self.labels[item]}


def resample(wave: torch.Tensor, rate: int, new_rate: int) -> torch.Tensor:
    """`wave` ([T] float32, `rate` a second) at `new_rate` a second, by cutting or extending its spectrum."""
    if rate == new_rate or len(wave) < 2:
        return wave
    import numpy as np  # its FFT gives the same bits in a worker and in the main process; torch's depends on threads

    length = round(len(wave) * new_rate / rate)
    played = np.fft.irfft(np.fft.rfft(wave.numpy()), n=length) * (length / len(wave))
    return torch.from_numpy(played.astype(np.float32))


def log_mel(wave: torch.Tensor) -> torch.Tensor:
    """Log of the power in 80 mel bands ([80, T // 160 + 1] float32) of a wave ([T], 16 kHz)."""
    spectrum = torch.stft(wave, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True, pad_mode="constant")
    return (mel_bands() @ spectrum.abs().square()).clamp_(min=SMALLEST_POWER).log10_()


@functools.cache
def mel_bands() -> torch.Tensor:
    """Triangles ([80, 201] float32) over the bins of a spectrum, evenly spaced in mel.

    mel = 2595 log10(1 + Hz / 700) (O'Shaughnessy 1987).
    """
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    corners = 700 * (10 ** (torch.linspace(0, top, BANDS + 2) / 2595) - 1)
    hertz = torch.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    rising = (hertz - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - hertz) / (corners[2:] - corners[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp_(min=0)


def clip_files(folder: Path) -> list[str]:
    """Paths of the FLAC and WAV files in `folder/audio` or, without one, in `folder`, sorted."""
    place = folder / "audio" if (folder / "audio").is_dir() else folder
    return sorted(str(path) for path in place.rglob("*") if path.suffix.lower() in (".flac", ".wav"))


def language(file: str) -> str:
    """Language that a clip's name says, whether original ("it_...") or grown ("000012_it_...")."""
    parts = Path(file).name.split("_")
    said = parts[1] if parts[0].isdigit() and len(parts) > 1 else parts[0]
    return said if said in LABELS else "other"
