"""Names of samples: what may be one, and how it is written where dots mean something."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.errors import LayoutError

_LONGEST_PART_BYTES = 200
"""Common file systems allow 255 bytes a part; the rest is room for a suffix."""


def numbered_key(prefix: str, number: int) -> str:
    """The name of a sample that has none of its own."""
    return f"{prefix}-{number:09d}"


def checked_key(key: object) -> str:
    """``key`` itself, if it can name a sample in every layout.

    Raises:
        LayoutError: It is no text, empty, absolute, leads out of the folder, or cannot be stored as UTF-8.
    """
    if not isinstance(key, str):
        raise LayoutError(f"Sample name {key!r} is {type(key).__name__}: names are text.")
    parts = key.split("/")
    if not key or "" in parts or "." in parts or ".." in parts:
        raise LayoutError(f"Sample name {key!r} is empty, absolute or leads out of the data set: rename it.")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key) or "\\" in key:
        raise LayoutError(f"Sample name {key!r} holds a control character or a backslash: rename it.")
    try:
        longest = max(len(escape_key(part).encode("utf-8")) for part in parts)
    except UnicodeEncodeError as error:
        raise LayoutError(f"Sample name {key!r} is not valid UTF-8: rename the file.") from error
    if longest > _LONGEST_PART_BYTES:
        raise LayoutError(
            f"Sample name {key[:60]!r}... has a part of {longest} bytes, over {_LONGEST_PART_BYTES}: shorten it."
        )
    return key


def escape_key(key: str) -> str:
    """``key`` so that WebDataset takes all of it for the name.

    It cuts a member's name at the first dot after the last slash, and skips members under folders named ``__x__``.
    """
    folder, slash, last = key.replace("%", "%25").rpartition("/")
    escaped = folder + slash + last.replace(".", "%2E")
    return "%5F" + escaped[1:] if escaped.startswith("__") else escaped


def unescape_key(name: str) -> str:
    """What ``escape_key`` was given."""
    return name.replace("%5F", "_").replace("%2E", ".").replace("%25", "%") if "%" in name else name


def first_duplicate(keys: Iterable[str]) -> str | None:
    """The first name that occurs a second time, or None."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def split_member(path: str) -> tuple[str, str]:
    """Name and field of a file by WebDataset's rule: the field begins after the first dot of the last part.

    >>> split_member("a.b/cat.seg.png")
    ('a.b/cat', 'seg.png')
    """
    folder, slash, last = path.rpartition("/")
    stem, _, suffix = last.partition(".")
    return folder + slash + stem, suffix


def checked_suffixes(key: str, suffixes: Iterable[str]) -> None:
    """Refuse a sample of no field, and two fields that would be one file, or one in WebDataset (it lowers letters).

    Raises:
        LayoutError: Names the sample and the field.
    """
    lowered = [suffix.lower() for suffix in suffixes]
    if not lowered:
        raise LayoutError(
            f"Sample {key!r} has no field, and files cannot show that it is there: give it one, or drop it with a "
            "transform that returns None."
        )
    clash = first_duplicate(lowered)
    if clash is not None:
        raise LayoutError(f"Sample {key!r} has the field {clash!r} twice (upper and lower case are one): rename one.")
