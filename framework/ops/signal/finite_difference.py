"""diff, trapezoid, gradient: differences, integrals and derivatives of samples."""

from __future__ import annotations

from ...dtypes import BOOL, INT, float64, get_default_dtype, int64, uint8
from ...tensor import Tensor
from ..creation.fill import ones, zeros
from ..inplace import into
from ..manipulation.cat import cat
from ..registry import function
from ..signatures import common_dtype
from ..views.reshape import normal_dim
from ..views.slice import _narrow

# Differences


def _beside(name, input, other, dim):
    """Check the tensors that ``diff`` prepends or appends; None stands for nothing."""
    if other is None:
        return []
    if other.ndim != input.ndim:
        raise RuntimeError(
            f"diff expects prepend or append to be the same dimension as input; got {name} of "
            f"{other.ndim} dimensions and input of {input.ndim}. Reshape it."
        )
    if any(
        a != b for d, (a, b) in enumerate(zip(other.shape, input.shape, strict=True)) if d != dim
    ):
        raise RuntimeError(
            "diff expects the shape of tensor to prepend or append to match that of input except "
            f"along the differencing dimension; got {name} {tuple(other.shape)} and input "
            f"{tuple(input.shape)} along dim {dim}."
        )
    return [other]


@function(method=True)
def diff(input, n=1, dim=-1, prepend=None, append=None, *, out=None):
    """Compute the ``n``-th forward difference, ``input[k + 1] - input[k]``, along a dim.

    Args:
        input: At least one dimension. For bool, the difference is exclusive or.
        n: How often.
        dim: Along which.
        prepend: Put before the input first.
        append: Put after the input first.
        out: Where to leave the result.
    """
    if not input.ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    d = normal_dim("diff", dim, input.ndim)
    ranges = [*_beside("prepend", input, prepend, d), input, *_beside("append", input, append, d)]
    x = cat(ranges, d) if len(ranges) > 1 else input
    if n == 0:  # not even put together, as in PyTorch
        return into(out, input.clone())
    for _ in range(min(n, x.shape[d])):
        rest = max(x.shape[d] - 1, 0)
        high, low = _narrow(x, x.shape[d] - rest, d, rest), _narrow(x, 0, d, rest)
        x = high.logical_xor(low) if x.dtype.category == BOOL else high - low
    return into(out, x)


# Integrals


def _wide(x):
    """Return integers in float64, so that their sums and differences do not wrap."""
    return x.to(float64) if isinstance(x, Tensor) and x.dtype.category == INT else x


def _floating(*values):
    """Return the dtype of a quotient of tensors among some values."""
    found = common_dtype(*[x for x in values if isinstance(x, Tensor)])
    return get_default_dtype() if found.category <= INT else found


def _steps(name, y, x, dim):
    """Return the spacing of sample points, in a shape that broadcasts with the samples."""
    if x.ndim == 1:
        if x.shape[0] != y.shape[dim]:
            raise RuntimeError(
                f"{name}: There must be one `x` value for each sample point; got {x.shape[0]} for "
                f"{y.shape[dim]}."
            )
        x = x.reshape(-1, *(1,) * (y.ndim - 1 - dim))
        dim = 0
    elif x.ndim < y.ndim:
        x = x.reshape((1,) * (y.ndim - x.ndim) + tuple(x.shape))
    n = x.shape[dim]
    return _narrow(x, 1, dim, n - 1) - _narrow(x, 0, dim, n - 1)


def _trapezoids(name, y, x, dx, dim):
    """Return twice the area between each two neighbors, in float64 of integers."""
    if (isinstance(x, Tensor) and x.dtype.category == BOOL) or y.dtype.category == BOOL:
        raise RuntimeError(
            f"{name}: received a bool input for `x` or `y`, but bool is not supported"
        )
    if isinstance(dx, bool):
        raise RuntimeError(f"{name}: Currently, we only support dx as a real number")
    if x is not None and dx is not None:
        raise TypeError(f"{name}() takes either x or dx. Pass one.")
    y, x, n = _wide(y), _wide(x), y.shape[dim]
    both = _narrow(y, 1, dim, n - 1) + _narrow(y, 0, dim, n - 1)
    if x is not None:
        return both * _steps(name, y, x, dim)
    return both if dx is None or dx == 1 else both * dx


@function()
def trapezoid(y, x=None, *, dx=None, dim=-1):
    """Integrate samples along ``dim`` by the trapezoidal rule.

    Args:
        y: The samples.
        x: Where they were taken: a vector, or a shape that broadcasts with ``y``.
        dx: Or how far apart, 1 by default.
        dim: Along which.
    """
    d = normal_dim("trapezoid", dim, y.ndim)
    if not y.shape[d]:
        return zeros((*y.shape[:d], *y.shape[d + 1 :]), dtype=y.dtype, device=y.device)
    return (_trapezoids("trapezoid", y, x, dx, d).sum(d) / 2).to(_floating(y, x))


@function()
def trapz(y, x=None, *, dx=None, dim=-1):
    """Integrate samples by the trapezoidal rule: the older name of ``trapezoid``."""
    return trapezoid(y, x, dx=dx, dim=dim)


