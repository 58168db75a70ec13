"""DiagnosisLine: what a diagnosis is doing and for how long, in one line, where no panel shows it."""

from __future__ import annotations

import threading
from typing import Any

from workbench.notebook.diagnosis_watch import Examined, headline, taken_in
from workbench.tuning.progress import seconds_between_drawings


class DiagnosisLine:
    """A context manager that shows a line on stderr, or as a widget in a notebook, and takes it away at the end.

    Hand `put` to `diagnose` as its `on_event`.

    Args:
        most_starts: Starts after which the diagnosis ends at the latest.
    """

    def __init__(self, most_starts: int = 4) -> None:
        self.seen = Examined(state="running", phase="probing", most_starts=most_starts)
        self._ended = threading.Event()
        self._bar: Any = None
        self._thread = threading.Thread(target=self._work, name="workbench-diagnosis-line", daemon=True)

    def put(self, event: dict[str, Any]) -> None:
        """Takes in one event of the diagnosis."""
        self.seen = taken_in(self.seen, event)

    def draw(self) -> None:
        """Shows what is known by now."""
        self._bar.set_description_str(headline(self.seen))

    def __enter__(self) -> DiagnosisLine:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=None, leave=False, dynamic_ncols=True, bar_format="{desc} [{elapsed}]")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._bar.close()

    def _work(self) -> None:
        while True:
            self.draw()
            if self._ended.wait(seconds_between_drawings()):
                return
