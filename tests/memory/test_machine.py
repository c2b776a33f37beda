"""What a pool may take of the machine: RAM, swap and control groups, of both versions."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.framework.devices.host import HostBackend
from lowtide.framework.memory.machine import LARGEST_STEP, LEAST_STEP, Guard, Machine, NoRoomError
from lowtide.framework.memory.pool import Pool
from lowtide.framework.spec import Spec

MIB, GIB = 1 << 20, 1 << 30
ROOT = Path(__file__).resolve().parents[2]


def pretend(root, *, ram=16 * GIB, free=10 * GIB, swap=0, swap_free=0, cgroup="", mounts=""):
    proc = root / "proc" / "self"
    proc.mkdir(parents=True, exist_ok=True)
    lines = {"MemTotal": ram, "MemAvailable": free, "SwapTotal": swap, "SwapFree": swap_free}
    text = "".join(f"{name}:  {n // 1024} kB\n" for name, n in lines.items())
    (root / "proc" / "meminfo").write_text(text)
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(mounts)
    (proc / "statm").write_text("1000 0 0 0 0 0 0\n")


def group(root, path, **files):
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("_dot_", ".")).write_text(f"{value}\n")


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n"
V1 = "31 23 0:27 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def test_without_groups_it_is_ram_and_swap(tmp_path):
    pretend(tmp_path, swap=4 * GIB, swap_free=GIB)
    found = Machine(str(tmp_path))
    assert (found.ram, found.total, found.available()) == (16 * GIB, 20 * GIB, 11 * GIB)
    assert found.name == "this machine has 16.00 GiB of RAM and 4.00 GiB of swap"


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_charged_and_mapped_by_nobody_is_free(tmp_path, version):
    # Parts of huge pages that were given back: the kernel frees them when the group needs room.
    charged, mapped = 900 * MIB, 700 * MIB
    if version == 2:
        pretend(tmp_path, cgroup="0::/job\n", mounts=V2)
        stat = f"anon {mapped}\nfile {50 * MIB}\nkernel {10 * MIB}\nsock 0"
        files = {"memory_dot_max": GIB, "memory_dot_current": charged, "memory_dot_stat": stat}
        group(tmp_path, "sys/fs/cgroup/job", **files)
    else:
        pretend(tmp_path, cgroup="4:memory:/job\n", mounts=V1.format(top="/"))
        group(
            tmp_path,
            "sys/fs/cgroup/memory/job",
            memory_dot_limit_in_bytes=GIB,
            memory_dot_usage_in_bytes=charged,
            memory_dot_kmem_dot_usage_in_bytes=10 * MIB,
            memory_dot_stat=f"total_rss {mapped}\ntotal_cache {50 * MIB}",
        )
    idle = charged - mapped - 60 * MIB
    assert Machine(str(tmp_path)).available() == GIB - charged + idle


def test_a_group_of_version_2_limits_and_its_page_cache_is_free(tmp_path):
    pretend(tmp_path, cgroup="0::/user/job\n", mounts=V2)
    group(tmp_path, "sys/fs/cgroup/user", memory_dot_max="max", memory_dot_current=5 * GIB)
    group(
        tmp_path,
        "sys/fs/cgroup/user/job",
        memory_dot_max=2 * GIB,
        memory_dot_current=GIB,
        memory_dot_stat=f"anon 5\nactive_file {100 * MIB}\ninactive_file {28 * MIB}",
    )
    found = Machine(str(tmp_path))
    assert (found.total, found.available()) == (2 * GIB, GIB + 128 * MIB)
    assert "may have 2.00 GiB, of the machine's 16.00 GiB of RAM" in found.name


def test_swap_of_a_group_of_version_2_has_a_limit_of_its_own(tmp_path):
    pretend(tmp_path, swap=8 * GIB, swap_free=8 * GIB, cgroup="0::/job\n", mounts=V2)
    files = {"memory_dot_max": 2 * GIB, "memory_dot_current": 2 * GIB}
    group(tmp_path, "sys/fs/cgroup/job", **files, memory_dot_swap_dot_max=0)
    found = Machine(str(tmp_path))
    assert (found.total, found.available()) == (2 * GIB, 0)
    group(
        tmp_path,
        "sys/fs/cgroup/job",
        memory_dot_swap_dot_max=GIB,
        memory_dot_swap_dot_current=256 * MIB,
    )
    found = Machine(str(tmp_path))
    assert (found.total, found.available()) == (3 * GIB, 768 * MIB)


def test_the_tightest_of_nested_groups_holds(tmp_path):
    pretend(tmp_path, cgroup="0::/a/b\n", mounts=V2)
    group(tmp_path, "sys/fs/cgroup/a", memory_dot_max=3 * GIB, memory_dot_current=3 * GIB - 5)
    group(tmp_path, "sys/fs/cgroup/a/b", memory_dot_max=4 * GIB, memory_dot_current=0)
    found = Machine(str(tmp_path))
    assert (found.total, found.available()) == (3 * GIB, 5)


@pytest.mark.parametrize("top", ["/", "/docker/1f"], ids=["the whole tree", "a container's own"])
def test_a_group_of_version_1(tmp_path, top):
    cgroup = "9:cpu:/x\n4:memory:/docker/1f\n0::/\n"
    pretend(tmp_path, cgroup=cgroup, mounts=V2 + V1.format(top=top))
    where = "sys/fs/cgroup/memory" + ("/docker/1f" if top == "/" else "")
    group(
        tmp_path,
        where,
        memory_dot_limit_in_bytes=GIB,
        memory_dot_usage_in_bytes=768 * MIB,
        memory_dot_stat=f"inactive_file 7\ntotal_inactive_file {64 * MIB}",
    )
    found = Machine(str(tmp_path))
    assert (found.total, found.available()) == (GIB, 320 * MIB)


def test_a_group_outside_of_the_namespace_has_the_limits_of_what_is_mounted(tmp_path):
    pretend(tmp_path, cgroup="0::/../elsewhere\n", mounts=V2)
    group(tmp_path, "sys/fs/cgroup", memory_dot_max=GIB, memory_dot_current=GIB - 7)
    found = Machine(str(tmp_path))
    assert (found.total, found.available()) == (GIB, 7)


def test_no_limit_of_version_1_is_none(tmp_path):
    pretend(tmp_path, cgroup="4:memory:/\n", mounts=V1.format(top="/"))
    group(tmp_path, "sys/fs/cgroup/memory", memory_dot_limit_in_bytes=9223372036854771712)
    found = Machine(str(tmp_path))
    assert (found.levels, found.total, found.available()) == ([], 16 * GIB, 10 * GIB)


def test_without_proc_ram_alone_is_known(tmp_path):
    found = Machine(str(tmp_path / "nothing"))
    assert found.total == found.ram > 0
    assert found.available() is None
    assert Guard(found, lambda: 0, lambda: None).grant(MIB) > MIB


def test_a_guard_grants_a_quarter_of_what_is_left_and_frees_caches_first(tmp_path):
    pretend(tmp_path, ram=6400 * MIB, free=3300 * MIB)
    released = []
    used = [0]
    guard = Guard(Machine(str(tmp_path)), lambda: used[0], lambda: released.append(1))
    assert guard.margin == 100 * MIB
    assert guard.grant(200 * MIB) == 200 * MIB + 750 * MIB
    pretend(tmp_path, ram=6400 * MIB, free=130 * MIB)
    assert guard.grant(10 * MIB) == 10 * MIB + LEAST_STEP
    assert not released
    used[0] = 25 * MIB  # handed out, and not written yet: the system does not see it
    with pytest.raises(NoRoomError, match=r"6\.25 GiB of RAM, 5\.00 MiB of it available"):
        guard.grant(10 * MIB)
    assert released == [1]
    pretend(tmp_path, ram=640 * GIB, free=640 * GIB)
    assert guard.grant(MIB) == MIB + LARGEST_STEP


def test_a_pool_asks_only_when_it_grows_past_what_was_granted():
    pool, asked = Pool(1 << 30), []

    def grant(more: int) -> int:
        asked.append(more)
        if len(asked) > 2:
            raise MemoryError("no more")
        return more + 1000 * 64

    pool.grant, pool.granted = grant, 0
    blocks = [pool.take(64) for _ in range(1001)]
    assert asked == [64]
    blocks.append(pool.take(6400))
    assert asked == [64, 6400]
    for offset in blocks[:1001]:
        pool.give(offset, 64)
    assert pool.take(64) == blocks[1000]
    pool.take(64000)  # of what is free
    assert len(asked) == 2
    top = pool.top
    with pytest.raises(MemoryError, match="no more"):
        pool.take(1 << 20)
    assert pool.top == top
    pool.trim()
    assert pool.granted == pool.held < pool.top  # what went back to the system is asked for again
    assert pool._at
    with pytest.raises(MemoryError, match="no more"):
        pool.take(32000)  # of an extent whose pages went back
    assert len(asked) == 4


def test_more_than_the_machine_has_is_refused_by_its_name():
    ram = Machine().ram
    with pytest.raises(lt.OutOfMemoryError) as caught:
        lt.zeros(4 * ram // 5)
    message = str(caught.value)
    assert not isinstance(caught.value, lt.MemoryLimitError)
    assert f"machine has {ram / GIB:.2f} GiB of RAM" in message or "control group" in message
    assert "address space" not in message
    assert "set_memory_limit(math.inf" in message
    assert lt.memory_stats()["machine_bytes"] == Machine().total
    lt.ones(3)


def test_infinity_lifts_the_machines_limit_and_none_restores_it():
    assert lt.get_memory_limit() is None
    try:
        assert lt.set_memory_limit(math.inf) is None
        assert lt.get_memory_limit() == math.inf
        assert lt.memory_stats()["machine_bytes"] is None
        x = lt.empty(Machine().ram // 3)  # addresses, of which no page is touched
        assert x.nbytes > Machine().ram
        del x
        lt.empty_cache()
        assert lt.set_memory_limit("1GiB") == math.inf
        assert lt.set_memory_limit(None) == GIB
    finally:
        lt.set_memory_limit(None)
    with pytest.raises(lt.OutOfMemoryError, match="machine"):
        lt.empty(Machine().ram // 3)


def test_an_estimate_may_be_larger_than_the_machine():
    ram = Machine().ram

    def step():
        return [lt.zeros(ram // 4) for _ in range(3)]

    found = lt.profiling.estimate(step).devices[0]
    assert found.peak_bytes - found.start_bytes == 3 * (ram // 4 * 4)


def test_a_full_address_space_is_still_named():
    be = HostBackend("cpu", 1 << 24, computes=True)
    with pytest.raises(lt.OutOfMemoryError, match="address space of 16.00 MiB"):
        be.empty(Spec((1 << 25,), lt.uint8, lt.device("cpu")))


def test_a_small_program_does_not_ask():
    code = (
        "import lowtide as lt; from lowtide.framework.devices import backend; lt.ones(1000) + 1; "
        "print(backend(lt.device('cpu'))._guard)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert done.stdout == "None\n", done.stderr
