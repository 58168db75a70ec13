"""Which data this is: write a manifest for any data set, check files against one, compare two."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.errors import ManifestError
from workbench.layouts.files import walk_files
from workbench.layouts.manifest import MANIFEST_NAME, Manifest, hash_file, parse_manifest, read_manifest, write_manifest
from workbench.layouts.protocol import FileEntry
from workbench.layouts.reader import open_dataset
from workbench.layouts.registry import SUFFIXES
from workbench.machine import format_bytes, usable_cores

SURE = 0.95
"""Confidence for which a sampled check says how much damage it would have found."""
_SHOWN = 5

OnFile = Callable[[int, int], None]
"""Called with files done and files in all."""


@dataclass(frozen=True)
class Problem:
    """One file that is not what the manifest says.

    Attributes:
        path: Relative to the data set.
        kind: ``missing``, ``size``, ``content`` or ``unexpected``.
        text: What is wrong, for a person.
    """

    path: str
    kind: str
    text: str


@dataclass(frozen=True)
class Verification:
    """What a check found.

    Attributes:
        ok: No problem was found.
        problems: Every problem, in the order of the manifest.
        files: Files that the manifest lists; all were looked up and measured.
        files_hashed: Files whose content was read and compared.
        bytes_hashed: Bytes of those.
        miss_probability: Chance that one damaged file of unchanged size was not among those read; 0 for a full check.
        text: The same for a person.
    """

    ok: bool
    problems: tuple[Problem, ...]
    files: int
    files_hashed: int
    bytes_hashed: int
    miss_probability: float
    text: str


@dataclass(frozen=True)
class ManifestDiff:
    """How two manifests differ, the first one taken as the older.

    Attributes:
        same: A reader sees the same data.
        added: Paths only in the second.
        removed: Paths only in the first.
        changed: Paths with other content.
        moved: (old path, new path) of equal content.
        fields: Fields that were added, removed or have other facts.
        samples: Samples in the second less samples in the first.
        bytes: Bytes in the second less bytes in the first.
        text: The same for a person.
    """

    same: bool
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    moved: tuple[tuple[str, str], ...]
    fields: tuple[str, ...]
    samples: int
    bytes: int
    text: str


def make_manifest(
    root: str | Path,
    layout: str | None = None,
    *,
    overwrite: bool = False,
    write: bool = True,
    on_file: OnFile | None = None,
) -> Manifest:
    """The manifest of the data set at ``root``, every file hashed; written beside the data unless ``write`` is False.

    Args:
        root: Folder in any layout.
        layout: Which layout to take it for; None finds it out.
        overwrite: Replace a manifest that is there. Without it that one is returned, since to hash damaged files anew
            would declare the damage right.
        write: Whether to write it.
        on_file: Told after every file.

    Raises:
        LayoutError: ``root`` holds no data set.
        ManifestError: The manifest that is there is damaged.
    """
    folder = Path(root)
    there = None if overwrite else read_manifest(folder)
    if there is not None:
        return there
    if overwrite:
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
    reader = open_dataset(folder, layout)
    unhashed = reader.manifest
    hashed = iter(list(_hashed(reader.root, unhashed.files, on_file)))
    shards = tuple(replace(shard, files=tuple(next(hashed) for _ in shard.files)) for shard in unhashed.shards)
    manifest = replace(
        unhashed, shards=shards, made={"by": "workbench.review.make_manifest", "source": reader.root.name}
    )
    if write:
        write_manifest(reader.root, manifest)
    return manifest


def verify(
    root: str | Path, *, sample: int | float | None = None, seed: int | None = None, on_file: OnFile | None = None
) -> Verification:
    """Check the files at ``root`` against its manifest.

    Every file is looked up and its size compared; the content of all of them, or of a random part, is read and hashed.

    Args:
        root: Folder of the data set.
        sample: How many files to read (an integer), or what share of them (a float up to 1.0); None reads all.
        seed: Makes the choice of files repeatable.
        on_file: Told after every file that was read.

    Raises:
        ManifestError: There is no manifest, it holds no checksums, or ``sample`` is out of range.
    """
    folder = Path(root)
    manifest = read_manifest(folder)
    if manifest is None:
        raise ManifestError(f"{folder} has no {MANIFEST_NAME}: write one with `workbench manifest {folder}`.")
    entries = manifest.files
    if any(entry.checksum is None for entry in entries):
        raise ManifestError(f"{folder / MANIFEST_NAME} lists files without checksums: write it again with overwrite.")
    found = [problem for entry in entries if (problem := _by_size(folder, entry)) is not None]
    bad = {problem.path for problem in found}
    chosen = _chosen(entries, sample, seed)
    to_read = [entry for entry in chosen if entry.path not in bad]
    found += _by_content(folder, to_read, on_file)
    order = {entry.path: number for number, entry in enumerate(entries)}
    problems = [*sorted(found, key=lambda problem: order[problem.path]), *_unexpected(folder, manifest)]
    missed = miss_probability(len(entries), len(chosen), 1)
    size = sum(entry.bytes for entry in to_read)
    text = _verdict(problems, len(entries), len(to_read), size)
    return Verification(not problems, tuple(problems), len(entries), len(to_read), size, missed, text)


def miss_probability(files: int, hashed: int, damaged: int) -> float:
    """Chance that ``hashed`` files drawn from ``files`` without putting back hold none of ``damaged`` ones.

    Hypergeometric: C(files - damaged, hashed) / C(files, hashed).
    """
    if damaged > files - hashed:
        return 0.0
    return math.comb(files - damaged, hashed) / math.comb(files, hashed)


def surely_found(files: int, hashed: int, confidence: float = SURE) -> int | None:
    """The smallest number of damaged files that such a draw finds with ``confidence``; None where it reads nothing."""
    if hashed == 0:
        return None
    low, high = 1, files - hashed + 1
    while low < high:
        middle = (low + high) // 2
        if miss_probability(files, hashed, middle) <= 1 - confidence:
            high = middle
        else:
            low = middle + 1
    return low


def diff(old: Manifest | str | Path, new: Manifest | str | Path) -> ManifestDiff:
    """What changed from one manifest to another.

    Args:
        old: A manifest, its file, or the folder that holds it.
        new: Likewise.

    Raises:
        ManifestError: One of them cannot be read.
    """
    before, after = load_manifest(old), load_manifest(new)
    first = {entry.path: entry.checksum for entry in before.files}
    second = {entry.path: entry.checksum for entry in after.files}
    gone, fresh = [p for p in first if p not in second], [p for p in second if p not in first]
    moved = _moved(gone, fresh, first, second)
    old_paths, new_paths = {pair[0] for pair in moved}, {pair[1] for pair in moved}
    added = tuple(path for path in fresh if path not in new_paths)
    removed = tuple(path for path in gone if path not in old_paths)
    changed = tuple(path for path in first if path in second and first[path] != second[path])
    names = sorted({*before.fields, *after.fields})
    fields = tuple(name for name in names if before.fields.get(name) != after.fields.get(name))
    samples, size = after.samples - before.samples, after.bytes - before.bytes
    same = before.digest() == after.digest()
    text = _diff_text(same, added, removed, changed, moved, fields, samples, size)
    return ManifestDiff(same, added, removed, changed, moved, fields, samples, size, text)


def load_manifest(source: Manifest | str | Path) -> Manifest:
    """A manifest from itself, its file, or the folder that holds it.

    Raises:
        ManifestError: There is none, or it is damaged.
    """
    if isinstance(source, Manifest):
        return source
    path = Path(source)
    if path.is_dir():
        found = read_manifest(path)
    else:
        found = _from_file(path)
    if found is None:
        raise ManifestError(f"{path} holds no manifest: write one with `workbench manifest`.")
    return found


def _from_file(path: Path) -> Manifest:
    import json

    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be read ({error.strerror}): name a folder or its {MANIFEST_NAME}."
        ) from error
    except ValueError as error:
        raise ManifestError(f"{path} is not JSON ({error}): name a {MANIFEST_NAME}.") from error
    if not isinstance(document, dict):
        raise ManifestError(f"{path} holds {type(document).__name__}: name a {MANIFEST_NAME}.")
    return parse_manifest(document, path)


def _hashed(root: Path, entries: Sequence[FileEntry], on_file: OnFile | None) -> Iterator[FileEntry]:
    """Entries with size and checksum as they are on disk. blake2b lets other threads run, so threads suffice."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        results = pool.map(lambda entry: hash_file(root / entry.path), entries)
        for number, (entry, (size, checksum)) in enumerate(zip(entries, results, strict=True), 1):
            if on_file is not None:
                on_file(number, len(entries))
            yield FileEntry(entry.path, size, checksum)


