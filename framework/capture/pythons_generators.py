"""Random generators of Python's and NumPy's, and counters: a recorded call must not advance them.

A replay would not draw from them, and keep the numbers of the recorded call.
"""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import numpy as np

from .checking import equal_trees
from .guards import Guards

_PYTHONS = "Python's or NumPy's random generator"


def states_of(guards: Guards) -> list[tuple[str, Any]]:
    """Return the states of generators that are not lowtide's, each with what it is called."""
    found: list[tuple[str, Any]] = [(_PYTHONS, random.getstate())]
    found.append((_PYTHONS, np.random.get_state()))  # noqa: NPY002 - programs draw from it
    for generator, name in guards.generators:
        if isinstance(generator, np.random.Generator):
            state: Any = generator.bit_generator.state
        elif isinstance(generator, np.random.RandomState):
            state = generator.get_state()
        elif isinstance(generator, itertools.count):
            state = repr(generator)
        else:
            state = generator.getstate()
        found.append((f"{name}, a {type(generator).__name__}", copy.deepcopy(state)))
    return found


def drawn_from(guards: Guards, before: list[tuple[str, Any]]) -> str | None:
    """Return which of them has another state than before; None if none has."""
    for (name, a), (_, b) in zip(before, states_of(guards), strict=True):
        if not equal_trees(a, b):
            return name
    return None
