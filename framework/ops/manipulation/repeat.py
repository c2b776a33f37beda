"""tile, repeat, repeat_interleave, roll, flip, rot90.

Every kernel writes its input straight into its places of the result.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...data_dependence import require_values
from ...dtypes import int64
from ...kernels.common.copy import place
from ...kernels.common.schedule import parallel_rows
from ...kernels.common.strided import bits
from ...tensor import Tensor
from ..creation.from_data import tensor
from ..indexing.cpu_routes import enough
from ..registry import function, op
from ..views.reshape import _reshape_copy, normal_dim, normal_dims, sizes

# Repeats


@function(method=True)
def tile(input, *counts, dims=None):
    """Repeat ``dims`` times along every dim; they may be fewer than the tensor's."""
    counts = sizes(counts if dims is None else dims)
    return input.repeat((1,) * (input.ndim - len(counts)) + counts)


def _repeat_infer(input, *, counts):
    lead = len(counts) - input.ndim
    shape = (1,) * lead + tuple(input.shape)
    return input.like([n * c for n, c in zip(shape, counts, strict=True)])


def _repeat_samples(make):
    yield (make(2, 3),), {"counts": (2, 1, 2)}
    yield (make(2),), {"counts": (0,)}
    yield (make(),), {"counts": (3,)}
    yield (make(0, 2),), {"counts": (2, 3)}


@op(infer=_repeat_infer, half="exact", samples=_repeat_samples)
def _repeat(xp, out, input, *, counts):
    """Repeat the whole input ``counts`` times along each dim."""
    lead = len(counts) - input.ndim
    shape = (1,) * lead + tuple(input.shape)
    split = [m for pair in zip(counts, shape, strict=True) for m in pair]
    one = [m for n in shape for m in (1, n)]
    xp.copyto(out.reshape(split), input.reshape(one))


@_repeat.vjp("input")
def _(g, input_spec, counts):
    lead = len(counts) - input_spec.ndim
    shape = (1,) * lead + tuple(input_spec.shape)
    split = g.reshape([m for pair in zip(counts, shape, strict=True) for m in pair])
    return split.sum(tuple(range(0, 2 * len(counts), 2))).reshape(input_spec.shape)


@function(method=True, public=False)
def repeat(input, *counts, repeats=None):
    """Repeat the whole tensor along each dim; more ``repeats`` than dims prepend dims."""
    counts = sizes(counts if repeats is None else repeats)
    if len(counts) < input.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            f"tensor; got {counts} for shape {tuple(input.shape)}."
        )
    if any(c < 0 for c in counts):
        raise RuntimeError(f"repeat: counts must not be negative; got {counts}.")
    return _repeat(input, counts=counts)


@function(method=True)
def repeat_interleave(input=None, repeats=None, dim=None, *, output_size=None):
    """Repeat each element, next to itself.

    Args:
        input: A tensor; without one, the numbers from 0 on are repeated, one for each repeat.
        repeats: How often: one number, or one for each index of ``dim`` (a tensor).
        dim: Along which; None flattens first.
        output_size: Ignored; PyTorch uses it to spare a synchronization.
    """
    if input is None or repeats is None:
        repeats = input if repeats is None else repeats
        input = _counted(repeats)
    if dim is None:
        input, dim = input.flatten(), 0
        if not input.ndim:
            input = input.reshape(1)
    d = normal_dim("repeat_interleave", dim, input.ndim)
    if isinstance(repeats, Tensor):
        require_values("repeat_interleave", repeats)
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if isinstance(repeats, int):
        if repeats < 0:
            raise RuntimeError(f"repeats can not be negative; got {repeats}.")
        shape = list(input.shape)
        wide = input.unsqueeze(d + 1).expand((*shape[: d + 1], repeats, *shape[d + 1 :]))
        shape[d] *= repeats
        return _reshape_copy(wide, shape=tuple(shape))
    counts = repeats.tolist() if isinstance(repeats, Tensor) else [int(r) for r in repeats]
    counts = np.asarray(counts, np.int64)
    if len(counts) != input.shape[d]:
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{len(counts)} and input.size({d}) = {input.shape[d]}"
        )
    if (counts < 0).any():
        raise RuntimeError("repeats can not be negative")
    where = np.repeat(np.arange(len(counts)), counts)
    return input.index_select(d, tensor(where, dtype=int64, device=input.device))


def _counted(repeats):
    if not isinstance(repeats, Tensor):
        raise TypeError(
            f"repeat_interleave() takes an input and repeats, or repeats alone as a tensor; got "
            f"{type(repeats).__name__} alone. Pass both."
        )
    if repeats.ndim != 1:
        raise RuntimeError(
            "repeat_interleave only accept 1D vector as repeat, where there is no input; got shape "
            f"{tuple(repeats.shape)}. Flatten it."
        )
    return tensor(list(range(len(repeats))), dtype=int64, device=repeats.device)