def _by_size(root: Path, entry: FileEntry) -> Problem | None:
    try:
        size = (root / entry.path).stat().st_size
    except OSError:
        return Problem(entry.path, "missing", f"{entry.path} is missing")
    if size != entry.bytes:
        return Problem(entry.path, "size", f"{entry.path} has {size:,} bytes, not {entry.bytes:,}")
    return None


def _by_content(root: Path, entries: Sequence[FileEntry], on_file: OnFile | None) -> list[Problem]:
    pairs = zip(entries, _hashed(root, entries, on_file), strict=True)
    return [
        Problem(entry.path, "content", f"{entry.path} has other content than when the manifest was written")
        for entry, now in pairs
        if (now.bytes, now.checksum) != (entry.bytes, entry.checksum)
    ]


def _chosen(entries: Sequence[FileEntry], sample: int | float | None, seed: int | None) -> list[FileEntry]:
    if sample is None:
        return list(entries)
    wanted = math.ceil(sample * len(entries)) if isinstance(sample, float) else sample
    if isinstance(sample, bool) or wanted < 1 or (isinstance(sample, float) and sample > 1):
        raise ManifestError(f"sample={sample!r}: give a number of files from 1, or a share from 0 to 1.0 such as 0.1.")
    return random.Random(seed).sample(list(entries), min(wanted, len(entries)))


