"""Another program that takes cores, for as long as a block runs and never longer."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from workbench.errors import SettingsError

LONGEST_SECONDS = 600.0
# The burner ends when its standard input closes, which happens whenever this process ends, however it ends.
_BURNER = """
import select, sys, time
end = time.monotonic() + float(sys.argv[1])
print(flush=True)
while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(50_000):
        pass
"""


@contextlib.contextmanager
def noisy_neighbour(cores: int = 1, *, longest_seconds: float = LONGEST_SECONDS) -> Iterator[list[int]]:
    """Keeps `cores` cores busy in processes of their own while the block runs; yields their process ids.

    They end with the block, with this process (also by SIGKILL), or after `longest_seconds`, whichever comes first.

    Raises:
        SettingsError: If `cores` is not a whole number of at least 1.
    """
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise SettingsError(f"cores={cores!r} must be a whole number of at least 1")
    with contextlib.ExitStack() as stack:
        burners = [stack.enter_context(_burner(longest_seconds)) for _ in range(cores)]
        for burner in burners:
            burner.stdout.readline()  # it is at work
        yield [burner.pid for burner in burners]


@contextlib.contextmanager
def _burner(longest_seconds: float) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-ISE", "-c", _BURNER, str(longest_seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
