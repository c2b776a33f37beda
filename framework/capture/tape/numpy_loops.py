"""A call of a ufunc, a copy, a reduction or a kernel, as the loops in C that are called for it.

NumPy brings the dims of the operands into an order, joins those that lie one behind the other, and
calls the loop along the innermost one, for each place of the others. The same is done here, so that
each element is computed by the same instructions, in the same order.

Source:
    ``npyiter_find_best_axis_ordering`` and ``npyiter_coalesce_axes`` of NumPy's ``nditer_constr.c``
    and ``nditer_api.c``; ``reduce_loop`` of ``reduction.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...kernels.common.matmul import divides
from ...kernels.cpu.compiler.kernel import Packed
from ...kernels.cpu.compiler.signature import packed
from ...kernels.cpu.elementwise.ufunc_loops import address, loop_of
from ...kernels.cpu.loop_tape import (
    HEAD,
    instruction,
    kernel_call,
    masked_copy,
    product,
    product_loop,
)
from .traced_array import Copy, KernelCall, NotTraced, Reduction, UfuncCall

MOST = 1 << 14  # elements of a call; NumPy and our own threads cut larger ones
_BUFFER = 1 << 13  # elements up to which NumPy does not cut a reduction
_OUTER = 3
_WORDS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


class Loop(NamedTuple):
    """An instruction of a tape.

    Attributes:
        words: As ``kernels/cpu/loop_tape.py`` describes them, without addresses.
        operands: (index of a word, whose address it is): an array, or the bytes of one number.
        own: Whether all arrays must be the kernel call's.
    """

    words: list[int]
    operands: list[tuple[int, Any]]
    own: bool = False


class Walk(NamedTuple):
    """How operands are gone through.

    Attributes:
        sizes: Of the dims, from the outermost.
        strides: For each operand, those in bytes.
    """

    sizes: list[int]
    strides: list[list[int]]


def loops_of(call: Any) -> list[Loop]:
    """Return the loops that NumPy calls for one noted call.

    Raises:
        NotTraced: It converts, copies what overlaps, is large, or has no loop that is known.
    """
    if isinstance(call, Reduction):
        return _reduction(call)
    if isinstance(call, KernelCall):
        return [_kernel_call(call.call)]
    if isinstance(call, Copy):
        if call.mask is not None:
            return [_masked_copy(call)]
        return _copy(call.source, call.out)
    if call.ufunc is np.matmul:
        a, b = call.inputs
        return _product(a, b, call.out)
    return _elementwise(call)


def walked(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Walk:
    """Return the dims of operands in NumPy's order, joined where possible; at least one.

    Args:
        shape: Of all operands.
        strides: For each operand, in bytes.
    """
    dims = [d for d, n in enumerate(shape) if n > 1]
    order: list[int] = []  # from the innermost
    for d in reversed(dims):
        place = len(order)
        for k in range(len(order) - 1, -1, -1):
            before = _lies_inside(strides, d, order[k])
            if before is False:
                break
            if before:
                place = k
        order.insert(place, d)
    joined: list[list[int]] = []  # [size, stride of each operand], from the innermost
    for d in order:
        steps = [s[d] for s in strides]
        if joined and all(
            s == joined[-1][0] * t for s, t in zip(steps, joined[-1][1:], strict=True)
        ):
            joined[-1][0] *= shape[d]
        else:
            joined.append([shape[d], *steps])
    joined = joined[::-1] or [[1, *[0] * len(strides)]]
    return Walk([j[0] for j in joined], [[j[k + 1] for j in joined] for k in range(len(strides))])


def _lies_inside(strides: Sequence[Sequence[int]], outer: int, inner: int) -> bool | None:
    # Whether a dim has smaller strides than one that comes later; None if nothing tells.
    found = None
    for s in strides:
        if s[outer] and s[inner]:
            if abs(s[inner]) <= abs(s[outer]):
                found = False
            elif found is None:
                found = True
    return found


def _elementwise(call: UfuncCall) -> list[Loop]:
    out = call.out
    traced = [x for x in call.inputs if isinstance(x, np.ndarray)]
    if not traced:
        raise NotTraced(f"{call.ufunc.__name__} of numbers")
    dtype = next((x.dtype for x in traced if x.ndim), traced[0].dtype)
    operands = [*(_operand(x, dtype, out) for x in call.inputs), out]
    loop = _known(call.ufunc, dtype, len(call.inputs), out.dtype)
    return [_nested(loop, operands, _walk(operands, out.shape))]


def _known(ufunc: Any, dtype: Any, count: int, out: Any) -> tuple[int, int]:
    if dtype.kind not in "biufc" or out.kind not in "biufc":
        raise NotTraced(f"{ufunc.__name__} of {dtype}")
    loop = loop_of(ufunc, dtype, count, out)
    if loop is None:
        raise NotTraced(f"{ufunc.__name__} of {dtype} to {out}")
    return loop


def _operand(x: Any, dtype: Any, out: Any) -> Any:
    # An array, or the bytes of a number.
    if type(x) in (float, int, bool):
        kind = {float: "fc", int: "iufc", bool: "biufc"}[type(x)]
        if dtype.kind not in kind:
            raise NotTraced("a number of another kind")
        with np.errstate(all="raise"):
            try:
                return np.array(x, dtype).tobytes()
            except (OverflowError, FloatingPointError) as error:
                raise NotTraced("a number that does not fit") from error
    if not isinstance(x, (np.ndarray, np.generic)) or x.dtype != dtype:
        raise NotTraced("an operand of another dtype")
    if isinstance(x, np.generic):
        return x.tobytes()
    _need_apart(x, out)
    return x


def _need_apart(x: Any, out: Any) -> None:
    # NumPy copies an operand that shares memory with the result, but for the same elements.
    same = address(x) == address(out) and x.strides == out.strides and x.shape == out.shape
    if not same and np.may_share_memory(x, out):
        raise NotTraced("operands that overlap")


def _strides(x: Any, shape: Sequence[int]) -> list[int]:
    # Those of an operand that is broadcast to a shape; 0 where it is repeated.
    if isinstance(x, bytes):
        return [0] * len(shape)
    more = len(shape) - x.ndim
    if more < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[more:], strict=True)):
        raise NotTraced("operands that do not broadcast to the result")
    found = [0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]
    if any(s < 0 for s in found):
        raise NotTraced("negative strides")
    return [0] * more + found


def _walk(operands: Sequence[Any], shape: Sequence[int]) -> Walk:
    if not 0 < prod(shape) <= MOST:
        raise NotTraced("a call of no elements, or of many")
    walk = walked(shape, [_strides(x, shape) for x in operands])
    if len(walk.sizes) > _OUTER + 1:
        raise NotTraced("many dims")
    return walk


def _nested(loop: tuple[int, int], operands: Sequence[Any], walk: Walk) -> Loop:
    inner = [s[-1] for s in walk.strides]
    moves = list(zip(*(s[:-1] for s in walk.strides), strict=True))
    words = instruction(loop, len(operands), walk.sizes[-1:], inner, walk.sizes[:-1], moves)
    return Loop(words, _from(HEAD, operands))


def _from(first: int, operands: Sequence[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(operands, first))


def _copy(source: Any, out: Any) -> list[Loop]:
    source = _operand(source, out.dtype, out)
    # `positive` returns what it is given; of bools, `x or x` does.
    ufunc, count = (np.logical_or, 2) if out.dtype.kind == "b" else (np.positive, 1)
    loop = _known(ufunc, out.dtype, count, out.dtype)
    operands = [*[source] * count, out]
    return [_nested(loop, operands, _walk(operands, out.shape))]


def _masked_copy(call: Copy) -> Loop:
    out, mask = call.out, call.mask
    source = _operand(call.source, out.dtype, out)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or out.itemsize not in _WORDS:
        raise NotTraced("a masked copy of other dtypes")
    if np.may_share_memory(mask, out):
        raise NotTraced("operands that overlap")
    walk = _walk([out, source, mask], out.shape)
    shape = (*[1] * (_OUTER + 1 - len(walk.sizes)), *walk.sizes)
    strides = [(*[0] * (len(shape) - len(s)), *s) for s in walk.strides]
    word = _WORDS[out.itemsize]
    dtypes = word, word, np.dtype(np.bool_)
    # Arrays of these strides, which are not read: they say what the kernel is compiled for.
    memory = [np.zeros(_reach(shape, s, d.itemsize), np.uint8) for s, d in zip(strides, dtypes)]  # noqa: B905
    arrays = [np.ndarray(shape, d, m, 0, s) for d, m, s in zip(dtypes, memory, strides)]  # noqa: B905
    kernel: Any = masked_copy
    found = kernel.packed(tuple(arrays))
    if found is None:
        raise NotTraced("a masked copy")
    loop = _kernel_call(found)
    whole = [out, source, mask]
    return Loop(loop.words, [(k, x) for (k, _), x in zip(loop.operands, whole, strict=True)])


def _reach(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    return itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _kernel_call(call: Packed) -> Loop:
    words, arrays = packed(call.arguments, call.words)
    return Loop(kernel_call(call.address, words), [(HEAD + k, x) for k, x in arrays], own=True)


def _reduction(call: Reduction) -> list[Loop]:
    x, out, axes = call.array, call.out, call.axes
    dtype = out.dtype
    if not isinstance(x, np.ndarray) or x.dtype != dtype or x.ndim != out.ndim:
        raise NotTraced("a reduction that converts")
    if not 0 < x.size <= _BUFFER:
        raise NotTraced("a reduction of no elements, or of many")
    if np.may_share_memory(x, out):
        raise NotTraced("operands that overlap")
    loop = _known(call.ufunc, dtype, 2, dtype)
    totals = _strides(out, x.shape)
    walk = walked(x.shape, [totals, _strides(x, x.shape)])
    if len(walk.sizes) > _OUTER + 1:
        raise NotTraced("many dims")
    reduced = [k for k, s in enumerate(walk.strides[0]) if s == 0 and walk.sizes[k] > 1]
    if len(reduced) > 1:  # NumPy may gather elements of several dims before it adds them
        raise NotTraced("a reduction of dims that do not lie one behind the other")
    if call.ufunc.identity is not None:
        return [*_copy(call.ufunc.identity, out), _nested(loop, (out, x, out), _thrice(walk))]
    # The first element of each sum is copied, and the others are joined to it.
    first = x[tuple(slice(0, 1) if d in axes else slice(None) for d in range(x.ndim))]
    begin = _copy(first, out)
    if not reduced:
        return begin
    k = reduced[0]
    sizes = [n - (d == k) for d, n in enumerate(walk.sizes)]
    rest = Rest(x, walk.strides[1][k])
    return [*begin, _nested(loop, (out, rest, out), _thrice(Walk(sizes, walk.strides)))]


class Rest(NamedTuple):
    """An array behind some of its bytes.

    Attributes:
        array: The array.
        offset: The bytes.
    """

    array: Any
    offset: int


def _thrice(walk: Walk) -> Walk:
    # Result, operand, result.
    return Walk(walk.sizes, [walk.strides[0], walk.strides[1], walk.strides[0]])


def _product(a: Any, b: Any, out: Any) -> list[Loop]:
    for x in (a, b):
        if not isinstance(x, np.ndarray) or x.ndim < 2 or x.dtype != out.dtype:
            raise NotTraced("a product of vectors, or one that converts")
        if np.may_share_memory(x, out):
            raise NotTraced("operands that overlap")
    if out.size == 0 or a.shape[-1] == 0 or out.size > MOST or divides(out.shape, a.shape[-1]):
        raise NotTraced("a product of no elements, or of many")
    loop = product_loop(out.dtype) if out.dtype.kind in "fc" else None
    if loop is None:
        raise NotTraced(f"a product of {out.dtype}")
    stack = out.shape[:-2]
    moved = [_stacked(x, stack) for x in (a, b, out)]
    dims = [d for d, n in enumerate(stack) if n > 1]
    if len(dims) > _OUTER:
        raise NotTraced("many dims")
    sizes, moves = [stack[d] for d in dims], [[m[d] for m in moved] for d in dims]
    strides = [x.strides[-2:] for x in (a, b, out)]
    words = product(loop, a.shape[-2:], b.shape[-2:], strides, sizes, moves)
    return [Loop(words, _from(HEAD, (a, b, out)))]


def _stacked(x: Any, stack: Sequence[int]) -> list[int]:
    more = len(stack) - (x.ndim - 2)
    if more < 0:
        raise NotTraced("a product that does not broadcast")
    return [0] * more + [0 if n == 1 else s for n, s in zip(x.shape[:-2], x.strides, strict=False)]
