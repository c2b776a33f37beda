"""nonzero, one_hot, bincount, searchsorted, bucketize. None is differentiable."""

from __future__ import annotations

from math import prod

import numpy as np

from ...data_dependence import require_values
from ...dtypes import INT, int32, int64
from ...kernels.runtime import thresholds
from ...spec import Spec
from ...tensor import Tensor
from ..creation.fill import zeros
from ..creation.from_data import tensor
from ..inplace import into
from ..registry import function, op
from .index_put import set_places
from .where import masks


@op(adopt=True, half="exact", samples=masks)
def _argwhere(xp, input):
    """Return the coordinates of nonzero elements, one row each."""
    if not input.ndim:
        return xp.zeros((int(bool(input != 0)), 0), dtype=xp.int64)
    if xp is not np:
        return xp.argwhere(input)
    places = np.empty((np.count_nonzero(input), input.ndim), np.int64)
    set_places(xp, places.T, input)
    return places


@function(method=True, out=True)
def nonzero(input, *, as_tuple=False):
    """Return the coordinates of nonzero elements: (count, ndim), or a vector for each dim."""
    if not as_tuple:
        return _argwhere(input)
    if not input.ndim:
        input = input.unsqueeze(0)
    return _argwhere(input).unbind(1)


@function(method=True)
def argwhere(input):
    """Return the coordinates of nonzero elements: (count, ndim)."""
    return _argwhere(input)


@function()
def one_hot(tensor, num_classes=-1):
    """Encode class indices as one-hot vectors in a new last dim.

    Args:
        tensor: Class indices (*), int64.
        num_classes: -1 for one more than the largest index.

    Returns:
        Tensor (*, num_classes), int64.
    """
    if tensor.dtype is not int64:
        raise RuntimeError(
            "one_hot is only applicable to index tensor of type LongTensor; got "
            f"{tensor.dtype}. Convert it with .long()."
        )
    if num_classes == 0 or (num_classes < 0 and not tensor.numel()):
        raise RuntimeError(
            "Can not infer total number of classes from empty tensor. Pass num_classes."
            if num_classes
            else "Class values must be smaller than num_classes; got num_classes=0."
        )
    if not tensor.is_meta and tensor.numel():
        if num_classes < 0:
            require_values("one_hot", tensor)
        if int(tensor.min()) < 0:
            raise RuntimeError(
                "one_hot: Class values must be non-negative. Map them to 0 and up first."
            )
        top = int(tensor.max())
        if num_classes < 0:
            num_classes = top + 1
        elif top >= num_classes:
            raise RuntimeError(
                f"one_hot: Class values must be smaller than num_classes; got {top} and "
                f"{num_classes}. Pass num_classes={top + 1} or more."
            )

    out = zeros((*tensor.shape, num_classes), dtype=int64, device=tensor.device)
    return out.scatter_(-1, tensor.unsqueeze(-1), 1) if out.numel() else out


def _bincount_samples(make):
    x = tensor(np.array([0, 3, 1, 3, 2, 0]))
    yield (x, None), {"minlength": 6}
    yield (x, tensor(np.linspace(0.5, 3, 6))), {"minlength": 0}
    yield (tensor(np.zeros(0, np.int64)), None), {"minlength": 2}


@op(adopt=True, half="exact", samples=_bincount_samples)
def _bincount(xp, input, weights, *, minlength):
    """Count how often each number occurs."""
    if not input.size:
        return xp.zeros(minlength, dtype=xp.int64 if weights is None else xp.float64)
    return xp.bincount(input, weights, minlength)


