"""Fractional max pooling: pseudorandom windows for any ratio of sizes.

Graham 2014, "Fractional max-pooling": for a random u the i-th of n windows of a dim begins at
``floor((i + u) a) - floor(u a)`` with ``a = (size - window) / (n - 1)``, the last one at the end.
Each plane has its own u for each dim.
"""

from __future__ import annotations

from itertools import product
from math import prod

from ...dtypes import bool_, int64
from ...kernels.common.layout import contiguous
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CPU
from ..convolution.functional import several
from ..creation.from_data import tensor
from ..indexing.index_put import take
from ..random.draw import rand
from ..registry import function, op
from .adaptive import _plane_scatter
from .primitives import index_dtype


def _fractional_infer(input, draws, *, kernel, size):
    nd = len(kernel)
    lead = input.shape[:-nd]
    planes = Spec((prod(lead), prod(size)), int64)
    shape = (*lead, *size)
    return (
        Spec(shape, input.dtype),
        Spec(shape, index_dtype(input.shape[-nd:])),
        planes,
        planes,
        Spec(planes.shape, input.dtype),
        Spec(planes.shape, bool_),
        Spec(planes.shape, bool_),
    )


def _fractional_samples(make):
    u = tensor([[[0.2, 0.7], [0.5, 0.1]]])
    yield (make(1, 2, 5, 6), u), {"kernel": (2, 3), "size": (3, 2)}
    x = make(3, 7)
    yield (x, (x.detach()[:, :1].abs() * 0.2).reshape(1, -1, 1)), {"kernel": (2,), "size": (4,)}
    yield (make(0, 2, 5, 6), tensor([[0.5]]).expand(0, 2, 2)), {"kernel": (2, 3), "size": (1, 2)}


@op(
    infer=_fractional_infer,
    returns=("out", "index"),
    scratch=("starts", "flat", "value", "wins", "nan"),
    layout=contiguous,
    half="exact",
    flops=lambda input, draws, *, kernel, size: (
        prod(input.shape[: -len(size)]) * prod(size) * prod(kernel)
    ),
    samples=_fractional_samples,
)
def _fractional_max_pool(
    xp, out, index, starts, flat, value, wins, nan, input, draws, *, kernel, size
):
    """Fractional max pooling, with indices into the flattened plane; NaN wins."""
    planes = input.shape[-len(size) :]
    source = input.reshape(starts.shape[0], prod(planes))
    best, where = (a.reshape(starts.shape) for a in (out, index))
    u = draws.reshape(starts.shape[0], len(size))
    # Where each window begins in the plane.
    starts.fill(0)
    spread = starts.reshape(-1, *size)
    for d, (n, k, m) in enumerate(zip(planes, kernel, size, strict=True)):
        column = u[:, d, None].astype("float64")
        step = (n - k) / (m - 1) if m > 1 else 0.0
        at = ((xp.arange(m) + column) * step).astype("int64") - (column * step).astype("int64")
        at[:, m - 1] = n - k
        at *= prod(planes[d + 1 :])
        ones = (1,) * (len(size) - 1)
        xp.add(spread, at.reshape(-1, *ones[:d], m, *ones[d:]), out=spread)
    before = xp.arange(starts.shape[0])[:, None] * source.shape[1]  # elements of planes before
    source = source.reshape(-1)
    xp.add(starts, before, out=starts)
    for number, place in enumerate(product(*map(range, kernel))):
        offset = 0
        for n, j in zip(planes, place, strict=True):
            offset = offset * n + j
        xp.add(starts, offset, out=flat)
        take(xp, source, flat, 0, value)
        xp.subtract(flat, before, out=flat)
        if not number:
            xp.copyto(best, value)
            xp.copyto(where, flat, casting="unsafe")
            continue
        xp.greater(value, best, out=wins)
        xp.not_equal(value, value, out=nan)
        xp.logical_or(wins, nan, out=wins)
        xp.copyto(best, value, where=wins)
        xp.copyto(where, flat, where=wins, casting="unsafe")


@_fractional_max_pool.vjp("input")
def _(g_out, index, input_spec, size):
    if g_out is None:
        return None
    return _plane_scatter(g_out, index.detach(), tuple(input_spec.shape[-len(size) :]))


