"""Giving an op of arrays that look alike a compiled loop over them, flat, on the CPU and on GPUs.

A loop takes the result, the arrays and then numbers, and may be run on chunks of the arrays
(``schedule.parallel_rows``). Where an op's first input is the arriving gradient ``grad``, its loop
also takes one number in place of that array: what a mean or a sum sends back is a number repeated,
and to write it out would take an array as large as the input.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import float32
from ...spec import Spec
from ..cuda.printer import printed
from .copy import word
from .layout import (
    contiguous,
    cube_of_channels,
    dense_or_repeated_scalar,
    flatten_repeated_grad,
    same_shape_dtype,
    worth_compiling,
)
from .schedule import parallel_rows


def vectorized(input, *_, **__):
    """True for float32 operands that repay a compiled kernel."""
    return worth_compiling(input) and input.dtype.name == "float32"


def same_shape_float32(*specs, **_):
    """True for float32 operands of one shape that repay a compiled kernel."""
    return same_shape_dtype(*specs) and specs[0].dtype.name == "float32"


def same_float32(*specs, **_):
    """True for float32 operands of one shape, however small."""
    first = specs[0]
    return isinstance(first, Spec) and all(
        isinstance(s, Spec) and s.shape == first.shape and s.dtype.name == "float32" for s in specs
    )


def numbers_of_channels(*specs, **_):
    """True for float32 operands of one shape, and a last one that varies along one dim of it."""
    *others, last = specs
    if not (same_shape_float32(*others) and isinstance(last, Spec)):
        return False
    cube = cube_of_channels(others[0].shape, last.shape)
    return cube is not None and last.dtype.name == "float32"


def same_halves(when):
    """Return the predicate of halves of one shape and dtype that are float32 to another one."""

    def halves(*specs, **attributes):
        first = specs[0]
        if not (isinstance(first, Spec) and first.dtype.is_half):
            return False
        if any(not isinstance(s, Spec) or s.dtype is not first.dtype for s in specs):
            return False
        if any(s.shape != first.shape for s in specs) or word(first.dtype.np) is None:
            return False
        return when(*(s.like(dtype=float32) for s in specs), **attributes)

    return halves


def give_loops(op, choose, *, when=vectorized, by_channel=None, of_halves=None):
    """Give an op of arrays that look alike the kernels of a loop that ``choose`` returns.

    By this it is declared ``elementwise``. The CPU runs the loop itself; for GPUs it is printed as
    CUDA C++ (``kernels/cuda/printer.py``), for float32, as which its numbers are written.

    Args:
        op: The op's public function.
        choose: Takes the attributes as keywords; returns the loop, and the numbers that it takes
            after the arrays.
        when: Which specs and attributes it is for.
        by_channel: As ``choose``, of a loop whose last operand has a number for each channel; it is
            told whether that is one.
        of_halves: As ``choose``, of a loop over words of float16 or bfloat16.
    """
    op.op.elementwise = True
    backward = op.op.inputs[0] == "grad"
    inputs = tuple(op.op.inputs)
    layout = dense_or_repeated_scalar if backward else contiguous

    def call(out, arrays, attributes, choose=choose):
        # The loop, flat arrays and numbers.
        run, numbers = choose(**attributes)
        if backward:
            return run, flatten_repeated_grad(out, *arrays), numbers
        return run, [a.reshape(-1) for a in (out, *arrays)], numbers

    if of_halves is not None:
        halves = same_halves(when)

        @op.kernel(
            "cpu", dtypes="half", when=halves, layout=layout, scratch=False, overwrites=inputs
        )
        def _(xp, out, *arrays, **attributes):
            kind = word(out.dtype)
            run, flat, numbers = call(out, arrays, attributes, of_halves)
            parallel_rows(run, out.size, out.size, *(a.view(kind) for a in flat), *numbers)

    @op.kernel("cpu", when=when, layout=layout, scratch=False, overwrites=inputs)
    def _(xp, out, *arrays, **attributes):
        run, flat, numbers = call(out, arrays, attributes)
        parallel_rows(run, out.size, out.size, *flat, *numbers)

    if by_channel is not None:
        _give_channel_loop(op, by_channel, layout)

    @op.kernel("cuda", when=lambda *specs, **_: same_float32(*specs), layout=layout, scratch=False)
    def _(xp, out, *arrays, **attributes):
        run, flat, numbers = call(out, arrays, attributes)
        printed(run)(xp, *flat, *numbers)


def _give_channel_loop(op, by_channel, layout):
    # The same, of a loop whose last operand has a number for each channel.
    backward = op.op.inputs[0] == "grad"

    @op.kernel("cpu", when=numbers_of_channels, layout=layout, scratch=False)
    def _(xp, out, *arrays, **attributes):
        *others, weight = arrays
        run, numbers = by_channel(weight.size == 1, **attributes)
        if weight.size == 1:
            flat = flatten_repeated_grad(out, *others)
            parallel_rows(run, out.size, out.size, *flat, weight.reshape(-1), *numbers)
            return
        cube = cube_of_channels(out.shape, weight.shape)
        one = []
        if backward and not others[0].flags.c_contiguous:
            grad, *others = others
            one.append(grad[(slice(0, 1),) * grad.ndim].reshape(1, 1, 1))
        shaped = [np.ascontiguousarray(a).reshape(cube) for a in others]
        arrays = (out.reshape(cube), *one, *shaped, weight.reshape(1, -1))
        parallel_rows(run, out.size, cube[0], *arrays, *numbers)
