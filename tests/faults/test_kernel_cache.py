"""Libraries of kernels under attack: a sample of each; the module beside runs more of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from lowtide.framework.kernels.cpu.compiler import kernel, library
from lowtide.framework.kernels.runtime import forking

from . import kernel_cache
from .interrupts import Interrupting, interrupted

pytestmark = pytest.mark.skipif(not library.supported(), reason="libraries: x86-64 Linux, CPython")


def test_no_damaged_file_is_mapped() -> None:
    assert kernel_cache.damage(400, seed=1, call=100) == 0


@pytest.mark.parametrize(
    "count", [1, pytest.param(8, marks=pytest.mark.deep)], ids=["one", "eight"]
)
def test_a_fork_beside_a_first_compilation_does_not_hang(count: int) -> None:
    assert kernel_cache.forks(count, seed=count) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    "count", [1, pytest.param(8, marks=pytest.mark.deep)], ids=["one", "eight"]
)
def test_ctrl_c_waits_for_a_compilation(count: int) -> None:
    assert kernel_cache.interrupts(count, seed=count) == []


@pytest.mark.deep
def test_a_kill_while_a_library_is_made_leaves_nothing_wrong() -> None:
    assert kernel_cache.kills(6) == []


@pytest.mark.deep
def test_processes_that_make_the_same_library_at_once() -> None:
    assert kernel_cache.makers(8) == []


def _fork() -> None:
    child = os.fork()
    if child == 0:
        sys.settrace(None)
        free = kernel.lock.acquire(timeout=600)
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os._exit(0 if free and ours else 1)
    children.append(child)


children: list[int] = []


@pytest.mark.deep
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # a fork beside threads, which is the point
def test_ctrl_c_around_a_fork_leaves_no_lock_held() -> None:
    with Interrupting() as counted:
        _fork()
    assert counted.places > 20
    outcomes = set()
    for place in range(1, counted.places + 1):
        with interrupted(place) as tracer:
            _fork()
            tracer.wait()
        outcomes.add((tracer.outcome, tracer.where and tracer.where.partition(":")[0]))
        assert tracer.outcome == "interrupted", (place, tracer.where)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert forking._held == []
        assert forking._guard._undo == []
        taken: list[bool] = []
        other = threading.Thread(target=lambda: taken.append(kernel.lock.acquire(timeout=600)))
        other.start()
        other.join()
        assert taken == [True], (place, tracer.where)
        kernel.lock._at_fork_reinit()  # the thread that took it has ended
    assert ("interrupted", "forking.py") in outcomes
    while children:
        assert os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1]) == 0


def test_a_signal_before_a_hook_is_not_lost() -> None:
    """``signal.signal`` looks for signals first: one that waits there is raised, and swallowed."""
    code = (
        "import _thread, os, time\n"
        "import lowtide\n"
        "caught = 0\n"
        "for _ in range(20):\n"
        "    try:\n"
        "        _thread.interrupt_main(); child = os.fork()\n"
        "        if child == 0: os._exit(0)\n"
        "        os.waitpid(child, 0); time.sleep(0.1)\n"
        "    except KeyboardInterrupt: caught += 1\n"
        "print(caught)\n"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=kernel_cache.ROOT,
    )
    assert found.stdout.split() == ["20"]


def test_hooks_of_forks_that_numba_brings_are_registered_before_ours() -> None:
    """One of a later module would hold its lock while ours waits for the thread that imports it."""
    code = (
        "import os, sys\n"
        "import lowtide\n"
        "register, found = os.register_at_fork, []\n"
        "def noted(**hooks):\n"
        "    if 'before' in hooks: found.append(sys._getframe(1).f_globals['__name__'])\n"
        "    return register(**hooks)\n"
        "os.register_at_fork = noted\n"
        "import lowtide.framework.kernels.cpu.compiler.translate, numba.core.typing\n"
        "print(found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=kernel_cache.ROOT,
    )
    assert done.stdout.strip() == "[]"
