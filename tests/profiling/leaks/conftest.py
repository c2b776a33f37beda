"""Plain references are found with the garbage collector off; clean loops run with it on.

Who holds a tensor is found by looking at all objects of the process. Those that pytest made when it
collected the tests are most of them and hold no tensor of a test: they stay put aside, or each look
would take ten times as long. What a test or lowtide could leave a tensor in is brought back.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

OURS = ("lowtide.", "tests.profiling.leaks.", "tests.conftest.", "tests.samples.")
FOREIGN = ("_pytest", "pluggy", "hypothesis")
# Taken out of the list of what is put aside, and into that of young objects.
leave = ctypes.pythonapi.PyObject_GC_UnTrack
enter = ctypes.pythonapi.PyObject_GC_Track
leave.argtypes = enter.argtypes = [ctypes.py_object]
leave.restype = enter.restype = None


def reachable() -> list[Any]:
    """All that lowtide and these tests reach, but not through another module or pytest."""
    spaces = {name: vars(m) for name, m in list(sys.modules.items()) if isinstance(m, ModuleType)}
    found = [space for name, space in spaces.items() if f"{name}.".startswith(OURS)]
    passed = set(map(id, spaces.values())) | {id(sys.modules)}
    seen = set(map(id, found))
    for o in found:  # which grows
        for r in gc.get_referents(o):
            if id(r) in seen or id(r) in passed or not gc.is_tracked(r):
                continue
            if type(r) in weakref.ProxyTypes:  # may be dead, and then cannot be handed to C
                continue
            if type(r) is ModuleType or str(type(r).__module__).startswith(FOREIGN):
                continue
            seen.add(id(r))
            found.append(r)
    return found


def bring_back() -> None:
    """Let what could hold a test's tensor be seen again."""
    gc.freeze()
    for o in reachable():
        leave(o)
        enter(o)


SIGHT = [object()]  # where nothing refers to what is in it, it has been put aside again


@pytest.fixture(autouse=True)
def collector(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plain references are found with the garbage collector off; clean loops run with it on."""
    if not gc.get_referrers(SIGHT[0]):
        bring_back()
    if not request.node.name.startswith("test_clean"):
        gc.disable()
    yield
    gc.enable()
    gc.collect(1)  # what the test has made: all that is older would take long
