"""Bitmasks for piecewise linear functions: one bit per element is saved for backward.

The slope of a piecewise linear function takes two values, so all that its gradient needs is on
which side of its bends an element lies. Keeping the result instead costs nothing where someone else
keeps it anyway (a product or a convolution that follows), and 32 times as much where nothing does
(an addition, dropout, pooling, concatenation). Which one cannot be known at the time of the call;
so here the bits are kept, which are at most 3 % more than the best, and the result may be written
in place.

The bits of a tile of 4096 elements lie together, and those of neighbours in neighbouring bytes, so
that kernels run over both without a shift. A formula says what an element's value is and what its
bit (``kernels/formula/bits.py``). Below ``thresholds.COMPILED_MOVE`` elements, in place, and where
nothing is recorded, the plain ops serve, which take fewer calls and keep their result or input.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

import numpy as np

from ...dtypes import bool_, uint8
from ...kernels.common.copy import word
from ...kernels.common.elementwise import same_halves
from ...kernels.common.layout import (
    contiguous,
    dense_or_repeated_scalar,
    flatten_repeated_grad,
    worth_compiling,
)
from ...kernels.common.schedule import parallel_range
from ...kernels.cuda.bits import printed_bits
from ...kernels.cuda.kernel import is_float
from ...kernels.formula.bits import TILE, bits
from ...kernels.runtime import thresholds
from ...modes import local
from ...spec import Spec
from ...tensor import Tensor
from ..overwrite import write_over
from ..registry import op
from ..signatures import per_element

INFINITY = float("inf")
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


def bitmask_spec(input) -> Spec:
    """Spec of the bits of a tensor."""
    return Spec((-(-input.numel // 8),), uint8)


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


def work_specs(formula, out, **attributes) -> tuple[Spec, Spec]:
    """Specs of the workspaces of :func:`compute_bits`: bools, and numbers, of an eighth each."""
    variant = formula.variant(attributes)
    kinds = variant.calls.buffers
    count, bools = -(-out.numel // 8), kinds.count("bool")
    bools += len(variant.made) + len(variant.conditions)
    return Spec((bools, count), bool_), out.like((len(kinds) - kinds.count("bool"), count))


def compute_bits(xp, formula, out, made, bools, numbers, arrays, **attributes) -> None:
    """Compute a formula of bits by calls of NumPy, on rows of the tiles.

    Args:
        xp: The array module.
        formula: Made by ``kernels.formula.bits``.
        out: Its values; may be the first array where the formula reads that for conditions first.
        made: Arrays of bits, which it fills.
        bools: Workspace; see :func:`work_specs`.
        numbers: Workspace; see :func:`work_specs`.
        arrays: The inputs: arrays of the result's size, and of bits.
        **attributes: Numbers of the call.
    """
    variant = formula.variant(attributes)
    given = variant.numbers(attributes)
    packed = [e in variant.conditions for e in variant.elements]
    bytes_of = [*made, *(a for a, p in zip(arrays, packed, strict=True) if p)]
    flat = [out, *(a for a, p in zip(arrays, packed, strict=True) if not p)]
    walks = [_rows(a.reshape(-1), bytes_of[0]) for a in flat]
    others = [_rows(flat[0].reshape(-1), b) for b in bytes_of]
    for rows, here in zip(zip(*walks, strict=True), zip(*others, strict=True), strict=True):
        k, first, _ = rows[0]
        free_bools, free_numbers = (
            iter([w[: first.size].reshape(first.shape) for w in work]) for work in (bools, numbers)
        )
        results = [next(free_bools) for _ in made]
        bytes_made, bytes_read = here[: len(made)], iter(here[len(made) :])
        values = (row for _, row, _ in rows[1:])
        inputs = [
            _unpacked(xp, next(free_bools), next(bytes_read)) if p else next(values) for p in packed
        ]
        buffers = [next(free_bools if b == "bool" else free_numbers) for b in variant.calls.buffers]
        variant.numpy(xp, first, *results, *buffers, *inputs, *given)
        for result, (_, _, bytes_) in zip(results, bytes_made, strict=True):
            bit = result.view(xp.uint8)
            if not k:
                xp.copyto(bytes_, bit)
                continue
            xp.left_shift(bit, k, out=bit)
            xp.bitwise_or(bytes_, bit, out=bytes_)


def _unpacked(xp, on, row):
    # Which bits are set, of a row (bit, elements, bytes).
    k, _, bytes_ = row
    byte = on.view(xp.uint8)
    xp.bitwise_and(bytes_, 1 << k, out=byte)
    xp.not_equal(byte, 0, out=on)
    return on


def give_bit_loops(made, formula, *, when=worth_compiling, on_gpu=is_float) -> None:
    """Give an op the compiled loops of a formula of bits, for the CPU and for GPUs.

    They want none of its workspaces. An input ``grad`` may be one number, repeated.
    """
    backward = made.op.inputs[0] == "grad"
    layout = dense_or_repeated_scalar if backward else contiguous
    overwrites = made.op.inputs[:1]

    def call(arrays, attributes, halves=False):
        flat = flatten_repeated_grad(*arrays) if backward else [a.reshape(-1) for a in arrays]
        return formula.loop_of(attributes, halves), flat

    def halves(*specs, **attributes):
        floats = [s for s in specs if isinstance(s, Spec) and s.dtype is not uint8]
        return same_halves(when)(*floats, **attributes)

    @made.kernel(
        "cpu", when=halves, layout=layout, scratch=False, dtypes="half", overwrites=overwrites
    )
    def _(xp, *arrays, **attributes):
        (run, numbers), flat = call(arrays, attributes, True)
        elements = flat[0].size
        flat = [a if a.dtype == np.uint8 else a.view(word(a.dtype)) for a in flat]
        parallel_range(run, elements, -(-elements // TILE), *flat, *numbers)

    @made.kernel("cpu", when=when, layout=layout, scratch=False, overwrites=overwrites)
    def _(xp, *arrays, **attributes):
        (run, numbers), flat = call(arrays, attributes)
        elements = flat[0].size
        parallel_range(run, elements, -(-elements // TILE), *flat, *numbers)

    @made.kernel("cuda", when=lambda *s, **_: on_gpu(*s), layout=layout, scratch=False)
    def _(xp, *arrays, **attributes):
        (run, numbers), flat = call(arrays, attributes)
        printed_bits(run)(xp, *flat, *numbers)


def with_bitmask(plain, name, formula):
    """Declare a variant of a unary op that also returns a bitmask: (out, bitmask).

    Args:
        plain: The op.
        name: Of the new op.
        formula: Made by ``kernels.formula.bits``: the op's value, and what a bit says.
    """
    declared = plain.op

    def infer(input, **attributes):
        found = declared.infer(input, **attributes)
        out = found if isinstance(found, Spec) else found[0]
        return out, bitmask_spec(input), *work_specs(formula, out, **attributes)

    def kernel(xp, out, bitmask, bools, numbers, input, **attributes):
        compute_bits(xp, formula, out, [bitmask], bools, numbers, [input], **attributes)

    leading = ("xp", "out", "bitmask", "bools", "numbers", "input")
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
        scratch=("bools", "numbers"),
        layout=contiguous,
        flops=declared.flops,
        samples=declared.samples,
        elementwise="bitmask",
    )(kernel)
    # in messages, and for who asks for values by their op
    made.op.display_name = declared.display_name
    give_bit_loops(made, formula)
    return made


def bitmask_vjp(room, g, bitmask, inside=1.0, outside=0.0):
    """The vjp of a ``with_bitmask`` op: the gradient times the slope of each element's segment."""
    if g is None:
        return None
    slopes = {"inside": inside, "outside": outside}
    return write_over(room, _select_by_mask, g, bitmask.detach(), **slopes)


