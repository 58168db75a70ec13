"""The command line as its user meets it: knob values, exit codes, one sentence on stderr, one document on stdout."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workbench.cli import main
from workbench.cli.arguments import build_parser, knob_values, knobs_asked
from workbench.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0,1,2", [0, 1, 2]),
        (" 4 ", [4]),
        ("-1", [-1]),
        ("false,True", [False, True]),
        ("none,spawn,forkserver", [None, "spawn", "forkserver"]),
        ("2.5", ["2.5"]),
        ("yes", ["yes"]),
    ],
)
def test_knob_values(text, values):
    read = knob_values(text)
    assert read == values
    assert [type(value) for value in read] == [type(value) for value in values]


@pytest.mark.parametrize("text", ["", "1,,2", ",", "1,"])
def test_empty_knob_values_are_refused(text):
    with pytest.raises(SettingsError, match=r"empty value.*0,2,4"):
        knob_values(text)


def parsed(*argv: str):
    return build_parser().parse_args(argv)


def test_knobs_come_in_the_order_of_the_options_then_of_set():
    arguments = parsed(
        "sweep", "m:f", "--set", "in-order=true,false", "--prefetch-factor", "2,4", "--num-workers", "0,1"
    )
    assert list(knobs_asked(arguments).items()) == [
        ("num_workers", [0, 1]),
        ("prefetch_factor", [2, 4]),
        ("in_order", [True, False]),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--set", "in_order"), "KNOB=V1,V2"),
        (("--set", "=1"), "KNOB=V1,V2"),
        (("--num-workers", "1", "--set", "num_workers=2"), "a second time"),
        (("--set", "batch_size=8", "--set", "batch_size=16"), "a second time"),
    ],
)
def test_knobs_given_wrongly_are_named(given, said):
    with pytest.raises(SettingsError, match=said):
        knobs_asked(parsed("sweep", "m:f", *given))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "COMMAND"),
        (("sweeep", "m:f"), "sweeep"),
        (("sweep",), "LOADER"),
        (("sweep", "m:f", "--workers", "1"), "--workers"),
        (("export", "--format", "toml"), "toml"),
        (("report",), "--out"),
    ],
)
def test_wrong_use_is_one_sentence_with_the_way_to_the_help(argv, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert said in err and "--help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["", "sweep", "show", "export", "report", "check", "lab", "demo"])
def test_help_of_every_command(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [command]), "--help"])
    assert ended.value.code == 0
    assert f"usage: workbench {command}".rstrip() in capsys.readouterr().out


def test_version_is_the_distributions(capsys):
    from importlib.metadata import version

    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"workbench {version('loader-workbench')}\n"


def run(*argv: str, **kwargs) -> subprocess.CompletedProcess:
    """One `workbench` command in a process of its own."""
    command = [sys.executable, "-m", "workbench.cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **kwargs)
