"""Selection of compiled CPU kernels for indexing, gather and scatter.

All of them walk over an index space and read or write an array at a place that an index names
(``kernels/cpu/indexing.py``). Each function here says no, with False, to arrays that the compiled
kernels do not take; the caller then does it plainly. No temporary is made, and an index or a value
that is expanded is not copied.
"""

from __future__ import annotations

import numpy as np

from ...kernels.common.strided import bits, line, run, walk
from ...kernels.runtime import thresholds

SUMMED = frozenset(("float32", "float64", "int32", "int64"))
_HOW = {"multiply": 0, "maximum": 1, "minimum": 2}


def enough(elements, dtype) -> bool:
    """True if moving so many elements is worth a compiled kernel."""
    return elements >= thresholds.COMPILED_MOVE and dtype.itemsize <= 8


def enough_to_add(elements, dtype) -> bool:
    """True if adding so many elements up is worth a compiled kernel."""
    return elements >= thresholds.COMPILED_MOVE and dtype.name in SUMMED


def read_along(out, x, index, dim) -> bool:
    """``out[i, j] = x[index[i, j], j]`` for dim 0, and so on."""
    space, place = _along(x, index, dim)
    return _move("put", out, x, index, out.shape, None, space, 0, place)


def write_along(how, out, x, index, dim) -> bool:
    """Write ``x`` to, or combine it with, the elements that :func:`read_along` reads.

    Args:
        how: "put", "add", "multiply", "maximum" or "minimum".
        out: Written.
        x: An array no smaller than the index, or a number.
        index: In range.
        dim: Along which.
    """
    space, place = _along(out, index, dim)
    x = _array(x, out)
    reached = tuple([slice(0, n) for n in index.shape])
    x = x[reached] if x.ndim else np.broadcast_to(x, index.shape)
    return _move(how, out, x, index, index.shape, space, None, 0, place)


def _along(array, index, dim):
    # The array's steps through the index space, and (sizes, steps, the index's steps).
    steps = list(array.strides)
    steps[dim] = 0
    return steps, ([array.shape[dim]], [array.strides[dim]], index.strides)


def read_places(out, x, index, dims, at) -> bool:
    """``out`` is ``x`` at the rows of indices for ``dims``, as in ``index_put.py``."""
    space, place = _walk_strides(x, index, dims, at)
    return _move("put", out, x, index, out.shape, None, space, index.strides[0], place)


def write_places(how, out, x, index, shape, dims, at) -> bool:
    """Write ``x``, broadcast to ``shape``, to the rows of indices, or combine it with them."""
    space, place = _walk_strides(out, index, dims, at)
    x = np.broadcast_to(_array(x, out), shape)
    return _move(how, out, x, index, shape, space, None, index.strides[0], place)


def _walk_strides(array, index, dims, at):
    rest = [s for k, s in enumerate(array.strides) if k not in dims]
    among = index.ndim - 1
    space = [*rest[:at], *[0] * among, *rest[at:]]
    by = [*[0] * at, *index.strides[1:], *[0] * (len(rest) - at)]
    return space, ([array.shape[d] for d in dims], [array.strides[d] for d in dims], by)


def _array(x, out):
    return x if isinstance(x, np.ndarray) else np.full((), x, out.dtype)


def _move(how, out, x, index, shape, out_space, x_space, row, place) -> bool:
    # One of the two spaces is None: that array is walked as it is, the other is shifted.
    if 0 in shape:
        return True
    written = out_space is not None
    if x.dtype != out.dtype or (written and np.may_share_memory(x, out)):
        return False
    lines = [line(a) for a in (out, x, index)]
    if None in lines:
        return False
    memory = [m for m, _ in lines]
    sizes, steps, by = place
    size = out.itemsize
    space = [s // size for s in (out_space if written else x_space)]
    own = [s if n > 1 else 0 for n, s in zip(shape, lines[1 if written else 0][1], strict=True)]
    by = [s // 8 if n > 1 else 0 for n, s in zip(shape, by, strict=True)]
    found = walk(shape, *((space, own) if written else (own, space)), by)
    if found is None:
        return False
    shape, walked = found
    shift = [s // size for s in steps]
    from ...kernels.cpu import indexing

    work = 1 if walked[2][-1] == 0 else 4  # whole lines, or elements here and there
    if how == "put":
        memory[:2] = [bits(memory[0]), bits(memory[1])]
        numbers = [row // 8, _numbers(sizes), *[_numbers([0] * len(shift))] * 2]
        numbers[2 if written else 3] = _numbers(shift)
        run(indexing.move, shape, 0, work, memory, walked, *numbers)
    elif how == "add":
        run(
            indexing.add, shape, 0, work, memory, walked, row // 8, _numbers(sizes), _numbers(shift)
        )
    else:
        run(indexing.combine, shape, 0, work, memory, walked, sizes[0], shift[0], _HOW[how])
    return True


def choose(out, mask, x, y) -> bool:
    """Select ``x`` where ``mask``, else ``y``: arrays that broadcast, or numbers."""
    if any(isinstance(a, np.ndarray) and a.dtype != out.dtype for a in (x, y)):
        return False
    arrays = [np.broadcast_to(a, out.shape) for a in (mask, _array(x, out), _array(y, out))]
    lines = [line(a) for a in (out, *arrays)]
    if None in lines:
        return False
    steps = [[s if n > 1 else 0 for n, s in zip(out.shape, own, strict=True)] for _, own in lines]
    found = walk(out.shape, *steps)
    if found is None:
        return False
    from ...kernels.cpu import indexing

    run(indexing.choose, found[0], 0, 1, [bits(memory) for memory, _ in lines], found[1], y is out)
    return True


def _numbers(values):
    return np.array(values, np.int64)
