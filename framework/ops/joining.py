"""Joining, repeating, turning and padding: results assembled from parts of their inputs.

Every kernel writes the parts straight into their places of the result.
"""

from __future__ import annotations

from ..spec import Spec
from ..tensor import Tensor
from .inplace import need_separate
from .registry import broadcast_shapes as common_shape
from .registry import function, op
from .shaping import normal_dim, normal_dims, reshape_copy, sizes

# Side by side


def _cat_infer(*tensors, dim):
    # An empty vector joins anything, as PyTorch has it.
    full = [s for s in tensors if tuple(s.shape) != (0,)]
    first = full[0] if full else tensors[0]
    total = 0
    for k, s in enumerate(tensors):
        if tuple(s.shape) == (0,):
            continue
        same_rest = s.ndim == first.ndim and all(
            d == dim or m == n for d, (m, n) in enumerate(zip(first.shape, s.shape, strict=True))
        )
        if not same_rest:
            raise RuntimeError(
                "cat joins tensors whose sizes match except in dimension "
                f"{dim}: Sizes of tensors must match; got {tuple(first.shape)} and "
                f"{tuple(s.shape)} for tensor number {k} in the list."
            )
        total += s.shape[dim]
    return Spec((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)


def _cat_samples(make):
    yield (make(2, 3), make(4, 3)), {"dim": 0}
    yield (make(2, 3), make(2, 0), make(2, 1)), {"dim": 1}


@op(
    name="_cat", method=False, public=False, promote="arith", infer=_cat_infer,
    samples=_cat_samples,
)  # fmt: skip
def cat_along(xp, out, *tensors, dim):
    """The inputs one after another along ``dim``."""
    head = (slice(None),) * dim
    start = 0
    for array in tensors:
        if not array.size:
            continue
        stop = start + array.shape[dim]
        out[(*head, slice(start, stop))] = array
        start = stop


@cat_along.vjp("tensors")
def _(g, needs, tensors_spec, dim):
    start = 0
    parts = []
    for need, s in zip(needs, tensors_spec, strict=True):
        if s.ndim == g.ndim:
            parts.append(g.narrow(dim, start, s.shape[dim]) if need else None)
            start += s.shape[dim]
        else:
            parts.append(g.reshape(-1).narrow(0, 0, 0))
    return tuple(parts)


@function()
def cat(tensors, dim=0, *, out=None):
    """Join tensors along a dim that they have.

    Args:
        tensors: Several, equal in all other sizes; the dtypes are promoted.
        dim: Along which.
        out: Where to leave the result.
    """
    if isinstance(tensors, Tensor):
        raise TypeError("cat(): argument 'tensors' (position 1) must be tuple of Tensors.")
    tensors = tuple(tensors)
    if out is not None:
        need_separate("cat", out, tensors)
    if not tensors:
        raise ValueError("cat(): expected a non-empty list of Tensors")
    for k, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise TypeError(
                f"cat: expected Tensor as element {k} in argument 0, but got {type(x).__name__}"
            )
    if not all(x.ndim for x in tensors):
        raise RuntimeError("zero-dimensional tensor cannot be concatenated. Use stack.")
    d = normal_dim("cat", dim, max([x.ndim for x in tensors]))
    return cat_along(*tensors, dim=d, out=out)


@function()
def concat(tensors, dim=0, *, out=None):
    """Join tensors along a dim that they have; another name of ``cat``."""
    return cat(tensors, dim, out=out)


@function()
def concatenate(tensors, dim=0, *, out=None):
    """Join tensors along a dim that they have; another name of ``cat``."""
    return cat(tensors, dim, out=out)


def _stack_infer(*tensors, dim):
    first = tensors[0]
    for k, s in enumerate(tensors):
        if s.shape != first.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {tuple(first.shape)} at "
                f"entry 0 and {tuple(s.shape)} at entry {k}"
            )
    return Spec((*first.shape[:dim], len(tensors), *first.shape[dim:]), first.dtype)


def _stack_samples(make):
    yield (make(2, 3), make(2, 3)), {"dim": 1}
    yield (make(), make(), make()), {"dim": 0}
    yield (make(0, 2), make(0, 2)), {"dim": 0}


@op(
    name="_stack", method=False, public=False, promote="arith", infer=_stack_infer,
    samples=_stack_samples,
)  # fmt: skip
def stack_along(xp, out, *tensors, dim):
    """The inputs one after another along a new dim."""
    head = (slice(None),) * dim
    for k, array in enumerate(tensors):
        out[(*head, k)] = array


@stack_along.vjp("tensors")
def _(g, needs, dim):
    return tuple([g.select(dim, k) if need else None for k, need in enumerate(needs)])


