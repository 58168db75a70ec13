"""From what the warden saw to a `TrialRun`: which status, and a reason a person can act on. Pure functions."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

from workbench.loaders.settings import LoaderSettings, workers
from workbench.machine import format_bytes
from workbench.measure.failures import crash_line
from workbench.measure.records import Memory, MemoryReading, TrialRun, Window
from workbench.measure.statistics import used_windows
from workbench.measure.steadiness import why_not_steady

_CRASHES = {"SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"}
_AFTER_MEASURING = ("epoch edge", "shutdown", "data check")
_SHM_TEXTS = (
    "unable to allocate shared memory",
    "unable to open shared memory",
    "Bus error",
    "insufficient shared memory",
)
_TRANSPORT_ERRORS = ("RuntimeError", "OSError", "ConnectionResetError", "BrokenPipeError", "EOFError")
"""What torch raises when a batch is lost between two processes; the cause stands in a worker's output, if anywhere."""
_DESCRIPTOR_TEXTS = ("Too many open files", "received 0 items of ancdata")
_PICKLE_TEXTS = (
    "PicklingError",
    "cannot pickle",
    "Can't pickle",
    "can't pickle",
    "Can't get attribute",
    "Can't get local",
)
_FEEDER_TEXT = ", in _feed"  # of multiprocessing's queues: the thread that sends a batch prints why it could not
_UNSENT_TEXTS = (*_PICKLE_TEXTS, _FEEDER_TEXT)
_OWN_WARNINGS = ("resource_tracker: There appear to be", "This DataLoader will create")
"""Warnings about what the tuner itself does: ending processes, and trying more workers than cores."""
_CUDA_TEXTS = ("Cannot re-initialize CUDA in forked subprocess",)

SHM_ADVICE = "give /dev/shm more room (docker run --shm-size), or use fewer workers or a smaller prefetch_factor"
COUNT_ADVICE = "see that collate_fn returns what it should, or say how many samples a batch holds (samples_per_batch)"
GROWTH_ADVICE = {
    "copy-on-write": "forked workers copy pages of plain Python objects as they touch them; keep those in arrays",
    "anonymous": "either something keeps what it has read (a cache without a bound, itertools.cycle), or malloc's heap "
    "keeps what was freed: where MALLOC_MMAP_THRESHOLD_=65536 in the environment ends it, it is the heap",
}
ENDED_QUIETLY = "without an error (exit code 0), and its batches are lost: look for os._exit(0) or a KeyboardInterrupt"
DESCRIPTOR_ADVICE = (
    "put many small tensors into one, raise the limit (ulimit -n), or share by file_system "
    "(torch.multiprocessing.set_sharing_strategy)"
)


OVERSUBSCRIBED_THREADS = 4
"""Busy threads of one worker from which it counts as running a pool: one loads, one sends batches, and one hands over
their descriptors."""


def make_run(
    settings: LoaderSettings,
    verdict: dict[str, Any],
    limits: dict[str, Any],
    *,
    cores: int,
    started_at: float,
    cold: bool,
    epoch_samples: int | None = None,
) -> TrialRun:
    """The record of one run.

    Args:
        settings: What was run.
        verdict: The warden's summary.
        limits: The limits that the run had; named in reasons.
        cores: Cores that the trial could use.
        started_at: Seconds since the epoch (UTC).
        cold: Whether this was the first run of its sweep.
        epoch_samples: Samples of an epoch, where known; growth is projected to its end.
    """
    status, reason = judge(settings, verdict, limits)
    memory = project(Memory(**verdict.get("memory", {})), (verdict.get("done") or {}).get("samples"), epoch_samples)
    ceiling = limits.get("memory_bytes")
    if status == "ok" and ceiling and (memory.projected_peak_bytes or 0) > ceiling:
        status, reason = "over_memory", _projected_reason(settings, memory, ceiling)
    done, error = verdict.get("done") or {}, verdict.get("error") or {}
    windows = tuple(Window(**w) for w in verdict.get("windows", ()))
    check = done.get("check") or {}
    notes = [*check.get("notes", ()), *_notes(settings, verdict, cores), *_growth_note(memory)]
    notes += [note] if (note := why_not_steady(windows, cores)) else []
    if error.get("worker") is not None:
        notes.append(f"raised in worker {error['worker']}")
    return TrialRun(
        settings=settings,
        status=status,
        reason=reason,
        windows=windows,
        mode=done.get("mode", "steady"),
        first_batch_seconds=done.get("first_batch_seconds"),
        epoch_edge_seconds=done.get("epoch_edge_seconds"),
        shutdown_seconds=done.get("shutdown_seconds"),
        batch_seconds_p50=done.get("batch_seconds_p50"),
        batch_seconds_p95=done.get("batch_seconds_p95"),
        batch_seconds_max=done.get("batch_seconds_max"),
        memory=memory,
        cpu_cores_used=verdict.get("cpu_cores_used"),
        peak_threads=verdict.get("peak_threads"),
        start_method=done.get("start_method", ""),
        cold=cold,
        noisy=used_windows(windows, cores)[1] if windows else False,
        batches_total=done.get("batches") or verdict.get("batches", 0),
        worker_samples=tuple(check["worker_samples"]) if check.get("worker_samples") else None,
        idle_workers=check.get("idle_workers"),
        error_type=error.get("type", ""),
        traceback_text=error.get("traceback", ""),
        output_tail=verdict.get("output", ""),
        output_bytes=verdict.get("output_bytes", 0),
        overhead_seconds=overhead(verdict),
        notes=tuple(dict.fromkeys(notes)),
        started_at=started_at,
        manifest_digest=done.get("manifest_digest"),
        memory_over_time=tuple(MemoryReading(**reading) for reading in verdict.get("memory_over_time", ())),
    )