# The gradient


@bits
def _select_bits(grad, on: bool, *, inside, outside):
    if outside == 0:  # of an infinite gradient, too
        return grad * inside if on else 0
    return grad * inside if on else grad * outside


def _check_size(grad, *masks):
    for mask in masks:
        if mask.shape != bitmask_spec(grad).shape:
            raise ValueError(
                f"a bitmask of {grad.numel} elements has {bitmask_spec(grad).numel} bytes; got "
                f"{mask.numel}."
            )


def _select_infer(grad, bitmask, **attributes):
    _check_size(grad, bitmask)
    return grad, *work_specs(_select_bits, grad, **attributes)


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
    scratch=("bools", "numbers"),
    layout=contiguous,
    flops=per_element(1),
    samples=_select_samples,
    elementwise="bitmask",
)
def _select_by_mask(xp, out, bools, numbers, grad, bitmask, *, inside, outside):
    """``inside * grad`` where the bit is set; else ``outside * grad``, or 0 where that is 0."""
    slopes = {"inside": inside, "outside": outside}
    compute_bits(xp, _select_bits, out, [], bools, numbers, [grad, bitmask], **slopes)


give_bit_loops(_select_by_mask, _select_bits, on_gpu=lambda grad, *_: is_float(grad))


@_select_by_mask.vjp("grad")
def _(g, bitmask, inside, outside):
    return _select_by_mask(g, bitmask, inside=inside, outside=outside)


@bits
def _sign_bits(grad, above: bool, apart: bool):
    return (grad if above else -grad) if apart else 0


def _signs_infer(grad, above, apart):
    _check_size(grad, above, apart)
    return grad, *work_specs(_sign_bits, grad)


def _signs_samples(make):
    for (grad, above), _ in _select_samples(make):
        yield (grad, above, 255 - above), {}
        yield (grad, above, above), {}


@op(
    infer=_signs_infer,
    scratch=("bools", "numbers"),
    layout=contiguous,
    flops=per_element(1),
    samples=_signs_samples,
    elementwise="bitmask",
)
def _sign_by_masks(xp, out, bools, numbers, grad, above, apart):
    """``grad`` where both bits are set, ``-grad`` where only ``apart`` is, else 0."""
    compute_bits(xp, _sign_bits, out, [], bools, numbers, [grad, above, apart])


give_bit_loops(_sign_by_masks, _sign_bits, on_gpu=lambda grad, *_: is_float(grad))


@_sign_by_masks.vjp("grad")
def _(g, above, apart):
    return _sign_by_masks(g, above, apart)