@function(method=True)
def bincount(input, weights=None, minlength=0):
    """Count each non-negative integer, or sum its weights."""
    if input.ndim != 1 or input.dtype.category > INT:
        raise RuntimeError(
            "bincount only supports 1-d non-negative integral inputs; got "
            f"{input.ndim}-d {input.dtype}."
        )
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0; got {minlength}.")
    if input.numel() and int(input.min()) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None:
        if weights.shape != input.shape:
            raise RuntimeError("weights should be 1-d and have the same length as input")
        weights = weights.detach()
        out = _bincount(input, weights.double(), minlength=minlength)
        return out.to(weights.dtype) if weights.dtype.is_floating_point else out
    return _bincount(input, None, minlength=minlength)


def _search_samples(make):
    rising = tensor([-1.0, 0.0, 0.5, 2.0], dtype=make(1).dtype)
    yield (rising, make(2, 3)), {"right": False}
    yield (rising.expand(2, 4), make(2, 3)), {"right": True}
    yield (rising, make(0, 3)), {"right": False}


def _search_infer(sorted_sequence, input, *, right):
    if sorted_sequence.ndim != 1 and (
        sorted_sequence.ndim != input.ndim
        or tuple(sorted_sequence.shape[:-1]) != tuple(input.shape[:-1])
    ):
        raise RuntimeError(
            "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions "
            "of boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(sorted_sequence.shape)} and input value tensor {list(input.shape)}"
        )
    return Spec(input.shape, int64)


@op(
    adopt=True,
    promote="arith",
    infer=_search_infer,
    half="exact",
    samples=_search_samples,
)
def _searchsorted(xp, sorted_sequence, input, *, right):
    """Find where each value would be inserted into a sorted sequence, or row."""
    side = "right" if right else "left"
    if sorted_sequence.ndim == 1:
        return xp.searchsorted(sorted_sequence, input.reshape(-1), side).reshape(input.shape)
    if not input.size:
        return xp.zeros(input.shape, xp.int64)
    count = prod(input.shape[:-1])
    rows = sorted_sequence.reshape(count, sorted_sequence.shape[-1])
    values = input.reshape(count, input.shape[-1])
    if count > 1 and 0 < rows.shape[1] <= _SHORT and (rows[:, -1] == rows[:, -1]).all():  # no NaN
        return _counted_before(xp, rows, values, right).reshape(input.shape)
    found = [xp.searchsorted(r, v, side) for r, v in zip(rows, values, strict=True)]
    return xp.stack(found).reshape(input.shape) if found else xp.zeros(input.shape, xp.int64)


_SHORT = 32  # elements of a sorted row up to which all are compared with each value


def _counted_before(xp, rows, values, right):
    # How many elements come before each value: those that are not at it or behind. NaN is last.
    out = xp.empty(values.shape, xp.int64)
    behind = xp.greater if right else xp.greater_equal
    step = max(1, thresholds.TILE_BYTES // (values.shape[1] * rows.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        later = behind(rows[part, None, :], values[part, :, None])
        out[part] = rows.shape[1] - xp.count_nonzero(later, axis=-1)
    return out


@function()
def searchsorted(
    sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None, out=None
):
    """Find where each value would be inserted into a sorted sequence.

    Args:
        sorted_sequence: Ascending along its last dim.
        input: Values; a number, or a tensor with the same leading dims.
        out_int32: Return int32 instead of int64.
        right: After equal elements instead of before them.
        side: "left" or "right", another way to say so.
        sorter: Indices that sort ``sorted_sequence``.
        out: Where to leave the result.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(
            "searchsorted(): side can only be 'left' or 'right' and must not contradict right; "
            f"got side={side!r}, right={right}."
        )
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    given = input
    if not isinstance(given, Tensor):
        given = tensor(given, device=sorted_sequence.device)
    found = _searchsorted(sorted_sequence.detach(), given.detach(), right=right or side == "right")
    found = found.to(int32) if out_int32 else found
    return into(out, found)


@function()
def bucketize(input, boundaries, *, out_int32=False, right=False, out=None):
    """Return the index of the bucket, between sorted boundaries, of each value."""
    if boundaries.ndim != 1:
        raise RuntimeError(
            f"bucketize(): boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})"
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right, out=out)
