"""A small kernel call as the loops of NumPy's that it consists of.

The kernel runs once on traced arrays, which gives its loops. Then it runs on arrays of drawn
numbers, and its loops run on the same numbers: only if all bytes agree, for each of several draws,
the loops may stand for the kernel. Kernel calls of one kind share what was found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..program import DrawNumber, EmptyArray, Place, Row
from ..value_reads import is_read
from .numpy_loops import MOST, Rest, loops_of
from .tape import KernelLoops, Site, Tape, TapedRow
from .traced_array import KernelCall, NotTraced, in_place_of

_ALIGNMENT = 64  # as the pool's
_OURS = ("lowtide.framework.", "lowtide.modules.", "lowtide.optim.")
_MARGIN = 1 << 12  # bytes around the memory of a value
_ROOM = 1 << 20  # bytes that a kernel call's values may take, gaps included, to be traced
_DRAWS = 12  # of which all but three are of normal numbers, where an order of rounding shows
_DRAWN = 1 << 15  # numbers of each kind, from which operands take theirs: 768 KiB in all


class KernelTracer:
    """Finds the loops of kernel calls; those of one kind once.

    Attributes:
        found: What stands for the calls of each kind; None for kinds that stay as they are.
    """

    def __init__(self) -> None:
        self.found: dict[Any, KernelLoops | None] = {}

    def taped(self, row: Row) -> TapedRow | None:
        """Return what stands for a kernel call.

        Returns:
            None if the call stays as it is: it is large, it does what is not traced, or its kernel
            is not lowtide's, and so may do more than compute.
        """
        if is_read(row) or not _is_ours(row.function):
            return None
        values: list[int] = []
        try:
            key = (_key_of(row.function), *(_key(a, values) for a in row.arguments))
        except NotTraced:
            return None
        if key not in self.found:
            try:
                self.found[key] = _checked(row, values)
            except NotTraced:
                self.found[key] = None
        found = self.found[key]
        return None if found is None else TapedRow(found, values)

    def tape(self, rows: list[TapedRow]) -> Tape:
        """Return kernel calls that follow each other as one tape."""
        return Tape(rows)


def _is_ours(function: Any) -> bool:
    # Under partials, and under wrappers of ours around a kernel that may be a user's.
    while (inner := getattr(function, "__wrapped__", getattr(function, "func", None))) is not None:
        function = inner
    return str(getattr(function, "__module__", "")).startswith(_OURS)


def _key_of(function: Any) -> Any:
    # A partial has no equality of its own. What it holds is hashed by identity, if at all.
    if not isinstance(function, partial):
        return id(function)
    named = tuple((k, _key(v, [])) for k, v in function.keywords.items())
    return (id(function.func), *(_key(a, []) for a in function.args), *named)


def _key(a: Any, values: list[int]) -> Any:
    # Equal for arguments with which a kernel does the same. `values` collects those of places.
    if isinstance(a, Place):
        if not 0 < prod(a.shape) <= MOST:
            raise NotTraced("an array of no elements, or of many")
        if any(n % a.dtype.alignment for n in (a.offset, *a.strides)):
            raise NotTraced("an array that is not aligned")
        if a.value not in values:
            values.append(a.value)
        return values.index(a.value), a.offset, a.shape, a.dtype.str, a.strides
    if isinstance(a, DrawNumber):
        raise NotTraced("an argument that changes")
    if isinstance(a, EmptyArray):
        return EmptyArray, a.shape, a.dtype.str
    if isinstance(a, (list, tuple)):
        return (type(a), *(_key(x, values) for x in a))
    if isinstance(a, (bool, int, float, complex, str, type(None))):
        return type(a), repr(a)
    return id(a)


def _places(arguments: list[Any]) -> Iterator[Place]:
    for a in arguments:
        if isinstance(a, Place):
            yield a
        elif isinstance(a, list):
            yield from _places(a)


class _Memory:
    # Memory of its own for the values of a kernel call, and arrays over it.

    def __init__(self, row: Row, values: list[int]) -> None:
        self.row, self.values = row, values
        # The first byte of each value, and the one behind the last: a tensor from outside may lie
        # before the one whose address is the value's.
        first, last = [0] * len(values), [0] * len(values)
        for p in _places(row.arguments):
            if any(s < 0 for s in p.strides):
                raise NotTraced("negative strides")
            reach = sum((n - 1) * s for n, s in zip(p.shape, p.strides, strict=True))
            k = values.index(p.value)
            first[k] = min(first[k], p.offset // _ALIGNMENT * _ALIGNMENT)
            last[k] = max(last[k], p.offset + reach + p.dtype.itemsize)
        if sum(last) - sum(first) > _ROOM:
            raise NotTraced("arrays with wide gaps")
        self.first = first
        self.sizes = [b - a for a, b in zip(first, last, strict=True)]
        # With room around: a compiled kernel does not look whether an index is inside.
        self._rooms = [_aligned(n + 2 * _MARGIN) for n in self.sizes]
        self.arrays = [r[_MARGIN : r.size - _MARGIN] for r in self._rooms]
        self.indices = 1  # the largest number in arrays of integers
        starts = [int(a.__array_interface__["data"][0]) for a in self.arrays]
        self.at = [at - a for at, a in zip(starts, first, strict=True)]  # addresses of the values

    def fill(self, draw: int) -> None:
        for a in self.arrays:
            a[:] = 0
        for k, p in enumerate(_places(self.row.arguments)):
            array = self.array(p)
            if p.dtype.kind in "fc":
                array[...] = _numbers(draw, k, p.shape)
            elif p.dtype.kind == "b":
                array[...] = np.random.default_rng((draw, k)).random(p.shape) < 0.5
            elif p.dtype.kind in "iu":
                largest = self.indices + 1
                array[...] = np.random.default_rng((draw, k)).integers(0, largest, p.shape)
            else:
                raise NotTraced(f"arrays of {p.dtype}")

    def fill_as(self, other: _Memory) -> None:
        # Of the same row.
        for a, b in zip(self.arrays, other.arrays, strict=True):
            a[:] = b

    def array(self, p: Place) -> np.ndarray:
        k = self.values.index(p.value)
        return np.ndarray(p.shape, p.dtype, self.arrays[k], p.offset - self.first[k], p.strides)

    def arguments(self, given: list[Any], make: Any) -> list[Any]:
        found: list[Any] = []
        for a in given:
            if isinstance(a, list):
                found.append(self.arguments(a, make))
            elif isinstance(a, EmptyArray):
                found.append(make(np.empty(a.shape, a.dtype)))
            else:
                found.append(make(self.array(a)) if isinstance(a, Place) else a)
        return found

    def need_inside(self) -> None:
        # Nothing may have been written around the values.
        for room in self._rooms:
            if room[:_MARGIN].any() or room[room.size - _MARGIN :].any():
                raise NotTraced("a kernel that writes elsewhere for drawn numbers")

    def place_of(self, address: int) -> tuple[int, int] | None:
        for k, (at, size) in enumerate(zip(self.at, self.sizes, strict=True)):
            if 0 <= address - at - self.first[k] < size:
                return k, address - at
        return None


def _numbers(draw: int, k: int, shape: Any) -> Any:
    # Of operand k. Draws 1 to 3 have numbers of kinds of their own.
    if draw == 3:
        return np.full(shape, -0.0)
    drawn = _drawn(draw if draw in (1, 2) else 0)
    count = prod(shape)
    if count > _DRAWN // 2:
        return np.resize(drawn, shape)
    start = (1009 * draw + 4801 * k) % (_DRAWN // 2)
    return drawn[start : start + count].reshape(shape)


@functools.cache
def _drawn(kind: int) -> np.ndarray:
    random = np.random.default_rng(kind)
    if kind == 2:  # many that are equal, and sums that are zero
        return random.choice([-0.0, 0.0, 1.0, -1.0], _DRAWN)
    numbers = random.standard_normal(_DRAWN)
    if kind == 1:  # as large as they get, and none
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1e30, -1e30]
        return np.where(random.random(_DRAWN) < 0.5, random.choice(special, _DRAWN), numbers)
    return numbers


def _aligned(count: int) -> np.ndarray:
    room = np.zeros(count + _ALIGNMENT, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % _ALIGNMENT
    return room[start : start + count]


def _checked(row: Row, values: list[int]) -> KernelLoops:
    traced, memory, other = (_Memory(row, values) for _ in range(3))
    traced.indices = 0  # compiled kernels take them as they are
    with np.errstate(all="ignore"):
        found, kernels = _traced(row, traced)
        run = _runner(found, other)
        if kernels:
            memory.indices = other.indices = 0
        for draw in range(_DRAWS):
            memory.fill(draw)
            other.fill_as(memory)
            try:
                row.function(*memory.arguments(row.arguments, lambda x: x))
            except Exception as error:
                raise NotTraced("a kernel that refuses drawn numbers") from error
            run()
            memory.need_inside()
            other.need_inside()
            for a, b in zip(memory.arrays, other.arrays, strict=True):
                if a.tobytes() != b.tobytes():
                    raise NotTraced("the loops compute something else")
    return found


def _traced(row: Row, memory: _Memory) -> tuple[KernelLoops, bool]:
    # What stands for it, and whether compiled kernels are among that.
    memory.fill(0)
    calls: list[Any] = []
    arguments = memory.arguments(row.arguments, partial(in_place_of, calls))
    try:
        row.function(*arguments)
    except NotTraced:
        raise
    except Exception as error:
        raise NotTraced("a kernel that needs more than a traced array has") from error
    memory.need_inside()
    words: list[int] = []
    sites: list[Site] = []
    numbers = b""
    for loop in [loop for call in calls for loop in loops_of(call)]:
        if loop.own and any(memory.place_of(w) is not None for w in loop.words):
            raise NotTraced("an address among the arguments of a kernel")
        for k, x in loop.operands:
            word = len(words) + k
            place = None if isinstance(x, bytes) else _place(x, memory)
            if place is not None:
                sites.append(Site(word, *place))
                continue
            if loop.own and not isinstance(x, bytes) and x.size == 0:
                continue  # a kernel takes an empty array for None
            if loop.own:
                raise NotTraced("memory of the kernel's own")
            number = x if isinstance(x, bytes) else _number(x)
            sites.append(Site(word, -1, len(numbers)))
            numbers += number.ljust(16, b"\0")
        words += loop.words
    kernels = [c for c in calls if isinstance(c, KernelCall)]
    asks = any(c.asks for c in kernels)
    return KernelLoops(words, sites, numbers, asks), bool(kernels)


def _place(x: Any, memory: _Memory) -> tuple[int, int] | None:
    array, more = (x.array, x.offset) if isinstance(x, Rest) else (x, 0)
    found = memory.place_of(int(array.__array_interface__["data"][0]))
    return None if found is None else (found[0], found[1] + more)


def _number(x: Any) -> bytes:
    # The bytes of an array that a kernel has made of one number.
    if isinstance(x, Rest) or x.size != 1:
        raise NotTraced("memory of the kernel's own")
    return bytes(x.tobytes())


def _runner(loops: KernelLoops, memory: _Memory) -> Callable[[], None]:
    tape = Tape([TapedRow(loops, [*range(len(memory.at))])])
    for value, sites in tape.sites.items():
        sites.bind(memory.at[value])
    return tape.run
