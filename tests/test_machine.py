"""Limits from files made by hand, fake accelerators, and sizes as people write them."""

import json
import os
import subprocess
import sys
import types

import pytest
import torch

from workbench import machine
from workbench.errors import SettingsError

GIB = 2**30
HUGE_V1 = 9223372036854771712


def files(root, **contents):
    for name, text in contents.items():
        path = root / name.replace("__", "/").replace("-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_v2_group(tmp_path, eight_cores):
    files(tmp_path, **{"cpu-max": "150000 100000", "memory-max": 2 * GIB, "memory-current": 1_000_000_000})
    assert machine.usable_cores_exact(tmp_path) == 1.5
    assert machine.usable_cores(tmp_path) == 2
    assert machine.memory_limit_bytes(tmp_path) == 2 * GIB
    assert machine.memory_available_bytes(tmp_path) == 2 * GIB - 1_000_000_000


def test_v1_group(tmp_path, eight_cores):
    files(
        tmp_path,
        **{
            "cpu-cfs_quota_us": 150000,
            "cpu-cfs_period_us": 50000,
            "memory-limit_in_bytes": 2 * GIB,
            "memory-usage_in_bytes": GIB,
            "memory-stat": f"cache 9\nactive_file 7\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 4}\n",
        },
    )
    assert machine.usable_cores(tmp_path) == 3
    assert machine.memory_limit_bytes(tmp_path) == 2 * GIB
    assert machine.memory_available_bytes(tmp_path) == 7 * GIB // 4


@pytest.mark.parametrize(
    "contents",
    [
        {"cpu-max": "max 100000", "memory-max": "max", "memory-current": 5},
        {
            "cpu-cfs_quota_us": -1,
            "cpu-cfs_period_us": 100000,
            "memory-limit_in_bytes": HUGE_V1,
            "memory-usage_in_bytes": 5,
        },
        {"memory-limit_in_bytes": -1},
        {"cpu-max": "", "memory-max": "rubbish"},
        {},
    ],
    ids=["v2-max", "v1-unlimited", "v1-minus-one", "damaged", "no-files"],
)
def test_no_limit_leaves_affinity_and_machine(tmp_path, eight_cores, contents):
    files(
        tmp_path, proc__meminfo=f"MemTotal:  {64 * GIB // 1024} kB\nMemAvailable:  {48 * GIB // 1024} kB\n", **contents
    )
    assert machine.usable_cores_exact(tmp_path) == 8
    assert machine.memory_limit_bytes(tmp_path) == 64 * GIB
    assert machine.memory_available_bytes(tmp_path) == 48 * GIB


def test_nested_v2_groups_obey_the_tightest(tmp_path, eight_cores):
    files(
        tmp_path,
        **{
            "proc__self__cgroup": "0::/job/step/task\n",
            "sys__fs__cgroup__job__cpu-max": "200000 100000",
            "sys__fs__cgroup__job__step__cpu-max": "400000 100000",
            "sys__fs__cgroup__job__step__task__cpu-max": "max 100000",
            "sys__fs__cgroup__job__memory-max": 4 * GIB,
            "sys__fs__cgroup__job__step__task__memory-max": 8 * GIB,
            "sys__fs__cgroup__other__cpu-max": "10000 100000",
        },
    )
    assert machine.usable_cores_exact(tmp_path) == 2
    assert machine.memory_limit_bytes(tmp_path) == 4 * GIB


def test_v1_controllers_have_their_own_trees(tmp_path, eight_cores):
    files(
        tmp_path,
        **{
            "proc__self__cgroup": "4:memory:/pod/a\n3:cpu,cpuacct:/pod/b\n0::/\n",
            "sys__fs__cgroup__memory__pod__a__memory-limit_in_bytes": GIB,
            "sys__fs__cgroup__cpu,cpuacct__pod__b__cpu-cfs_quota_us": 50000,
            "sys__fs__cgroup__cpu,cpuacct__pod__b__cpu-cfs_period_us": 100000,
        },
    )
    assert machine.usable_cores_exact(tmp_path) == 0.5
    assert machine.usable_cores(tmp_path) == 1
    assert machine.memory_limit_bytes(tmp_path) == GIB


def test_path_seen_from_outside_the_container_falls_back_to_the_mount(tmp_path, eight_cores):
    files(tmp_path, **{"proc__self__cgroup": "0::/../../kubepods/x\n", "sys__fs__cgroup__cpu-max": "300000 100000"})
    assert machine.usable_cores(tmp_path) == 3


def test_affinity_is_obeyed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_this_machine_is_plausible():
    assert 0 < machine.memory_available_bytes() <= machine.memory_limit_bytes()
    total, free = machine.shared_memory_bytes()
    assert 0 <= free <= total
    assert machine.shared_memory_bytes("/no/such/place") is None


@pytest.mark.parametrize("kind, pins", [(None, False), ("mps", False), ("cuda", True), ("xpu", True)])
def test_accelerator_presence(monkeypatch, kind, pins):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: kind and types.SimpleNamespace(type=kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    found = machine.accelerator()
    assert (found.kind, found.pins, found.count) == (kind, pins, 2 if kind else 0)


def test_device_name_is_read_from_the_driver(tmp_path):
    files(tmp_path, proc__driver__nvidia__gpus__0__information="Model: \t\t NVIDIA H200\nIRQ: 3\n")
    assert machine._device_name("cuda", tmp_path) == "NVIDIA H200"
    assert machine._device_name("xpu", tmp_path) is None


def test_fingerprint_compares_with_itself_only():
    here = machine.fingerprint()
    assert here["torch"] == torch.__version__
    assert machine.fingerprint_differences(json.loads(json.dumps(here)), here) == []
    other = here | {"torch": "1.0", "memory_bytes": here["memory_bytes"] * 2, "cpu": None}
    differences = machine.fingerprint_differences(other, here)
    assert differences[1] == f"torch was 1.0, is {torch.__version__}"
    assert differences[0].startswith("memory was ") and len(differences) == 2
    assert machine.fingerprint_differences(here | {"memory_bytes": int(here["memory_bytes"] * 1.01)}, here) == []


@pytest.mark.parametrize(
    "text, expected",
    [("8GiB", 8 * GIB), ("500MB", 500_000_000), ("500M", 500_000_000), ("1.5 GB", 1_500_000_000), ("7b", 7), (12, 12),
     ("2kib", 2048), (1e9, 1_000_000_000), (".5MB", 500_000), ("1TiB", 2**40)],
)  # fmt: skip
def test_parse_bytes(text, expected):
    assert machine.parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", -1, 0, "0GB", "8 G iB", "8XB", "1e3", True, None, float("nan"), float("inf")]
)
def test_parse_bytes_refuses(text):
    with pytest.raises(SettingsError, match="is not a size"):
        machine.parse_bytes(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("120s", 120),
        ("2m", 120),
        ("2 min", 120),
        ("1h30m", 5400),
        ("500ms", 0.5),
        (1.5, 1.5),
        ("90", 90),
        (3, 3),
        ("1m 5s", 65),
    ],
)
def test_parse_seconds(text, expected):
    assert machine.parse_seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "-5s", 0, "2 weeks", "1:30", True, None, float("nan"), float("inf"), "5s later"]
)
def test_parse_seconds_refuses(text):
    with pytest.raises(SettingsError, match="is not a time"):
        machine.parse_seconds(text)


@pytest.mark.parametrize(
    "size, text",
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567_890, "1.2 GB"), (999_600, "1.0 MB"),
     (12_340_000, "12 MB"), (5e12, "5.0 TB"), (9_960, "10 kB"), (-2_000_000, "-2.0 MB")],
)  # fmt: skip
def test_format_bytes(size, text):
    assert machine.format_bytes(size) == text


def test_import_is_light():
    code = "import workbench.machine, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
