"""Activations of two operands: glu and prelu."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ...kernels.common.elementwise import same_shape_float32, vectorized
from ...kernels.common.layout import (
    contiguous,
    cube_of_channels,
    dense_or_repeated_scalar,
    flatten_repeated_grad,
)
from ...kernels.common.schedule import parallel_range, parallel_rows
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import exp
from ...kernels.formula.update import update
from ...kernels.formula.walks import TILE
from ..elementwise.unary import sigmoid
from ..indexing.where import _where
from ..manipulation.cat import cat
from ..registry import function, op
from ..signatures import broadcast, per_element
from .relu import need_float


def _halves(x, dim):
    # Of a tensor or an array.
    n = x.shape[dim] // 2
    lead = (slice(None),) * dim
    return x[(*lead, slice(0, n))], x[(*lead, slice(n, None))]


def _glu_infer(input, *, dim):
    need_float("glu", input)
    shape = list(input.shape)
    shape[dim] //= 2
    return input.like(tuple(shape))


def _glus(make):
    x = make(3, 4)
    yield (x[:, : x.shape[1] // 2 * 2],), {"dim": 1}
    y = make(2, 3, 2)
    yield (y[: y.shape[0] // 2 * 2],), {"dim": 0}
    yield (make(0, 4),), {"dim": 1}


@formula(rows=("out", "x[0]", "x[1]"))
def _gated(value, gate):
    return value / (1 + exp(-gate))


@update(rows=("out[0]", "out[1]", "grad", "x[0]", "x[1]"))
def _gated_gradients(first, second, grad, value, gate):
    share = 1 / (1 + exp(-gate))
    first = grad * share
    second = (1 - share) * value * first
    return first, second


@op(infer=_glu_infer, flops=per_element(8), samples=_glus)
def _glu(xp, out, input, *, dim):
    """The first half along ``dim`` times the sigmoid of the second."""
    _gated.plain(xp, out, *_halves(input, dim))


@_glu.kernel("cpu", when=vectorized, layout=contiguous)
def _(xp, out, input, *, dim):
    _run_rows(_gated, out, input, dim)


def _run_rows(formula, out, *arrays_and_dim):
    # An array with both halves has two parts for each of the rows that come before the dim.
    *arrays, dim = arrays_and_dim
    rows = prod(out.shape[:dim])
    half = min(a.shape[dim] for a in (out, *arrays))
    shaped = [
        a.reshape(rows, -1) if a.shape[dim] == half else a.reshape(rows, 2, -1)
        for a in (out, *arrays)
    ]
    parallel_rows(formula.variant({}).rows, out.size, rows, *shaped)


@_glu.vjp("input")
def _(g, input, dim):
    return _glu_backward(g, input, dim)


def _glu_slope_samples(make):
    for ((input,), options), ((other,), _) in zip(_glus(make), _glus(make), strict=True):
        yield (_halves(other, options["dim"])[0].clone(), input), options


@op(
    infer=lambda grad, input, *, dim: (input, grad),
    scratch=("share",),
    flops=per_element(8),
    samples=_glu_slope_samples,
)
def _glu_backward(xp, out, share, grad, input, *, dim):
    """Backward of glu: ``grad`` times the derivative in both halves."""
    halves = _halves(out, dim), (grad,), _halves(input, dim)
    _gated_gradients.variant({}).numpy(xp, share, *(a for some in halves for a in some))


@_glu_backward.kernel(
    "cpu", when=lambda grad, *_, **__: vectorized(grad), layout=contiguous, scratch=False
)
def _(xp, out, grad, input, *, dim):
    _run_rows(_gated_gradients, out, grad, input, dim)


@_glu_backward.vjp("grad")
def _(g, input, dim):
    value, gate = _halves(input, dim)
    first, second = _halves(g, dim)
    share = sigmoid(gate)
    return (first + second * value * (1 - share)) * share


@_glu_backward.vjp("input")
def _(g, grad, input, dim):
    value, gate = _halves(input, dim)
    first, second = _halves(g, dim)
    share = sigmoid(gate)
    bend = (1 - share) * share * grad
    return cat([second * bend, (first + second * value * (1 - 2 * share)) * bend], dim)


@function(public=False)
def glu(input, dim=-1):
    """Apply the gated linear unit: the first half along ``dim`` times the second half's sigmoid.

    Raises:
        RuntimeError: The size of ``dim`` is odd, or there is no dimension.

    Memory:
        Keeps ``input``.
    """
    if input.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors. Unsqueeze it.")
    size = input.shape[dim]
    if size % 2:
        raise RuntimeError(
            f"glu: Halving dimension must be even, but dimension {dim} is size {size}. Pad it."
        )
    return _glu(input, dim % input.ndim)


def _prelus(make):
    yield (make(3, 4), make(1)), {}
    yield (make(2, 3, 2), make(3, 1)), {}
    yield (make(3, 4), make(3, 4)), {}
    yield (make(), make(1)), {}
    yield (make(0, 3), make(3)), {}


@op(
    infer=partial(broadcast, op_name="prelu"),
    promote="same",
    flops=per_element(4),
    samples=_prelus,
    autocast="low",
)
@formula(when=same_shape_float32, channels=True)
def _prelu(input, weight):
    """``input`` above zero, else ``weight * input``."""
    return input if input > 0 else weight * input


def _prelu_gradients(make):
    shapes = ((3, 4), (1,)), ((2, 3, 2), (3, 1)), ((3, 4), (4,)), ((3, 4), (3, 4))
    for x, w in (*shapes, ((), (1,)), ((0, 3), (3,))):
        yield (make(*(x or (1,))), make(*x), make(*w)), {}


@op(infer=lambda grad, input, weight: grad, flops=per_element(2), samples=_prelu_gradients)
@formula(when=same_shape_float32, channels=True)
def _prelu_backward(grad, input, weight):
    """``grad`` where ``input`` is above zero, else ``weight * grad``."""
    return grad if input > 0 else weight * grad


def _weight_gradients(make):
    for (grad, x, w), _ in _prelu_gradients(make):
        yield (grad, x), {"shape": tuple(w.shape)}


@formula
def _below_zero(grad, input):
    return 0 if input > 0 else grad * input


def _weight_slope_infer(grad, input, *, shape):
    return grad.like(shape), grad, *_below_zero.scratch(grad, {})


@op(
    infer=_weight_slope_infer,
    scratch=("each", "above"),
    flops=per_element(3),
    samples=_weight_gradients,
)
def _prelu_weight_backward(xp, out, each, above, grad, input, *, shape):
    """Backward of prelu for the weight: sum ``grad * input`` over the negative elements."""
    _below_zero.plain(xp, each, above, grad, input)
    aligned = (1,) * (each.ndim - len(shape)) + tuple(shape)
    axes = tuple(k for k, n in enumerate(aligned) if n == 1)
    xp.sum(each, axis=axes, out=out.reshape([n for n in aligned if n != 1]))


@_prelu_weight_backward.kernel(
    "cpu",
    when=lambda grad, input, *, shape: (
        same_shape_float32(grad, input) and cube_of_channels(grad.shape, shape) is not None
    ),
    layout=dense_or_repeated_scalar,
    scratch=False,
)
def _(xp, out, grad, input, *, shape):
    variant = _below_zero.variant({})
    if out.size == 1:
        _, *flat = flatten_repeated_grad(out, grad, input)
        tiles = -(-input.size // TILE)
        sums = np.empty(tiles, np.float64)
        parallel_range(variant.sums, 2 * input.size, tiles, sums, *flat)
        out[...] = sums.sum()
        return
    cube = cube_of_channels(grad.shape, shape)
    if grad.flags.c_contiguous:
        grad = grad.reshape(cube)
    else:  # one number, repeated
        grad = grad[(slice(0, 1),) * grad.ndim].reshape(1, 1, 1)
    sums = np.empty(out.size, np.float64)
    run = variant.channel_sums
    parallel_range(run, 2 * input.size, out.size, sums, grad, input.reshape(cube))
    out[...] = sums.reshape(out.shape)


@_prelu.vjp("input")
def _(g, input, weight):
    return _prelu_backward(g, input, weight)


@_prelu.vjp("weight")
def _(g, input, weight_spec):
    return _prelu_weight_backward(g, input, tuple(weight_spec.shape))


@_prelu_backward.vjp("grad")
def _(g, input, weight):
    return _prelu_backward(g, input, weight)


@_prelu_backward.vjp("input")
def _(g):
    return None  # flat except at zero


@_prelu_backward.vjp("weight")
def _(g, grad, input):
    return _where(input >= 0, 0, g * grad)


@_prelu_weight_backward.vjp("grad")
def _(g, input):
    return _where(input > 0, 0, g * input)


@_prelu_weight_backward.vjp("input")
def _(g, grad, input):
    return _where(input >= 0, 0, g * grad)


@function(method=True)
def prelu(input, weight):
    """Apply PReLU: ``max(0, x) + weight * min(0, x)``, one weight or one per channel.

    Args:
        input: Values (N, C, ...).
        weight: (1) or (C).

    Raises:
        RuntimeError: The number of weights is neither 1 nor C.

    Memory:
        Keeps ``input`` and ``weight``.
    """
    if weight.ndim > 1:
        raise RuntimeError(
            "prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = "
            f"{weight.ndim}. Reshape it."
        )
    count = weight.numel()
    if count != 1:
        channels = input.shape[1] if input.ndim > 1 else input.ndim and 1
        if count != channels:
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{count} and channel size = {channels}. Pass one weight per channel."
            )
        weight = weight.reshape(count, *[1] * (input.ndim - 2))
    elif weight.ndim and not input.ndim:
        weight = weight.reshape(())
    return _prelu(input, weight)


__all__ = ["glu", "prelu"]
