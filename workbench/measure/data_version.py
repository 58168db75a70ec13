"""Which data a loader reads: the digest of its dataset's manifest, wherever the dataset is wrapped."""

from __future__ import annotations

from typing import Any

DEEPEST = 4
"""Wrappers looked through: a loader, a Subset, a stream, its shards."""
_INNER = ("dataset", "shards", "reader", "_reader", "stream")


def manifest_digest(loader: Any) -> str | None:
    """The digest of the manifest of the data set that `loader` reads, or None where it has none.

    A dataset of `workbench.layouts` has a `manifest`; so may any other, whose `digest()` gives a text.
    """
    held = [loader]
    for _ in range(DEEPEST):
        held = [inner for one in held for name in _INNER if (inner := _attribute(one, name)) is not None]
        for one in held:
            digest = _digest(_attribute(one, "manifest"))
            if digest is not None:
                return digest
    return None


def _attribute(owner: Any, name: str) -> Any:
    """An attribute that is there already; nothing of the user's is computed for it."""
    return getattr(owner, "__dict__", {}).get(name)


def _digest(manifest: Any) -> str | None:
    if not callable(getattr(manifest, "digest", None)):
        return None
    try:
        digest = manifest.digest()
    except Exception:  # somebody else's manifest, whose digest may want arguments
        return None
    return digest if isinstance(digest, str) else None
