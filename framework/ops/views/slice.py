"""narrow, select, split, chunk, unbind, and basic slicing, as views.

The gradient of a part is the part's gradient amid zeros. Each view op here has a partner that
makes that in one pass, and whose own gradient is the view again; so double backward costs nothing
more. Where a part starts is an input, not an attribute: ``x[i]`` in a loop over ``i`` is one plan.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from operator import index as as_index
from typing import Any

from ...autograd.anomaly import remember
from ...autograd.engine import zeros_of
from ...autograd.node import Node, attach, edge_to
from ...dtypes import INT
from ...modes import local
from ...tensor import Tensor
from ..manipulation.cat import _cat
from ..registry import function, op
from .reshape import normal_dim

# One index or one range of one dim


def _select_infer(input, index, *, dim, named):
    shape = input.shape
    return input.like((*shape[:dim], *shape[dim + 1 :]))


def _select_samples(make):
    yield (make(3, 4), 1), {"dim": 0}
    yield (make(2, 3, 4), 2), {"dim": 1}
    yield (make(3), 0), {"dim": 0}
    yield (make(0, 3), 2), {"dim": 1}


@op(view=True, infer=_select_infer, samples=_select_samples)
def _select(xp, input, index, *, dim, named=None):
    """Select one index of a dim, which is removed. The node's name is ``named``."""
    if dim:
        return input[(*(slice(None),) * dim, index, ...)]
    return input[index, ...]  # with the dots a 0-d result is a view, too


@_select.vjp("input")
def _(g, index, input_spec, dim):
    return _amid_zeros(g.unsqueeze(dim), index, dim=dim, size=input_spec.shape[dim])


def _narrow_infer(input, start, *, dim, length, named):
    shape = input.shape
    return input.like((*shape[:dim], length, *shape[dim + 1 :]))


def _narrow_samples(make):
    yield (make(3, 4), 1), {"dim": 1, "length": 2}
    yield (make(3), 0), {"dim": 0, "length": 3}
    yield (make(3, 2), 3), {"dim": 0, "length": 0}
    yield (make(0, 2), 1), {"dim": 1, "length": 1}


@op(view=True, infer=_narrow_infer, samples=_narrow_samples)
def _narrow(xp, input, start, *, dim, length, named=None):
    """Narrow one dim to a range. The node's name is ``named``."""
    if dim:
        return input[(*(slice(None),) * dim, slice(start, start + length))]
    return input[start : start + length]


@_narrow.vjp("input")
def _(g, start, input_spec, dim):
    return _amid_zeros(g, start, dim=dim, size=input_spec.shape[dim])


def _amid_infer(input, start, *, dim, size):
    shape = input.shape
    return input.like((*shape[:dim], size, *shape[dim + 1 :]))


def _amid_samples(make):
    x = make(3, 2)
    yield (x, 1), {"dim": 1, "size": x.shape[1] + 2}
    yield (make(0, 2), 1), {"dim": 0, "size": 3}


@op(infer=_amid_infer, half="exact", samples=_amid_samples)
def _amid_zeros(xp, out, input, start, *, dim, size):
    """Embed the input as a range of a longer dim of zeros."""
    head = (slice(None),) * dim
    stop = start + input.shape[dim]
    if start:
        out[(*head, slice(0, start))] = 0
    out[(*head, slice(start, stop))] = input
    if stop < size:
        out[(*head, slice(stop, None))] = 0


@_amid_zeros.vjp("input")
def _(g, start, input_spec, dim):
    return _narrow(g, start, dim, input_spec.shape[dim])


# Any basic index: ints, (start, stop, step), None


def _decoded(key):
    return (*[slice(*k) if k.__class__ is tuple else k for k in key], ...)


