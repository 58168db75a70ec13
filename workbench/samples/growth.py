"""More sample data on disk, as much as asked, no two samples alike, safe to interrupt and to take up again."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import SamplesError
from workbench.machine import format_bytes, parse_bytes
from workbench.samples import SAMPLES, data_directory
from workbench.samples.documents import DocumentReader, index_path, pack
from workbench.samples.epoch import Epoch, require
from workbench.samples.images import crop_box, photo_files
from workbench.samples.speech import clip_files

PHOTOS_PER_DECODE = 16  # crops of one decode; 64 write a quarter more a second, of a quarter as many photographs
FILES_PER_FOLDER = 1024
LONGEST_SIDE = (256, 640)  # pixels of a grown photo
JPEG_QUALITY = (80, 95)
CLIPS_PER_PART = 32
DOCUMENTS_PER_PART = 500
FEWEST_SOURCES = 3  # stretches in a grown document: with fewer, short ones would repeat
ROWS_PER_PART = 50_000
ROWS_PER_GROUP = 10_000
CLIP_SECONDS = (0.5, 8.0)
CLIP_SPEED = (0.85, 1.15)
UNFINISHED = ".unfinished-"
DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FACTS = {"photos": "photos.json", "audio": "audio.json", "text": "files.json", "tables": "files.json"}


@dataclass(frozen=True)
class Grown:
    """What a grown folder holds of what was asked.

    Attributes:
        directory: The folder, to be passed to a factory as `data=`.
        samples: Photographs, documents, clips or rows.
        bytes: Size of the files that hold them.
        written: Files written by this call; the others were there.
    """

    directory: Path
    samples: int
    bytes: int
    written: int


@dataclass(frozen=True)
class _File:
    """One file to be.

    Attributes:
        name: Path in the grown folder; the same name is the same content.
        samples: Samples it adds.
        content: Makes the bytes.
        holds: For a file of many samples, how many its name says ("part-7-500.gz"); 0 for a file of one.
    """

    name: str
    samples: int
    content: Callable[[], bytes]
    holds: int = 0


def grow(
    name: str,
    directory: str | Path,
    *,
    total_bytes: str | int | None = None,
    count: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    seed: int = 0,
) -> Grown:
    """Fills `directory` with sample data until it holds `total_bytes` or `count` samples; what is there is kept.

    Photographs are random crops, text is sentences of several documents put together anew, clips are cut and played
    faster or slower, rows are drawn from real flights and shifted in time. Content depends on `seed` alone.

    Args:
        name: "photos", "text", "audio" or "tables".
        directory: Folder to make or to go on filling.
        total_bytes: Size to reach, such as "2GB"; the last file may exceed it.
        count: Photographs, documents, clips or rows to reach.
        progress: Called after each file with what is reached and what was asked, in bytes or samples.
        seed: Another seed, other content; a folder holds one seed.

    Raises:
        SamplesError: If the name is unknown, not exactly one of `total_bytes` and `count` is given, the folder was
            grown with another seed, or the disk is full (files that are written stay, and growing can go on).
        SettingsError: If `total_bytes` is no size.
    """
    if name not in SAMPLES:
        raise SamplesError(f"{name!r} is no sample: choose one of {', '.join(SAMPLES)}")
    if (total_bytes is None) == (count is None):
        raise SamplesError("say how much: exactly one of total_bytes= and count=")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise SamplesError(f"count={count!r} must be a whole number of at least 1")
    limit = parse_bytes(total_bytes) if total_bytes is not None else None
    directory = Path(directory).expanduser().resolve()
    grown = Grown(directory, 0, 0, 0)
    try:
        _begin(directory, name, seed, limit)
        parts = _parts_in(directory)
        for file in _PARTS[name](seed, count):
            path = _longest(directory / file.name, file.holds, parts)
            written = _ensure(path, file.content)
            _drop_shorter(path, parts)
            samples, size = grown.samples + file.samples, grown.bytes + path.stat().st_size
            grown = Grown(directory, samples, size, grown.written + written)
            if progress:
                progress(*((grown.samples, count) if count else (grown.bytes, limit)))
            if limit is not None and grown.bytes >= limit:
                break
    except OSError as error:
        if error.errno in DISK_IS_FULL:
            raise SamplesError(
                _full(directory, f"after {grown.samples} samples ({format_bytes(grown.bytes)})")
            ) from None
        raise SamplesError(
            f"cannot write to {directory}: {error.strerror or error}; choose another directory"
        ) from None
    return grown


# -- files --


def _begin(directory: Path, name: str, seed: int, limit: int | None) -> None:
    """Makes the folder, with the facts on authors and licences, and the seed that it holds."""
    directory.mkdir(parents=True, exist_ok=True)
    there = directory / f"grown-{name}.json"
    held = json.loads(there.read_text())["seed"] if there.is_file() else seed
    if held != seed:
        raise SamplesError(f"{directory} was grown with seed={held}, not {seed!r}: use that seed or another directory")
    _clear_unfinished(directory)
    present = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    if limit and limit - present > shutil.disk_usage(directory).free:
        raise SamplesError(_full(directory, f"for {format_bytes(limit)}"))
    source = data_directory()
    for facts in (FACTS[name], "README.md"):
        _ensure(directory / facts, (source / facts).read_bytes)
    if name == "text":
        _ensure(directory / "bpe8k.json", (source / "bpe8k.json").read_bytes)
    _ensure(there, json.dumps({"name": name, "seed": seed}).encode)


def _ensure(path: Path, content: Callable[[], bytes]) -> bool:
    """Writes a file at once or not at all, unless it is there; whether it was written."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    made = content()
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f"{UNFINISHED}{os.getpid()}-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(made)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return True


