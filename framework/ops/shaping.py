"""Views: other shapes and orders of the same memory, and ``reshape``, which copies if it must.

A view op's attributes, together with its scalar inputs, are all that is needed to repeat it on
another tensor; that is how a write into a view finds its way into the history of the base
(``autograd/views.py``). Parts of a tensor (``narrow``, ``split``, ``diagonal``) are in
``slicing.py``.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..autograd.views import check_writable
from ..dtypes import float64
from ..storage import Storage
from ..tensor import Tensor, wrap
from .registry import function, op

_ndarray = np.ndarray


# Arguments


def sizes(args) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` mean the same."""
    if len(args) == 1 and not isinstance(args[0], int) and hasattr(args[0], "__iter__"):
        args = args[0]
    return tuple([a if a.__class__ is int else a.__index__() for a in args])


def normal_dim(name: str, dim, ndim: int) -> int:
    """A dim counted from the front.

    Raises:
        IndexError: It is out of range.
    """
    limit = ndim or 1
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but "
            f"got {dim}): {name} of a tensor of {ndim} dimensions."
        )
    dim = dim.__index__()
    return dim + limit if dim < 0 else dim


def normal_dims(name: str, dims, ndim: int) -> tuple[int, ...]:
    """Dims counted from the front, in the order given.

    Raises:
        IndexError: One is out of range.
        RuntimeError: One appears twice.
    """
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    found = tuple([normal_dim(name, d, ndim) for d in dims])
    if len(set(found)) != len(found):
        raise RuntimeError(
            f"{name}: repeated dim: a dim appears multiple times in {dims}. Name each once."
        )
    return found