@function()
def stack(tensors, dim=0, *, out=None):
    """Join tensors of one shape along a new dim."""
    tensors = _some("stack", tensors)
    d = normal_dim("stack", dim, tensors[0].ndim + 1)
    return stack_along(*tensors, dim=d, out=out)


def _each(function_of_one, tensors):
    return [function_of_one(x) for x in tensors]


def _some(name, tensors):
    tensors = tuple(tensors)
    if not tensors:
        raise RuntimeError(f"{name} expects a non-empty TensorList")
    return tensors


@function()
def hstack(tensors, *, out=None):
    """Join along the second dim; vectors along their only one."""
    parts = _each(atleast_1d, _some("hstack", tensors))
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1, out=out)


@function()
def vstack(tensors, *, out=None):
    """Join along the first dim; a vector is one row."""
    return cat(_each(atleast_2d, _some("vstack", tensors)), 0, out=out)


@function()
def row_stack(tensors, *, out=None):
    """Join along the first dim; another name of ``vstack``."""
    return vstack(tensors, out=out)


@function()
def dstack(tensors, *, out=None):
    """Join along the third dim."""
    return cat(_each(atleast_3d, _some("dstack", tensors)), 2, out=out)


@function()
def column_stack(tensors, *, out=None):
    """Join along the second dim; a vector is one column."""
    tensors = _some("column_stack", tensors)
    parts = [x.reshape(x.numel(), 1) if x.ndim <= 1 else x for x in tensors]
    return cat(parts, 1, out=out)


def _at_least(name, pad_to):
    def at_least(*tensors):
        if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
            return tuple(_each(pad_to, tensors[0]))
        if len(tensors) == 1:
            return pad_to(tensors[0])
        return tuple(_each(pad_to, tensors))

    at_least.__name__ = at_least.__qualname__ = name
    at_least.__doc__ = f"View as a tensor of {name[8]} or more dimensions; several as a tuple."
    return function()(at_least)


def _to_2d(x):
    return x if x.ndim >= 2 else x.reshape(1, 1) if not x.ndim else x.unsqueeze(0)


def _to_3d(x):
    if x.ndim >= 3:
        return x
    return x.unsqueeze(-1) if x.ndim == 2 else _to_2d(x).unsqueeze(-1)


atleast_1d = _at_least("atleast_1d", lambda x: x if x.ndim else x.reshape(1))
atleast_2d = _at_least("atleast_2d", _to_2d)
atleast_3d = _at_least("atleast_3d", _to_3d)


# To a common shape


@function()
def broadcast_shapes(*shapes):
    """The shape that shapes broadcast to."""
    from ..spec import Size

    shapes = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    return Size(common_shape("broadcast_shapes", *shapes))


@function()
def broadcast_tensors(*tensors):
    """Every tensor expanded to their common shape (views)."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tensors[0]
    shape = common_shape("broadcast_tensors", *[x.shape for x in tensors])
    return tuple([x.expand(shape) for x in tensors])


@function()
def meshgrid(*tensors, indexing="ij"):
    """The grids of coordinates that vectors span (views).

    Args:
        *tensors: Vectors or 0-d tensors, or one list of them.
        indexing: "ij": dim k of every grid belongs to vector k; "xy": the first two change places.
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tensors[0]
    tensors = [x.reshape(-1) if not x.ndim else x for x in tensors]
    if any(x.ndim > 1 for x in tensors):
        raise RuntimeError("meshgrid: Expected 0D or 1D tensor in the tensor list.")
    if indexing not in ("ij", "xy"):
        raise RuntimeError(
            f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}'
        )
    swap = indexing == "xy" and len(tensors) > 1
    if swap:
        tensors[0], tensors[1] = tensors[1], tensors[0]
    shape = tuple([x.numel() for x in tensors])
    grids = [
        x.view((1,) * k + (-1,) + (1,) * (len(shape) - k - 1)).expand(shape)
        if x.numel() else x.new_empty(shape)
        for k, x in enumerate(tensors)
    ]  # fmt: skip
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@function()
def cartesian_prod(*tensors):
    """Every combination of the elements of vectors, one a row."""
    if len(tensors) == 1:
        return tensors[0].view(tensors[0].shape)
    return stack([x.reshape(-1) for x in meshgrid(*tensors)], 1)


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


@op(
    name="_repeat", method=False, public=False, infer=_repeat_infer, samples=_repeat_samples,
)  # fmt: skip
def repeat_counts(xp, out, input, *, counts):
    """The whole input ``counts`` times along each dim."""
    lead = len(counts) - input.ndim
    shape = (1,) * lead + tuple(input.shape)
    split = [m for pair in zip(counts, shape, strict=True) for m in pair]
    one = [m for n in shape for m in (1, n)]
    xp.copyto(out.reshape(split), input.reshape(one))


@repeat_counts.vjp("input")
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
    return repeat_counts(input, counts=counts)


