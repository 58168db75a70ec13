"""The command line as its user meets it: knob values, exit codes, one sentence on stderr, one document on stdout."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests import made_up_sweeps
from workbench.cli import arguments, main
from workbench.cli.arguments import build_parser, knob_values, knobs_asked
from workbench.cli.checking import judge
from workbench.cli.sweeps import going_on, print_results
from workbench.errors import SettingsError, StoreError
from workbench.layouts.registry import LAYOUTS
from workbench.loaders.settings import LoaderSettings
from workbench.measure.records import TrialRun, Window
from workbench.measure.result import TrialResult
from workbench.measure.trace import read_trace
from workbench.measure.trace_recording import profile
from workbench.tuning.export import FORMATS, export, load_settings
from workbench.tuning.store import SweepStore
from workbench.tuning.strategies import STRATEGIES


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


COMMANDS = [
    "sweep",
    "show",
    "export",
    "report",
    "check",
    "trace",
    "convert",
    "manifest",
    "verify",
    "resume-test",
    "lab",
]
COMMANDS += ["demo"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_of_every_command(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [command]), "--help"])
    assert ended.value.code == 0
    assert f"usage: workbench {command}".rstrip() in capsys.readouterr().out


def test_the_help_names_what_the_rooms_have():
    assert arguments.STRATEGIES == tuple(STRATEGIES)
    assert set(arguments.LAYOUTS) == set(LAYOUTS) and set(arguments.EXPORT_FORMATS) == set(FORMATS)


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


LOADERS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.full((64,), float(index)) ** 2


class Broken(Squares):
    def __getitem__(self, index):
        raise RuntimeError("no such picture: 17.jpg")


class FailsInWorkers(Squares):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("only at home")
        return super().__getitem__(index)


def make(num_workers=0, prefetch_factor=None):
    return DataLoader(Squares(), batch_size=16, num_workers=num_workers, prefetch_factor=prefetch_factor)


def broken(num_workers=0):
    return DataLoader(Broken(), batch_size=16, num_workers=num_workers)


def make_loader():
    return DataLoader(Squares(), batch_size=16, prefetch_factor=3, num_workers=1)


loader = DataLoader(Squares(), batch_size=16)


def a_list():
    return [torch.zeros(16, 4)] * 64


def dataset():
    return Squares()


def fails_in_workers(num_workers=0):
    return DataLoader(FailsInWorkers(), batch_size=16, num_workers=num_workers)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with loaders.py and a finished sweep of one of them in sweeps.db; `swept` holds what it printed."""
    path = tmp_path_factory.mktemp("cli")
    (path / "loaders.py").write_text(LOADERS)
    return path


@pytest.fixture(scope="module")
def swept(folder):
    return run("sweep", "loaders.py:make", "--num-workers", "0,1", "--name", "first", "--json", cwd=folder)


def test_sweep_prints_one_json_document_and_nothing_else(swept):
    assert swept.returncode == 0, swept.stderr
    told = json.loads(swept.stdout)
    assert swept.stdout.count("\n") == 1
    assert told["name"] == "first" and told["ending"] == "finished"
    assert [row["num_workers"] for row in told["rows"]] == [0, 1]
    assert told["best"] in [{knob: row[knob] for knob in told["best"]} for row in told["rows"]]
    assert told["rows"][0]["prefetch_factor"] is None
    assert {row["status"] for row in told["rows"]} == {"ok"}
    assert all(row["samples_per_second"] > 0 for row in told["rows"])