def _unexpected(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Files that a reader of the folder would take for data and that the manifest does not know."""
    listed = {entry.path for entry in manifest.files}
    for entry in walk_files(root):
        data = manifest.layout == "files" or SUFFIXES.get(Path(entry.path).suffix) == manifest.layout
        if data and entry.path not in listed:
            yield Problem(entry.path, "unexpected", f"{entry.path} is not in the manifest")


def _verdict(problems: Sequence[Problem], files: int, chosen: int, size: int) -> str:
    read = f"{chosen:,} of {files:,} files read ({format_bytes(size)})"
    if problems:
        shown = "; ".join(problem.text for problem in problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        return f"{len(problems)} problem{'s' if len(problems) > 1 else ''}: {shown}{more} ({read})."
    if chosen == files:
        return f"Every file is as the manifest says: {read}."
    found = surely_found(files, chosen)
    return (
        f"No problem found: {read}, sizes of all. One damaged file of unchanged size would be missed with probability "
        f"{miss_probability(files, chosen, 1):.1%}; damage to {found:,} files or more would be found with {SURE:.0%}."
    )


def _moved(
    gone: Sequence[str], fresh: Sequence[str], first: dict[str, str | None], second: dict[str, str | None]
) -> tuple[tuple[str, str], ...]:
    waiting: dict[str, list[str]] = {}
    for path in fresh:
        checksum = second[path]
        if checksum is not None:
            waiting.setdefault(checksum, []).append(path)
    pairs = []
    for path in gone:
        matches = waiting.get(first[path] or "", [])
        if matches:
            pairs.append((path, matches.pop(0)))
    return tuple(pairs)


def _diff_text(
    same: bool,
    added: Sequence[str],
    removed: Sequence[str],
    changed: Sequence[str],
    moved: Iterable[tuple[str, str]],
    fields: Sequence[str],
    samples: int,
    size: int,
) -> str:
    if same:
        return "The same data."
    parts = [
        f"{len(paths)} {word} ({_named(paths)})"
        for word, paths in (("added", added), ("removed", removed), ("changed", changed))
        if paths
    ]
    pairs = [f"{old} -> {new}" for old, new in moved]
    parts += [f"{len(pairs)} moved ({_named(pairs)})"] if pairs else []
    parts += [f"fields {_named(fields)} differ"] if fields else []
    if not parts:
        parts = ["the same files, in another order or with other facts"]
    return f"{'; '.join(parts)}; {samples:+,} samples, {'-' if size < 0 else '+'}{format_bytes(abs(size))}."


def _named(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