# Turned


@lru_cache(maxsize=256)
def _roll_slices(shape, shifts, dims):
    """Return (target, source) pairs of slices: each dim is cut in two."""
    pairs = [((), ())]
    for d, n in enumerate(shape):
        s = shifts[dims.index(d)] % n if d in dims and n else 0
        cuts = [(slice(s, n), slice(0, n - s))]
        if s:
            cuts.append((slice(0, s), slice(n - s, n)))
        pairs = [((*t, a), (*f, b)) for t, f in pairs for a, b in cuts]
    return pairs


def _roll_samples(make):
    yield (make(3, 4),), {"shifts": (1, -2), "dims": (0, 1)}
    yield (make(5),), {"shifts": (7,), "dims": (0,)}
    yield (make(0, 3),), {"shifts": (1,), "dims": (0,)}


@op(half="exact", samples=_roll_samples, infer=lambda input, *, shifts, dims: input)
def _roll(xp, out, input, *, shifts, dims):
    """Roll along ``dims``, circularly."""
    for target, source in _roll_slices(input.shape, shifts, dims):
        place(xp, out[target], input[source])


@_roll.vjp("input")
def _(g, shifts, dims):
    return _roll(g, shifts=tuple([-s for s in shifts]), dims=dims)


@function(method=True)
def roll(input, shifts, dims=None):
    """Roll along dims, circularly; without dims, the flattened tensor."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    if dims is None or dims == () or dims == []:
        if len(shifts) != 1:
            raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:0")
        return input.flatten().roll(shifts, 0).view(input.shape) if input.numel() else input.clone()
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(dims) != len(shifts):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
        )
    if dims and not input.ndim:
        raise IndexError(f"Dimension specified as {dims[0]} but tensor has no dimensions: roll.")
    total = {}
    for s, d in zip(shifts, dims, strict=True):
        d = normal_dim("roll", d, input.ndim)
        total[d] = total.get(d, 0) + s
    return _roll(input, shifts=tuple(total.values()), dims=tuple(total))


def _flip_samples(make):
    yield (make(3, 4),), {"dims": (0, 1)}
    yield (make(3, 4),), {"dims": (1,)}
    yield (make(2, 0),), {"dims": (0,)}


@op(half="exact", samples=_flip_samples, infer=lambda input, *, dims: input)
def _flip(xp, out, input, *, dims):
    """Reverse the order of elements along ``dims``."""
    back = slice(None, None, -1)
    key = tuple([back if d in dims else slice(None) for d in range(input.ndim)])
    place(xp, out, input[key])


@_flip.kernel(
    "cpu",
    when=lambda input, *, dims: dims == (input.ndim - 1,) and enough(input.numel, input.dtype),
)
def _(xp, out, input, *, dims):
    if not input.flags.c_contiguous:
        _flip.op.plain(xp, out, input, dims=dims)
        return
    from ...kernels.cpu import indexing

    target, rows = (bits(a).reshape(-1, input.shape[-1]) for a in (out, input))
    parallel_rows(indexing.reverse, out.size, target.shape[0], target, rows)


@_flip.vjp("input")
def _(g, dims):
    return _flip(g, dims=dims)


@function(method=True)
def flip(input, *order, dims=None):
    """Reverse the order along ``dims`` (a copy)."""
    found = normal_dims("flip", sizes(order if dims is None else dims), input.ndim)
    return _flip(input, dims=found if input.ndim else ())


@function(method=True)
def fliplr(input):
    """Reverse the order along the second dim."""
    if input.ndim < 2:
        raise RuntimeError(f"fliplr: Input must be >= 2-d; got {input.ndim}-d.")
    return _flip(input, dims=(1,))


@function(method=True)
def flipud(input):
    """Reverse the order along the first dim."""
    if input.ndim < 1:
        raise RuntimeError(f"flipud: Input must be >= 1-d; got {input.ndim}-d.")
    return _flip(input, dims=(0,))


@function(method=True)
def rot90(input, k=1, dims=(0, 1)):
    """Rotate by ``k`` times 90 degrees in the plane of two dims, from the first to the second."""
    if len(dims) != 2 or input.ndim < 2:
        raise RuntimeError(
            f"rot90: expected total rotation dims == 2 and total dims >= 2; got {tuple(dims)} "
            f"and {input.ndim} dims."
        )
    a, b = (normal_dim("rot90", d, input.ndim) for d in dims)
    if a == b:
        raise RuntimeError(f"rot90: expected rotation dims to be different, but got {dims}.")
    k %= 4
    if k == 0:
        return input.clone()
    if k == 2:
        return _flip(input, dims=(a, b))
    if k == 1:
        return _flip(input, dims=(b,)).transpose(a, b)
    return _flip(input, dims=(a,)).transpose(a, b)
