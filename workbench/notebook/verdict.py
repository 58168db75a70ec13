"""A diagnosis as HTML: what binds, how sure that is, the rates as bars, where a batch's time goes, what to do next."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from html import escape
from typing import Any

from workbench.notebook import formatting, palette
from workbench.notebook.bars import Bar, Part, bars_html, legend_html, picture
from workbench.notebook.before_after import changes_html
from workbench.notebook.costs import CPU_INK, INKS_OF_TIME, WAIT_INK, worker_bars
from workbench.notebook.report import static_text
from workbench.notebook.verdict_words import HEADLINES, NAMES, SURE

_STEP_KEY = (palette.COLOURS[2], "step")
NO_STAGES = "The loader is no DataLoader of torch or torchdata, so its workers cannot be looked into."


def bundle(found: Any, before: Any = None) -> dict[str, str]:
    """A MIME bundle of a `Diagnosis` for a saved notebook: HTML and images that need no script, and its own text.

    Args:
        found: The diagnosis.
        before: An earlier one to keep beside it.
    """
    css = f"<style>{static_text('style.css')}</style>"
    images = [_image(picture(rate_bars(found, before), "Samples per second"))]
    if found.stages is not None:
        images.append(_image(picture(stage_bars(found), "Where a batch's time goes", (*INKS_OF_TIME, _STEP_KEY))))
    pictures = "".join(f'<div style="flex:1 1 380px">{image}</div>' for image in images)
    body = f'{verdict_html(found)}<div style="display:flex;flex-wrap:wrap;gap:16px">{pictures}</div>' + (
        "" if before is None else changes_html(found, before)
    )
    return {"text/html": f'<div class="wb wb-saved">{css}{body}</div>', "text/plain": str(found)}


def verdict_html(found: Any) -> str:
    """The verdict of a `Diagnosis` with how sure it is, its evidence, what to do, and what would prove it wrong."""
    cause = f": {found.cause}" if found.cause else ""
    low, high = found.headroom_interval
    gain = f"Perfect loading would give at most {formatting.times(found.headroom)} the speed"
    ends = f" (95 %: {low:.2f} to {high:.2f})" if math.isfinite(high) else ""
    evidence = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.evidence)
    notes = "".join(f'<li class="wb-note">{escape(note)}</li>' for note in found.notes)
    starts = formatting.count(found.starts, "start")
    state = " wb-none" if found.bound == "unknown" else ""
    return (
        f'<div class="wb-verdict{state}"><strong>{escape(HEADLINES.get(found.bound, found.bound) + cause)}</strong>'
        f"<p>{escape(gain)}{ends}; confidence {escape(SURE.get(found.confidence, found.confidence))}.</p>"
        f"<p><b>Next:</b> {escape(found.next_step)}</p>"
        f"<p><b>It would be wrong if:</b> {escape(found.refuted_by)}</p></div>"
        f"<p>From {starts} with {escape(found.settings.describe())}:</p>"
        f'<ul class="wb-evidence">{evidence}{notes}</ul>'
    )


def rate_bars(found: Any, before: Any = None) -> tuple[Bar, ...]:
    """The rates of a `Diagnosis` as bars with their 95 % intervals, over those of an earlier one."""
    rates = {name: getattr(found, f"{name}_samples_per_second") for name in NAMES}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    earlier = {} if before is None else {name: getattr(before, f"{name}_samples_per_second") for name in NAMES}
    return tuple(
        _rate_bar(name, rate, found.intervals.get(name), earlier.get(name), _ends(before, name))
        for name, rate in known.items()
    )


def rate_told(rate: float) -> str:
    """A rate that nothing is known of yet but its value."""
    return formatting.rate(rate)


def live_bars(rates: Mapping[str, float]) -> tuple[Bar, ...]:
    """Rates that are still being measured, by kind; nothing is known yet of how sure they are."""
    return tuple(_rate_bar(name, rates[name], None, None, None) for name in NAMES if name in rates)


def stage_bars(found: Any) -> tuple[Bar, ...]:
    """Where a batch's time goes, in seconds: the stages of one loading process, then those of the training loop."""
    costs = found.stages
    if costs is None:
        return ()
    bars = list(worker_bars(costs))
    beside = found.stages_combined or costs
    if costs.hand_over is not None:  # without workers the loop does the loading itself, and waits for nobody
        bars.append(_loop_bar("the loop waits for a batch", beside.queue_wait_seconds, WAIT_INK, "waiting"))
        bars.append(_loop_bar("the loop's own work in next()", beside.main_seconds_per_batch, CPU_INK, "CPU"))
    if beside.pin_seconds is not None:
        bars.append(_loop_bar("pinning, in a thread of its own", beside.pin_seconds, CPU_INK, "CPU"))
    if found.step_samples_per_second:
        step = costs.samples_per_batch / found.step_samples_per_second
        bars.append(_loop_bar("the step, alone", step, palette.COLOURS[2], "step"))
    return tuple(bars)


def stages_html(found: Any) -> str:
    """Where a batch's time goes, as bars with a sentence that sets workers and step against each other."""
    if found.stages is None:
        return f'<p class="wb-note">{NO_STAGES}</p>'
    return f"<p>{escape(pace(found))}</p>{bars_html(stage_bars(found))}{legend_html((*INKS_OF_TIME, _STEP_KEY))}"


def pace(found: Any) -> str:
    """How often the workers have a batch ready, and how often the step takes one."""
    costs, workers = found.stages, found.settings.num_workers
    each = costs.worker_seconds_per_batch
    alone = f"A batch takes a loading process {formatting.seconds(each)}"
    if workers > 1:
        alone += f"; {workers} of them could have one ready every {formatting.seconds(each / workers)}"
    step = costs.samples_per_batch / found.step_samples_per_second if found.step_samples_per_second else None
    return f"{alone}. The step takes one every {formatting.seconds(step)}."


def _rate_bar(
    name: str,
    rate: float,
    ends: tuple[float, float] | None,
    earlier: float | None,
    earlier_ends: tuple[float, float] | None,
) -> Bar:
    known = ends if ends is not None and math.isfinite(ends[1]) else (None, None)
    told = formatting.rate(rate, *known)
    part = Part(rate, palette.colour(list(NAMES).index(name)), f"{NAMES[name]}: {told}")
    words = formatting.rate(earlier, *(earlier_ends or (None, None))) if earlier is not None else ""
    return Bar(NAMES[name], told, (part,), *known, earlier, words)


def _loop_bar(name: str, seconds: float, ink: str, meaning: str) -> Bar:
    told = formatting.seconds(seconds)
    return Bar(name, told, (Part(seconds, ink, f"{meaning}: {told}"),))


def _ends(found: Any, name: str) -> tuple[float, float] | None:
    ends = found.intervals.get(name) if found is not None else None
    return ends if ends is not None and math.isfinite(ends[1]) else None


def _image(drawn: str) -> str:
    """As an image: where scripts and inline SVG are taken out of a page, images stay."""
    coloured = drawn.replace("currentColor", palette.EITHER.text)
    words = escape(drawn.partition("<title>")[2].partition("</title>")[0], quote=True)
    coded = base64.b64encode(coloured.encode()).decode()
    return f'<img alt="{words}" style="width:100%;max-width:640px" src="data:image/svg+xml;base64,{coded}">'
