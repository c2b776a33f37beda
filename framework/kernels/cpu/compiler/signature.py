"""Argument types of a compiled kernel as short words: those it accepts, those of a call.

A word stands for one argument, a signature is words with commas between them:

============== ======================================================================
``f4:2C``      an array of this dtype (NumPy's kind and bytes), dims and layout: ``C``, ``F``, or
               ``A`` for any strides
``f4:2Cr``     one that the kernel does not write to; ``u`` behind it: at any address
``i8 f8 b1``   an int, a float, a bool of Python
``f4s``        a scalar of NumPy
``i8x4``       a tuple of four ints
``-``          None
============== ======================================================================

A *declared* signature says what a kernel takes; anything that fits is converted. Without one a
kernel is compiled for each signature that it is called with, and takes that alone, so that the same
call gives the same bits whatever was compiled before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SCALARS: dict[type, str] = {bool: "b1", int: "i8", float: "f8", type(None): "-"}
_NUMBERS: dict[str, Any] = {"b1": bool, "i8": int, "u8": int, "f8": float}
_names: dict[Any, str] = {}  # of dtypes, and of NumPy's scalar types


def words(args: tuple[Any, ...]) -> str | None:
    """Return the signature of a call; None if an argument has no word."""
    found = [word(a) for a in args]
    return None if None in found else ",".join(found)  # type: ignore[arg-type]


def word(x: Any) -> str | None:
    """Return the word for an argument; None if there is none."""
    if type(x) is np.ndarray:
        flags = x.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        name = _names.get(x.dtype) or _name(x.dtype)
        mode = ("" if flags.writeable else "r") + ("" if flags.aligned else "u")
        return name and f"{name}:{x.ndim}{layout}{mode}"
    known = _SCALARS.get(type(x))
    if known:
        return known
    if type(x) is tuple:
        return f"i8x{len(x)}" if x and all(isinstance(v, (int, np.integer)) for v in x) else None
    if isinstance(x, np.generic):
        name = _name(x.dtype)
        return name and name + "s"
    return None


def plain(args: tuple[Any, ...], words_: list[str]) -> list[Any]:
    """Return arguments as the entry of a kernel compiled for ``words_`` knows them by address.

    A dtype may have several objects, and an array or number of Python a subclass.
    """
    found: list[Any] = []
    for x, kind in zip(args, words_, strict=True):
        if "x" in kind:
            found.append(tuple(int(v) for v in x))
        elif ":" in kind:
            array = np.asarray(x)
            dtype = dtype_of(kind)
            found.append(array.view(dtype) if array.dtype == dtype else array)
        elif kind.endswith("s"):
            found.append(dtype_of(kind).type(x))
        else:
            make = _NUMBERS.get(kind)
            found.append(x if make is None or type(x) is make else make(x))
    return found


def packed(args: list[Any], words_: list[str]) -> tuple[list[int], list[tuple[int, Any]]]:
    """Return arguments as words of memory, and where arrays' addresses go.

    An array is its address, its shape and its strides; a tuple its numbers; a number two words,
    with its bytes in front; None nothing.

    Args:
        args: As :func:`plain` returns them.
        words_: Their words.

    Returns:
        The words, with zeros for addresses; (index of a word, array) for each array.
    """
    found: list[int] = []
    arrays: list[tuple[int, Any]] = []
    for x, kind in zip(args, words_, strict=True):
        if ":" in kind:
            arrays.append((len(found), x))
            found += [0, *x.shape, *x.strides]
        elif "x" in kind:
            found += x
        elif kind == "b1":
            found.append(int(x))
        elif kind != "-":
            data = np.array(x, dtype_of(kind)).tobytes().ljust(16, b"\0")
            found += np.frombuffer(data, np.int64).tolist()
    return found, arrays


def dtype_of(kind: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a word."""
    return np.dtype(kind.partition(":")[0].rstrip("s"))


def _name(dtype: Any) -> str | None:
    if dtype.isnative and dtype.kind in "biufc" and not dtype.hasobject:
        return _names.setdefault(dtype, f"{dtype.kind}{dtype.itemsize}")
    return None