def test_show_gives_the_same_document_again(swept, folder):
    shown = run("show", "--json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == json.loads(swept.stdout)


def test_show_prints_a_table_and_the_recommendation(swept, folder):
    shown = run("show", "sweeps.db", "--name", "first", cwd=folder)
    assert shown.returncode == 0 and shown.stderr == ""
    assert json.loads(swept.stdout)["recommendation"] in shown.stdout
    assert "0 workers" in shown.stdout and "1 worker" in shown.stdout


def test_a_closed_pipe_is_no_error(swept, folder):
    command = f"{sys.executable} -m workbench.cli show | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.parametrize("format", ["yaml", "json", "python", "lightning", "transformers", "hydra"])
def test_export_in_every_format_to_the_terminal(swept, folder, format):
    done = run("export", "--format", format, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "num_workers" in done.stdout
    assert done.stderr == ""


def test_exported_file_is_read_back_and_checked(swept, folder):
    assert run("export", "--out", "loader.yaml", cwd=folder).returncode == 0
    best = json.loads(swept.stdout)["best"]
    assert load_settings(folder / "loader.yaml") == LoaderSettings.from_dict(best)
    checked = run("check", "loader.yaml", "loaders.py:make", "--starts", "2", "--json", cwd=folder)
    told = json.loads(checked.stdout)
    assert checked.returncode == (0 if told["right"] else 1)
    assert told["exported"]["status"] == "ok" and told["exported"]["num_workers"] == best["num_workers"]


def test_report_is_one_page(swept, folder):
    done = run("report", "--out", "report.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "first" in (folder / "report.html").read_text()


def test_check_says_no_to_settings_that_no_longer_work(swept, folder):
    assert run("export", "--out", "one.json", cwd=folder).returncode == 0
    export(LoaderSettings(num_workers=1), folder / "worker.json")
    checked = run("check", "worker.json", "loaders.py:fails_in_workers", "--starts", "2", cwd=folder)
    assert checked.returncode == 1
    assert "NO" in checked.stdout and "only at home" in checked.stdout


def test_a_loader_that_raises_is_an_answer_of_no_with_the_users_own_line(folder):
    done = run("sweep", "loaders.py:broken", "--num-workers", "0,1", "--json", cwd=folder)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    line = next(n for n, text in enumerate(LOADERS.splitlines(), start=1) if "17.jpg" in text)
    assert "no such picture: 17.jpg" in said and f"loaders.py:{line}" in said
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout) == {"error": said.partition("sweep: ")[2], "kind": "ProbeError"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sweep", "loaders.py:nope"), ("'loaders.py:nope'", "defines no 'nope'")),
        (("sweep", "missing.py:make"), ("'missing.py:make'", "no file")),
        (("sweep", "sample:paintings"), ("'sample:paintings'", "photos")),
        (("sweep", "loaders.py:make", "--num-workers", "two"), ("num_workers='two'", "num_workers=2")),
        (("sweep", "loaders.py:make", "--num-workers", "-1"), ("-1", "num_workers")),
        (("sweep", "loaders.py:make", "--set", "wrkers=1"), ("'wrkers'", "num_workers")),
        (("sweep", "loaders.py:make", "--strategy", "best"), ("'best'", "race")),
        (("sweep", "loaders.py:make", "--budget", "soon"), ("'soon'", "120s")),
        (("sweep", "loaders.py:make", "--budget", "-5s"), ("'-5s'", "above 0", "'120s'")),
        (("sweep", "loaders.py:make", "--budget=-5s"), ("'-5s'", "above 0", "'120s'")),
        (("sweep", "loaders.py:make", "--memory-limit", "-8GiB"), ("'-8GiB'", "8GiB")),
        (("sweep", "loaders.py:make", "--memory-limit", "lots"), ("'lots'", "8GiB")),
        (("show", "missing.db"), ("missing.db", "store")),
        (("show", "loaders.py"), ("loaders.py", "not a SQLite file")),
        (("export", "missing.db"), ("missing.db", "store")),
        (("check", "missing.yaml", "loaders.py:make"), ("missing.yaml",)),
        (("check", "missing.yaml", "loaders.py:make", "--starts", "1"), ("--starts 1", "2 or more")),
    ],
)
def test_wrong_use_says_value_rule_and_way_out_in_one_sentence(argv, said, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith(f"workbench {argv[0]}: ")
    for part in said:
        assert part in err


def test_a_function_without_knobs_is_swept_as_the_loader_that_it_returns(folder):
    options = ("--set", "num_workers=0,1", "--budget", "60s", "--store", "plain.db", "--json")
    done = run("sweep", "loaders.py:make_loader", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {(row["num_workers"], row["status"]) for row in told["rows"]} == {(0, "ok"), (1, "ok")}
    assert told["current"]["num_workers"] == 1 and told["current"]["prefetch_factor"] == 3
    instance = run("sweep", "loaders.py:loader", *options, cwd=folder)
    assert instance.returncode == 0, instance.stderr
    assert {row["num_workers"] for row in json.loads(instance.stdout)["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("a_list", "num_workers cannot be applied: loaders.py:a_list returned a list, not a DataLoader"),
        ("dataset", "returned a Dataset (Squares), not a DataLoader; let it return DataLoader(...)"),
        ("Squares", "'loaders.py:Squares' is the Dataset class Squares, not a DataLoader"),
    ],
)
def test_what_is_no_loader_is_refused_with_what_it_is(loader, said, folder):
    done = run("sweep", f"loaders.py:{loader}", "--num-workers", "0,1", "--store", "no.db", cwd=folder)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["show", "export", "report"])
def test_a_store_is_named_by_its_place_or_by_the_option_of_sweep(command):
    out = ["--out", "r.html"] if command == "report" else []
    for given, store in (([], "sweeps.db"), (["a.db"], "a.db"), (["--store", "a.db"], "a.db")):
        assert arguments.parse([command, *given, *out]).store == store


def test_two_stores_are_one_too_many(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["show", "a.db", "--store", "b.db"])
    assert ended.value.code == 2 and "give a.db, or --store b.db" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_answered_with_those_that_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "nothere.db"]) == 2
    assert "workbench sweep LOADER --store nothere.db" in capsys.readouterr().err
    (tmp_path / "mine.db").touch()
    assert main(["show", "--store", "nothere.db"]) == 2
    assert "beside it there is mine.db" in capsys.readouterr().err


