"""What a conversion costs beside what it gains: seconds once, against seconds in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import LayoutError


@dataclass(frozen=True)
class Payback:
    """One layout against the one in use.

    Attributes:
        gained_seconds: Seconds an epoch gets shorter by; negative where it gets longer; None where a rate is unknown.
        convert_seconds: What the conversion takes, once; None where that is not known.
        epochs: Epochs after which the conversion has paid for itself; 0 where it cost nothing. None where it never
            does, or where one of the two is unknown.
    """

    gained_seconds: float | None
    convert_seconds: float | None
    epochs: float | None

    @property
    def never(self) -> bool:
        """Whether it is known that no number of epochs pays for it."""
        return self.gained_seconds is not None and self.gained_seconds <= 0


def payback(
    convert_seconds: float | None,
    samples: int,
    samples_per_second_before: float | None,
    samples_per_second_after: float | None,
) -> Payback:
    """When a conversion has paid for itself, in epochs of loading.

    An epoch of ``samples`` takes ``samples / rate``; the difference of the two is what each epoch gains, and the
    conversion divided by it is the number of epochs. It holds for training that waits for its loader: where the model
    is slower than both, no epoch gets shorter.

    Args:
        convert_seconds: Seconds the conversion takes, or None.
        samples: Samples in an epoch.
        samples_per_second_before: Rate with the layout in use, or None.
        samples_per_second_after: Rate with the other layout, or None.

    Raises:
        LayoutError: A number is below zero, or a rate is zero.
    """
    for name, value, least in (("convert_seconds", convert_seconds, 0), ("samples", samples, 0)):
        if value is not None and value < least:
            raise LayoutError(f"{name}={value!r} is below zero: give what was measured, or None where nothing was.")
    rates = (samples_per_second_before, samples_per_second_after)
    if any(rate is not None and rate <= 0 for rate in rates):
        raise LayoutError(f"rates of {rates[0]!r} and {rates[1]!r} samples/s: give rates above zero, or None.")
    if samples_per_second_before is None or samples_per_second_after is None:
        return Payback(None, convert_seconds, None)
    gained = samples / samples_per_second_before - samples / samples_per_second_after
    if gained <= 0 or convert_seconds is None:
        return Payback(gained, convert_seconds, None)
    return Payback(gained, convert_seconds, convert_seconds / gained)