@function(method=True)
def repeat_interleave(input, repeats, dim=None, *, output_size=None):
    """Repeat every element in its place.

    Args:
        input: A tensor.
        repeats: How often: one number, or one for each index of ``dim`` (a tensor).
        dim: Along which; None flattens first.
        output_size: Ignored; PyTorch uses it to spare a synchronization.
    """
    from ..tensor import Tensor

    if dim is None:
        input, dim = input.flatten(), 0
        if not input.ndim:
            input = input.reshape(1)
    d = normal_dim("repeat_interleave", dim, input.ndim)
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if isinstance(repeats, int):
        if repeats < 0:
            raise RuntimeError(f"repeats can not be negative; got {repeats}.")
        shape = list(input.shape)
        wide = input.unsqueeze(d + 1).expand((*shape[: d + 1], repeats, *shape[d + 1 :]))
        shape[d] *= repeats
        return reshape_copy(wide, shape=tuple(shape))
    counts = repeats.tolist() if isinstance(repeats, Tensor) else [int(r) for r in repeats]
    if len(counts) != input.shape[d]:
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{len(counts)} and input.size({d}) = {input.shape[d]}"
        )
    if any(c < 0 for c in counts):
        raise RuntimeError("repeats can not be negative")
    from .creation import tensor

    where = [k for k, c in enumerate(counts) for _ in range(c)]
    from ..dtypes import int64

    return input.index_select(d, tensor(where, dtype=int64, device=input.device))


# Turned


def _roll_pieces(shape, shifts, dims):
    """(target, source) pairs of slices: each dim is cut in two."""
    pieces = [((), ())]
    for d, n in enumerate(shape):
        s = shifts[dims.index(d)] % n if d in dims and n else 0
        cuts = [(slice(s, n), slice(0, n - s))]
        if s:
            cuts.append((slice(0, s), slice(n - s, n)))
        pieces = [((*t, a), (*f, b)) for t, f in pieces for a, b in cuts]
    return pieces


def _roll_samples(make):
    yield (make(3, 4),), {"shifts": (1, -2), "dims": (0, 1)}
    yield (make(5),), {"shifts": (7,), "dims": (0,)}
    yield (make(0, 3),), {"shifts": (1,), "dims": (0,)}


@op(
    name="_roll", method=False, public=False, samples=_roll_samples,
    infer=lambda input, *, shifts, dims: input,
)  # fmt: skip
def roll_dims(xp, out, input, *, shifts, dims):
    """Move along ``dims``; what leaves at one end enters at the other."""
    for target, source in _roll_pieces(input.shape, shifts, dims):
        out[target] = input[source]


@roll_dims.vjp("input")
def _(g, shifts, dims):
    return roll_dims(g, shifts=tuple([-s for s in shifts]), dims=dims)


@function(method=True)
def roll(input, shifts, dims=None):
    """Move along dims; what leaves at one end enters at the other. No dims: of the flat tensor."""
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
    return roll_dims(input, shifts=tuple(total.values()), dims=tuple(total))


def _flip_samples(make):
    yield (make(3, 4),), {"dims": (0, 1)}
    yield (make(2, 0),), {"dims": (0,)}


@op(
    name="_flip", method=False, public=False, samples=_flip_samples,
    infer=lambda input, *, dims: input,
)  # fmt: skip
def flip_dims(xp, out, input, *, dims):
    """The elements in reverse order along ``dims``."""
    back = slice(None, None, -1)
    key = tuple([back if d in dims else slice(None) for d in range(input.ndim)])
    out[...] = input[key]


@flip_dims.vjp("input")
def _(g, dims):
    return flip_dims(g, dims=dims)


@function(method=True)
def flip(input, *order, dims=None):
    """Reverse the order along ``dims`` (a copy)."""
    found = normal_dims("flip", sizes(order if dims is None else dims), input.ndim)
    return flip_dims(input, dims=found if input.ndim else ())


@function(method=True)
def fliplr(input):
    """Reverse the order along the second dim."""
    if input.ndim < 2:
        raise RuntimeError(f"fliplr: Input must be >= 2-d; got {input.ndim}-d.")
    return flip_dims(input, dims=(1,))


@function(method=True)
def flipud(input):
    """Reverse the order along the first dim."""
    if input.ndim < 1:
        raise RuntimeError(f"flipud: Input must be >= 1-d; got {input.ndim}-d.")
    return flip_dims(input, dims=(0,))


@function(method=True)
def rot90(input, k=1, dims=(0, 1)):
    """Rotate by ``k`` quarter turns in the plane of two dims, from the first to the second."""
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
        return flip_dims(input, dims=(a, b))
    if k == 1:
        return flip_dims(input, dims=(b,)).transpose(a, b)
    return flip_dims(input, dims=(a,)).transpose(a, b)
