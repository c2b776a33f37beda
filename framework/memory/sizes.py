"""Sizes in bytes as users write them: whole numbers, or text such as ``"200MiB"``."""

from __future__ import annotations

import re
from fractions import Fraction
from operator import index as as_index
from typing import Any

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_ANY_CASE = {unit.lower(): size for unit, size in UNITS.items()}
_TEXT = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)


def unit_of(word: str) -> int | None:
    """Return the bytes of a unit, ``KiB`` or ``mb``; 1 for an empty word, None for no unit."""
    return _ANY_CASE.get(word.lower())


def as_bytes(size: Any, name: str, none: str = "") -> int:
    """Parse a size in bytes.

    Args:
        size: A whole number of bytes, or text: a number and a unit, in any case, with or without
            a space. KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000. A fraction of
            a byte is dropped.
        name: The function and its argument, for messages: ``"set_memory_limit: limit"``.
        none: What the function does with None, for messages; empty if it takes none.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative, or text that is no size.

    Example:
        >>> as_bytes("1.5 GiB", "f: limit"), as_bytes("200mb", "f: limit"), as_bytes(7, "f: limit")
        (1610612736, 200000000, 7)
    """
    if isinstance(size, str):
        found = _TEXT.fullmatch(size)
        unit = None if found is None else unit_of(found[2])
        if found is None or unit is None:
            raise ValueError(
                f"{name} is a size in bytes; got {size!r}. Write an int, or a number and one of "
                f"{', '.join(u for u in UNITS if u)}: '200MiB', '1.5 GiB'."
            )
        return int(Fraction(found[1].replace("_", "")) * unit)
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(
            f"{name} takes bytes as an int, or text such as '2GiB'; got {type(size).__name__} "
            f"{size!r}."
        )
    nbytes: int = as_index(size)
    if nbytes < 0:
        way_out = f"Pass None for {none}." if none else "Pass 0 or more."
        raise ValueError(f"{name} takes a non-negative number of bytes; got {nbytes}. {way_out}")
    return nbytes
