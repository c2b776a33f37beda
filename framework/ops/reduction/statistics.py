"""Quantiles, mode, covariance, correlation, and set ops on elements.

All are compositions of sorts, gathers, scatters and products, and have their gradients.
"""

from __future__ import annotations

import itertools
import warnings
from math import prod

import numpy as np

from ...dtypes import BOOL, INT, float32, float64, int64, promote_types
from ...tensor import Tensor
from ..autocast_policy import WIDE_ON_CPU, WIDE_ON_CUDA
from ..creation.fill import complex as paired
from ..creation.fill import empty, zeros
from ..creation.from_data import tensor
from ..creation.ranges import arange
from ..indexing.nonzero import _searchsorted
from ..indexing.where import _where
from ..inplace import into
from ..linalg.matmul import matmul
from ..registry import function
from ..views.reshape import normal_dim
from .median import _kthvalue
from .minmax import _pair, need_elements, one_dim
from .sort import _sort

# Quantiles

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(name, input, q, dim, keepdim, interpolation, skip_nan):
    if not input.numel():
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if input.dtype not in (float32, float64):
        raise RuntimeError(
            f"{name}() input tensor must be either float or double dtype; got {input.dtype}."
        )
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        q = tensor(q, dtype=input.dtype, device=input.device)
    if q.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor; got {q.ndim}D.")
    if q.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}() q tensor must be same dtype as the input tensor; got {q.dtype} and "
            f"{input.dtype}."
        )
    if q.device.type == "cpu" and q.numel() and not bool(((q >= 0) & (q <= 1)).all()):
        raise RuntimeError(f"{name}() q values must be in the range [0, 1]")
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, "
            f"but got {interpolation}"
        )
    if dim is None:
        x, shape = input.reshape(-1), (1,) * input.ndim
    else:
        d = one_dim(name, dim, input.ndim)
        x = (input if input.ndim else input.reshape(1)).movedim(d, -1)
        shape = list(input.shape)
        shape[d : d + 1] = [1] * bool(input.ndim)
    rows, order = _sort(x.detach(), dim=x.ndim - 1, descending=False)
    steps = (q.reshape(-1), rows.shape[-1] - 1)
    if skip_nan:
        counts = rows.isnan().logical_not().sum(-1, True)
        ranks = (steps[0] * (counts - 1)).clamp_min(0)
    else:
        last = rows.narrow(-1, steps[1], 1).isnan()
        ranks = _where(last, float(steps[1]), steps[0] * steps[1])
    del rows

    def at(whole):
        return x.gather(-1, order.gather(-1, whole.long()))

    found = _at_ranks(at, ranks, interpolation)
    if q.ndim:
        found = found.movedim(-1, 0)
        kept_shape = (q.shape[0], *shape)
    else:
        found = found.squeeze(-1)
        kept_shape = tuple(shape)
    return found.reshape(kept_shape) if keepdim else found


def _at_ranks(at, ranks, interpolation):
    # ``at`` finds the elements of whole ranks
    if interpolation in ("lower", "higher", "nearest"):
        way = {"lower": "floor", "higher": "ceil", "nearest": "round"}[interpolation]
        return at(getattr(ranks.detach(), way)())
    below, above = ranks.detach().floor(), ranks.detach().ceil()
    low, high = at(below), at(above)
    weight = ranks - below if interpolation == "linear" else 0.5
    return low.lerp(high, weight)


@function(method=True, autocast=WIDE_ON_CPU)
def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear", out=None):
    """Compute quantiles of the elements.

    Args:
        input: float32 or float64, not empty.
        q: In [0, 1]: a number, or a vector for several at once.
        dim: Along which; None for all elements.
        keepdim: Leave the reduced dims, with size 1.
        interpolation: Between the two neighbors: "linear", "lower", "higher", "midpoint" or
            "nearest".
        out: Where to leave the result.

    Returns:
        Tensor in the reduced shape; for a vector ``q``, with a dim for it in front. NaN where a
        NaN took part.

    Memory:
        Keeps which elements were chosen, an integer for each.
    """
    return into(out, _quantile("quantile", input, q, dim, keepdim, interpolation, False))


@function(method=True, autocast=WIDE_ON_CPU)
def nanquantile(input, q, dim=None, keepdim=False, *, interpolation="linear", out=None):
    """Compute quantiles, ignoring NaN: see :func:`quantile`."""
    return into(out, _quantile("nanquantile", input, q, dim, keepdim, interpolation, True))


NanMedian, Mode = _pair("nanmedian"), _pair("mode")