def judge(settings: LoaderSettings, verdict: dict[str, Any], limits: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of a run from how it ended."""
    ended, windows = verdict["ended"], verdict.get("windows", ())
    if ended == "cancelled" or ended == "caller gone":
        return "killed", "stopped before it was done; run the sweep again with resume to measure it"
    if ended in ("memory", "machine memory"):
        return "over_memory", _memory_reason(settings, verdict, limits, ended)
    if ended in ("silence", "deadline"):
        alive = verdict.get("silent_seconds", 0.0) < limits["silence_seconds"] / 2
        if ended == "deadline" and windows and alive and verdict["phase"] in _AFTER_MEASURING:
            return "ok", ""
        died = [code for code in verdict.get("children", ()) if _died_by_itself(code)]
        if died and not _tells_what_was_lost(verdict.get("output", "")):
            return _judge_death(died[0], "a worker", verdict)
        return "timed_out", _hang_reason(settings, verdict, limits)
    if ended == "server lost":
        return "failed", "the process that starts trials ended; the next trial starts a new one. " + _tail(verdict)
    if verdict.get("error"):
        return _judge_error(settings, verdict)
    if verdict.get("done") is not None:
        return _judge_done(verdict)
    return _judge_death(verdict.get("exit_code"), "the trial's process", verdict)


def project(memory: Memory, samples: int | None, epoch_samples: int | None) -> Memory:
    """The same record with the peak that growth leads to by the end of an epoch.

    Un-shared pages end with one private copy in every worker; what is kept has no end.

    Args:
        memory: As seen in the run.
        samples: Samples that the run took.
        epoch_samples: Samples of an epoch, None when not known.
    """
    if not memory.growth_kind or not epoch_samples or memory.peak_pss_bytes is None:
        return memory
    if memory.growth_kind == "copy-on-write" and memory.growth_most_ahead_bytes is None:
        return memory
    left = max(0, epoch_samples - (samples or 0))
    pace = memory.growth_pace_bytes_per_1000_samples
    more = (memory.growth_bytes_per_1000_samples if pace is None else pace) or 0.0
    more *= left / 1000
    if memory.growth_most_ahead_bytes is not None:
        more = min(more, memory.growth_most_ahead_bytes)
    return replace(memory, projected_peak_bytes=int(memory.peak_pss_bytes + more))


def overhead(verdict: dict[str, Any]) -> float | None:
    """Wall seconds of the run that went neither into the loader's own start-up and shutdown nor into measuring."""
    done = verdict.get("done")
    if not done or "wall_seconds" not in verdict:
        return None
    return verdict["wall_seconds"] - done["accounted_seconds"]


def _judge_done(verdict: dict[str, Any]) -> tuple[str, str]:
    check = verdict["done"].get("check") or {}
    if check.get("status") == "wrong_data":
        return "wrong_data", check["reason"]
    windows = verdict.get("windows")
    if not windows:
        return "failed", f"nothing could be measured in {verdict.get('batches', 0)} batches"
    if not any(window["samples"] for window in windows):
        return "failed", f"no sample could be counted in {verdict.get('batches', 0)} batches; {COUNT_ADVICE}"
    return "ok", ""


def _judge_error(settings: LoaderSettings, verdict: dict[str, Any]) -> tuple[str, str]:
    error = verdict["error"]
    text = f"{error['type']}: {error['message']}" if error["message"] else error["type"]
    text += f" ({error['line']})" if error["line"] else ""
    text += f", in {error['position']}" if error.get("position") else ""
    everything = text + error["traceback"] + verdict.get("output", "")
    codes = {worker: code for worker, code in error.get("exit_codes", {}).items() if error.get("worker") is None}
    hidden = everything if error["type"] in _TRANSPORT_ERRORS else text + error["traceback"]
    if any(part in hidden for part in _DESCRIPTOR_TEXTS):
        return "failed", f"too many open files: {DESCRIPTOR_ADVICE}"
    if any(part in everything for part in _SHM_TEXTS):
        return "failed", f"shared memory: {(error['message'] or error['type']).splitlines()[0]}; {SHM_ADVICE}"
    if codes:
        worker, code = next(iter(codes.items()))
        return _judge_death(code, f"worker {worker}", verdict)
    if error.get("ended_workers") and not error["line"] and error["type"] in (*_TRANSPORT_ERRORS, "FileNotFoundError"):
        return "failed", f"worker {error['ended_workers'][0]} ended in mid-epoch {ENDED_QUIETLY}"
    if error["type"] == "MemoryError":
        return "over_memory", f"{text}; {memory_advice(settings)}"
    if any(part in everything for part in _CUDA_TEXTS):
        return (
            "failed",
            f"the dataset uses the accelerator inside a forked worker ({error['line']}); copy in the training loop",
        )
    if any(part in text for part in _PICKLE_TEXTS):
        method = settings.multiprocessing_context or "the start method"
        part = error.get("unsendable") or text
        return "failed", f"{method} has to pickle the loader and cannot: {part}; make it in the worker, or use fork"
    if error.get("empty"):
        return "failed", error["message"]
    hint = "; give a collate_fn that pads" if "equal size" in text or "resize storage" in text else ""
    return "failed", text + hint


def _judge_death(code: int | None, who: str, verdict: dict[str, Any]) -> tuple[str, str]:
    """Status and reason when a process ended without a word; the exit code knows, the exception's text may not."""
    if code is None or code >= 0:
        return "failed", f"{who} exited with code {code} without an error; {_tail(verdict)}".rstrip("; ")
    name = signal.Signals(-code).name
    if name == "SIGBUS":
        return "failed", f"{who} died of SIGBUS: shared memory is full; {SHM_ADVICE}"
    if name in _CRASHES:
        line = crash_line(verdict.get("output", ""))
        where = f", called from {line}" if line else f"; {_tail(verdict)}".rstrip("; ")
        return "failed", f"{who} crashed ({name}) in native code{where}"
    if name == "SIGKILL":
        memory = verdict.get("memory", {})
        peak = memory.get("peak_pss_bytes") or memory.get("peak_rss_bytes")
        seen = f"; the trial's memory was last seen at {format_bytes(peak)}" if peak else ""
        return "killed", f"{who} was killed (SIGKILL), usually because the machine ran out of memory{seen}"
    return "killed", f"{who} was ended by {name}"


def _tells_what_was_lost(output: str) -> bool:
    """Whether it says why a batch never came, which is more than how a process ended after that."""
    return any(part in output for part in (*_DESCRIPTOR_TEXTS, *_UNSENT_TEXTS))


def _died_by_itself(code: int) -> bool:
    """Whether this is not how a process ends that is well or is ended with the trial."""
    return code > 0 or (code < 0 and signal.Signals(-code).name in (*_CRASHES, "SIGBUS"))


def memory_advice(settings: LoaderSettings) -> str:
    """What to do where these settings take too much memory; without workers no other settings take less."""
    if settings.num_workers:
        least = settings.num_workers == 1 and settings.prefetch_factor == 1
        return "use 0 workers" if least else "use fewer workers or a smaller prefetch_factor"
    return (
        "with 0 workers the loader alone needs at least that much: allow more, or let its dataset and a batch take less"
    )


def _memory_reason(settings: LoaderSettings, verdict: dict[str, Any], limits: dict[str, Any], ended: str) -> str:
    peak = verdict.get("memory", {}).get("peak_pss_bytes")
    seen = format_bytes(peak) if peak else "its memory"
    if ended == "machine memory":
        return (
            f"the machine had less than {format_bytes(limits['floor_bytes'])} of memory left, so the trial was stopped "
            f"at {seen}; {memory_advice(settings)}"
        )
    return f"memory reached {seen}, over the limit of {format_bytes(limits['memory_bytes'])}; {memory_advice(settings)}"


def _projected_reason(settings: LoaderSettings, memory: Memory, ceiling: int) -> str:
    return (
        f"memory would reach {format_bytes(memory.projected_peak_bytes or 0)} by the end of an epoch, over the limit "
        f"of {format_bytes(ceiling)}: it grows with the samples read; {memory_advice(settings)}"
    )


def _growth_note(memory: Memory) -> list[str]:
    """What is known of growth, with the samples that it rests on."""
    if not memory.growth_established or memory.growth_bytes_per_1000_samples is None:
        return []
    where = "in the workers" if memory.growth_in_workers else "in the process that trains"
    peak = memory.projected_peak_bytes
    end = f", {format_bytes(peak)} in all by the end of an epoch" if peak else ""
    pace = format_bytes(int(memory.growth_bytes_per_1000_samples))
    return [
        f"memory grows with samples read: {pace} per 1,000 samples {where}, seen over {memory.growth_samples:,} "
        f"samples{end}; {GROWTH_ADVICE[memory.growth_kind]}"
    ]


def _hang_reason(settings: LoaderSettings, verdict: dict[str, Any], limits: dict[str, Any]) -> str:
    batches, output = verdict.get("batches", 0), verdict.get("output", "")
    if any(part in output for part in _DESCRIPTOR_TEXTS):
        return f"hang: a worker ran out of open files and its batch was lost; {DESCRIPTOR_ADVICE}"
    if any(part in output for part in _UNSENT_TEXTS):
        return "hang: a worker could not pickle its batch or its exception, which torch waits for for ever; " + _tail(
            verdict
        )
    silent = verdict.get("silent_seconds", 0.0)
    if verdict["ended"] == "deadline" and silent < limits["silence_seconds"] / 2:
        return (
            f"not done after {limits['deadline_seconds']:.0f} s, in phase {verdict['phase']}; give the trial more time"
        )
    if batches == 0 and settings.num_workers and settings.multiprocessing_context in (None, "fork"):
        return (
            f"hang: no first batch after {silent:.0f} s; a lock held at fork stays held in the worker, "
            "try multiprocessing_context='spawn' or 'forkserver'"
        )
    return f"hang at batch {batches + 1}: nothing came for {silent:.0f} s; one item blocks, or a worker is stopped"


def _notes(settings: LoaderSettings, verdict: dict[str, Any], cores: int) -> list[str]:
    notes = []
    busy = verdict.get("busy_threads") or 0
    if busy >= OVERSUBSCRIBED_THREADS and busy * settings.num_workers > cores:
        notes.append(
            f"oversubscribed: {workers(settings.num_workers)} x {busy} busy threads on {cores} cores "
            f"({verdict.get('peak_threads')} threads in all); call torch.set_num_threads(1) in worker_init_fn"
        )
    output = verdict.get("output", "")
    return notes + repeated_warnings(output, cut=verdict.get("output_bytes", 0) > len(output.encode()))


def repeated_warnings(output: str, *, cut: bool = False) -> list[str]:
    """Each different warning in the output once, with how often it stands there, `cut` where only ends were kept."""
    counts: dict[str, int] = {}
    for line in output.splitlines():
        if "Warning: " in line and not any(part in line for part in _OWN_WARNINGS):
            text = line.split(": ", 1)[-1].strip() if line.count(": ") else line
            counts[text[:200]] = counts.get(text[:200], 0) + 1
    least = "at least " if cut else ""
    return [f"{text} ({least}{count} times)" if count > 1 else text for text, count in list(counts.items())[:5]]


def _tail(verdict: dict[str, Any]) -> str:
    lines = [line for line in verdict.get("output", "").splitlines() if line.strip()]
    return f"its last line of output: {lines[-1][:200]}" if lines else ""
