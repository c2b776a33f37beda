"""Copies between arrays of the CPU: NumPy's ``copyto``, and a compiled one where that is slow.

NumPy copies in the order of one of the arrays. Where neighbors in the result are far apart in the
source it meets each cache line many times over, and a source that repeats one element is converted
element by element. Its float16 and bfloat16 are converted one at a time. ``cpu/moves.py`` says what
is done instead.

Two arrays of the same shape are first brought to as few dims as possible, the result's largest
stride first: dims that lie within each other in both are one.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

WORTH = 1 << 14  # elements from which a compiled conversion repays its import; twice as many a copy
_SHORT = 1 << 10  # elements below which three dims are not worth a call
_SIDE = 16  # of the squares that are transposed at a time

_float32, _float16 = np.dtype(np.float32), np.dtype(np.float16)
_bfloat16 = np.dtype(ml_dtypes.bfloat16)
_WORDS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
_CONVERSIONS = {  # (to, from): the types that stand for them
    (_float32, _float16): (_float32, _WORDS[2]),
    (_float16, _float32): (_WORDS[2], _float32),
    (_float32, _bfloat16): (_float32, np.dtype(np.int16)),
    (_bfloat16, _float32): (np.dtype(np.int16), _float32),
}


def copy(out: Any, array: Any) -> None:
    """Fill ``out`` with ``array``, broadcast and converted: what does not fit is not reported."""
    if out.size < WORTH or not _copied(out, array):
        np.copyto(out, array, casting="unsafe")


def line_copier(to: Any, source: Any) -> Any:
    """What copies between arrays of these dtypes that are alike, contiguous and aligned."""
    if not _converts(to, source):
        return copy
    from .cpu.moves import mover

    first, second = _CONVERSIONS[to, source]
    move = mover(first, second)

    def run(out: Any, array: Any) -> None:
        move(out.view(first).reshape(1, 1, -1), array.view(second).reshape(1, 1, -1))

    return run


def _converts(to: Any, source: Any) -> bool:
    # Whether there is a compiled conversion.
    if (to, source) not in _CONVERSIONS:
        return False
    if _float16 not in (to, source):
        return True
    from .cpu.moves import float16_in_hardware

    return float16_in_hardware()


def _copied(out: Any, array: Any) -> bool:
    # Whether the compiled copy did it.
    if not isinstance(array, np.ndarray) or not (out.flags.aligned and array.flags.aligned):
        return False
    as_is = out.dtype == array.dtype
    word = _WORDS.get(out.itemsize)
    if as_is and word is not None:
        pair = word, word
    elif not as_is and _converts(out.dtype, array.dtype):
        pair = _CONVERSIONS[out.dtype, array.dtype]
    else:
        return False
    if np.may_share_memory(out, array):  # NumPy sees to what overlaps
        return False
    if out.flags.c_contiguous and array.flags.c_contiguous and out.shape == array.shape:
        if as_is:
            return False
        _move(out.view(pair[0]).reshape(1, 1, -1), array.view(pair[1]).reshape(1, 1, -1))
        return True
    if as_is and out.size < 2 * WORTH:
        return False
    if out.shape != array.shape:
        array = np.broadcast_to(array, out.shape)
    axes, sizes, steps = _merged(out, array)
    if not sizes or (as_is and steps[-1] == array.itemsize):  # rows that lie alike
        return False
    order = _planes(sizes, steps, array.itemsize)
    outer = [sizes[k] for k in order[:-3]]
    if prod(outer) * _SHORT > out.size:
        return False
    if as_is and steps[-1]:  # else only transpositions gain
        if len(order) < 2 or steps[order[-2]] != array.itemsize:
            return False
        if min(sizes[k] for k in order[-2:]) < _SIDE:
            return False
    to, source = (
        a.transpose(axes).reshape(sizes).transpose(order)
        for a in (out.view(pair[0]), array.view(pair[1]))
    )
    while to.ndim < 3:
        to, source = to[None], source[None]
    for at in product(*[range(n) for n in outer]):
        _move(to[at], source[at])
    return True


def _move(out: Any, array: Any) -> None:
    from .cpu.moves import mover
    from .cpu.threads import spread

    move = mover(out.dtype, array.dtype)
    longest = max(range(3), key=out.shape.__getitem__)

    def run(out: Any, array: Any) -> None:
        move(out.swapaxes(0, longest), array.swapaxes(0, longest))

    out, array = out.swapaxes(0, longest), array.swapaxes(0, longest)
    spread(run, out.size, out.shape[0], out, array)


def _merged(out: Any, array: Any) -> tuple[list[int], list[int], list[int]]:
    """The fewest dims that tell where all elements lie.

    Returns:
        The axes in the order in which they become these dims, the sizes of the dims, and the
        steps of ``array`` along them. No sizes where the result's neighbors lie apart.
    """
    axes = [k for k, n in enumerate(out.shape) if n != 1]
    axes.sort(key=lambda k: -out.strides[k])
    sizes: list[int] = []
    steps: list[tuple[int, int]] = []
    for k in axes:
        n, step = out.shape[k], (out.strides[k], array.strides[k])
        if sizes and steps[-1] == (step[0] * n, step[1] * n):
            sizes[-1] *= n
            steps[-1] = step
        else:
            sizes.append(n)
            steps.append(step)
    if not steps or steps[-1][0] != out.itemsize:
        sizes = []
    ones = [k for k, n in enumerate(out.shape) if n == 1]
    return [*ones, *axes], sizes, [step for _, step in steps]


def _planes(sizes: list[int], steps: list[int], itemsize: int) -> list[int]:
    """The dims in the order (those of a loop in Python, planes, rows, columns)."""
    rest = sorted(range(len(sizes) - 1), key=sizes.__getitem__)
    if steps[-1] not in (itemsize, 0) and itemsize in steps:
        rows = steps.index(itemsize)
        rest.remove(rows)
        rest.append(rows)
    return [*rest, len(sizes) - 1]