@function()
def cumulative_trapezoid(y, x=None, *, dx=None, dim=-1):
    """Integrate samples from the first to each other one, by the trapezoidal rule."""
    d = normal_dim("cumulative_trapezoid", dim, y.ndim)
    if not y.shape[d]:
        return y.clone()
    found = _trapezoids("cumulative_trapezoid", y, x, dx, d).cumsum(d) / 2
    return found.to(_floating(y, x))


# Derivatives


def _spacings(input, spacing, dims):
    if spacing is None:
        return [1] * len(dims)
    if isinstance(spacing, Tensor) or not hasattr(spacing, "__len__"):
        return [spacing] * len(dims)
    if len(spacing) != len(dims):
        raise RuntimeError(
            "torch.gradient expected spacing to be unspecified, a scalar or it's spacing and dim "
            f"arguments to have the same length, but got a spacing argument of length "
            f"{len(spacing)} and a dim argument of length {len(dims)}."
        )
    return list(spacing)


def _along(x, dim, h, edge_order):
    """Derivative along one dim; ``h`` is a spacing, or the vector of the sample points."""
    n = x.shape[dim]

    def at(start, stop):
        start, stop = start % n if start < 0 else start, stop + n if stop <= 0 else stop
        return _narrow(x, start, dim, stop - start)

    if not isinstance(h, Tensor):
        inner = (at(2, 0) - at(0, -2)) / (2 * h)
        if edge_order == 1:
            ends = (at(1, 2) - at(0, 1)) / h, (at(-1, 0) - at(-2, -1)) / h
        else:
            ends = (
                (at(1, 2) * 2 - at(0, 1) * 1.5 - at(2, 3) * 0.5) / h,
                (at(-1, 0) * 1.5 - at(-2, -1) * 2 + at(-3, -2) * 0.5) / h,
            )
        return cat([ends[0], inner, ends[1]], dim)
    if h.ndim != 1 or h.shape[0] != n:
        raise RuntimeError(
            "torch.gradient expected each spacing tensor to be a vector with one coordinate per "
            f"element; got {tuple(h.shape)} for dim {dim} of size {n}."
        )
    widths = diff(h).reshape(-1, *(1,) * (x.ndim - 1 - dim))
    before, after = widths[:-1], widths[1:]
    inner = _three(at(0, -2), at(1, -1), at(2, 0), before, after, 0)
    if edge_order == 1:
        ends = (at(1, 2) - at(0, 1)) / widths[:1], (at(-1, 0) - at(-2, -1)) / widths[-1:]
    else:
        ends = (
            _three(at(0, 1), at(1, 2), at(2, 3), before[:1], after[:1], -1),
            _three(at(-3, -2), at(-2, -1), at(-1, 0), before[-1:], after[-1:], 1),
        )
    return cat([ends[0], inner, ends[1]], dim)


def _three(left, middle, right, before, after, side):
    """The slope of the parabola through three points: at the first, the middle or the last."""
    both = before + after
    rise, next_rise = (middle - left) / before, (right - middle) / after
    bend = (next_rise - rise) / both
    if side < 0:
        return rise - bend * before
    return rise + bend * before if side == 0 else next_rise + bend * after


@function()
def gradient(input, *, spacing=1, dim=None, edge_order=1):
    """Estimate the derivative along dims by central differences.

    Args:
        input: Samples.
        spacing: How far apart: a number, one for each dim, or for each a vector of coordinates.
        dim: An int, several, or None for all.
        edge_order: 1 or 2: the order of the one-sided estimate at both ends.

    Returns:
        A tuple with a tensor in the shape of ``input`` for each dim.
    """
    if input.dtype is uint8:
        raise RuntimeError("torch.gradient does not support uint8 input. Convert it with .float().")
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    given = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    dims = [normal_dim("gradient", d, input.ndim) for d in given]
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"dim {dims} appears multiple times in the list of dims")
    steps = _spacings(input, spacing, dims)
    for d in dims:
        if input.shape[d] < edge_order + 1:
            raise RuntimeError(
                "torch.gradient expected each dimension size to be at least edge_order+1; got "
                f"{input.shape[d]} at dim {d}."
            )
    return tuple(
        [
            _along(_wide(input), d, _wide(h), edge_order).to(_floating(input, h))
            for d, h in zip(dims, steps, strict=True)
        ]
    )


# Powers


@function()
def vander(x, N=None, increasing=False):
    """Create the Vandermonde matrix of a vector, highest power first.

    Args:
        x: (n,).
        N: Number of columns, n by default.
        increasing: Power 0 first.
    """
    if x.ndim != 1:
        raise RuntimeError(f"x must be a one-dimensional tensor; got {x.ndim} dimensions.")
    columns = x.shape[0] if N is None else N
    if columns < 0:
        raise RuntimeError(f"N must be non-negative; got {N}.")
    dtype = int64 if x.dtype.category <= INT else x.dtype
    first = ones((x.shape[0], min(columns, 1)), dtype=dtype, device=x.device)
    if columns < 2:
        return first
    powers = x.to(dtype).unsqueeze(1).expand(-1, columns - 1).cumprod(1)
    out = cat([first, powers], 1)
    return out if increasing else out.flip(1)
