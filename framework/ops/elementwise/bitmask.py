"""Bitmasks for piecewise linear functions: one bit per element is saved for backward.

The slope of a piecewise linear function takes two values, so all that its gradient needs is on
which side of its bends an element lies. Keeping the result instead costs nothing where someone else
keeps it anyway (a product or a convolution that follows), and 32 times as much where nothing does
(an addition, dropout, pooling, concatenation). Which one cannot be known at the time of the call;
so here the bits are kept, which are at most 3 % more than the best, and the result may be written
in place.

The bits of a tile of 4096 elements lie together, and those of neighbours in neighbouring bytes, so
that kernels run over both without a shift (``kernels/cpu/elementwise/bitmask.py``). Below
``thresholds.COMPILED_MOVE`` elements, in place, and where nothing is recorded, the plain ops serve,
which take fewer calls and keep their result or input.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from ...dtypes import bool_, uint8
from ...kernels.common.layout import (
    contiguous,
    dense_or_repeated_scalar,
    flatten_repeated_grad,
    worth_compiling,
)
from ...kernels.common.schedule import parallel_range
from ...kernels.cuda import bitmask as on_gpu
from ...kernels.cuda.kernel import is_float
from ...kernels.runtime import thresholds
from ...modes import local
from ...spec import Spec
from ...tensor import Tensor
from ..registry import op
from ..signatures import per_element

INFINITY = float("inf")
TILE = 1 << 12
HIDDEN: dict[str, Any] = {"public": False, "method": False}


def worth_bits(input, exact=True) -> bool:
    """True if the op records a graph node and its input is large enough for a bitmask.

    Args:
        input: Of the call.
        exact: The ends of the segments have to be numbers of the dtype: half precision is left out.
    """
    return (
        isinstance(input, Tensor)
        and input._requires_grad
        and local.state.grad
        and input._spec.numel >= thresholds.COMPILED_MOVE
        and input._spec.dtype.is_floating_point
        and not (exact and input._spec.dtype.is_half)
    )


def bitmask_specs(input) -> tuple[Spec, Spec]:
    """Specs of the bits of a tensor, and of the workspace of :func:`fill_bitmask`."""
    count = -(-input.numel // 8)
    return Spec((count,), uint8), Spec((2, count), bool_)


def _rows(flat, bitmask):
    """Elements and the bytes that have their bits: (k, elements, bytes) of one shape."""
    whole = flat.size // TILE
    tiles, bits = flat[: whole * TILE], bitmask[: whole * TILE // 8]
    rest, others = flat[tiles.size :], bitmask[bits.size :]
    for k in range(8):
        if whole:
            yield k, tiles.reshape(whole, 8, -1)[:, k], bits.reshape(whole, -1)
        row = rest[k * others.size : (k + 1) * others.size]
        if row.size:
            yield k, row, others[: row.size]


def fill_bitmask(xp, bitmask, work, values, low, high, nan_inside=True) -> None:
    """Fill a bitmask: set the bits of values inside (low, high), and of NaN if that is inside."""
    bitmask.fill(0)
    for k, row, here in _rows(values.reshape(-1), bitmask):
        beyond, other = (w[: row.size].reshape(row.shape) for w in work)
        if nan_inside:
            beyond.fill(False)
        else:
            xp.not_equal(row, row, out=beyond)
        for bound, test in ((low, xp.less_equal), (high, xp.greater_equal)):
            if -INFINITY < bound < INFINITY:
                test(row, bound, out=other)
                xp.logical_or(beyond, other, out=beyond)
        xp.logical_not(beyond, out=beyond)
        bit = beyond.view(xp.uint8)
        xp.left_shift(bit, k, out=bit)
        xp.bitwise_or(here, bit, out=here)


def walk_bitmask(xp, bitmask, work, *arrays):
    """Iterate over rows of the tiles: (mask of set bits, those rows of the arrays)."""
    walks = [_rows(a.reshape(-1), bitmask) for a in arrays]
    for rows in zip(*walks, strict=True):
        k, first, bytes_ = rows[0]
        one, on = (w[: first.size].reshape(first.shape) for w in work)
        xp.bitwise_and(bytes_, 1 << k, out=one.view(xp.uint8))
        xp.not_equal(one.view(xp.uint8), 0, out=on)
        yield (on, *(row for _, row, _ in rows))


def with_bitmask(plain, name, ends, loop, for_loop, of_result=True, nan_inside=True):
    """Declare a variant of a unary op that also returns a bitmask: (out, bitmask).

    Args:
        plain: The op.
        name: Of the new op.
        ends: ``ends(dtype, **attributes)`` gives the ends of the segment whose bits are set.
        loop: Name of the compiled loop that does both at once.
        for_loop: ``for_loop(dtype, **attributes)`` gives the numbers that it takes.
        of_result: The ends are those of the result, not of the input.
        nan_inside: The bits of NaN are set.
    """
    declared = plain.op

    def infer(input, **attributes):
        found = declared.infer(input, **attributes)
        out = found if isinstance(found, Spec) else found[0]
        bitmask, work = bitmask_specs(input)
        return out, bitmask, *declared.workspace(found), work

    def kernel(xp, out, bitmask, *arrays, **attributes):
        *scratch, work, input = arrays
        declared.plain(xp, out, *scratch, input, **attributes)
        values, segment = out if of_result else input, ends(out.dtype, **attributes)
        fill_bitmask(xp, bitmask, work, values, *segment, nan_inside)

    names = declared.workspace_names()
    leading = ("xp", "out", "bitmask", *names, "work", "input")
    of_tensors = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in leading]
    keywords = [
        Parameter(n, Parameter.KEYWORD_ONLY, default=d) for n, d in declared.attributes.items()
    ]
    kernel.__signature__ = Signature([*of_tensors, *keywords])
    kernel.__doc__ = f"What ``{declared.name}`` does, and on which side of its bends elements lie."
    kernel.__module__ = declared.plain.__module__
    made = op(
        name=name,
        infer=infer,
        returns=("out", "bitmask"),
        scratch=(*names, "work"),
        layout=contiguous,
        flops=declared.flops,
        samples=declared.samples,
        elementwise="bitmask",
    )(kernel)
    # in messages, and for who asks for values by their op
    made.op.display_name = declared.display_name

    @made.kernel("cpu", when=worth_compiling, layout=contiguous, scratch=False)
    def _(xp, out, bitmask, *arrays, **attributes):
        numbers = [float(v) for v in for_loop(out.dtype, **attributes)]
        parallel_tiles(loop, out.size, out.reshape(-1), bitmask, arrays[-1].reshape(-1), *numbers)

    @made.kernel(
        "cuda",
        when=lambda input, **_: is_float(input),
        layout=contiguous,
        scratch=lambda input, **attributes: infer(input, **attributes)[2:-1],
    )
    def _(xp, out, bitmask, *arrays, **attributes):
        declared.plain(xp, out, *arrays, **attributes)
        values, segment = out if of_result else arrays[-1], ends(out.dtype, **attributes)
        on_gpu.fill(xp, bitmask, values, *segment, nan_inside)

    return made


def bitmask_vjp(g, bitmask, inside=1.0, outside=0.0):
    """The vjp of a ``with_bitmask`` op: the gradient times the slope of each element's segment."""
    return (
        None if g is None else _select_by_mask(g, bitmask.detach(), inside=inside, outside=outside)
    )