@function(method=True, out=True)
def nanmedian(input, dim=None, keepdim=False):
    """Compute the median, ignoring NaN; of all, or along a dim with its index.

    Memory:
        Along a dim, keeps the index; of all, ``input``.
    """
    if dim is None:
        flat = input.detach().reshape(-1)
        if not flat.shape[0]:
            return input.median()
        middle = _nanmedian(flat, 0, False)[0]
        if not input.requires_grad:
            return middle
        equal = input == middle  # equal elements share the gradient evenly
        return middle + _where(equal, input - middle, 0).sum() / equal.sum()
    d = one_dim("nanmedian", dim, input.ndim)
    need_elements("nanmedian", input.shape, (d,), None)
    return NanMedian(*_nanmedian(input, d, keepdim))


def _nanmedian(input, dim, keepdim):
    x = input if input.ndim else input.reshape(1)
    if not input.is_floating_point():
        n = x.shape[dim]
        return _kthvalue(input, k=(n - 1) // 2 + 1, dim=dim, keepdim=keepdim, median=True)
    values, order = _sort(x.detach(), dim=dim, descending=False)  # NaN is sorted last
    counts = values.isnan().logical_not().sum(dim, True)
    counts = _where(counts == 0, x.shape[dim], counts)
    index = order.gather(dim, counts.sub(1).div(2, rounding_mode="floor"))
    found = x.gather(dim, index), index
    if input.ndim and keepdim:
        return found
    return found[0].squeeze(dim), found[1].squeeze(dim)


@function(method=True, out=True)
def mode(input, dim=-1, keepdim=False):
    """Return the most frequent value along a dim (the smallest if tied) and its last index.

    Memory:
        Keeps the indices.
    """
    d = one_dim("mode", dim, input.ndim)
    need_elements("mode", input.shape, (d,), None)
    if not input.ndim:
        return Mode(input.clone(), zeros((), dtype=int64, device=input.device))
    values, order = _sort(input.detach(), dim=d, descending=False)
    index = order.gather(d, _end_of_longest_run(values, d))
    found = input.gather(d, index), index
    return Mode(*(found if keepdim else [x.squeeze(d) for x in found]))


def _end_of_longest_run(values, dim):
    """Return the end of the first longest run of equal elements along a sorted dim."""
    n = values.shape[dim]
    if n == 1:
        return zeros(values.shape, dtype=int64, device=values.device)
    ranks = arange(1, n, device=values.device).reshape(-1, *(1,) * (values.ndim - 1 - dim))
    changed = values.narrow(dim, 1, n - 1) != values.narrow(dim, 0, n - 1)
    lengths = ranks - _where(changed, ranks, 0).cummax(dim)[0]
    # All zero: no element occurs twice, and the first is the smallest.
    return _where(lengths.amax(dim, True) > 0, lengths.argmax(dim, True) + 1, 0)


# Covariance


def _weights(name, w, observations, integral):
    if w is None:
        return None
    if w.ndim > 1:
        raise RuntimeError(f"cov(): expected {name} to have one or fewer dimensions")
    if integral != (w.dtype.category == INT) or w.dtype.category == BOOL:
        raise RuntimeError(
            f"cov(): expected {name} to have {'integral' if integral else 'floating point'} dtype "
            f"but got {name} with {w.dtype} dtype"
        )
    if w.numel() != observations:
        raise RuntimeError(
            f"cov(): expected {name} to have the same numel as there are observations in the "
            f"input but got {w.numel()} != {observations}"
        )
    if not w.is_meta and w.numel() and float(w.min()) < 0:
        raise RuntimeError(f"cov(): {name} cannot be negative")
    return w


@function(method=True)
def cov(input, *, correction=1, fweights=None, aweights=None):
    """Compute the covariance matrix of variables (rows) from observations (columns).

    Args:
        input: (variables, observations), or one variable.
        correction: Subtracted from the number of observations.
        fweights: Integers: how often each observation counts.
        aweights: How much each observation counts.

    Returns:
        Tensor (variables, variables), or () for one variable.
    """
    if input.ndim > 2:
        raise RuntimeError(
            "cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    if input.dtype.category == BOOL:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    n = x.shape[1]
    w = _weights("fweights", fweights, n, True)
    a = _weights("aweights", aweights, n, False)
    if a is not None:
        w = a if w is None else w * a
    total = n if w is None else w.sum()
    if w is not None and not w.is_meta and float(total) == 0:
        raise RuntimeError("cov(): weights sum to zero, can't be normalized")
    mean = (x if w is None else x * w).sum(1, True) / total
    if a is None or w is None:
        norm = total - correction
    else:
        norm = total - correction * (w * a).sum() / total
    if not isinstance(norm, Tensor) or not norm.is_meta:
        if float(norm) <= 0:
            warnings.warn(
                "cov(): degrees of freedom is <= 0. Correction should be strictly less than the "
                "number of observations.",
                UserWarning,
                stacklevel=2,
            )
        norm = norm.clamp_min(0) if isinstance(norm, Tensor) else max(norm, 0)
    x = x - mean
    found = matmul(x if w is None else x * w, x.T.conj())
    found = found / (norm if isinstance(norm, Tensor) else float(norm))
    return found.squeeze()


@function(method=True)
def corrcoef(input):
    """Compute the correlation matrix of variables (rows) from observations (columns)."""
    if input.ndim > 2:
        raise RuntimeError(
            "corrcoef(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    c = cov(input)
    if not c.ndim:
        return c / c
    deviation = (c.diag().real if c.is_complex() else c.diag()).sqrt()
    c = c / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    if not c.is_complex():
        return c.clamp(-1, 1)

    return paired(c.real.clamp(-1, 1), c.imag.clamp(-1, 1))


# Distances


@function(method=True, autocast=WIDE_ON_CUDA)
def dist(input, other, p=2):
    """Compute the ``p``-norm of ``input - other``."""
    return (input - other).norm(float(p))


@function(method=True, inplace="renorm_", out=True)
def renorm(input, p, dim, maxnorm):
    """Renormalize the slices of ``dim`` to a ``p``-norm of at most ``maxnorm``."""
    if isinstance(p, complex) or p <= 0:
        raise RuntimeError(f"renorm: non-positive-norm not supported; got p={p}.")
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim < 2:
        raise RuntimeError(
            f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions"
        )
    d = normal_dim("renorm", dim, input.ndim)
    others = tuple([k for k in range(input.ndim) if k != d])
    size = input.norm(p, others, keepdim=True)
    large = size > maxnorm
    return input * _where(large, maxnorm / (_where(large, size, 1) + 1e-7), 1)


# Sets and indices


@function()
def combinations(input, r=2, with_replacement=False):
    """Return the combinations of ``r`` elements of a vector, in order, as rows."""
    if input.ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return empty((0,), dtype=input.dtype, device=input.device)
    n = input.shape[0]
    if r == 1:
        rows = np.arange(n)[:, None]
    elif r == 2:
        rows = np.stack(np.triu_indices(n, 0 if with_replacement else 1), -1)
    else:
        named = "combinations_with_replacement" if with_replacement else "combinations"
        rows = np.array(list(getattr(itertools, named)(range(n), r)), np.int64).reshape(-1, r)
    return input.take(tensor(rows, device=input.device))


@function(names={"element": "elements", "test_element": "test_elements"}, out=True)
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """Test elementwise for membership in ``test_elements``.

    Args:
        elements: A tensor or a number.
        test_elements: A tensor or a number; one of the two is a tensor.
        assume_unique: Accepted for PyTorch's sake.
        invert: Tell which do not occur.

    Returns:
        A bool tensor in the shape of ``elements``.
    """
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        raise TypeError("isin() takes at least one Tensor. Pass one.")
    if not isinstance(test_elements, Tensor):
        return elements != test_elements if invert else elements == test_elements
    if not isinstance(elements, Tensor):
        elements = tensor(elements, device=test_elements.device)
    common = promote_types(elements.dtype, test_elements.dtype)
    if common.category == BOOL:
        raise RuntimeError("Unsupported input type encountered for isin(): Bool. Use .byte().")
    x, tests = elements.detach().to(common), test_elements.detach().to(common).reshape(-1)
    n = tests.shape[0]
    if not n:
        found = x != x if common.category == INT else x.isnan() & False
    else:
        tests = _sort(tests, dim=0, descending=False)[0]
        places = _searchsorted(tests, x, right=False).clamp_max(n - 1)
        found = tests.take(places) == x
    return ~found if invert else found


@function()
def unravel_index(indices, shape):
    """Convert flat indices to a tuple of coordinates.

    Args:
        indices: Integers.
        shape: Of the tensor.
    """
    if indices.dtype.category != INT:
        raise TypeError(
            f"expected 'indices' to be integer dtype, but got {indices.dtype}. Convert it with "
            ".long()."
        )
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    found = []
    for k, n in enumerate(sizes):
        step = prod(sizes[k + 1 :])
        places = indices.to(int64).div(max(step, 1), rounding_mode="floor")
        found.append(places % max(n, 1))
    return tuple(found)