def _parts_in(directory: Path) -> dict[str, dict[int, Path]]:
    """The files of many samples that are there, by what their names share and by the samples they hold."""
    parts: dict[str, dict[int, Path]] = {}
    for path in directory.rglob("*-*-*.*"):
        stem, holds = _split(path)
        if holds.isdigit():
            parts.setdefault(stem, {})[int(holds)] = path
    return parts


def _split(path: Path) -> tuple[str, str]:
    """("text-000001 .jsonl.gz", "500") of text-000001-500.jsonl.gz."""
    stem, _, suffix = path.name.partition(".")
    part, _, holds = stem.rpartition("-")
    return f"{part} .{suffix}", holds


def _longest(path: Path, holds: int, parts: dict[str, dict[int, Path]]) -> Path:
    """A part of at least as many samples, should an earlier call have written one, else `path`."""
    there = parts.get(_split(path)[0], {}) if holds else {}
    return there[max(there)] if there and max(there) >= holds else path


def _drop_shorter(path: Path, parts: dict[str, dict[int, Path]]) -> None:
    """Removes what an earlier call for fewer samples wrote of a part that is now there in full."""
    for other in parts.pop(_split(path)[0], {}).values():
        if other != path:
            other.unlink(missing_ok=True)


def _clear_unfinished(directory: Path) -> None:
    """Removes what a killed process left half-written."""
    for path in directory.rglob(f"{UNFINISHED}*"):
        try:
            os.kill(int(path.name.removeprefix(UNFINISHED).partition("-")[0]), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (ValueError, OSError):
            continue


def _full(directory: Path, when: str) -> str:
    free = shutil.disk_usage(directory).free
    return (
        f"not enough room in {directory} {when}: {format_bytes(free)} are free; ask for less, or free some and "
        "grow again, which goes on where it stopped"
    )


def _numbered(count: int | None, size: int) -> Iterator[tuple[int, int]]:
    """(number, samples) of parts of `size` samples, the last one shorter, until there are `count`."""
    for number in itertools.count():
        if count is not None and number * size >= count:
            return
        yield number, size if count is None else min(size, count - number * size)


def _chance(name: str, seed: int, number: int) -> random.Random:
    return random.Random(f"{name} {seed} {number}")


# -- photographs --


def _photos(seed: int, count: int | None) -> Iterator[_File]:
    require("PIL")
    sources = photo_files(data_directory())
    sequence = Epoch(len(sources), sys.maxsize, seed)
    for part, samples in _numbered(count, PHOTOS_PER_DECODE):
        source = sources[sequence.visit(part)[0]]
        decoded = functools.cache(functools.partial(_decoded, source))  # only if a file of the part is missing
        for number in range(part * PHOTOS_PER_DECODE, part * PHOTOS_PER_DECODE + samples):
            name = f"photos/{number // FILES_PER_FOLDER:05d}/{number:08d}_{Path(source).name}"
            yield _File(name, 1, functools.partial(_cut, decoded, _chance("photos", seed, number)))


def _decoded(source: str) -> Any:
    from PIL import Image

    with Image.open(source) as image:
        return image.convert("RGB")


def _cut(decoded: Callable[[], Any], chance: random.Random) -> bytes:
    from PIL import Image

    image = decoded()
    box = crop_box(*image.size, chance)
    across, down = box[2] - box[0], box[3] - box[1]
    scale = chance.randint(*LONGEST_SIDE) / max(across, down)
    size = max(1, round(across * scale)), max(1, round(down * scale))
    packed = io.BytesIO()
    image.resize(size, Image.Resampling.BILINEAR, box=box).save(packed, "JPEG", quality=chance.randint(*JPEG_QUALITY))
    return packed.getvalue()


# -- text --


def _text(seed: int, count: int | None) -> Iterator[_File]:
    source = data_directory()
    reader = DocumentReader([str(source / "text.jsonl.gz")])
    for part, samples in _numbered(count, DOCUMENTS_PER_PART):
        lines = functools.cache(functools.partial(_documents, reader, seed, part, samples))
        name = f"text/text-{part:06d}-{samples}.jsonl.gz"
        yield _File(name, samples, lambda lines=lines: lines()[0], samples)
        yield _File(str(index_path(name)), 0, lambda lines=lines: lines()[1], samples)


def _documents(reader: DocumentReader, seed: int, part: int, samples: int) -> tuple[bytes, bytes]:
    chance = _chance("text", seed, part)
    lines = []
    for number in range(part * DOCUMENTS_PER_PART, part * DOCUMENTS_PER_PART + samples):
        model = reader.read(chance.randrange(len(reader)))
        document = {"id": f"grown/{number}", "kind": model["kind"], "text": _recombined(reader, model, chance)}
        lines.append(json.dumps(document, ensure_ascii=False).encode() + b"\n")
    return pack(lines)


def _recombined(reader: DocumentReader, model: dict[str, Any], chance: random.Random) -> str:
    """Sentences from the model document and from others until it is as long as the model, and of several sources."""
    sentences: list[str] = []
    length, sources, document = 0, 0, model
    while length < len(model["text"]) or sources < FEWEST_SOURCES:
        found = [sentence for sentence in document["text"].replace("\n", ". ").split(". ") if sentence]
        start = chance.randrange(len(found)) if found else 0
        taken = found[start : start + chance.randint(1, 12)]
        sentences += taken
        length, sources = length + sum(map(len, taken)) + 2 * len(taken), sources + 1
        document = model if chance.random() < 0.5 else reader.read(chance.randrange(len(reader)))
    return ". ".join(sentences)


# -- audio --


def _audio(seed: int, count: int | None) -> Iterator[_File]:
    require("soundfile")
    sources = clip_files(data_directory())
    for part, samples in _numbered(count, CLIPS_PER_PART):
        for number in range(part * CLIPS_PER_PART, part * CLIPS_PER_PART + samples):
            chance = _chance("audio", seed, number)
            source = sources[chance.randrange(len(sources))]
            name = f"audio/{number // FILES_PER_FOLDER:05d}/{number:08d}_{Path(source).stem}.flac"
            yield _File(name, 1, functools.partial(_clip, source, chance))


def _clip(source: str, chance: random.Random) -> bytes:
    import numpy as np
    import soundfile

    wave, rate = soundfile.read(source, dtype="float32")
    wanted = min(len(wave), round(chance.uniform(*CLIP_SECONDS) * rate))
    start = chance.randint(0, len(wave) - wanted)
    speed, loudness = chance.uniform(*CLIP_SPEED), chance.uniform(0.5, 1.0)
    at = np.arange(0, max(1, wanted - 1), speed)
    hiss = np.random.default_rng(chance.getrandbits(63)).normal(0, 1e-3, len(at))  # two silences are not alike either
    played = np.interp(at, np.arange(wanted), wave[start : start + wanted]) * loudness + hiss
    packed = io.BytesIO()
    soundfile.write(packed, played.clip(-1, 1), rate, format="FLAC", subtype="PCM_16")
    return packed.getvalue()


# -- tables --


def _tables(seed: int, count: int | None) -> Iterator[_File]:
    require("pyarrow")
    import pyarrow.parquet

    source = functools.cache(functools.partial(pyarrow.parquet.read_table, data_directory() / "flights_zstd.parquet"))
    for part, samples in _numbered(count, ROWS_PER_PART):
        name = f"tables/flights-{part:06d}-{samples}.parquet"
        yield _File(name, samples, functools.partial(_rows, source, _chance("tables", seed, part), samples), samples)


def _rows(source: Callable[[], Any], chance: random.Random, samples: int) -> bytes:
    """Rows drawn from real flights, each moved by whole days and its delays by minutes; unknown stays unknown."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.parquet

    draw = np.random.default_rng(chance.getrandbits(63))
    table = source().take(draw.integers(0, len(source()), samples))
    days = draw.integers(1, 3650, samples)
    later = pa.array(days * 86_400_000, pa.int64()).cast(pa.duration("ms"))
    when = compute.add(table["time_hour"], later)
    parts = {"year": compute.year(when), "month": compute.month(when), "day": compute.day(when), "time_hour": when}
    for name in ("dep_delay", "arr_delay", "air_time"):
        parts[name] = compute.add(table[name], pa.array(draw.integers(0, 15, samples)))
    for name, column in parts.items():
        table = table.set_column(table.column_names.index(name), name, column)
    packed = io.BytesIO()
    pyarrow.parquet.write_table(table, packed, row_group_size=ROWS_PER_GROUP, compression="zstd")
    return packed.getvalue()


_PARTS: dict[str, Callable[[int, int | None], Iterator[_File]]] = {
    "photos": _photos,
    "text": _text,
    "audio": _audio,
    "tables": _tables,
}
