"""Functions with bends: what they keep for backward is one bit an element.

The slope of a piecewise linear function takes two values, so all that its gradient needs is on
which side of its bends an element lies. Keeping the result instead costs nothing where someone else
keeps it anyway (a product or a convolution that follows), and 32 times as much where nobody does
(an addition, dropout, pooling, concatenation). Nobody knows which at the time of the call; so here
the bits are kept, which are at most 3 % more than the best, and the result may be written in place.

The bits of a tile of 4096 elements lie together, and those of neighbours in neighbouring bytes, so
that kernels run over both without a shift (``kernels/cpu/elementwise/bitmask.py``). Below ``WORTH``
elements, in place, and where nothing is recorded, the plain ops serve, which take fewer calls and
keep their result or input.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from ...dtypes import bool_, uint8
from ...kernels.common.layout import contiguous, even, lines, worth_compiling
from ...kernels.runtime import threads
from ...modes import local
from ...spec import Spec
from ...tensor import Tensor
from ..registry import op
from ..signatures import per_element

INFINITY = float("inf")
TILE = 1 << 12
WORTH = 1 << 14  # elements from which bits are kept: where compiled kernels begin
HIDDEN: dict[str, Any] = {"public": False, "method": False}


def worth_bits(input, exact=True) -> bool:
    """Whether a call is recorded, of a tensor that is large enough.

    Args:
        input: Of the call.
        exact: The ends of the pieces have to be numbers of the dtype: half precision is left out.
    """
    return (
        isinstance(input, Tensor)
        and input._requires_grad
        and local.state.grad
        and input._spec.numel >= WORTH
        and input._spec.dtype.is_floating_point
        and not (exact and input._spec.dtype.is_half)
    )


def sides_of(input) -> tuple[Spec, Spec]:
    """Specs of the bits of a tensor, and of the workspace of :func:`mark`."""
    count = -(-input.numel // 8)
    return Spec((count,), uint8), Spec((2, count), bool_)


def _rows(flat, sides):
    """Elements and the bytes that have their bits: (k, elements, bytes) of one shape."""
    whole = flat.size // TILE
    tiles, bits = flat[: whole * TILE], sides[: whole * TILE // 8]
    rest, others = flat[tiles.size :], sides[bits.size :]
    for k in range(8):
        if whole:
            yield k, tiles.reshape(whole, 8, -1)[:, k], bits.reshape(whole, -1)
        part = rest[k * others.size : (k + 1) * others.size]
        if part.size:
            yield k, part, others[: part.size]


def mark(xp, sides, work, values, low, high) -> None:
    """Set the bits of values that are neither ``<= low`` nor ``>= high``; NaN is neither."""
    sides.fill(0)
    for k, part, here in _rows(values.reshape(-1), sides):
        beyond, other = (w[: part.size].reshape(part.shape) for w in work)
        beyond.fill(False)
        for bound, test in ((low, xp.less_equal), (high, xp.greater_equal)):
            if -INFINITY < bound < INFINITY:
                test(part, bound, out=other)
                xp.logical_or(beyond, other, out=beyond)
        xp.logical_not(beyond, out=beyond)
        bit = beyond.view(xp.uint8)
        xp.left_shift(bit, k, out=bit)
        xp.bitwise_or(here, bit, out=here)


def is_set(xp, sides, work, *arrays):
    """(where bits are set, parts of the arrays), part by part."""
    walks = [_rows(a.reshape(-1), sides) for a in arrays]
    for pieces in zip(*walks, strict=True):
        k, first, bytes_ = pieces[0]
        one, on = (w[: first.size].reshape(first.shape) for w in work)
        xp.bitwise_and(bytes_, 1 << k, out=one.view(xp.uint8))
        xp.not_equal(one.view(xp.uint8), 0, out=on)
        yield (on, *(part for _, part, _ in pieces))


def marked(plain, name, ends, loop, for_loop, of_result=True):
    """Declare a twin of an op of one tensor that also gives the bits: (out, sides).

    Args:
        plain: The op.
        name: Of the twin.
        ends: ``ends(dtype, **attributes)`` gives the ends of the piece whose bits are set.
        loop: Name of the compiled loop that does both at once.
        for_loop: ``for_loop(dtype, **attributes)`` gives the numbers that it takes.
        of_result: The ends are those of the result, not of the input.
    """
    declared = plain.op

    def infer(input, **attributes):
        found = declared.infer(input, **attributes)
        out, *scratch = found if isinstance(found, tuple) else (found,)
        sides, work = sides_of(input)
        return out, sides, *scratch, work

    def kernel(xp, out, sides, *arrays, **attributes):
        *scratch, work, input = arrays
        declared.plain(xp, out, *scratch, input, **attributes)
        mark(xp, sides, work, out if of_result else input, *ends(out.dtype, **attributes))

    leading = ("xp", "out", "sides", *declared.scratch, "work", "input")
    of_tensors = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in leading]
    keywords = [
        Parameter(n, Parameter.KEYWORD_ONLY, default=d) for n, d in declared.attributes.items()
    ]
    kernel.__signature__ = Signature([*of_tensors, *keywords])
    kernel.__doc__ = f"What ``{declared.name}`` does, and on which side of its bends elements lie."
    kernel.__module__ = declared.plain.__module__
    made = op(
        name=name, infer=infer, returns=("out", "sides"),
        scratch=(*declared.scratch, "work"), layout=contiguous, flops=declared.flops,
        samples=declared.samples, elementwise="tiles",
    )(kernel)  # fmt: skip
    # in messages, and for who asks for values by their op
    made.op.display_name = declared.display_name

    @made.kernel("cpu", when=worth_compiling, layout=contiguous, scratch=False)
    def _(xp, out, sides, *arrays, **attributes):
        numbers = [float(v) for v in for_loop(out.dtype, **attributes)]
        spread(loop, out.size, out.reshape(-1), sides, arrays[-1].reshape(-1), *numbers)

    return made


def chosen(g, sides, inside=1.0, outside=0.0):
    """The gradient of a twin: what arrives, times the slope of the side."""
    return None if g is None else by_side(g, sides.detach(), inside=inside, outside=outside)


_modules: list[
    Any
] = []  # the loops, once imported: a statement for it takes as long as a small loop


def spread(loop, elements, *arrays) -> None:
    """Call a loop of ``kernels/cpu/elementwise/bitmask.py`` for shares of the tiles, side by side.

    Args:
        loop: Its name; it takes (first, last, *arrays).
        elements: How many.
        *arrays: Arrays and numbers.
    """
    if not _modules:
        from ...kernels.cpu.elementwise import bitmask

        _modules.append(bitmask)
    run = getattr(_modules[0], loop)
    tiles = -(-elements // TILE)
    parts = min(threads.get_num_threads(), elements // threads.SHARE)
    if parts <= 1:
        run(0, tiles, *arrays)
    else:
        threads.split(lambda _, first, last: run(first, last, *arrays), tiles, parts)


# The gradient


def _choose_infer(grad, sides, **_):
    return grad, sides_of(grad)[1]


def _choose_samples(make):
    from .comparison import clamp_marked

    for shape in ((3, 4), (2, 3, 3), (), (0, 3)):
        grad, values = make(*shape), make(*shape).detach()
        sides = clamp_marked(values, low=-0.4, high=0.7)[1]
        yield (grad, sides), {"inside": 1.0, "outside": 0.0}
        yield (grad, sides), {"inside": 1.0, "outside": 0.1}
        yield (grad, sides), {"inside": 0.25, "outside": 0.0}


@op(
    name="_by_side", infer=_choose_infer, scratch=("work",), layout=contiguous,
    flops=per_element(1), samples=_choose_samples, elementwise="tiles",
)  # fmt: skip
def by_side(xp, out, work, grad, sides, *, inside, outside):
    """``inside * grad`` where the bit is set; else ``outside * grad``, or 0 where that is 0."""
    xp.multiply(grad, inside if outside == 0 else outside, out=out)
    for on, part, given in is_set(xp, sides, work, out, grad):
        if outside == 0:
            xp.logical_not(on, out=on)
            xp.copyto(part, 0, where=on)
        else:  # then inside is 1
            xp.copyto(part, given, where=on)


@by_side.kernel("cpu", when=worth_compiling, layout=even, scratch=False)
def _(xp, out, work, grad, sides, *, inside, outside):
    numbers = (float(inside), float(outside))
    spread("choose", out.size, *lines(out, grad, sides), *numbers)


@by_side.vjp("grad")
def _(g, sides, inside, outside):
    return by_side(g, sides, inside=inside, outside=outside)


def _signs_infer(grad, above, apart):
    return grad, sides_of(grad)[1]


def _signs_samples(make):
    for (grad, above), _ in _choose_samples(make):
        yield (grad, above, 255 - above), {}
        yield (grad, above, above), {}


@op(
    name="_by_sides", infer=_signs_infer, scratch=("work",), layout=contiguous,
    flops=per_element(1), samples=_signs_samples, elementwise="tiles",
)  # fmt: skip
def by_sides(xp, out, work, grad, above, apart):
    """``grad`` where both bits are set, ``-grad`` where only ``apart`` is, else 0."""
    plain = by_side.op.plain
    plain(xp, out, work, grad, above, inside=1.0, outside=-1.0)
    plain(xp, out, work, out, apart, inside=1.0, outside=0.0)


@by_sides.kernel("cpu", when=worth_compiling, layout=even, scratch=False)
def _(xp, out, work, grad, above, apart):
    spread("signs", out.size, *lines(out, grad, above, apart))


@by_sides.vjp("grad")
def _(g, above, apart):
    return by_sides(g, above, apart)
