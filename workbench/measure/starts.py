"""What the starts of a diagnosis have shown: read from their verdicts, and made into rates with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from workbench.errors import ProbeError
from workbench.loaders.settings import LoaderSettings
from workbench.measure.bounds import CopyLook, Rates, SyncLook
from workbench.measure.records import TrialRun, Window
from workbench.measure.stage_costs import StageCosts, costs_from_json
from workbench.measure.statistics import estimate_rate, pooled_spread


@dataclass(frozen=True)
class Start:
    """What one start has shown.

    Attributes:
        runs: Rates by kind ("loader", "moved", "step", "combined"), as windows of a run.
        laps: The laps by kind, as dicts of `stage_reading.Lap`.
        costs: Stage costs by kind.
        sync: A step on an idle device; None without a device.
        memory_pressure: Share of the time in which something waited for memory.
        first_batch_seconds: From asking for an iterator to the first batch.
        device_seen: Whether there was a device to wait for.
        pinned: Whether batches came pinned; None when not known.
        copy: A copy to an idle device; None where nothing is copied.
    """

    runs: dict[str, TrialRun]
    laps: dict[str, list[dict[str, Any]]]
    costs: dict[str, list[StageCosts]]
    sync: SyncLook | None
    memory_pressure: float | None
    first_batch_seconds: float | None
    device_seen: bool
    pinned: bool | None
    copy: CopyLook | None = None


def start_from(verdict: dict[str, Any], settings: LoaderSettings) -> Start:
    """A start from the warden's summary of a trial."""
    done = verdict["done"]
    laps: dict[str, list[dict[str, Any]]] = {}
    costs: dict[str, list[StageCosts]] = {}
    windows: dict[str, list[Window]] = {}
    for lap, window in zip(done["laps"], verdict["windows"], strict=False):
        kind = lap["kind"]
        laps.setdefault(kind, []).append(lap["lap"])
        windows.setdefault(kind, []).append(Window(**window))
        if (found := costs_from_json(lap["costs"])) is not None:
            costs.setdefault(kind, []).append(found)
    for kind, timed in windows.items():
        windows[kind] = _representative(timed, laps[kind])
    runs = {kind: TrialRun(settings, "ok", windows=tuple(timed)) for kind, timed in windows.items()}
    sync = SyncLook(**done["sync"]) if done["sync"] else None
    copy = CopyLook(**done["copy"]) if done["copy"] else None
    return Start(runs, laps, costs, sync, done["memory_pressure"], done["first_batch_seconds"], done["device_seen"],
                 done["copies_pinned"], copy)  # fmt: skip


def _representative(windows: list[Window], laps: Sequence[dict[str, Any]]) -> list[Window]:
    """Of the windows, one a lap, those that a rate is read from.

    Where epochs are short, laps that hold whole ones: others say how it goes in some part of an epoch. Where they are
    long, laps inside: an epoch's edge comes once in many laps, unless every one of these holds one.
    """
    whole = [window for window, lap in zip(windows, laps, strict=True) if lap["holds_epochs"]]
    inside = [window for window, lap in zip(windows, laps, strict=True) if not lap["edges"]]
    return whole or inside or windows


def rates_of(seen: Sequence[Start], settings: LoaderSettings, cores: int) -> Rates:
    """Rates of each kind with intervals; the spread between starts is pooled over the kinds."""
    kinds = [kind for kind in ("loader", "step", "combined", "moved") if all(kind in start.runs for start in seen)]
    runs = {kind: [start.runs[kind] for start in seen] for kind in kinds}
    spread = pooled_spread(list(runs.values()), cores)
    rate = {kind: estimate_rate(found, spread, cores) for kind, found in runs.items()}
    for kind in ("loader", "step", "combined"):
        if rate.get(kind) is None:
            raise ProbeError(f"the {kind} gave no sample that could be timed", error_type="", traceback_text="")
    laps = [lap for start in seen for lap in start.laps["combined"]]
    alone = per_batch([lap for start in seen for lap in start.laps["step"]], "step_seconds")
    together = per_batch(laps, "step_seconds")
    slower = max(per_batch([lap for s in seen for lap in s.laps[kind]], "seconds") for kind in ("loader", "step"))
    foreign = mean_of([w.foreign_cores for start in seen for run in start.runs.values() for w in run.windows])
    looks = [start.sync for start in seen if start.sync is not None]
    return Rates(
        rate["loader"],
        rate["step"],
        rate["combined"],
        rate.get("moved"),
        sum(lap["next_seconds"] for lap in laps) / sum(lap["seconds"] for lap in laps),
        settings.num_workers,
        together / alone if alone > 0 else 1.0,
        _median_look(looks),
        foreign / cores if foreign is not None else None,
        _median_copy([start.copy for start in seen if start.copy is not None]),
        max(0.0, per_batch(laps, "seconds") - slower),
        per_batch(laps, "transfer_seconds"),
    )


def _median_look(looks: Sequence[SyncLook]) -> SyncLook | None:
    if not looks:
        return None
    host, cpu, left = (median(getattr(look, name) for look in looks)
                       for name in ("host_seconds", "host_cpu_seconds", "left_seconds"))  # fmt: skip
    return SyncLook(host, cpu, left, mean_of([look.wait_fraction for look in looks]))


def _median_copy(looks: Sequence[CopyLook]) -> CopyLook | None:
    if not looks:
        return None
    return CopyLook(*(median(getattr(look, name) for look in looks) for name in ("host_seconds", "seconds")))


def per_batch(laps: Sequence[dict[str, Any]], name: str) -> float:
    return sum(lap[name] for lap in laps) / max(1, sum(lap["batches"] for lap in laps))


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