def _pool(nd, input, kernel_size, output_size, output_ratio, draws):
    name = f"fractional_max_pool{nd}d"
    if (output_size is None) == (output_ratio is None):
        raise ValueError(
            f"{name} requires specifying either an output_size or an output_ratio, and not both."
        )
    if input.ndim not in (nd + 1, nd + 2) or 0 in input.shape[-nd - 1 :]:
        raise RuntimeError(
            f"{name}: Expected {nd + 1}D or {nd + 2}D tensor with non-zero channels and sizes; got "
            f"{tuple(input.shape)}."
        )
    kernel = several("kernel_size", kernel_size, nd)
    planes = tuple(input.shape[-nd:])
    if output_size is None:
        ratios = (output_ratio,) * nd if isinstance(output_ratio, float) else tuple(output_ratio)
        if len(ratios) != nd or not all(0 < r < 1 for r in ratios):
            raise ValueError(f"{name}: output_ratio must be between 0 and 1 (got {output_ratio})")
        size = tuple(int(n * r) for n, r in zip(planes, ratios, strict=True))
    else:
        size = several("output_size", output_size, nd)
    if any(m < 1 or k < 1 or m + k - 1 > n for n, k, m in zip(planes, kernel, size, strict=True)):
        raise RuntimeError(
            f"{name}: pool size {kernel} and output size {size} are too large relative to the "
            f"input's {planes}: each output size plus window must be at most one more than it."
        )
    batch = input.shape[0] if input.ndim == nd + 2 else 1
    shape = (batch, input.shape[-nd - 1], nd)
    if draws is None:
        draws = rand(*shape, dtype=input.dtype, device=input.device)
    elif tuple(draws.shape) != shape:
        raise RuntimeError(
            f"{name}: Expect _random_samples of shape {shape}, a number for each plane and dim; "
            f"got {tuple(draws.shape)}."
        )
    if nd == 2:  # PyTorch draws for the width first
        draws = draws.flip(-1)
    return _fractional_max_pool(input, draws.detach(), kernel, size)


@function(public=False, deep=True, autocast=WIDE_ON_CPU)
def fractional_max_pool2d(
    input,
    kernel_size,
    output_size=None,
    output_ratio=None,
    return_indices=False,
    _random_samples=None,
):
    """Apply fractional max pooling over the last two dimensions.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size: Of a window; an int or two.
        output_size: Of the result; an int or two.
        output_ratio: Instead of it: the share of the input's size; a number in (0, 1) or two.
        return_indices: Return also where each maximum was in the flattened plane, as int64.
        _random_samples: (N, C, 2), numbers in [0, 1) that decide on the places; else drawn.

    Returns:
        Tensor (N, C, *output_size), or (that, indices).

    Memory:
        Keeps where in its plane each maximum was, in the smallest integers that can say it, and not
        the input.
    """
    found = _pool(2, input, kernel_size, output_size, output_ratio, _random_samples)
    return (found[0], found[1].to(int64)) if return_indices else found[0]


@function(public=False, deep=True, autocast=WIDE_ON_CPU)
def fractional_max_pool3d(
    input,
    kernel_size,
    output_size=None,
    output_ratio=None,
    return_indices=False,
    _random_samples=None,
):
    """Apply fractional max pooling over the last three dimensions.

    The arguments are those of :func:`fractional_max_pool2d`, with one more spatial dimension.
    """
    found = _pool(3, input, kernel_size, output_size, output_ratio, _random_samples)
    return (found[0], found[1].to(int64)) if return_indices else found[0]


@function(public=False)
def fractional_max_pool2d_with_indices(
    input,
    kernel_size,
    output_size=None,
    output_ratio=None,
    return_indices=False,
    _random_samples=None,
):
    """Same as :func:`fractional_max_pool2d` with ``return_indices=True``."""
    return fractional_max_pool2d(
        input, kernel_size, output_size, output_ratio, True, _random_samples
    )


@function(public=False)
def fractional_max_pool3d_with_indices(
    input,
    kernel_size,
    output_size=None,
    output_ratio=None,
    return_indices=False,
    _random_samples=None,
):
    """Same as :func:`fractional_max_pool3d` with ``return_indices=True``."""
    return fractional_max_pool3d(
        input, kernel_size, output_size, output_ratio, True, _random_samples
    )
