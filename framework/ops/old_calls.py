"""Calls of PyTorch's first versions, with the factor among the tensors: ``x.add_(2, y)``.

Programs of 2018 to 2020 write ``p.data.add_(-lr, grad)`` and ``p.data.addcdiv_(-lr, avg, denom)``.
PyTorch still takes them, and warns. A function that does so ends its positional parameters with
``*_old``, which is empty in every other call: looking at it is all that such a call pays.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..tensor import Tensor

_state = {"warned": False}  # PyTorch warns once in a process


def old_call(f: Any, numbers: tuple[str, ...], given: tuple[Any, ...], **named: Any) -> Any:
    """Make the call that one of the old form means.

    Args:
        f: The function; its positional parameters are tensors.
        numbers: The keyword parameters that come by position: "alpha" after the first tensor;
            "beta" before it (after it in a method), and then "alpha".
        given: All positional arguments.
        **named: The others, which the function passes on.

    Raises:
        TypeError: The arguments fit neither form.
    """
    names = f.__code__.co_varnames[: f.__code__.co_argcount]
    swapped = len(numbers) == 2 and not _is_number(given[1])
    input, *rest = (given[1], given[0], *given[2:]) if swapped else given
    count = len(given) - len(names)
    factors, tensors = rest[:count], [input, *rest[count:]]
    if not (
        count <= len(numbers)
        and all(map(_is_number, factors))
        and all(isinstance(x, Tensor) for x in tensors)
        and all(named[n] == 1 for n in numbers)
    ):
        kinds = ", ".join(type(x).__name__ for x in given)
        raise TypeError(
            f"{f.__name__}() takes {len(names)} positional arguments, or the old form "
            f"{_old_form(f.__name__, names, numbers)}; got ({kinds}). Pass "
            f"{' and '.join(numbers)} by name."
        )
    if not _state["warned"]:
        _state["warned"] = True
        shown = names[1:] if f.__name__.endswith("_") else names
        takes = [*(f"Tensor {n}" for n in shown), "*", *(f"Number {n} = 1" for n in numbers)]
        warnings.warn(
            f"This overload of {f.__name__} is deprecated:\n"
            f"\t{_old_form(f.__name__, names, numbers[:count])}\n"
            "Consider using one of the following signatures instead:\n"
            f"\t{f.__name__}({', '.join(takes)})",
            UserWarning,
            stacklevel=3,
        )
    values = (x.item() if isinstance(x, Tensor) else x for x in factors)
    return f(*tensors, **{**named, **dict(zip(numbers, values, strict=False))})


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex | np.number) or (
        isinstance(x, Tensor) and not x.ndim
    )


def _old_form(name: str, names: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    first = [] if name.endswith("_") else [f"Tensor {names[0]}"]
    factors = [f"Number {n}" for n in numbers]
    if "beta" in numbers:
        first, factors = [factors[0], *first], factors[1:]
    return f"{name}({', '.join([*first, *factors, *(f'Tensor {n}' for n in names[1:])])})"
