"""Settings that know what was said of them: what a file leaves out is no argument either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.loaders.settings import KNOBS, LoaderSettings


class SaidSettings(LoaderSettings):
    """Settings made from some knobs: equal to any settings of the same values, with arguments for those knobs alone.

    Attributes:
        left_out: Knobs that were not said. Each has its default here, and none is in `loader_kwargs()`.
    """

    left_out: frozenset[str] = frozenset()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SaidSettings:
        """As for `LoaderSettings`; knobs that are not among `values` are left out."""
        settings = super().from_dict(values)
        object.__setattr__(settings, "left_out", frozenset(KNOBS) - set(values))
        return settings

    def loader_kwargs(self) -> dict[str, Any]:
        """As for `LoaderSettings`, without what was left out."""
        return {knob: value for knob, value in super().loader_kwargs().items() if knob not in self.left_out}

    def replaced(self, **knobs: Any) -> SaidSettings:
        """As for `LoaderSettings`; what is replaced counts as said."""
        kept = {knob: value for knob, value in self.as_dict().items() if knob not in self.left_out}
        return self.from_dict({**kept, **knobs})

    def __eq__(self, other: object) -> bool:
        return self.as_dict() == other.as_dict() if isinstance(other, LoaderSettings) else NotImplemented

    __hash__ = LoaderSettings.__hash__
