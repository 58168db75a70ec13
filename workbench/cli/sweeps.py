"""`workbench sweep`, `show`, `export` and `report`: a sweep from its start to what is made of it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from workbench import machine
from workbench.cli import endings
from workbench.cli.arguments import knobs_asked
from workbench.cli.progress import columns_of_terminal
from workbench.tuning.cautions import COMMAND
from workbench.tuning.results import Results, load_results

NOTHING_RUN = {  # by how a resumed sweep ended that started nothing
    "finished": (
        "nothing was left to do in {name}: it is finished, and the above is what it found. To have every settings "
        "measured until it is precise, resume it with --strategy grid; to try other values, leave --resume out"
    ),
    "budget": "the budget was used up before anything of {name} could be started; give a longer --budget",
}
COMMAND_IN_WORDS = re.compile(f"`{re.escape(COMMAND)} ([^`]+)`")
STAND_IN = "\0"  # for a space at which no line may end
FIRST_VERSION_OF_JSON = 1  # of the documents that `--json` prints; it rises when a key changes its meaning


def sweep(arguments: argparse.Namespace) -> int:
    """Runs a sweep, prints its table and recommendation; 1 when nothing could be recommended."""
    from workbench.tuning.space import SearchSpace
    from workbench.tuning.sweep import Sweep

    knobs = knobs_asked(arguments)
    options: dict[str, Any] = {"strategy": arguments.strategy} if arguments.strategy else {}
    running = Sweep(
        arguments.loader,
        space=SearchSpace(**knobs) if knobs else None,
        budget_seconds=None if arguments.budget is None else machine.parse_seconds(arguments.budget, "--budget"),
        memory_limit=None if arguments.memory_limit is None else machine.parse_bytes(arguments.memory_limit),
        step=arguments.step,
        samples_per_batch=arguments.samples_per_batch,
        store=arguments.store,
        name=arguments.name,
        **options,
    )
    begun: list[Any] = []  # runs of this call
    running.on_event.append(lambda event: begun.append(event["settings"]) if event["kind"] == "run_started" else None)
    results = running.run(resume=arguments.resume)
    _print(results, arguments.store, arguments.json, arguments)
    if arguments.resume and not begun and results.ending in NOTHING_RUN:
        print(f"workbench sweep: {NOTHING_RUN[results.ending].format(name=results.name)}", file=sys.stderr)
    if results.ending == "interrupted":
        _say_how_to_go_on(results, arguments)
        return endings.INTERRUPTED
    return endings.DONE if results.best else endings.ANSWER_IS_NO


def show(arguments: argparse.Namespace) -> int:
    """Prints a stored sweep; 1 when it recommends nothing."""
    results = load_results(arguments.store, arguments.name)
    _print(results, arguments.store, arguments.json)
    return endings.DONE if results.best else endings.ANSWER_IS_NO


def export(arguments: argparse.Namespace) -> int:
    """Writes the recommended settings of a stored sweep; 1 when there are none."""
    from workbench.tuning import export as exporting

    results = load_results(arguments.store, arguments.name)
    if results.best is None:
        print(f"workbench export: {results.reason}", file=sys.stderr)
        return endings.ANSWER_IS_NO
    if arguments.out is None:
        print(exporting.render(results, arguments.format or "yaml").rstrip("\n"))
    else:
        exporting.export(results, arguments.out, format=arguments.format)
        print(f"wrote {arguments.out}: {results.best.describe()}")
    return endings.DONE


def report(arguments: argparse.Namespace) -> int:
    """Writes the report of a stored sweep; 1 when the sweep recommends nothing, and the report says why."""
    from workbench.notebook.report import write_report

    results = load_results(arguments.store, arguments.name)
    write_report(results, arguments.out)
    print(f"wrote {arguments.out}")
    return endings.DONE if results.best else endings.ANSWER_IS_NO


def document(results: Results, store: str) -> dict[str, Any]:
    """A sweep as one JSON-ready document: what is recommended, why, and a row a settings; unknown is null."""
    ranks = {trial.settings: position for position, trial in enumerate(results.ranking.order, start=1)}
    return {
        "version": FIRST_VERSION_OF_JSON,
        "store": str(store),
        "name": results.name,
        "loader": results.source,
        "strategy": results.strategy,
        "ending": results.ending,
        "best": results.best.as_dict() if results.best else None,
        "reason": results.reason,
        "recommendation": results.recommendation,
        "current": results.current.as_dict() if results.current else None,
        "rows": [trial.row() | {"rank": ranks.get(trial.settings)} for trial in results.trials],
        "machine": results.machine,
        "notes": list(results.notes),
    }


def print_results(results: Results, asked: argparse.Namespace | None = None) -> None:
    """Prints the table and the recommendation, as wide as the terminal where there is one.

    Args:
        results: Of a sweep.
        asked: The arguments that began or resumed it, for commands that can be pasted; None where they are not known.
    """
    from workbench.notebook.tables import text_table

    width = columns_of_terminal()
    print(text_table(results, limit=len(results.trials) or 1, width=width))
    print()
    text = results.recommendation
    if asked is not None:
        text = COMMAND_IN_WORDS.sub(lambda found: f"`{going_on(results, asked, *found[1].split())}`", text)
    print("\n".join(_wrapped(line, width) if width else line for line in text.splitlines()))


def _wrapped(line: str, width: int) -> str:
    """A paragraph in lines of that width; a command stays in one line, so that it can be pasted."""
    unbroken = re.sub(r"`workbench [^`]*`", lambda found: found[0].replace(" ", STAND_IN), line)
    return textwrap.fill(unbroken, width, break_long_words=False, break_on_hyphens=False).replace(STAND_IN, " ")


def _print(results: Results, store: str, as_json: bool, asked: argparse.Namespace | None = None) -> None:
    if as_json:
        print(json.dumps(document(results, store), allow_nan=False))
        return
    print_results(results, asked)
    print(f"\nSweep {results.name} in {store}")


def _say_how_to_go_on(results: Results, arguments: argparse.Namespace) -> None:
    command = going_on(results, arguments, "--resume")
    print(f"workbench sweep: stopped; {results.starts} runs are kept. Go on with: {command}", file=sys.stderr)


def going_on(results: Results, asked: argparse.Namespace, *options: str) -> str:
    """The command that was given, as it has to be written to go on with this sweep under these options."""
    named = asked.name == results.name  # a name that was taken got a number
    replaced = {option for option in options if option.startswith("--")} | (set() if named else {"--name"})
    name = [] if named else ["--name", results.name]
    return shlex.join(["workbench", *_without(asked.argv, replaced), *name, *options])


def _without(argv: Sequence[str], options: set[str]) -> list[str]:
    """The arguments but for these options and their values."""
    kept: list[str] = []
    place = 0
    while place < len(argv):
        name, equals, _ = argv[place].partition("=")
        if name not in options:
            kept.append(argv[place])
        elif name != "--resume" and not equals:
            place += 1  # its value
        place += 1
    return kept
