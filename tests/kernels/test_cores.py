"""How many cores a process may use: affinity, hardware threads, and limits of containers."""

from __future__ import annotations

import os

import pytest

from lowtide.framework.kernels.runtime import cores, threads

# Groups of processes by the kernel's two interfaces: what /proc/self/cgroup holds, and limits.
GROUPS = {
    "none": ("", {}, None),
    "no limit": ("0::/\n", {"cpu.max": "max 100000"}, None),
    "two and a half": ("0::/\n", {"cpu.max": "250000 100000"}, 3),
    "of a group above": (
        "0::/a/b\n",
        {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"},
        2,
    ),
    "a path outside of the container": ("0::/docker/1f\n", {"cpu.max": "50000 100000"}, 1),
    "the smallest": ("0::/a\n", {"a/cpu.max": "300000 100000", "cpu.max": "200000 100000"}, 2),
    "first interface": (
        "4:memory:/x\n3:cpu,cpuacct:/x\n",
        {"cpu,cpuacct/x/cpu.cfs_quota_us": "200000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
        2,
    ),
    "first interface, no limit": (
        "3:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        None,
    ),
    "no numbers": ("0::/\n", {"cpu.max": "none of these"}, None),
    "an empty file": ("0::/\n", {"cpu.max": ""}, None),
}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A system of eight hardware threads, two a core, on six of which the process may run."""
    for cpu in range(8):
        at = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        at.mkdir(parents=True)
        (at / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(cores, "_SYSTEM", tmp_path / "sys")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 7}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", GROUPS)
def test_a_share_of_time_limits_them(machine, name):
    text, files, limit = GROUPS[name]
    (machine / "groups").write_text(text)
    for path, content in files.items():
        file = machine / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert cores.usable() == min(4, limit or 4)  # cores 0 to 3


def test_hardware_threads_of_a_core_lie_side_by_side(machine):
    assert cores.side_by_side() == [0, 4, 1, 5, 2, 7]
    assert sorted(cores.allowed()) == [0, 1, 2, 4, 5, 7]


def test_without_topology_each_processor_counts(machine, monkeypatch):
    monkeypatch.setattr(cores, "_SYSTEM", machine / "elsewhere")
    assert cores.usable() == 6
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert cores.usable() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.usable() == 1


@pytest.mark.parametrize(
    ("asked", "found"),
    [("", 4), ("1", 1), ("3", 3), ("6", 6), ("99", 6), ("2,4", 2), ("0", 4), ("-2", 4), ("x", 4)],
)
def test_the_variable_asks_for_up_to_the_hardware_threads(machine, monkeypatch, asked, found):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.count() == found


def test_many_cores_are_not_all_used_unless_asked(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(100, 228)))
    assert threads.count() == cores.MOST == 32
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert threads.count() == 64
