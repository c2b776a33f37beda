"""The executor: what goes through it, and that an estimate changes the framework only there."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
import lowtide.framework.data.loader
import lowtide.framework.devices.cuda  # loaded, so that a change of it would be seen
from lowtide.framework import devices, execution
from lowtide.framework.attribution import scopes
from lowtide.framework.devices.host import HostBackend
from lowtide.framework.execution import READ, Executor, install
from lowtide.framework.memory import events
from lowtide.framework.ops import dispatch, inplace
from lowtide.framework.random.generator import default_generator
from lowtide.profiling.estimate import fake_kernels
from lowtide.profiling.estimate.fork_sandbox import run_apart

ESTIMATE = Path(fake_kernels.__file__).parent
BOUND = {"lowtide.framework.execution.current"}  # names that the framework itself binds


class Counting(Executor):
    """Computes as usual and counts what it was asked for."""

    def __init__(self):
        self.kernels = 0
        self.plans = Counter()

    def runner(self):
        usual = super().runner()

        def run(f, *args):
            self.kernels += 1
            return usual(f, *args)

        return run

    def plan_made(self, plan):
        self.plans[plan.op.name] += 1


class Reading(Executor):
    """Knows better what a single element is than memory does."""

    computes = False

    def __init__(self):
        self.asked = []

    def read(self, tensor, name):
        self.asked.append(name)
        return 7 if name == "item" else READ


@pytest.fixture
def counting():
    found = Counting()
    before = install(found)
    yield found
    assert install(before) is found


def test_kernels_writes_and_draws_go_through_the_executor(counting):
    x = lt.ones(7, 3)  # written outside of ops
    assert counting.kernels == 1
    x.uniform_()
    assert counting.kernels == 2
    y = x * 2
    y.add_(1)
    assert counting.kernels == 4
    assert counting.plans["mul"] > 0  # of this call, and of those made before


def test_reads_go_through_an_executor_that_does_not_compute():
    x = lt.ones(2)
    one = x.sum()
    reading = Reading()
    before = install(reading)
    try:
        assert one.item() == 7
        with pytest.raises(RuntimeError, match="2 elements"):
            x.item()
        assert x.tolist() == x.numpy().tolist() == np.asarray(x).tolist() == [1.0, 1.0]
    finally:
        install(before)
    assert reading.asked == ["item", "tolist", "numpy", "numpy"]
    assert one.item() == 2


def test_the_usual_executor_leaves_what_it_is_asked_for_as_it_is():
    before = dict(_names())
    install(install(Counting()))
    assert {n for n, v in _names() if before.get(n) is not v} == set()


def test_a_thread_and_a_plan_that_come_later_belong_to_the_executor(counting):
    def work():
        lt.ones(13, 11, 2) / 3

    thread = threading.Thread(target=work)
    made, run = counting.plans.total(), counting.kernels
    thread.start()
    thread.join()
    assert counting.plans.total() > made
    assert counting.kernels == run + 2


@pytest.mark.parametrize(
    "f",
    [dispatch.dispatch, dispatch.dispatch_pair, inplace._written_at_once, HostBackend.empty],
    ids=lambda f: f.__qualname__,
)
def test_the_hot_path_never_asks_the_executor(f):
    assert not {"execution", "current", "executor"} & {*f.__code__.co_names}


# Estimates


def _names():
    # Every name of the framework's modules and classes, with what it stands for.
    for module, found in sorted(sys.modules.items()):
        if not module.startswith("lowtide.framework."):
            continue
        for name, value in list(vars(found).items()):
            yield f"{module}.{name}", value
            if inspect.isclass(value) and value.__module__ == module:
                yield from ((f"{module}.{name}.{n}", v) for n, v in list(vars(value).items()))


def _changed():
    before = dict(_names())
    fake_kernels.begin()
    return {n for n, v in _names() if n in before and before[n] is not v}


def test_an_estimate_changes_no_name_of_the_framework_but_the_hooks():
    assert run_apart(_changed) == BOUND


def test_a_forked_copy_has_locks_of_its_own():
    held, done = threading.Event(), threading.Event()

    def hold():
        with events._changing, scopes._lock, default_generator._lock:
            held.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    try:
        assert run_apart(_taken)
    finally:
        done.set()
        other.join()


def _taken():
    default_generator.draw(1)
    with events._changing, scopes._lock:
        return True


PRIVATE = re.compile("_(?!_)")
PLACES = sorted(ESTIMATE.glob("*.py"))
EXCHANGED = {  # attributes of the framework's objects that estimates write, each for a reason
    "copy": "a backend's: nothing is copied that is not known",
    "from_host": "a backend's: the same",
    "to_host": "a backend's: what is unknown is guessed",
    "item": "a backend's: the same",
    "own_limit": "a ledger's: that of a GPU of a size that is imagined",
    "allocations": "a ledger's: tiles left out are counted",
    "observers": "a ledger's: who listens in the original hears of nothing",
    "base": "a ledger's: addresses of a GPU become those of its stand-in",
    "xp": "a plan's: what it calls computes nothing",
    "run": "a plan's: the same",
    "backend": "a plan's: the GPU's stand-in",
    "_array": "a tensor's: an array of the GPU's stand-in",
    "array": "a handle's: the same",
    "__class__": "a storage's: whether its values are known",
    "storage_class": "a backend's: of new storages, whose values are unknown",
}


def _modules_of_framework(tree):
    # Names that a file has for modules of the framework.
    root = Path(execution.__file__).parent
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("framework"):
            place = root.joinpath(*node.module.split(".")[1:])
            for alias in node.names:
                target = place / alias.name
                if target.is_dir() or target.with_suffix(".py").is_file():
                    yield alias.asname or alias.name


@pytest.mark.parametrize("path", PLACES, ids=lambda p: p.name)
def test_estimates_write_and_read_no_private_name_of_a_module(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = set(_modules_of_framework(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "framework" in (node.module or ""):
            assert not [a.name for a in node.names if PRIVATE.match(a.name)]
        of_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if of_name and node.value.id in modules:
            assert isinstance(node.ctx, ast.Load), f"{path.name}:{node.lineno}"
            assert not PRIVATE.match(node.attr), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("name", ["fake_kernels.py", "fake_cuda.py", "estimate.py"])
def test_what_estimates_exchange_in_objects_is_listed(name):
    tree = ast.parse((ESTIMATE / name).read_text(encoding="utf-8"))
    calls = [
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert "setattr" not in calls
    written = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute)
        and isinstance(n.ctx, ast.Store | ast.Del)
        and not (isinstance(n.value, ast.Name) and n.value.id == "self")
    }
    assert written <= {*EXCHANGED, "gpus", "owner"}  # the last two are their own


def test_every_backend_of_an_estimate_was_shown_to_its_executor():
    def shown():
        fake_kernels.begin()
        devices.backend(lt.device("meta"))
        return [be.copy.__module__ for be in devices.live_backends()]

    assert set(run_apart(shown)) == {fake_kernels.__name__}
