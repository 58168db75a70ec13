"""Numbers as people read them: three figures, a unit, and how sure they are; unknown is a dash."""

from __future__ import annotations

import math

from workbench.loaders.settings import LoaderSettings

UNKNOWN = "–"
FIGURES = 3  # a rate known to ± 1 % carries no more; more digits would claim what was not measured
NO_WORKERS = "0 workers"

_SECOND_UNITS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "µs", 1e6))


def number(value: float | None) -> str:
    """`value` with three significant figures and thousands separators: 1243.7 -> "1,240", 0.01234 -> "0.0123"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = FIGURES - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    decimals = FIGURES - 1 - math.floor(math.log10(abs(rounded)))  # 999.7 becomes 1,000
    return f"{rounded:,.{max(decimals, 0)}f}"


def half_width(value: float | None, low: float | None, high: float | None) -> float | None:
    """The longer arm of a 95 % interval as a fraction of `value`; None when any of the three is unknown or infinite."""
    if value is None or low is None or high is None or value <= 0 or not math.isfinite(high):
        return None
    return max(high - value, value - low) / value


def percent(fraction: float | None) -> str:
    """A fraction as per cent: 0.034 -> "3 %", 0.0041 -> "0.4 %"."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    points = abs(fraction) * 100
    text = f"{points:.1f}" if points < 0.95 else f"{points:,.0f}"
    return f"{'-' if fraction < 0 else ''}{text} %"


def rate(value: float | None, low: float | None = None, high: float | None = None, unit: str = "samples/s") -> str:
    """A rate with its 95 % interval: "1,240 samples/s ± 3 %", or without the part that is not known."""
    if value is None:
        return UNKNOWN
    spread = half_width(value, low, high)
    if spread is not None and spread >= 1:  # no figure of that rate is known: its upper end says so, and more
        return f"{number(value)} {unit}".strip() + f", at most {number(high)}"
    return f"{number(value)} {unit}" + (f" ± {percent(spread)}" if spread is not None else "")


def interval(low: float | None, high: float | None) -> str:
    """Both ends of an interval: "1,200 to 1,280"."""
    return UNKNOWN if low is None or high is None or not math.isfinite(high) else f"{number(low)} to {number(high)}"


def seconds(value: float | None) -> str:
    """A duration under a minute with its best unit, longer ones in minutes: "4.20 ms", "1.25 s", "2 min 5 s"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 59.95:
        minutes, rest = divmod(round(abs(value)), 60)
        hours, minutes = divmod(minutes, 60)
        sign = "-" if value < 0 else ""
        return sign + (f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s")
    if value == 0:
        return "0 s"
    for least, unit, factor in _SECOND_UNITS:
        if abs(value) >= least * 0.9995 or unit == "µs":
            return f"{number(value * factor)} {unit}"
    return UNKNOWN


def chosen(seconds_: float) -> str:
    """A duration that a person gave, with no digit that they did not: "45 s", "0.5 s", "1 min 30 s"."""
    return f"{seconds_:g} s" if seconds_ < 60 else seconds(seconds_)


def about(seconds_: float) -> str:
    """A duration that is only estimated, rounded up so that no one waits longer: "40 s", "3 min", "1 h 20 min"."""
    if seconds_ <= 60:
        return f"{max(1, 5 * math.ceil(seconds_ / 5))} s" if seconds_ <= 55 else "1 min"
    minutes = math.ceil(seconds_ / 60) if seconds_ <= 3600 else 10 * math.ceil(seconds_ / 600)
    hours, minutes = divmod(minutes, 60)
    return " ".join(f"{amount} {unit}" for amount, unit in ((hours, "h"), (minutes, "min")) if amount)


def clock(seconds_: float) -> str:
    """Time that has passed, in whole seconds so that it ticks: "7 s", "1 min 42 s"."""
    return seconds(float(int(seconds_))) if seconds_ >= 60 else f"{int(seconds_)} s"


def cores(value: float | None) -> str:
    """Cores in use, to a hundredth: 1.53 -> "1.53", 0.0266 -> "0.03"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.2f}" if value < 9.995 else number(value)


def times(ratio: float | None) -> str:
    """A ratio in words: "3.0 times", "0.84 times", "12 times"."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    return f"{ratio:.2f} times" if ratio < 2 else f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:,.0f} times"


def count(amount: int, noun: str, plural: str = "") -> str:
    """An amount with its noun in the right number: "1 trial", "1,200 trials"."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"


def wrapped(text: str, width: int = 64) -> list[str]:
    """`text` in lines of at most `width` characters, long words cut; a chart's hover box does not wrap by itself."""
    import textwrap

    return [line for part in text.splitlines() for line in textwrap.wrap(part, width)] or [""]


def value_label(value: object) -> str:
    """One value of a knob as the axis and the chips write it: None -> "default", True -> "on"."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def short_label(settings: LoaderSettings) -> str:
    """A settings in a few characters, for marks in charts: "4w p2 pin", with only what differs from plain."""
    parts = [f"{settings.num_workers}w"]
    if settings.prefetch_factor is not None:
        parts.append(f"p{settings.prefetch_factor}")
    flags = (
        ("pin", settings.pin_memory),
        ("kept", settings.persistent_workers),
        ("whole", settings.batch_on_worker),
        (settings.multiprocessing_context, settings.multiprocessing_context is not None),
        ("any order", not settings.in_order),
        (f"b{settings.batch_size}", settings.batch_size is not None),
        (settings.layout, settings.layout is not None),
        (f"{settings.worker_threads}t", settings.worker_threads is not None),
        (settings.sharing_strategy, settings.sharing_strategy is not None),
        ("no wait" if settings.non_blocking else "wait", settings.non_blocking is not None),
    )
    return " ".join(parts + [str(text) for text, shown in flags if shown])
