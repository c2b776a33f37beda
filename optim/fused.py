"""Optimizer steps that pass over a parameter once: on the CPU, where Numba compiles them.

The plain steps are lines of tensor ops, each a pass over memory. Here a step reads and writes
every element once and allocates nothing. On meta the same parameters take the same road, so that
predicted and measured bytes agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ..framework.autograd.modes import quietly

LEAST = 1 << 14  # elements in all, below which plain steps are fast enough without Numba


def fits(elements: int, *tensors: Any) -> bool:
    """True for contiguous tensors of one float type on the CPU (or meta).

    Args:
        elements: Of all that the optimizer steps.
        *tensors: A parameter, its gradient and its state; None for state that an option leaves out.
    """
    first = tensors[0]._spec
    if elements < LEAST or first.dtype.name not in ("float32", "float64"):
        return False
    if first.device.type not in ("cpu", "meta"):
        return False
    return all(
        t is None or (t._spec is first and t._viewed is None and t._array.flags.c_contiguous)
        for t in tensors
    )


def run(name: str, tensors: Sequence[Any], numbers: Sequence[float]) -> None:
    """Run a loop of ``framework/kernels/cpu/steps.py`` in place.

    Args:
        name: Of the loop.
        tensors: The parameter, its gradient and its state, all of which :func:`fits` took.
        numbers: The loop's scalars; they take the tensors' dtype.
    """
    for t in tensors:
        if t is not None and t is not tensors[1]:
            t._storage.version += 1
    first = tensors[0]._array
    if tensors[0].device.type == "meta":
        return
    loop, spread = _loop(name)
    n = first.size
    flat = first.reshape(-1)
    arrays = [flat[:0] if t is None else t._array.reshape(-1) for t in tensors]
    quietly(spread, loop, n, n, *arrays, *_scalars(flat.dtype.type, numbers))


@cache
def _loop(name: str) -> tuple[Any, Any]:
    from ..framework.kernels.cpu import steps
    from ..framework.kernels.cpu.threads import spread

    return getattr(steps, name), spread


_last: tuple[Any, Any, list[Any]] = (None, None, [])


def _scalars(kind: Any, numbers: Sequence[float]) -> list[Any]:
    # The parameters of a group take the same numbers, one after the other.
    global _last
    last_kind, last_numbers, scalars = _last
    if kind is last_kind and numbers == last_numbers:
        return scalars
    scalars = [kind(x) for x in numbers]
    _last = (kind, numbers, scalars)
    return scalars
