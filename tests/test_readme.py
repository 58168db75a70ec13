"""What the README says is what happens: its Python runs, and its first command does the main job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text()
HANGS_AFTER_SECONDS = 600


def blocks(language: str) -> list[str]:
    """Bodies of the README's fenced blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def command_ending_in(end: str) -> str:
    """The one line of the README's shell blocks that makes a venv and ends as given."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    found = [line for line in lines if line.startswith("python3 -m venv .venv && ") and line.endswith(end)]
    assert len(found) == 1, f"the README has {len(found)} commands from nothing that end in {end!r}; it needs one"
    return found[0]


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_snippet_runs(snippet, tmp_path):
    (tmp_path / "snippet.py").write_text(snippet)
    done = subprocess.run(
        [sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_AFTER_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_has_python_to_run():
    assert blocks("python")


def test_main_job_command_does_the_main_job(tmp_path):
    job = command_ending_in("workbench demo").rpartition(" && ")[2]
    scripts = Path(sys.prefix) / "bin"
    command = job.replace(".venv/bin", str(scripts))
    assert command != job
    done = subprocess.run(
        command.split(), cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_AFTER_SECONDS, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout
    out = tmp_path / "workbench-out"
    assert {"chart.html", "chart.svg", "report.html", "loader.yaml"} <= {path.name for path in out.iterdir()}


def test_ci_runs_the_readmes_test_command():
    command = command_ending_in("pytest")
    pattern = re.search(r"grep -m1 -E '([^']+)' README.md", (REPOSITORY / ".ci" / "run").read_text())[1]
    first = next(line for line in README.splitlines() if re.search(pattern, line))
    assert first == command


def test_relative_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)|src=\"([^\":]+)\"", README)
    missing = [path for pair in targets for path in pair if path and not (REPOSITORY / path).exists()]
    assert missing == []


def test_every_command_the_readme_names_exists():
    from workbench.cli.arguments import build_parser

    known = next(action for action in build_parser()._actions if action.dest == "command").choices
    named = set(re.findall(r"(?:^|`|bin/)workbench ([a-z-]+)", README, flags=re.MULTILINE))
    assert named
    assert named - set(known) == set()
