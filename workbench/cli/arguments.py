"""What can be written after `workbench`: commands, options, and the values that knobs take on a command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from workbench.errors import SettingsError

STORE = "sweeps.db"
EXPORT_FORMATS = ("yaml", "json", "python", "lightning", "transformers", "hydra")
LAYOUTS = ("tar", "parquet", "tokens", "files")
STRATEGIES = ("race", "guided", "forecast", "grid")
KNOB_OPTIONS = {  # the knobs a sweep is most often asked for; --set takes them all
    "num_workers": "0,1,2,4",
    "prefetch_factor": "2,4",
    "pin_memory": "false,true",
    "persistent_workers": "false,true",
    "batch_on_worker": "false,true",
}
WORDS = {"true": True, "false": False, "none": None}
LOADER_HELP = (
    "the loader: package.module:name or path/to/file.py:name of a DataLoader, or of a callable that returns one (it is "
    "called with the knobs that its signature names, the others are set on what it returns); or sample:photos, "
    "sample:text, sample:audio, sample:tables"
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; `run` in the parsed arguments names the function of a command as "module:function"."""
    parser = _Parser(
        prog="workbench",
        description="Measure, tune and explain PyTorch data loaders.",
        epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong use, 130 stopped by Ctrl-C.",
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_sweep(commands)
    _add_show(commands)
    _add_export(commands)
    _add_report(commands)
    _add_check(commands)
    _add_diagnose(commands)
    _add_trace(commands)
    _add_convert(commands)
    _add_manifest(commands)
    _add_verify(commands)
    _add_resume_test(commands)
    _add_lab(commands)
    _add_demo(commands)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; `argv` in them is what was given, `other_options` what is meant for JupyterLab.

    Raises:
        SystemExit: For `--help` and `--version` (0), and for arguments that cannot be understood (2).
    """
    parser = build_parser()
    arguments, other_options = parser.parse_known_args(_with_values_joined(argv))
    if other_options and not getattr(arguments, "takes_other_options", False):
        parser.error(f"{arguments.command} does not know {' '.join(other_options)}")
    arguments.argv, arguments.other_options = list(argv), other_options
    if hasattr(arguments, "store_named"):
        if arguments.store is not None and arguments.store_named is not None:
            parser.error(
                f"{arguments.command} reads one store: give {arguments.store_named}, or --store {arguments.store}"
            )
        arguments.store = arguments.store or arguments.store_named or STORE
    return arguments


def _with_values_joined(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--budget -5s` as `--budget=-5s`: argparse takes -5s for an option, and none begins so.

    What is wrong with such a value is then said by whatever knows what the value means.
    """
    joined: list[str] = []
    for word in argv:
        after_option = bool(joined) and joined[-1].startswith("--") and "=" not in joined[-1]
        if after_option and re.match(r"-\.?\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def knob_values(text: str) -> list[Any]:
    """The values in a comma list: "0,2" -> [0, 2]; "false,true" -> [False, True]; "none,spawn" -> [None, "spawn"].

    Whether a knob takes such a value is for `SearchSpace` to say.

    Raises:
        SettingsError: If an item is empty.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise SettingsError(f"{text!r} has an empty value; write the values of a knob with commas between: 0,2,4")
    return [_value(item) for item in items]


def numbers(text: str, option: str) -> list[int]:
    """The whole numbers in a comma list, for `option`.

    Raises:
        SettingsError: If an item is no whole number.
    """
    values = knob_values(text)
    for value in values:
        if type(value) is not int:
            raise SettingsError(f"{option} {text!r} holds {value!r}, which is no whole number; write {option} 0,2")
    return values


def knobs_asked(arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """The knobs named on the command line with their values, in the order of the options, then of --set.

    Raises:
        SettingsError: If --set is not KNOB=V1,V2, or a knob is given twice.
    """
    knobs = {name: knob_values(getattr(arguments, name)) for name in KNOB_OPTIONS if getattr(arguments, name)}
    for assignment in arguments.set:
        name, equals, values = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals):
            raise SettingsError(f"--set {assignment!r} is not KNOB=V1,V2; write for instance --set in_order=true,false")
        if name in knobs:
            raise SettingsError(f"--set {assignment!r} gives {name} a second time; name each knob once")
        knobs[name] = knob_values(values)
    return knobs


def _value(item: str) -> Any:
    if item.lower() in WORDS:
        return WORDS[item.lower()]
    digits = item[1:] if item[0] in "+-" else item
    return int(item) if digits.isdecimal() else item


def _add_sweep(commands) -> None:
    command = _command(commands, "sweep", "sweeps:sweep", "measure a loader under many settings and recommend one")
    command.add_argument("loader", metavar="LOADER", help=LOADER_HELP)
    for name, example in KNOB_OPTIONS.items():
        option = "--" + name.replace("_", "-")
        command.add_argument(option, metavar="V1,V2", help=f"values to try, for instance {example}")
    command.add_argument("--set", metavar="KNOB=V1,V2", action="append", default=[], help="values for any other knob")
    command.add_argument("--strategy", metavar="NAME", help=f"how the space is searched: {', '.join(STRATEGIES)}")
    command.add_argument("--budget", metavar="TIME", help="time for the whole sweep, or for going on with it: 120s, 5m")
    command.add_argument("--memory-limit", metavar="SIZE", help="settings above it never win: 8GiB, 500MB")
    command.add_argument("--step", metavar="STEP", help="FILE:FUNCTION or time of a training step to pace it with")
    command.add_argument("--samples-per-batch", metavar="N", type=int, help="when the batch itself does not tell")
    command.add_argument("--store", metavar="FILE", default=STORE, help=f"where trials are kept (default {STORE})")
    command.add_argument("--name", help="name of the sweep in the store")
    command.add_argument(
        "--resume",
        action="store_true",
        help="go on with the sweep of --name, or else with the latest of this loader in the store",
    )
    _add_json(command)


def _add_show(commands) -> None:
    command = _command(commands, "show", "sweeps:show", "print a finished or stopped sweep and its recommendation")
    _add_stored_sweep(command)
    _add_json(command)


def _add_export(commands) -> None:
    command = _command(commands, "export", "sweeps:export", "write the recommended settings as configuration or code")
    _add_stored_sweep(command)
    command.add_argument("--format", choices=EXPORT_FORMATS, help="default: by the suffix of --out, else yaml")
    command.add_argument("--out", metavar="FILE", help="file to write (default: standard output)")


def _add_report(commands) -> None:
    command = _command(commands, "report", "sweeps:report", "write one offline HTML file about a sweep")
    _add_stored_sweep(command)
    command.add_argument("--out", metavar="FILE", required=True, help="file to write, for instance report.html")


def _add_check(commands) -> None:
    command = _command(
        commands,
        "check",
        "checking:check",
        "measure exported settings again; exit 1 if they are not right any more (a gate for CI)",
    )
    command.add_argument("exported", metavar="FILE", help="what `workbench export` wrote, as YAML or JSON")
    command.add_argument("loader", metavar="LOADER", help=LOADER_HELP)
    command.add_argument("--starts", metavar="N", type=int, default=5, help="starts of each settings (default 5)")
    command.add_argument("--memory-limit", metavar="SIZE", help="fail above it: 8GiB, 500MB")
    _add_json(command)


def _add_diagnose(commands) -> None:
    command = _command(
        commands,
        "diagnose",
        "diagnosing:diagnose",
        "say whether loader, step or what lies between them holds training back",
    )
    command.add_argument("loader", metavar="LOADER", help=LOADER_HELP)
    command.add_argument(
        "--step",
        metavar="STEP",
        required=True,
        help="needed: FILE:FUNCTION of a training step that takes one batch, or how long a step takes, such as 40ms",
    )
    command.add_argument("--starts", metavar="N", type=int, default=4, help="most starts, at least 2 (default 4)")
    command.add_argument("--seconds", metavar="S", type=float, default=0.3, help="length of a stretch (default 0.3)")
    command.add_argument("--samples-per-batch", metavar="N", type=int, help="when the batch itself does not tell")
    _add_json(command)


def _add_trace(commands) -> None:
    command = _command(
        commands, "trace", "diagnosing:trace", "say from a torch.profiler trace what a training run waits for"
    )
    command.add_argument("trace", metavar="FILE", help="a trace (.json, .json.gz), or a folder with one a rank")
    _add_json(command)


def _add_convert(commands) -> None:
    command = _command(commands, "convert", "layouts:convert", "write a data set in another layout, resumably")
    command.add_argument("source", metavar="SRC", help="a folder of files or shards, one shard, or JSON lines")
    command.add_argument("destination", metavar="DST", help="folder that will hold the data set")
    command.add_argument("--layout", choices=LAYOUTS, required=True, help="layout to write")
    command.add_argument("--shard-bytes", metavar="SIZE", help="size to aim at for each shard: 256MB")
    command.add_argument("--world-size", metavar="N", type=int, help="ranks that will read it: whole shards for each")
    command.add_argument("--num-workers", metavar="N", type=int, help="loader workers of each of those ranks")
    command.add_argument("--resize", metavar="PIXELS", type=int, help="shorter side of photographs, once and for all")
    command.add_argument("--tokenizer", metavar="FILE", help="tokenizer file with which text becomes token ids")
    command.add_argument("--processes", metavar="N", type=int, help="how many write at once (default: usable cores)")
    command.add_argument("--skip-errors", action="store_true", help="leave out samples that fail, and say which")
    command.add_argument(
        "--duplicates", choices=("refuse", "number"), default="refuse", help="what to do with two samples of one name"
    )
    command.add_argument("--overwrite", action="store_true", help="replace a data set made by another conversion")
    _add_json(command)


def _add_manifest(commands) -> None:
    command = _command(commands, "manifest", "reviewing:manifest", "write which files a data set consists of, hashed")
    command.add_argument("folder", metavar="DIR", help="the data set")
    command.add_argument("--overwrite", action="store_true", help="hash it anew; what is there now is declared right")
    _add_json(command)


def _add_verify(commands) -> None:
    command = _command(
        commands, "verify", "reviewing:verify", "check a data set against its manifest; exit 1 if it differs"
    )
    command.add_argument("folder", metavar="DIR", help="the data set")
    command.add_argument("--sample", metavar="N", help="read only so many files, or a share: 100, 10%% (default: all)")
    _add_json(command)


def _add_resume_test(commands) -> None:
    command = _command(
        commands, "resume-test", "reviewing:resume_test", "kill a loader, resume it, and say what was lost or repeated"
    )
    command.add_argument("loader", metavar="LOADER", help=LOADER_HELP)
    command.add_argument("--num-workers", metavar="N1,N2", default="0,2", help="worker counts to try (default 0,2)")
    command.add_argument("--cut", metavar="N1,N2", help="batches after which to kill it (default: three places)")
    _add_json(command)


def _add_lab(commands) -> None:
    command = _command(commands, "lab", "lessons:lab", "open JupyterLab on the lessons")
    command.usage = "workbench lab [OPTION_OF_JUPYTER_LAB ...]"
    command.set_defaults(takes_other_options=True)


def _add_demo(commands) -> None:
    command = _command(
        commands, "demo", "demo:demo", "the whole job on the sample photographs: sweep, chart, report, export"
    )
    command.add_argument(
        "--out", metavar="FOLDER", default="workbench-out", help="folder to write (default workbench-out)"
    )
    _add_json(command)


def _command(commands, name: str, run: str, summary: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    command.set_defaults(run=f"workbench.cli.{run}")
    return command


def _add_stored_sweep(command: argparse.ArgumentParser) -> None:
    command.add_argument("store_named", metavar="STORE", nargs="?", help=f"file that a sweep wrote (default {STORE})")
    command.add_argument("--store", metavar="FILE", help="the same, as `sweep` takes it")
    command.add_argument("--name", help="name of the sweep (default: the latest)")


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


class _Parser(argparse.ArgumentParser):
    """Refuses in one sentence; the usage stays a `--help` away. Its subcommands' parsers are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the version; looks it up only when asked, since that costs more than the rest of the parser."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, help="print the version and exit", **kwargs)

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        from importlib.metadata import version

        print(f"workbench {version('loader-workbench')}")
        parser.exit()
