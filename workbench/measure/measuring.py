"""The task of an ordinary trial, inside its process."""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from workbench.loaders.counting import make_counter
from workbench.loaders.settings import LoaderSettings
from workbench.measure.channel import Channel, progress_counter
from workbench.measure.clock import Clock
from workbench.measure.data_version import manifest_digest
from workbench.measure.stream import EmptyLoaderError, Stream, why_empty


def measure(task: dict[str, Any], channel: Channel, source: Any, step: Any) -> dict[str, Any]:
    """Measures one settings: first batch, windows, memory, epoch edge, shutdown, and whether the data are right."""
    settings = LoaderSettings.from_dict(task["settings"])
    plan = task["plan"]
    entered = time.perf_counter()
    loader = source.build(settings)
    if plan["measure_growth"]:
        gc.freeze()  # else the collector's first pass in a worker un-shares what it inherited, which looks like growth
    done: dict[str, Any] = {"start_method": _start_method(loader, settings)}
    stream = channel.stream = Stream(loader, _counter_when_known(task), step, progress_counter(task))
    channel.send(phase="first batch")
    try:
        done["first_batch_seconds"], batch = stream.start()
    except StopIteration:
        raise EmptyLoaderError(why_empty(loader)) from None
    if task["samples_per_batch"] is None:
        stream.count = make_counter(batch, task["batch_size_hint"])
        stream.samples = stream.count(batch)
    del batch
    watched = Clock(stream, settings, plan, channel)
    watched.first_round()
    if plan["measure_growth"]:
        watched.read_memory()
    watched.warm_up()
    if plan["measure_growth"]:
        watched.read_memory()
        watched.drain()
    watched.measure()
    if plan["fill_queue"]:
        watched.fill_queue()
    watched.read_memory()
    if plan["measure_edge"]:
        channel.send(phase="epoch edge")
        edge = stream.edges or [stream.end_epoch_early()]
        done["epoch_edge_seconds"] = sorted(edge)[len(edge) // 2] if edge[0] is not None else None
    channel.send(phase="shutdown")
    begun = time.perf_counter()
    stream.shut_down()
    done["shutdown_seconds"] = time.perf_counter() - begun
    done["manifest_digest"] = manifest_digest(loader)
    done |= watched.intervals()
    done["accounted_seconds"] = time.perf_counter() - entered - watched.waited_seconds
    done |= {"mode": watched.mode, "batches": stream.batches, "samples": stream.samples}
    if plan["check_data"] and task["reference"]:
        channel.send(phase="data check")
        begun = time.perf_counter()
        done["check"] = _check_data(task, settings, source)
        done["accounted_seconds"] += time.perf_counter() - begun
    return done


def _counter_when_known(task: dict[str, Any]) -> Callable[[Any], int]:
    samples = task["samples_per_batch"]
    return lambda batch: samples or 0


def _check_data(task: dict[str, Any], settings: LoaderSettings, source: Any) -> dict[str, Any]:
    from workbench.measure.right_copy import why_another_copy
    from workbench.measure.right_data import Reference, check

    with open(task["reference"]) as file:
        reference = Reference.from_json(json.load(file))
    zero = settings.replaced(num_workers=0, batch_on_worker=False, pin_memory=False)
    seconds = task["plan"]["check_seconds"]
    found = asdict(check(source.build(settings), settings, reference, seconds, lambda: source.build(zero)))
    if settings.layout is not None and found["status"] == "ok":
        reason = why_another_copy(source.build(zero), settings.layout, reference, seconds)
        found |= {"status": "wrong_data", "reason": reason} if reason else {}
    return found


def _start_method(loader: Any, settings: LoaderSettings) -> str:
    if not settings.num_workers:
        return ""
    context = getattr(loader, "multiprocessing_context", None)
    return context.get_start_method() if context is not None else multiprocessing.get_start_method()
