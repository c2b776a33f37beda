"""What a function can reach without using it does not keep it from being recorded."""

from __future__ import annotations

import io
import itertools
import random
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim

PYTHONS, NUMPYS, OLD = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
NUMBERS = itertools.count()
ADVANCE = {
    "Random": PYTHONS.random,
    "Generator": NUMPYS.random,
    "RandomState": OLD.rand,
    "count": NUMBERS.__next__,
    "module": random.random,
}


class Uses:
    """A function that can reach a generator, and draws from it while a flag is set."""

    def __init__(self, name: str) -> None:
        self.draws, self.name = False, name

    def __call__(self, x: Any) -> Any:
        if self.draws:
            return x * float(ADVANCE[self.name]())
        return x * 2 + (0 if PYTHONS and NUMPYS and OLD and NUMBERS else 1)


@pytest.mark.parametrize("name", ADVANCE)
def test_a_generator_that_is_not_drawn_from_may_be_reached(name: str) -> None:
    uses = Uses(name)
    f = lt.compile(uses)
    f.quiet = True
    for k in range(5):
        assert f(lt.full((1,), float(k))).tolist() == [2.0 * k]
    assert f.replays == 2
    uses.draws = True
    found = {f(lt.ones(1, dtype=lt.float64) * 2).item() for _ in range(5)}
    assert len(found) == 5
    assert f.replays == 2


@pytest.mark.parametrize("name", ADVANCE)
def test_a_generator_that_is_drawn_from_is_named(name: str) -> None:
    uses = Uses(name)
    uses.draws = True
    f = lt.compile(uses)
    f(lt.ones(1))
    with pytest.warns(lt.CaptureWarning, match="it draws from"):
        f(lt.ones(1))


def test_programs_without_numpys_generators_do_not_import_them() -> None:
    code = "import sys, lowtide; print('numpy.random' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"  # two megabytes of a process


def test_methods_of_ones_own_dicts_are_not_called() -> None:
    class Lazy(dict):
        def keys(self) -> Any:
            raise AssertionError("loads everything")

        values = items = __iter__ = get = keys

    table = Lazy(factor=2.0)
    f = lt.compile(lambda x: x * dict.__getitem__(table, "factor"), fullgraph=True)
    for _ in range(5):
        assert f(lt.ones(1)).item() == 2
    assert f.replays == 2
    dict.__setitem__(table, "factor", 3.0)
    assert [f(lt.ones(1)).item() for _ in range(3)] == [3.0] * 3
    dict.__setitem__(table, "other", 3.0)
    assert [f(lt.ones(1)).item() for _ in range(3)] == [3.0] * 3


def test_a_stream_that_is_written_may_be_reached() -> None:
    class Log:
        def __init__(self, stream: Any) -> None:
            self.stream, self.on = stream, False

        def __call__(self, x: Any) -> Any:
            if self.on:
                print("called", file=self.stream)
            return x + 1

    class Writes(io.TextIOBase):
        def readable(self) -> bool:
            return False

    for stream in (Writes(), sys.__stderr__):
        f = lt.compile(Log(stream), fullgraph=True)
        for _ in range(5):
            f(lt.ones(2))
        assert f.replays == 2
    reads = lt.compile(Log(io.StringIO()))
    reads(lt.ones(2))
    with pytest.warns(lt.CaptureWarning, match="it can reach an iterator, by"):
        reads(lt.ones(2))


def test_all_calls_of_a_compiled_function_know_that_it_is_compiled() -> None:
    seen: list[bool] = []
    outside = lt.compiler.disable(lambda: seen.append(lt.compiler.is_compiling()))

    def f(x: Any, read: bool = False) -> Any:
        seen.append(lt.compiler.is_compiling())
        return x * x.sum().item() if read else x + 1

    compiled = lt.compile(f)
    compiled.quiet = True
    for _ in range(5):
        compiled(lt.ones(2))
        compiled(lt.ones(2), read=True)
    assert seen == [True] * 10  # the list itself differs from call to call: no replay
    assert not lt.compiler.is_compiling()
    with lt.compiler.set_stance("force_eager"):
        compiled(lt.ones(2))
    f(lt.ones(2))
    lt.compile(outside)()
    assert seen[10:] == [False] * 3


def test_an_error_in_a_compiled_call_leaves_no_mark() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("no")

    for f in (lt.compile(fails), lt.compile(lt.compiler.disable(fails))):
        with pytest.raises(ValueError, match="no"):
            f(lt.ones(1))
    assert not lt.compiler.is_compiling()


LIBRARY = """
class Layer:
    def __init__(self):
        self.state = 1.0

    def scaled(self, x):
        return x * self.state

    def state_dict(self):
        return {"state": self.state}

    def saved(self):
        return self.state_dict()
"""


def trains(layer: Any, extra: Any = None) -> Any:
    p = nn.Parameter(lt.ones(3))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9)

    def step() -> Any:
        optimizer.zero_grad()
        loss = layer.scaled(p).square().sum()
        loss.backward()
        optimizer.step()
        if extra is not None:
            return loss.detach() * extra(optimizer)
        return loss.detach()

    return step


def test_an_attribute_of_others_that_is_called_state_is_no_optimizers() -> None:
    library = types.ModuleType("a_library_of_layers")
    exec(LIBRARY, library.__dict__)
    layer = library.Layer()
    step = lt.compile(trains(layer), fullgraph=True)
    plain = trains(layer)
    for k in range(6):
        layer.state = 1.0 + (k > 3)
        assert step().item() == plain().item()
    assert step.replays == 2


def momentum_of(o: Any) -> Any:
    return sum(float(s["momentum_buffer"].shape[0]) for s in o.state.values())


def entries_of(o: Any) -> Any:
    return len(o.state_dict()["state"])


@pytest.mark.parametrize("extra", [momentum_of, entries_of], ids=lambda f: f.__name__)
def test_an_optimizers_state_that_a_step_names_is_refused(extra: Any) -> None:
    library = types.ModuleType("a_library_of_layers")
    exec(LIBRARY, library.__dict__)
    step = lt.compile(trains(library.Layer(), extra))
    step()
    with pytest.warns(lt.CaptureWarning, match="it names state"):
        step()
