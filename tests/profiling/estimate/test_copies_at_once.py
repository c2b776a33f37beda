"""Several copies of the process at once: results in order, and nothing left when one fails."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time

import psutil
import pytest

from lowtide.framework.kernels.runtime import cores
from lowtide.profiling.estimate import fork_sandbox
from lowtide.profiling.estimate.fork_sandbox import branched, run_each_apart


def children():
    return {p.pid for p in psutil.Process().children()}


@pytest.fixture(params=[1, 2, 8])
def at_once(request, monkeypatch):
    monkeypatch.setattr(fork_sandbox, "MOST_AT_ONCE", request.param)
    monkeypatch.setattr(cores, "usable", lambda: 8)


def test_results_come_in_order(at_once):
    before = children()

    def work(k):
        time.sleep(0.02 * (k % 3))
        return k, os.getpid(), bytes(200_000 * (k % 2))  # more than a pipe takes

    found = run_each_apart(lambda k=k: work(k) for k in range(9))
    assert [k for k, _, _ in found] == list(range(9))
    assert len({pid for _, pid, _ in found} | {os.getpid()}) == 10
    assert [len(rest) for _, _, rest in found] == [200_000 * (k % 2) for k in range(9)]
    assert children() == before


@pytest.mark.quick(4)
@pytest.mark.parametrize("bad", range(4))
def test_an_error_ends_the_others(at_once, bad):
    before = children()

    def work(k):
        if k == bad:
            raise KeyError(k)
        time.sleep(60 if k > bad else 0)
        return k

    began = time.monotonic()
    with pytest.raises(KeyError, match=str(bad)):
        run_each_apart(lambda k=k: work(k) for k in range(6))
    assert time.monotonic() - began < 30
    assert children() == before


def test_one_that_is_killed_does_not_leave_the_others_waiting(at_once):
    before = children()

    def work(k):
        if k == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="SIGKILL"):
        run_each_apart(lambda k=k: work(k) for k in range(4))
    assert time.monotonic() - began < 30
    assert children() == before


def test_a_block_that_raises_ends_its_copy():
    before = children()

    def raising():
        with branched() as branch:
            if branch.pid == 0:
                time.sleep(60)
                os._exit(0)
            raise KeyError

    with pytest.raises(KeyError):
        raising()
    assert children() == before


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.5])
def test_an_interrupt_ends_all(monkeypatch, seconds):
    monkeypatch.setattr(cores, "usable", lambda: 4)
    before = children()

    def interrupted():  # while copies are started, or later
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        run_each_apart([lambda: time.sleep(60)] * 6)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30  # none has waited for an answer
    assert children() == before


def test_an_interrupt_that_comes_just_before_a_wait_ends_it():
    before = children()

    def interrupted():  # it sets what Python looks at, and ends no call to the system
        threading.Timer(0.3, _thread.interrupt_main).start()
        run_each_apart([lambda: time.sleep(30)])

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 15
    assert children() == before


def test_no_descriptor_is_left():
    before = len(os.listdir("/proc/self/fd"))
    run_each_apart([os.getpid] * 5)
    with pytest.raises(ZeroDivisionError):
        run_each_apart([lambda: 1 // 0] * 5)
    assert len(os.listdir("/proc/self/fd")) == before
