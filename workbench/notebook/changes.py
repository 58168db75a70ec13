"""What differs between two figures, so that a live chart is sent little: pure functions over JSON values."""

from __future__ import annotations

from typing import Any

MOST_CHANGES = 400  # beyond this the whole figure is shorter than the list of what changed

Change = dict[str, Any]


def changes(before: Any, after: Any) -> list[Change] | None:
    """Assignments that turn `before` into `after`, or None when sending `after` whole is the better way.

    Each is `{"path": [...], "value": ...}`; a path ends in a key that may be new, or in an index that may be one past
    the end of a list. Applied in order, they give a value equal to `after`.
    """
    found: list[Change] = []
    if type(before) is not type(after) or not isinstance(after, dict) or not _compare(before, after, [], found):
        return None
    return found


def _compare(before: Any, after: Any, path: list[Any], found: list[Change]) -> bool:
    """False when this part cannot be changed in place, or not shortly; its parent then assigns it whole."""
    if isinstance(after, dict):
        if set(before) - set(after):
            return False
        items = after.items()
    else:
        if len(before) > len(after):
            return False
        items = enumerate(after)
    for key, value in items:
        known = key in before if isinstance(before, dict) else key < len(before)
        old = before[key] if known else None
        if known and _same(old, value):
            continue
        mark = len(found)
        nested = known and type(old) is type(value) and isinstance(value, (dict, list))
        if not nested or not _compare(old, value, [*path, key], found):
            del found[mark:]
            found.append({"path": [*path, key], "value": value})
        if len(found) > MOST_CHANGES:
            return False
    return True


def _same(old: Any, value: Any) -> bool:
    """Whether two values are written alike: 0 is not False, though Python calls them equal, also inside of lists."""
    if type(old) is not type(value) or old != value:
        return False
    if not isinstance(value, (dict, list)):
        return True
    pairs = [(old[key], value[key]) for key in value] if isinstance(value, dict) else list(zip(old, value, strict=True))
    kinds = [type(one) for one, _ in pairs]
    if kinds != [type(other) for _, other in pairs]:
        return False
    return not {dict, list}.intersection(kinds) or all(_same(one, other) for one, other in pairs)
