"""The workbench without a notebook: what `workbench` on a command line does, and how it ends.

Errors are one sentence on stderr, with the exit codes of `endings.py`. A command's own code is imported when that
command runs, so that `workbench --help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence

from workbench.cli import endings
from workbench.cli.arguments import parse
from workbench.errors import ProbeError, TrialServerError, WorkbenchError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        argv: Arguments after the program's name; None takes them from `sys.argv`.

    Raises:
        SystemExit: From argparse, for `--help` (0) and for arguments that cannot be understood (2).
    """
    arguments = parse(sys.argv[1:] if argv is None else argv)
    module, _, function = arguments.run.partition(":")
    try:
        code = getattr(importlib.import_module(module), function)(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_left()
    except (ProbeError, TrialServerError) as error:  # the loader was found, and does not run
        return _failed(error, arguments, endings.ANSWER_IS_NO)
    except (WorkbenchError, OSError) as error:
        return _failed(error, arguments, endings.WRONG_USE)
    except KeyboardInterrupt:
        print(f"workbench {arguments.command}: stopped before there was anything to keep", file=sys.stderr)
        return endings.INTERRUPTED


def _failed(error: Exception, arguments: argparse.Namespace, code: int) -> int:
    print(f"workbench {arguments.command}: {error}", file=sys.stderr)
    if getattr(arguments, "json", False):
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    return code


def _reader_left() -> int:
    """Ends quietly when whatever read our output (`| head`) has closed it; the flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return endings.DONE
