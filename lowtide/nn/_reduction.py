"""The reduction of a loss: its name, PyTorch's number for it, and two older arguments."""

from __future__ import annotations

import warnings

_NUMBERS = {"none": 0, "mean": 1, "sum": 2}


def get_enum(reduction: str) -> int:
    """Return PyTorch's number of a reduction.

    Raises:
        ValueError: There is none of this name.
    """
    if reduction not in _NUMBERS:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return _NUMBERS[reduction]


def get_string(number: int) -> str:
    """Return the name of a reduction by its number.

    Raises:
        ValueError: There is none.
    """
    for name, found in _NUMBERS.items():
        if found == number:
            return name
    raise ValueError(f"a reduction is 0 (none), 1 (mean) or 2 (sum); got {number}")


def legacy_get_string(
    size_average: bool | None, reduce: bool | None, emit_warning: bool = True
) -> str:
    """Return what two older arguments mean: whether to reduce, and to the mean or the sum."""
    reduces, averages = reduce is not False, size_average is not False
    found = "none" if not reduces else "mean" if averages else "sum"
    if emit_warning:
        warnings.warn(
            f"size_average and reduce args will be deprecated, please use reduction='{found}' "
            "instead.",
            stacklevel=2,
        )
    return found


def legacy_get_enum(
    size_average: bool | None, reduce: bool | None, emit_warning: bool = True
) -> int:
    """As :func:`legacy_get_string`, as a number."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
