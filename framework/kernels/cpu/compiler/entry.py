"""Entries of compiled kernels: functions of a shared library, made callable from Python.

A library has up to five names:

- the entry, which takes Python's objects
- an entry that shares the call out among threads, if the kernel returns nothing
- a function of arguments packed into words of memory, if it returns nothing or a bool
- a table, into which the addresses of types are written that entries compare with
- the kernel as a C function of words, if all its arguments are such
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np

from .fingerprint import of_source
from .signature import dtype_of

SOURCE = of_source(__file__)  # as it is imported

ENTRY, WORDS, TABLE = "lowtide_entry", "lowtide_words", "lowtide_table"
SHARED, PACKED = "lowtide_shared", "lowtide_packed"
FAILED, RETURNED_TRUE = 1, 2  # what the function of packed arguments may return instead of 0
TYPE, DATA, NDIM, SHAPE, STRIDES, DTYPE, FLAGS = 8, 16, 24, 32, 40, 56, 64  # bytes in an array
VALUE = 16  # in a number of NumPy, or a float
COUNT, ITEMS = 16, 24  # in a tuple
FIXED = 2  # words of the table before those of arguments: NotImplemented and True
_FASTCALL = 0x80
_kept: list[Any] = []  # what entries need as long as the process lives


class _Definition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def layout_known() -> bool:
    """Whether arrays and numbers lie in memory as an entry reads them."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    x = np.zeros((2, 3), np.float32)[:, 1:]
    at = id(x)

    def read(offset: int, kind: Any = ctypes.c_int64) -> int:
        return int(kind.from_address(at + offset).value)

    shape = (ctypes.c_int64 * 2).from_address(read(SHAPE))
    strides = (ctypes.c_int64 * 2).from_address(read(STRIDES))
    number, scalar, pair = 0.75, np.float32(0.75), (shape, x)
    items = (ctypes.c_int64 * 3).from_address(id(pair) + COUNT)
    value = ctypes.c_double.from_address(id(number) + VALUE).value
    of_numpy = ctypes.c_float.from_address(id(scalar) + VALUE).value
    return (
        read(TYPE) == id(np.ndarray)
        and read(DATA) == x.ctypes.data
        and read(NDIM, ctypes.c_int32) == 2
        and (tuple(shape), tuple(strides)) == (x.shape, x.strides)
        and read(DTYPE) == id(x.dtype)
        and read(FLAGS, ctypes.c_int32) == x.flags.num
        and (value, of_numpy) == (0.75, 0.75)
        and tuple(items) == (2, id(pair[0]), id(x))
    )


def table(words: list[str]) -> list[int]:
    """Return the words of the table that an entry compares with, for this process."""
    known = {"i8": int, "u8": int, "f8": float, "b1": bool, "-": type(None)}
    found = [id(NotImplemented), id(True)]
    for word in words:
        if ":" in word:
            found += [id(np.ndarray), id(dtype_of(word))]
        elif "x" in word:
            found += [id(tuple), id(int)]
        else:
            found += [id(known.get(word) or dtype_of(word).type), 0]
    return found


class Loaded(NamedTuple):
    """What a library has.

    Attributes:
        entry: Takes Python's objects.
        shared: Shares a call out among threads; None if there is no such entry.
        address: Of the kernel as a C function of words; 0 if there is none.
        packed: Address of the function that takes packed arguments; 0 if there is none.
    """

    entry: Any
    shared: Any
    address: int
    packed: int


def load(path: str, name: str, words: list[str]) -> Loaded:
    """Return what a library has.

    Args:
        path: The library's file.
        name: What the entry is called in messages.
        words: What its kernel was compiled for.

    Raises:
        OSError: The file is no library of this machine, misses a function of another, or has no
            entry.
    """
    library = ctypes.CDLL(path)
    values = table(words)
    try:
        known: Any = (ctypes.c_int64 * len(values)).in_dll(library, TABLE)
    except ValueError as error:
        raise OSError(f"{path} has no {TABLE}") from error
    known[:] = values
    address = _address(library, ENTRY)
    if address is None:
        raise OSError(f"{path} has no function {ENTRY}")
    function = _callable(library, address, name)
    shared = _address(library, SHARED)
    shared = shared and _callable(library, shared, name)
    others = [_address(library, symbol) or 0 for symbol in (WORDS, PACKED)]
    return Loaded(function, shared, *others)


def _address(library: Any, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def _callable(library: Any, address: Any, name: str) -> Any:
    definition = _Definition(name.encode(), address, _FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    _kept.append((library, definition))
    return make(ctypes.byref(definition), None, None)
