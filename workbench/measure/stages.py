"""Where a batch's time goes: fetch, each transform, collate, hand-over, the queue, and the process that takes it.

    with TrialServer(loader) as server:
        costs = measure_stages(server, LoaderSettings(num_workers=2))
    costs.fetch.cpu_seconds, costs.worker_seconds_per_batch, costs.main_seconds_per_batch

Every stage is told apart into wall time, CPU time, and time in which it could have run but had no core; what is left
of the wall time was waiting: for storage, a lock, a network. `stage_clock.py` says how it is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import ProbeError
from workbench.measure.stage_costs import StageCosts, costs_from_json

if TYPE_CHECKING:
    from workbench.loaders.settings import LoaderSettings
    from workbench.measure.trial import TrialServer


def measure_stages(
    server: TrialServer, settings: LoaderSettings, seconds: float = 1.0, *, paced: bool = False
) -> StageCosts:
    """Where a batch's time goes under `settings`, measured in a trial process of its own.

    Args:
        server: Runs the trial; its step is left out unless `paced`.
        settings: What the loader is built with.
        seconds: How long to time, after the queue has been used up once.
        paced: Run the server's step on every batch, as in training.

    Raises:
        ProbeError: If the loader fails, hangs or yields nothing under these settings, or is not one whose loading
            processes can be looked into (no DataLoader).
    """
    from workbench.measure.trial import TrialPlan

    plan = TrialPlan(check_data=False, measure_edge=False, measure_growth=False)
    verdict = server.ask("stages", settings, plan, seconds=seconds, paced=paced)
    done = verdict.get("done")
    if not done:
        error = verdict.get("error") or {}
        why = f"{error['type']}: {error['message']}" if error else f"the trial ended as {verdict.get('ended')!r}"
        raise ProbeError(
            f"the stages of {settings.describe()} could not be measured: {why}; run a trial of it for the full story",
            error_type=error.get("type", ""),
            traceback_text=error.get("traceback", ""),
        )
    costs = costs_from_json(done["costs"])
    if costs is None:
        raise ProbeError(
            "the stages could not be measured: the loader formed no batch through a DataLoader of torch or torchdata, "
            "whose workers alone can be looked into; measure it as a whole instead",
            error_type="",
            traceback_text="",
        )
    return costs