def _slice_shape(shape, key):
    found = []
    d = 0
    for k in key:
        if k is None:
            found.append(1)
            continue
        if k.__class__ is tuple:
            start, stop, step = k
            found.append(max(0, -((start - stop) // step)))
        d += 1
    return (*found, *shape[d:])


def _slice_samples(make):
    yield (make(4, 5),), {"key": (1, None, (0, 5, 2))}
    yield (make(3, 3),), {"key": ((1, 3, 1), (0, 2, 1))}
    yield (make(3),), {"key": ((2, 2, 1),)}
    yield (make(0, 3),), {"key": ((0, 0, 1), 1)}


@op(
    view=True,
    samples=_slice_samples,
    infer=lambda input, *, key: input.like(_slice_shape(input.shape, key)),
)
def _slice(xp, input, *, key):
    """Apply a basic index; ``key`` holds ints, None and (start, stop, step), within bounds."""
    return input[_decoded(key)]


@_slice.vjp("input")
def _(g, input_spec, key):
    return _slice_amid_zeros(g, key=key, shape=tuple(input_spec.shape))


def _slice_amid_samples(make):
    x = make(3, 2)
    yield (x,), {"key": ((1, 6 * x.shape[0], 6),), "shape": (6 * x.shape[0], x.shape[1])}
    y = make(4)
    yield (y,), {"key": (2, (0, y.shape[0], 1)), "shape": (3, y.shape[0])}
    yield (make(0),), {"key": ((0, 0, 1), 1), "shape": (0, 3)}


@op(
    half="exact",
    samples=_slice_amid_samples,
    infer=lambda input, *, key, shape: input.like(shape),
)
def _slice_amid_zeros(xp, out, input, *, key, shape):
    """Embed the input at a basic index into zeros: backward of slicing."""
    out.fill(0)
    out[_decoded(key)] = input


@_slice_amid_zeros.vjp("input")
def _(g, key):
    return _slice(g, key)


# What users call


def in_range(name, index, dim, size):
    """Normalize an index to be counted from the front.

    Raises:
        IndexError: It is out of range.
    """
    index = as_index(index)
    if not -size <= index < size:
        raise IndexError(
            f"{name}index {index} is out of bounds for dimension {dim} with size {size}. "
            f"Indices go from {-size} to {size - 1}."
        )
    return index + size if index < 0 else index


@function(method=True)
def select(input, dim, index):
    """Select one index of a dim, which is removed (a view)."""
    if not input.ndim:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = normal_dim("select", dim, input.ndim)
    return _select(input, in_range("select(): ", index, d, input.shape[d]), d)


@function(method=True)
def narrow(input, dim, start, length):
    """Narrow one dim to a range from ``start`` (a view)."""
    if not input.ndim:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    d = normal_dim("narrow", dim, input.ndim)
    size = input.shape[d]
    if isinstance(start, Tensor) and (start.ndim or start.dtype.category != INT):
        raise RuntimeError(
            f"narrow(): start must be an 0-dim integral Tensor; got {start.ndim}-d {start.dtype}."
        )
    begin, length = as_index(start), as_index(length)
    if length < 0:
        raise RuntimeError(f"narrow(): length must be non-negative; got {length}.")
    if not -size <= begin <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {begin})"
        )
    begin = begin + size if begin < 0 else begin
    if begin + length > size:
        raise RuntimeError(
            f"start ({begin}) + length ({length}) exceeds dimension size ({size}). "
            "Pass a shorter length."
        )
    return _narrow(input, begin, d, length)


class SplitNode(Node):
    """The node of a tensor split along a dim into all of its parts; joins their gradients.

    Each part is a view like any other: its chain says how it is rebuilt from a base that was
    written to, and then it has a separate node.
    """

    __slots__ = ("dim", "edge_specs", "output_count", "starts", "unbound")

    def __init__(self, input: Any, dim: int, starts: list[int], unbound: bool) -> None:
        self.edges = [edge_to(input)]
        self.edge_specs = [input._spec]
        self.dim, self.starts, self.unbound = dim, starts, unbound
        self.output_count = len(starts)
        self._begin()

    def name(self) -> str:
        """Return PyTorch's name of the corresponding node."""
        return "UnbindBackward0" if self.unbound else "SplitBackward0"

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Concatenate the gradients, with zeros for unused parts."""
        spec, dim = self.edge_specs[0], self.dim
        size = spec.shape[dim]
        here = [k for k, g in enumerate(grads) if g is not None]
        parts = [g if g is None or not self.unbound else g.unsqueeze(dim) for g in grads]
        if 2 * len(here) <= len(grads):
            found = [_amid_zeros(parts[k], self.starts[k], dim=dim, size=size) for k in here]
            return [sum(found[1:], found[0]) if found else None]
        ends = [*self.starts[1:], size]
        for k, g in enumerate(parts):
            if g is None:
                shape = (*spec.shape[:dim], ends[k] - self.starts[k], *spec.shape[dim + 1 :])
                parts[k] = zeros_of(spec.like(shape))
        return [_cat(*parts, dim=dim)]


def _joined(input, parts, dim, starts, unbound=False):
    # One node for all parts, instead of one for each.
    if len(parts) > 1 and parts[0]._node is not None and local.state.grad and input._requires_grad:
        node = SplitNode(input, dim, starts, unbound)
        if local.state.anomaly:
            remember(node)
        for k, part in enumerate(parts):
            attach(part, node, k)
    return tuple(parts)


def _ranges(input, dim, lengths, named="Slice"):
    starts = [0, *accumulate(lengths)][: len(lengths)]
    parts = [_narrow(input, k, dim, n, named) for k, n in zip(starts, lengths, strict=True)]
    return _joined(input, parts, dim, starts)


@function(method=True, names={"split_size": "split_size_or_sections"})
def split(tensor, split_size_or_sections, dim=0):
    """Split a dim into parts of one size (the last may be smaller) or of the sizes given."""
    if not isinstance(split_size_or_sections, int) and not isinstance(
        split_size_or_sections, Tensor
    ):
        return tensor.split_with_sizes(split_size_or_sections, dim)
    d = _split_dim("split", tensor, dim)
    size, n = int(split_size_or_sections), tensor.shape[d]
    if size < 0 or (size == 0 and n):
        raise RuntimeError(
            f"split expects split_size be non-negative, but got split_size={size}"
            if size < 0
            else f"split_size can only be 0 if dimension size is 0, but got dimension size of {n}"
        )
    if not n:
        return _ranges(tensor, d, [0], "Split")
    return _ranges(tensor, d, [min(size, n - k) for k in range(0, n, size)], "Split")


def _split_dim(name, tensor, dim):
    if not tensor.ndim:
        raise RuntimeError(f"{name} expects at least a 1-dimensional tensor")
    return normal_dim(name, dim, tensor.ndim)


@function(method=True)
def split_with_sizes(input, split_sizes, dim=0):
    """Split a dim into parts of the sizes given."""
    d = _split_dim("split_with_sizes", input, dim)
    lengths = [int(n) for n in split_sizes]
    if any(n < 0 for n in lengths) or sum(lengths) != input.shape[d]:
        raise RuntimeError(
            "split_with_sizes expects split_sizes to sum exactly to "
            f"{input.shape[d]} (input tensor's size at dimension {d}), but got "
            f"split_sizes={lengths}. Change one, or call split with one size."
        )
    return _ranges(input, d, lengths, "SplitWithSizes")


@function(method=True)
def chunk(input, chunks, dim=0):
    """Split a dim into at most ``chunks`` parts of one size; the last may be smaller."""
    d = _split_dim("chunk", input, dim)
    if chunks <= 0:
        raise RuntimeError(
            f"chunk expects `chunks` to be greater than 0, got: {chunks}. Pass 1 or more."
        )
    n = input.shape[d]
    if not n:
        return _ranges(input, d, [0] * chunks, "Split")
    return input.split(-(-n // chunks), d)


_SPLITS = {"sections": "indices_or_sections", "indices": "indices_or_sections"}


@function(method=True, names={**_SPLITS, "tensor_indices_or_sections": "indices_or_sections"})
def tensor_split(input, indices_or_sections, dim=0):
    """Split a dim into nearly equal parts, or before each of the indices given."""
    d = _split_dim("tensor_split", input, dim)
    n = input.shape[d]
    given = indices_or_sections
    if isinstance(given, Tensor):
        given = given.tolist()
    if isinstance(given, int):
        if given <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {given}")
        small, extra = divmod(n, given)
        return _ranges(input, d, [small + (k < extra) for k in range(given)])
    cuts = [0, *[slice(int(k)).indices(n)[1] for k in given], n]
    return tuple(_narrow(input, a, d, max(b - a, 0)) for a, b in pairwise(cuts))


def _numbered_split(name, least, dim_of):
    def split_along(input, indices_or_sections):
        if input.ndim < least:
            raise RuntimeError(
                f"torch.{name} requires a tensor with at least {least} dimension"
                f"{'s' if least > 1 else ''}, but got a tensor with {input.ndim} dimensions!"
            )
        d = dim_of(input.ndim)
        given = indices_or_sections
        if isinstance(given, str):
            raise TypeError(f"{name}(): argument 'indices' must be tuple of ints, not str.")
        if isinstance(given, int) and (given <= 0 or input.shape[d] % given):
            raise RuntimeError(
                f"torch.{name} attempted to split along dimension {d}, but the size of the "
                f"dimension {input.shape[d]} is not divisible by the split_size {given}!"
            )
        return input.tensor_split(given, d)

    split_along.__name__ = split_along.__qualname__ = name
    split_along.__doc__ = f"Split along dim {dim_of(least)} into equal parts or at indices."
    return function(method=True, names=_SPLITS)(split_along)


hsplit = _numbered_split("hsplit", 1, lambda ndim: 0 if ndim == 1 else 1)
vsplit = _numbered_split("vsplit", 2, lambda ndim: 0)
dsplit = _numbered_split("dsplit", 3, lambda ndim: 2)


@function(method=True)
def unbind(input, dim=0):
    """Return a tuple of all slices along a dim, without that dim."""
    if not input.ndim:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions: unbind needs one.")
    d = normal_dim("unbind", dim, input.ndim)
    starts = list(range(input.shape[d]))
    return _joined(input, [_select(input, k, d, "Unbind") for k in starts], d, starts, unbound=True)