def test_a_sweep_that_has_nothing_left_says_so_and_how_to_give_more(swept, folder):
    more = ("--num-workers", "0,1", "--name", "first", "--resume")
    again = run("sweep", "loaders.py:make", *more, cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "nothing was left to do in first" in again.stderr and "--strategy grid" in again.stderr


def test_a_name_that_does_not_exist_starts_no_bar(swept, folder):
    refused = run("sweep", "loaders.py:make", "--name", "nope", "--resume", cwd=folder)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1 and "'nope'" in refused.stderr and "'first'" in refused.stderr


def test_a_budget_that_is_no_time_is_refused_by_its_name(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["sweep", "loaders.py:make", "--budget", "-4"]) == 2
    assert "--budget='-4' is not a time; write seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("steps2.py:twoargs", "asks for batch, model, and a step is called with one batch"),
        ("steps2.py:none", "takes no batch"),
        ("fast", "step='fast' is not a time such as 40ms"),
    ],
)
def test_a_step_of_something_else_than_a_batch_is_refused_at_once(step, said, folder, monkeypatch, capsys):
    (folder / "steps2.py").write_text("def twoargs(batch, model):\n    pass\n\n\ndef none():\n    pass\n")
    monkeypatch.chdir(folder)
    for command in ("diagnose", "sweep"):
        assert main([command, "loaders.py:make", "--step", step]) == 2
        err = capsys.readouterr().err
        assert said in err


