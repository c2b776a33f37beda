"""The special functions of an array module: SciPy's, or CuPy's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .shared_ufuncs import is_numpy


def special(xp: Any) -> Any:
    """Return the module of special functions for an array module."""
    if is_numpy(xp):
        return import_module("scipy.special")
    if xp.__name__ == "cupy":
        return import_module("cupyx.scipy.special")
    return import_module("...devices.sim.backend", __package__).special()
