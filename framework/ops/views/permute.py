"""permute, transpose, movedim, ``.T`` and ``.mH``.

One op, ``permute``; the others find out which order they mean.
"""

from __future__ import annotations

from ..registry import function, op
from .reshape import normal_dim, normal_dims, sizes


def _permute_infer(input, *, dims, named):
    return input.like([input.shape[d] for d in dims])


def _permute_samples(make):
    yield (make(2, 3, 4),), {"dims": (2, 0, 1)}
    yield (make(3, 0),), {"dims": (1, 0)}
    yield (make(),), {"dims": ()}


@op(view=True, infer=_permute_infer, samples=_permute_samples)
def _permute(xp, input, *, dims, named=None):
    """Permute the dimensions. The node's name is ``named``."""
    return input.transpose(dims)


@_permute.vjp("input")
def _(g, dims):
    return _permute(g, tuple([dims.index(k) for k in range(len(dims))]))


@function(method=True)
def permute(input, *order, dims=None):
    """Permute the dimensions to ``dims``."""
    wanted = sizes(order if dims is None else dims)
    found = normal_dims("permute", wanted, input.ndim)
    if len(found) != input.ndim:
        raise RuntimeError(
            f"permute: number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {input.ndim} is "
            f"not equal to len(dims) = {len(found)}."
        )
    return _permute(input, found)


@function(method=True)
def transpose(input, dim0, dim1):
    """Swap two dimensions."""
    ndim = input._spec.ndim
    a, b = normal_dim("transpose", dim0, ndim), normal_dim("transpose", dim1, ndim)
    dims = list(range(ndim))
    if ndim:
        dims[a], dims[b] = b, a
    return _permute(input, tuple(dims), "Transpose")


@function(method=True)
def swapaxes(input, axis0, axis1):
    """Swap two dimensions (NumPy's name)."""
    return input.transpose(axis0, axis1)


@function(method=True)
def swapdims(input, dim0, dim1):
    """Swap two dimensions."""
    return input.transpose(dim0, dim1)


@function(method=True)
def t(input):
    """Transpose a matrix; a tensor of fewer dimensions is returned as it is (a view)."""
    if input.ndim > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D. Use .mT."
        )
    return _permute(input, tuple(range(input.ndim - 1, -1, -1)), "T")


@function(method=True)
def movedim(input, source, destination):
    """Move dims to other positions; the others keep their order."""
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
    return _permute(input, tuple(dims[:ndim]))


@function(method=True)
def moveaxis(input, source, destination):
    """Move dims to other positions (NumPy's name)."""
    return input.movedim(source, destination)


@function(method=True)
def adjoint(input):
    """Transpose the last two dims and conjugate."""
    out = _matrix_transpose("adjoint", input)
    return out.conj() if input.dtype.is_complex else out


def _matrix_transpose(name, input):
    ndim = input._spec.ndim
    if not ndim:
        return _permute(input, (), "Transpose")
    if ndim < 2:
        raise RuntimeError(
            f"tensor.{name} is only supported on matrices or batches of matrices. Got {ndim}-D "
            "tensor."
        )
    return _permute(input, (*range(ndim - 2), ndim - 1, ndim - 2), "Transpose")


@function(property=True, public=False)
def T(input):
    """The dims in reverse order."""
    return _permute(input, tuple(range(input._spec.ndim - 1, -1, -1)))


@function(property=True, public=False)
def mT(input):
    """The last two dims exchanged."""
    return _matrix_transpose("mT", input)


@function(property=True, public=False)
def H(input):
    """The conjugate transpose of a matrix."""
    if input.ndim not in (0, 2):
        raise RuntimeError(
            f"tensor.H is only supported on matrices (2-D tensors). Got {input.ndim}-D tensor. "
            "Use .mH."
        )
    out = T(input)
    return out.conj() if input.dtype.is_complex else out


@function(property=True, public=False)
def mH(input):
    """The last two dims exchanged, and conjugated."""
    return adjoint(input)