# The loops, once imported: a statement for it takes as long as a small loop.
_modules: list[Any] = []


def parallel_tiles(loop, elements, *arrays) -> None:
    """Run a loop of ``kernels/cpu/elementwise/bitmask.py`` over all tiles, in parallel.

    Args:
        loop: Its name; it takes (*arrays, first, last).
        elements: How many.
        *arrays: Arrays and numbers.
    """
    if not _modules:
        from ...kernels.cpu.elementwise import bitmask as loops

        _modules[:] = [loops]
    run = getattr(_modules[0], loop)
    parallel_range(run, elements, -(-elements // TILE), *arrays)


# The gradient


def _select_infer(grad, bitmask, **_):
    return grad, bitmask_specs(grad)[1]


def _select_samples(make):
    from .comparison import clamp_with_bitmask

    for shape in ((3, 4), (2, 3, 3), (), (0, 3)):
        grad, values = make(*shape), make(*shape).detach()
        bitmask = clamp_with_bitmask(values, low=-0.4, high=0.7)[1]
        yield (grad, bitmask), {"inside": 1.0, "outside": 0.0}
        yield (grad, bitmask), {"inside": 1.0, "outside": 0.1}
        yield (grad, bitmask), {"inside": 0.25, "outside": 0.0}


@op(
    infer=_select_infer,
    scratch=("work",),
    layout=contiguous,
    flops=per_element(1),
    samples=_select_samples,
    elementwise="bitmask",
)
def _select_by_mask(xp, out, work, grad, bitmask, *, inside, outside):
    """``inside * grad`` where the bit is set; else ``outside * grad``, or 0 where that is 0."""
    xp.multiply(grad, inside if outside == 0 else outside, out=out)
    for on, row, given in walk_bitmask(xp, bitmask, work, out, grad):
        if outside == 0:
            xp.logical_not(on, out=on)
            xp.copyto(row, 0, where=on)
        else:  # then inside is 1
            xp.copyto(row, given, where=on)


@_select_by_mask.kernel("cpu", when=worth_compiling, layout=dense_or_repeated_scalar, scratch=False)
def _(xp, out, work, grad, bitmask, *, inside, outside):
    numbers = (float(inside), float(outside))
    parallel_tiles("choose", out.size, *flatten_repeated_grad(out, grad, bitmask), *numbers)


@_select_by_mask.kernel(
    "cuda",
    when=lambda grad, *_, **__: is_float(grad),
    layout=dense_or_repeated_scalar,
    scratch=False,
)
def _(xp, out, work, grad, bitmask, *, inside, outside):
    on_gpu.select(xp, *flatten_repeated_grad(out, grad, bitmask), inside, outside)


@_select_by_mask.vjp("grad")
def _(g, bitmask, inside, outside):
    return _select_by_mask(g, bitmask, inside=inside, outside=outside)


def _signs_infer(grad, above, apart):
    return grad, bitmask_specs(grad)[1]


def _signs_samples(make):
    for (grad, above), _ in _select_samples(make):
        yield (grad, above, 255 - above), {}
        yield (grad, above, above), {}


@op(
    infer=_signs_infer,
    scratch=("work",),
    layout=contiguous,
    flops=per_element(1),
    samples=_signs_samples,
    elementwise="bitmask",
)
def _sign_by_masks(xp, out, work, grad, above, apart):
    """``grad`` where both bits are set, ``-grad`` where only ``apart`` is, else 0."""
    plain = _select_by_mask.op.plain
    plain(xp, out, work, grad, above, inside=1.0, outside=-1.0)
    plain(xp, out, work, out, apart, inside=1.0, outside=0.0)


@_sign_by_masks.kernel("cpu", when=worth_compiling, layout=dense_or_repeated_scalar, scratch=False)
def _(xp, out, work, grad, above, apart):
    parallel_tiles("signs", out.size, *flatten_repeated_grad(out, grad, above, apart))


@_sign_by_masks.kernel(
    "cuda", when=lambda grad, *_: is_float(grad), layout=dense_or_repeated_scalar, scratch=False
)
def _(xp, out, work, grad, above, apart):
    on_gpu.signs(xp, *flatten_repeated_grad(out, grad, above, apart))


@_sign_by_masks.vjp("grad")
def _(g, above, apart):
    return _sign_by_masks(g, above, apart)