def resolve(name: str, shape, numel: int) -> tuple[int, ...]:
    """A shape with its -1 filled in.

    Raises:
        RuntimeError: It does not have ``numel`` elements.
    """
    if -1 not in shape:
        if prod(shape) == numel and (numel or all(n >= 0 for n in shape)):
            return tuple(shape)
    elif shape.count(-1) > 1:
        raise RuntimeError(f"{name}: only one dimension can be inferred; got {tuple(shape)}.")
    else:
        known = -prod(shape)
        if known and numel % known == 0:
            return tuple([numel // known if n == -1 else n for n in shape])
        if not known and not numel:
            raise RuntimeError(
                f"{name}: cannot reshape tensor of 0 elements into shape {list(shape)} because "
                "the unspecified dimension size -1 can be any value and is ambiguous. Name it."
            )
    if any(n < -1 for n in shape):
        raise RuntimeError(f"{name}: invalid shape dimension {min(shape)} in {list(shape)}.")
    raise RuntimeError(f"{name}: shape '{list(shape)}' is invalid for input of size {numel}.")


# Strides


def viewable(shape, strides, wanted) -> bool:
    """True if memory of that shape and those strides can be seen in another shape."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    new = [n for n in wanted if n != 1]
    if any(n == 0 for n, _ in old):
        return True
    first, k = 0, 0
    while k < len(new):
        last, have, want = first, old[first][0], new[k]
        while have != want:
            if want < have:
                k += 1
                want *= new[k]
            else:
                last += 1
                have *= old[last][0]
        if any(old[i][1] != old[i + 1][0] * old[i + 1][1] for i in range(first, last)):
            return False
        first, k = last + 1, k + 1
    return True


def fits(array, wanted) -> bool:
    """True if an array can be seen in another shape without a copy."""
    return array.flags.c_contiguous or viewable(array.shape, array.strides, wanted)


def strided(xp, array, shape, strides):
    """A writable view of ``array`` with any shape and strides (in bytes), from its first element.

    ``numpy.broadcast_to`` and ``numpy.diagonal`` give read-only views, which a write in place
    through the view could not use.
    """
    storage = array.base
    if type(storage) is Storage and array.size:
        # The same array over the storage's bytes: a fifth of the time of as_strided.
        start = array.__array_interface__["data"][0] - storage.__array_interface__["data"][0]
        return _ndarray(shape, array.dtype, storage, start, strides)
    return xp.lib.stride_tricks.as_strided(array, shape, strides)


# Another shape


def _view_rule(g, input_spec):
    return g.reshape(input_spec.shape)


def _view_samples(make):
    x = make(3, 4)
    yield (x,), {"shape": (2, x.numel() // 2)}
    y = make(2, 3, 4)
    yield (y,), {"shape": (y.shape[0] * y.shape[1], 1, y.shape[2])}
    yield (make(),), {"shape": (1, 1)}
    yield (make(0, 3),), {"shape": (3, 0, 2)}


@op(
    name="_view", method=False, public=False, view=True, samples=_view_samples,
    infer=lambda input, *, shape, named: input.like(shape),
)  # fmt: skip
def view_shape(xp, input, *, shape, named=None):
    """The same memory in another shape; the strides must allow it. The node goes by ``named``."""
    if input.flags.c_contiguous or viewable(input.shape, input.strides, shape):
        return input.reshape(shape)
    raise RuntimeError(
        "view size is not compatible with input tensor's size and stride (at least one "
        f"dimension spans across two contiguous subspaces): view of shape {input.shape} as "
        f"{tuple(shape)}. Use .reshape(...) instead."
    )


view_shape.vjp("input")(_view_rule)


@op(
    name="_reshape_copy", method=False, public=False, samples=_view_samples,
    infer=lambda input, *, shape: input.like(shape),
)  # fmt: skip
def reshape_copy(xp, out, input, *, shape):
    """A copy in another shape."""
    xp.copyto(out.reshape(input.shape), input)


reshape_copy.vjp("input")(_view_rule)


def _view_dtype_infer(input, *, dtype):
    old, new = input.dtype.itemsize, dtype.itemsize
    shape = input.shape
    if old == new:
        return input.like(dtype=dtype)
    if not input.ndim:
        raise RuntimeError(
            "self.dim() cannot be 0 to view "
            f"{input.dtype.name} as {dtype.name} (different element sizes). Unsqueeze it first."
        )
    if shape[-1] * old % new:
        raise RuntimeError(
            f"view: self.size(-1) must be divisible by {new // old} to view {input.dtype.name} as "
            f"{dtype.name} (different element sizes), but got {shape[-1]}."
        )
    return input.like((*shape[:-1], shape[-1] * old // new), dtype)


def _view_dtype_samples(make):
    for shape in ((3, 4), (0, 4)):
        yield (make(*shape),), {"dtype": float64}


@op(
    name="_view_dtype", method=False, public=False, view=True, infer=_view_dtype_infer,
    samples=_view_dtype_samples,
)  # fmt: skip
def view_dtype(xp, input, *, dtype):
    """The same bytes as elements of another type."""
    if input.dtype.itemsize != dtype.itemsize and input.strides[-1] != input.dtype.itemsize:
        raise RuntimeError(
            f"view: self.stride(-1) must be 1 to view {input.dtype} as {dtype.name} (different "
            "element sizes). Make it contiguous first."
        )
    return input.view(dtype.np)


@function(method=True, public=False)
def view(input, *shape, dtype=None, size=None):
    """Return the same memory in another shape, or as another element type, without a copy.

    Args:
        input: A tensor.
        *shape: Sizes, one of which may be -1; or a dtype.
        dtype: The element type, if not given by position.
        size: The sizes, if not given by position.

    Raises:
        RuntimeError: The strides do not allow it; use ``reshape``.
    """
    if dtype is not None or (len(shape) == 1 and _is_dtype(shape[0])):
        from ..dtypes import as_dtype

        return view_dtype(input, as_dtype(shape[0] if dtype is None else dtype))
    wanted = sizes(shape if size is None else size)
    return view_shape(input, resolve("view", wanted, input._spec.numel))


def _is_dtype(value):
    from ..dtypes import dtype

    return isinstance(value, dtype | type)


@function(method=True, public=False)
def view_as(input, other):
    """View in the shape of another tensor."""
    return input.view(other.shape)


@function(method=True)
def reshape(input, *sizes_, shape=None):
    """View in another shape where the strides allow it, else copy.

    Args:
        input: A tensor.
        *sizes_: Sizes, one of which may be -1.
        shape: The same by keyword.
    """
    wanted = resolve("reshape", sizes(sizes_ if shape is None else shape), input._spec.numel)
    array = input._array
    if array.flags.c_contiguous or viewable(array.shape, array.strides, wanted):
        return view_shape(input, wanted)
    return reshape_copy(input, wanted)


@function(method=True, public=False)
def reshape_as(input, other):
    """Reshape to the shape of another tensor."""
    return input.reshape(other.shape)


@function(method=True)
def flatten(input, start_dim=0, end_dim=-1):
    """Merge a range of dims into one; itself if there is nothing to merge."""
    ndim = input.ndim
    start = normal_dim("flatten", start_dim, ndim)
    end = normal_dim("flatten", end_dim, ndim)
    if start > end:
        raise RuntimeError(
            "flatten() has invalid args: start_dim cannot come after end_dim; got "
            f"{start_dim} and {end_dim}."
        )
    if ndim and start == end:
        return input
    shape = input.shape
    merged = prod(shape[start : end + 1])
    return input.reshape((*shape[:start], merged, *shape[end + 1 :]))


@function(method=True)
def unflatten(input, dim, sizes):
    """Split one dim into several; one of the sizes may be -1."""
    d = normal_dim("unflatten", dim, input.ndim)
    shape = input.shape
    split = resolve("unflatten", tuple(sizes), shape[d])
    return input.view((*shape[:d], *split, *shape[d + 1 :]))


@function(method=True)
def ravel(input):
    """Flatten to one contiguous dimension; a copy unless the input is contiguous."""
    return view_shape(input.contiguous(), (input.numel(),))


@function(method=True)
def squeeze(input, dim=None):
    """Drop dims of size 1: all of them, or those among ``dim`` (an int or several)."""
    shape = input.shape
    if dim is None:
        return view_shape(input, tuple([n for n in shape if n != 1]), "Squeeze")
    dims = normal_dims("squeeze", dim, len(shape))
    kept = tuple([n for k, n in enumerate(shape) if n != 1 or k not in dims])
    return view_shape(input, kept, "Squeeze")


@function(method=True)
def unsqueeze(input, dim):
    """Insert a dimension of size 1."""
    shape = input._spec.shape
    d = normal_dim("unsqueeze", dim, len(shape) + 1)
    return view_shape(input, (*shape[:d], 1, *shape[d:]), "Unsqueeze")


# Another order


def _permute_infer(input, *, dims, named):
    return input.like([input.shape[d] for d in dims])


def _permute_samples(make):
    yield (make(2, 3, 4),), {"dims": (2, 0, 1)}
    yield (make(3, 0),), {"dims": (1, 0)}
    yield (make(),), {"dims": ()}


@op(
    name="_permute", method=False, public=False, view=True, infer=_permute_infer,
    samples=_permute_samples,
)  # fmt: skip
def permute_dims(xp, input, *, dims, named=None):
    """Reorder the dimensions. The node goes by ``named``."""
    return input.transpose(dims)


@permute_dims.vjp("input")
def _(g, dims):
    return permute_dims(g, tuple([dims.index(k) for k in range(len(dims))]))


@function(method=True)
def permute(input, *order, dims=None):
    """Reorder the dimensions to ``dims``."""
    wanted = sizes(order if dims is None else dims)
    found = normal_dims("permute", wanted, input.ndim)
    if len(found) != input.ndim:
        raise RuntimeError(
            f"permute: number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {input.ndim} is "
            f"not equal to len(dims) = {len(found)}."
        )
    return permute_dims(input, found)


@function(method=True)
def transpose(input, dim0, dim1):
    """Exchange two dimensions."""
    ndim = input._spec.ndim
    a, b = normal_dim("transpose", dim0, ndim), normal_dim("transpose", dim1, ndim)
    dims = list(range(ndim))
    if ndim:
        dims[a], dims[b] = b, a
    return permute_dims(input, tuple(dims), "Transpose")


@function(method=True)
def swapaxes(input, axis0, axis1):
    """Exchange two dimensions (NumPy's name)."""
    return input.transpose(axis0, axis1)


@function(method=True)
def swapdims(input, dim0, dim1):
    """Exchange two dimensions."""
    return input.transpose(dim0, dim1)


@function(method=True)
def t(input):
    """Transpose a matrix; a tensor of fewer dimensions is returned as it is (a view)."""
    if input.ndim > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D. Use .mT."
        )
    return permute_dims(input, tuple(range(input.ndim - 1, -1, -1)), "T")


@function(method=True)
def movedim(input, source, destination):
    """Move dims to other places; the others keep their order."""
    ndim = input.ndim
    a = normal_dims("movedim", source, ndim)
    b = normal_dims("movedim", destination, ndim)
    if len(a) != len(b):
        raise RuntimeError(
            "movedim: Invalid source or destination dims: source "
            f"({list(a)} dims) should contain the same number of dims as destination ({list(b)} "
            "dims)."
        )
    dims = [d for d in range(ndim) if d not in a]
    for place, d in sorted(zip(b, a, strict=True)):
        dims.insert(place, d)
    return permute_dims(input, tuple(dims[:ndim]))


@function(method=True)
def moveaxis(input, source, destination):
    """Move dims to other places (NumPy's name)."""
    return input.movedim(source, destination)


@function(method=True)
def adjoint(input):
    """Transpose the last two dims and conjugate."""
    out = _matrix_transpose("adjoint", input)
    return out.conj() if input.dtype.is_complex else out


def _matrix_transpose(name, input):
    ndim = input._spec.ndim
    if not ndim:
        return permute_dims(input, (), "Transpose")
    if ndim < 2:
        raise RuntimeError(
            f"tensor.{name} is only supported on matrices or batches of matrices. Got {ndim}-D "
            "tensor."
        )
    return permute_dims(input, (*range(ndim - 2), ndim - 1, ndim - 2), "Transpose")


def _reversed_dims(input):
    """The dims in reverse order."""
    return permute_dims(input, tuple(range(input._spec.ndim - 1, -1, -1)))


def _hermitian(input):
    """A matrix transposed and conjugated."""
    if input.ndim not in (0, 2):
        raise RuntimeError(
            f"tensor.H is only supported on matrices (2-D tensors). Got {input.ndim}-D tensor. "
            "Use .mH."
        )
    out = _reversed_dims(input)
    return out.conj() if input.dtype.is_complex else out


Tensor.T = property(_reversed_dims, doc="The dims in reverse order.")  # type: ignore[assignment, method-assign]
Tensor.mT = property(  # type: ignore[assignment, method-assign]
    lambda self: _matrix_transpose("mT", self), doc="The last two dims exchanged."
)
Tensor.H = property(_hermitian, doc="A matrix transposed and conjugated.")  # type: ignore[assignment, method-assign]
Tensor.mH = property(adjoint, doc="The last two dims exchanged, and conjugated.")  # type: ignore[assignment, method-assign]


# Repeated without memory


def _expand_infer(input, *, shape):
    extra = len(shape) - input.ndim
    if extra < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(shape)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({input.ndim}); got sizes {shape} for "
            f"shape {tuple(input.shape)}."
        )
    for k, n in enumerate(shape):
        if n < 0:
            raise RuntimeError(
                f"expand: the expanded size of the tensor ({n}) isn't allowed in a leading, "
                f"non-existing dimension {k}. Name its size."
            )
        if k >= extra and input.shape[k - extra] not in (1, n):
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size "
                f"({input.shape[k - extra]}) at non-singleton dimension {k}.  Target sizes: "
                f"{list(shape)}.  Tensor sizes: {list(input.shape)}"
            )
    return input.like(shape)