def test_a_terminals_width_is_kept(swept, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for width in (70, 100):
        monkeypatch.setattr("workbench.cli.sweeps.columns_of_terminal", lambda width=width: width)
        assert main(["show", "--name", "first"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width and "samples/s" in lines[0]
    assert "RSS" in run("show", cwd=folder).stdout.splitlines()[0]


@pytest.mark.parametrize("width", [None, 60])
def test_the_way_out_is_the_whole_command_in_one_line(width, monkeypatch, capsys):
    monkeypatch.setattr("workbench.cli.sweeps.columns_of_terminal", lambda: width)
    found = made_up_sweeps.results(
        made_up_sweeps.trial(made_up_sweeps.settings(0), 400),
        ending="budget",
        options={"budget_seconds": 60.0},
        name="make-1",
    )
    given = ["sweep", "my train.py:make", "--budget", "60s", "--set=in_order=true,false", "--store", "x.db", "--resume"]

    print_results(found, arguments.parse(given))

    wanted = "sweep 'my train.py:make' --set=in_order=true,false --store x.db --name make-1 --resume --budget 2m"
    assert any(f"`workbench {wanted}`" in line for line in capsys.readouterr().out.splitlines())
    print_results(found)
    assert "`workbench sweep ... --resume --budget 2m`" in capsys.readouterr().out


def test_going_on_names_the_sweep_as_the_store_does():
    """A name that was taken got a number: to resume by the name that was asked for would go on with the other one."""
    given = arguments.parse(["sweep", "m:f", "--name", "mine", "--strategy=race"])
    for name, words in (("mine", "--name mine --resume"), ("mine-2", "--name mine-2 --resume")):
        found = made_up_sweeps.results(name=name)
        way_on = going_on(found, given, "--resume", "--strategy", "grid")
        assert way_on == f"workbench sweep m:f {words} --strategy grid"


def test_help_says_what_is_resumed_without_a_name(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    assert "or else with the latest of this loader" in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(folder):
    command = [sys.executable, "-m", "workbench.cli", "sweep", "loaders.py:make", "--num-workers", "0,1,2,3"]
    command += ["--set", "prefetch_factor=2,3,4,5", "--strategy", "grid", "--name", "cut", "--store", "cut.db"]
    running = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_ctrl_c,
    )
    _wait_for_a_finished_run(folder / "cut.db")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert "samples/s" in out
    way_on = err.splitlines()[-1].partition("Go on with: workbench ")[2]
    assert way_on.split()[-1] == "--resume" and "--name cut" in way_on
    before = _runs(folder / "cut.db")
    resumed = run(*way_on.split(), "--budget", "20s", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert _runs(folder / "cut.db")[: len(before)] == before
    assert len(_runs(folder / "cut.db")) > len(before)


def _heed_ctrl_c():
    """As in a terminal: what a shell starts in the background would inherit that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _runs(store):
    with SweepStore(store, read_only=True) as opened:
        return opened.runs(opened.sweep("cut"))


def _wait_for_a_finished_run(store):
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        with contextlib.suppress(StoreError):
            if _runs(store):
                return
        time.sleep(0.1)
    raise AssertionError("no run was finished")


def test_convert_writes_once_and_then_finds_it_done(tmp_path):
    source = "".join(json.dumps({"id": number, "text": f"line {number}"}) + "\n" for number in range(50))
    (tmp_path / "lines.jsonl").write_text(source)
    written = run("convert", "lines.jsonl", "shards", "--layout", "parquet", "--json", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    told = json.loads(written.stdout)
    assert (told["samples"], told["layout"], told["shards_reused"]) == (50, "parquet", 0)
    again = run("convert", "lines.jsonl", "shards", "--layout", "parquet", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "50 samples" in again.stdout and "from an earlier run" in again.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("nowhere", "out", "--layout", "tar"), "nowhere"),
        (("loaders.py", "out", "--layout", "tar", "--resize", "64", "--tokenizer", "t.json"), "give one of them"),
        ((".", "./inside", "--layout", "tar"), "lie in each other"),
    ],
)
def test_convert_refuses_in_one_sentence(options, said, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["convert", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err


def test_diagnose_names_the_slow_step(folder):
    (folder / "steps.py").write_text("import time\n\n\ndef slow(batch):\n    time.sleep(0.05)\n")
    done = run("diagnose", "loaders.py:make", "--step", "steps.py:slow", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bound"] == "compute"
    assert told["evidence"] and told["next_step"]
    timed = run("diagnose", "loaders.py:make", "--step", "40ms", "--starts", "2", "--json", cwd=folder)
    assert json.loads(timed.stdout)["bound"] == "compute", timed.stderr
    refused = run("diagnose", "loaders.py:make", "--step", "steps.py:fast", cwd=folder)
    assert refused.returncode == 2 and "'fast'" in refused.stderr


def test_trace_prints_the_verdict_of_a_recorded_loop(tmp_path, capsys):
    trace = profile([torch.ones(64, 64)] * 12, lambda batch: batch @ batch, tmp_path / "trace.json", steps=5)
    told = read_trace(trace)
    code = 1 if told.bound == "unknown" else 0
    assert main(["trace", str(trace)]) == code
    assert capsys.readouterr().out == f"{told}\n"
    assert str(told).startswith(f"{trace}: bound by {told.bound}\n") and str(told).endswith(told.evidence[-1])
    assert main(["trace", str(trace), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["steps"] == told.steps
    assert main(["trace", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_manifest_and_verify_find_a_changed_file(tmp_path, capsys):
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"id": {number}, "text": "x"}}\n' for number in range(20)))
    assert main(["convert", str(tmp_path / "lines.jsonl"), str(tmp_path / "shards"), "--layout", "tar"]) == 0
    assert main(["verify", str(tmp_path / "shards")]) == 0
    capsys.readouterr()
    assert main(["manifest", str(tmp_path / "shards"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["samples"], told["layout"]) == (20, "tar") and told["digest"]
    shard = next((tmp_path / "shards").glob("*.tar"))
    shard.write_bytes(shard.read_bytes().replace(b"x", b"y", 1))
    assert main(["verify", str(tmp_path / "shards"), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["path"], problem["kind"]) == (shard.name, "content")


def test_numbers_that_are_none_are_refused(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["resume-test", "loaders.py:make", "--num-workers", "0,two"]) == 2
    assert "'two'" in capsys.readouterr().err
    assert main(["verify", ".", "--sample", "some"]) == 2
    assert "'some'" in capsys.readouterr().err


def test_lab_becomes_jupyterlab_on_the_lessons(monkeypatch):
    started = []
    monkeypatch.setattr("os.execv", lambda *command: started.append(command))
    main(["lab", "--no-browser", "--port", "9999"])
    ((program, arguments),) = started
    assert program == sys.executable
    assert arguments[1:3] == ["-m", "jupyterlab"] and arguments[4:] == ["--no-browser", "--port", "9999"]
    assert arguments[3].endswith("notebooks")


def trial(settings, rates, status="ok", reason=""):
    runs = [
        TrialRun(settings, status, reason, windows=tuple(Window(i, 1.0, 10, rate) for i in range(4)) if rate else ())
        for rate in rates
    ]
    return TrialResult(settings, tuple(runs), cores=2)


ONE, TWO = LoaderSettings(num_workers=1), LoaderSettings(num_workers=2)


@pytest.mark.parametrize(
    ("exported", "current", "right"),
    [
        (trial(TWO, [1000, 1010, 990]), trial(ONE, [500, 505, 495]), True),
        (trial(TWO, [500, 505, 495]), trial(ONE, [1000, 1010, 990]), False),
        (trial(TWO, [500, 505, 495]), trial(ONE, [502, 507, 497]), True),
        (trial(TWO, [500, 505, 495]), trial(ONE, [0], "failed", "no workers here"), True),
        (trial(TWO, [0], "over_memory", "used 9 GB of 8 GB"), trial(ONE, [500, 505, 495]), False),
        (trial(TWO, [500, 505, 495]), None, True),
    ],
    ids=["faster", "slower", "tied", "current fails", "exported fails", "same"],
)
def test_check_judges_by_what_is_certain(exported, current, right):
    findings = judge(exported, current)
    assert all(finding.right for finding in findings) is right
    assert "2 workers" in findings[0].said