def _expand_samples(make):
    x = make(3, 1)
    yield (x,), {"shape": (2, x.shape[0], 4)}
    yield (make(),), {"shape": (3,)}
    y = make(2, 3)
    yield (y,), {"shape": tuple(y.shape)}
    z = make(1, 3)
    yield (z,), {"shape": (0, z.shape[1])}
    yield (make(0, 1),), {"shape": (0, 2)}


@op(
    name="_expand", method=False, public=False, view=True, infer=_expand_infer,
    samples=_expand_samples,
)  # fmt: skip
def expand_shape(xp, input, *, shape):
    """Repeat dims of size 1 without memory, by stride 0."""
    extra = len(shape) - input.ndim
    strides = [0] * extra
    for have, n, stride in zip(input.shape, shape[extra:], input.strides, strict=True):
        strides.append(stride if have == n else 0)
    return strided(xp, input, shape, tuple(strides))


@expand_shape.vjp("input")
def _(g):
    return g  # the engine sums it to the input's shape


@function(method=True, public=False)
def expand(input, *shape, size=None, implicit=False):
    """Repeat dims of size 1 without memory; -1 keeps a size."""
    wanted = sizes(shape if size is None else size)
    if -1 in wanted:
        extra = len(wanted) - input.ndim
        wanted = tuple(
            [input.shape[k - extra] if n == -1 and k >= extra else n for k, n in enumerate(wanted)]
        )
    return expand_shape(input, wanted)


@function(method=True, public=False)
def expand_as(input, other):
    """Expand to the shape of another tensor."""
    return expand_shape(input, tuple(other.shape))


@function(method=True)
def broadcast_to(input, size):
    """Expand to a shape by the rules of broadcasting."""
    return input.expand(size)


@function(method=True, public=False)
def contiguous(input, memory_format=None):
    """Itself if its elements lie in C order without gaps, else a copy where they do."""
    return input if input._array.flags.c_contiguous else input.clone()


# In place: the tensor becomes a view of what it was


def become(name, input, make):
    """Make a tensor a view of what it was: ``make`` of it; its version rises."""
    check_writable(input, name)
    old = wrap(input._array, input._spec, input._storage)
    old._node, old._index, old._requires_grad = input._node, input._index, input._requires_grad
    old._viewed, old._extra = input._viewed, None
    out = make(old)
    input._array, input._spec = out._array, out._spec
    input._storage.version += 1
    if input._node is None and input._requires_grad:
        return input  # a leaf, under no_grad: it stays one
    input._viewed = out._viewed
    input._viewed.version = input._storage.version
    input._node, input._index, input._requires_grad = out._node, out._index, out._requires_grad
    return input


@function(method=True, public=False)
def squeeze_(input, dim=None):
    """Drop dims of size 1 of this tensor itself."""
    return become("squeeze_", input, lambda x: x.squeeze(dim))


@function(method=True, public=False)
def unsqueeze_(input, dim):
    """Insert a dimension of size 1 into this tensor itself."""
    return become("unsqueeze_", input, lambda x: x.unsqueeze(dim))


@function(method=True, public=False)
def transpose_(input, dim0, dim1):
    """Exchange two dimensions of this tensor itself."""
    return become("transpose_", input, lambda x: x.transpose(dim0, dim1))


@function(method=True, public=False)
def swapaxes_(input, axis0, axis1):
    """Exchange two dimensions of this tensor itself (NumPy's name)."""
    return input.transpose_(axis0, axis1)


@function(method=True, public=False)
def swapdims_(input, dim0, dim1):
    """Exchange two dimensions of this tensor itself."""
    return input.transpose_(dim0, dim1)


@function(method=True, public=False)
def t_(input):
    """Transpose this matrix itself."""
    return become("t_", input, lambda x: x.t())
