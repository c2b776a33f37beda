"""max, min, argmax, argmin, amax, amin.

Where one element of several is chosen, its gradient goes to that element alone, through the index
that the op returns. Where only a value is asked for (``amax``, ``max()``), equal elements share
the gradient evenly, as in PyTorch. NaN counts as the largest of all, and is what every extreme of
a dim that has one returns.
"""

from __future__ import annotations

import builtins
from collections import namedtuple

from ...dtypes import bool_, int64
from ...kernels.common.reduce import largest, smallest
from ...spec import Spec
from ...tensor import Tensor
from ..elementwise.comparison import maximum, minimum
from ..indexing.gather import _scatter_unique
from ..inplace import as_outs, into, need_separate
from ..registry import function, op
from ..signatures import per_element
from .minmax_strided import in_rows, of_halves, search_rows
from .sum import kept, normalize_dims, reduced_shape, reductions


def _pair(name, *fields):
    # PyTorch's named results: a tuple with fields.
    return namedtuple(name, fields or ("values", "indices"))


def one_dim(name, dim, ndim):
    """Normalize a dim to a non-negative int.

    Raises:
        IndexError: It is out of range.
    """
    if not isinstance(dim, int):
        raise TypeError(f"{name}() takes one int for dim; got {dim!r}. Reduce one dim at a time.")
    limit = builtins.max(ndim, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got "
            f"{dim}): {name} of a tensor of {ndim} dimensions."
        )
    return dim % limit


def need_elements(name, shape, dims, whole=RuntimeError):
    """Raise an error for a reduction of no elements.

    Raises:
        IndexError: A reduced dim is empty.
        RuntimeError: All are reduced, and there is no element (``whole`` names the type).
    """
    if 0 in shape and len(dims) == len(shape) and whole is not None:
        raise whole(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )
    for d in dims:
        if d < len(shape) and shape[d] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")


def into_each(name, out, results, input):
    """Write several results to the tensors given as ``out=``, if any.

    Raises:
        TypeError: There are more or fewer than results.
        RuntimeError: One has another dtype, requires grad, or shares memory with the input.
    """
    if out is None:
        return results
    out = as_outs(name, out, len(results))
    for o, r in zip(out, results, strict=True):
        if o.dtype is not r.dtype:
            raise RuntimeError(
                f"{name}(): Expected out tensor to have dtype {r.dtype}, but got {o.dtype} instead."
            )
        if r.requires_grad or o.requires_grad:
            raise RuntimeError(
                f"{name}(): functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad. Detach it."
            )
        need_separate(name, o, (input,))
    return tuple([into(o, r) for o, r in zip(out, results, strict=True)])


def place(g, indices, spec, dim):
    """Scatter ``g`` into zeros at ``indices`` along ``dim``: backward of max and min."""
    if not spec.ndim:
        return g.reshape(())
    return _scatter_unique(g, indices, shape=tuple(spec.shape), dim=dim)


def share(g, chosen, dim):
    """Share a gradient evenly among equal elements."""
    return g / chosen.sum(dim, True) * chosen if dim else g


# Values only


def _amax_infer(input, *, dim, keepdim):
    return Spec(reduced_shape(input.shape, dim, keepdim), input.dtype)


def _declare(name, word):
    def kernel(xp, out, input, *, dim, keepdim):
        find = largest if word == "largest" else smallest
        find(xp, input, dim, out, keepdim)

    kernel.__doc__ = f"Find the {word} over ``dim``."
    chosen = op(
        name=name,
        infer=_amax_infer,
        half="exact",
        flops=per_element(1),
        samples=reductions,
        real=True,
    )(kernel)

    @chosen.kernel("cpu", when=of_halves)
    def _(xp, out, input, *, dim, keepdim):
        if input.flags.c_contiguous:
            search_rows(out, None, input, dim, word == "largest")
        else:
            kernel(xp, out, input, dim=dim, keepdim=keepdim)

    @chosen.vjp("input")
    def _(g, input, out, dim, keepdim):
        equal = input == kept(out, dim, keepdim)
        return share(kept(g, dim, keepdim), equal, dim)

    return chosen


largest_over = _declare("_amax", "largest")
smallest_over = _declare("_amin", "smallest")


@function(method=True)
def amax(input, dim=(), keepdim=False, *, out=None):
    """Compute the maximum over ``dim`` (an int, several, or all).

    Memory:
        Keeps ``input`` and the result; equal elements share the gradient evenly.
    """
    dims = normalize_dims("amax", dim, input.ndim)
    need_elements("amax", input.shape, dims, RuntimeError if dim in ((), None, []) else None)
    return largest_over(input, dim=dims, keepdim=keepdim, out=out)


@function(method=True)
def amin(input, dim=(), keepdim=False, *, out=None):
    """Compute the minimum over ``dim`` (an int, several, or all).

    Memory:
        Keeps ``input`` and the result; equal elements share the gradient evenly.
    """
    dims = normalize_dims("amin", dim, input.ndim)
    need_elements("amin", input.shape, dims, RuntimeError if dim in ((), None, []) else None)
    return smallest_over(input, dim=dims, keepdim=keepdim, out=out)


@function(method=True)
def aminmax(input, *, dim=None, keepdim=False, out=None):
    """Compute the minimum and the maximum, as ``(min, max)``."""
    if dim is not None and 0 in input.shape:
        need_elements("aminmax", input.shape, (one_dim("aminmax", dim, input.ndim),), None)
    elif 0 in input.shape:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no "
            f"identity; got shape {tuple(input.shape)}. Reduce another dim."
        )
    dims = normalize_dims("aminmax", dim, input.ndim)
    found = (
        smallest_over(input, dim=dims, keepdim=keepdim),
        largest_over(input, dim=dims, keepdim=keepdim),
    )
    return AminMax(*into_each("aminmax", out, found, input))


AminMax = _pair("aminmax", "min", "max")


# Values and indices


def _moved(input, dim):
    # Searching along any dim but the last would make the array module copy: the copy is ours.
    last = input.ndim - 1
    if dim == last or not input.ndim:
        return Spec((0,), input.dtype)
    return input.like((*input.shape[:dim], *input.shape[dim + 1 :], input.shape[dim]))


def _search_infer(input, *, dim, keepdim):
    shape = reduced_shape(input.shape, (dim,), keepdim)
    return Spec(shape, input.dtype), Spec(shape, int64), _moved(input, dim)


def search_samples(make):
    """Samples of an op along one dim."""
    for shape, dim, keep in (
        ((3, 4), 1, False),
        ((2, 3, 4), 0, True),
        ((), 0, False),
        ((0, 3), 1, False),
    ):
        yield (make(*shape),), {"dim": dim, "keepdim": keep}


def _contiguous(array):
    return array.flags.c_contiguous


def _along_last(xp, moved, input, dim):
    if dim == input.ndim - 1 or not input.ndim:
        return input
    xp.copyto(moved, xp.moveaxis(input, dim, -1))
    return moved


def _search(name, word):
    def kernel(xp, values, indices, moved, input, *, dim, keepdim):
        if not input.ndim:
            xp.copyto(values, input)
            indices.fill(0)
            return
        find, where = (largest, xp.argmax) if word == "largest" else (smallest, xp.argmin)
        find(xp, input, dim, values, keepdim)
        shape = reduced_shape(input.shape, (dim,), False)
        where(_along_last(xp, moved, input, dim), axis=-1, out=indices.reshape(shape))

    kernel.__doc__ = f"Find the {word} element along ``dim``, and where it is first."
    chosen = op(
        name=name,
        returns=("values", "indices"),
        scratch=("moved",),
        infer=_search_infer,
        layout=_contiguous,
        half="exact",
        flops=per_element(1),
        samples=search_samples,
        real=True,
    )(kernel)

    @chosen.kernel("cpu", when=in_rows, layout=_contiguous, scratch=False)
    def _(xp, values, indices, input, *, dim, keepdim):
        search_rows(values, indices, input, dim, word == "largest")

    @chosen.vjp("input")
    def _(g_values, indices, input_spec, dim, keepdim):
        if not input_spec.ndim:
            return g_values
        dims = (dim,)
        return place(kept(g_values, dims, keepdim), kept(indices, dims, keepdim), input_spec, dim)

    return chosen


search_largest = _search("_max_dim", "largest")
search_smallest = _search("_min_dim", "smallest")
Max, Min = _pair("max"), _pair("min")


def _extreme(name, over, search, result, elementwise, input, dim, keepdim, other, out):
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}.")
    if isinstance(dim, Tensor):
        other, dim = dim, None
    if other is not None:
        return elementwise()(input, other, out=out)
    if dim is None:
        need_elements(name, input.shape, tuple(range(input.ndim)))
        return over(input, dim=tuple(range(input.ndim)), keepdim=False, out=out)
    d = one_dim(name, dim, input.ndim)
    need_elements(name, input.shape, (d,), None)
    return result(*search(input, dim=d, keepdim=keepdim, out=out))


def _maximum():
    return maximum


def _minimum():
    return minimum


@function(method=True)
def max(input, dim=None, keepdim=False, *, other=None, out=None):
    """Compute the maximum of all elements, along a dim, or of two tensors elementwise.

    Args:
        input: Any shape.
        dim: None for the largest of all, as a tensor; an int for the named pair
            ``(values, indices)`` along it; a tensor for ``maximum(input, dim)``.
        keepdim: Leave the reduced dim, with size 1.
        other: The other tensor, by its name.
        out: Where to write the result, or the pair.

    Raises:
        RuntimeError: There is no element.
        IndexError: ``dim`` is out of range or empty.

    Memory:
        Along a dim, keeps the indices; of all, ``input`` and the result.
    """
    return _extreme(
        "max", largest_over, search_largest, Max, _maximum, input, dim, keepdim, other, out
    )


@function(method=True)
def min(input, dim=None, keepdim=False, *, other=None, out=None):
    """Compute the minimum of all elements, along a dim, or of two tensors: see :func:`max`."""
    return _extreme(
        "min", smallest_over, search_smallest, Min, _minimum, input, dim, keepdim, other, out
    )


def _argmax_infer(input, *, dim, keepdim):
    if input.dtype is bool_:
        raise RuntimeError(
            "argmax() and argmin(): does not support bool input. Convert with .to(uint8)."
        )
    if dim is None:
        return Spec((1,) * input.ndim if keepdim else (), int64), Spec((0,), input.dtype)
    return Spec(reduced_shape(input.shape, (dim,), keepdim), int64), _moved(input, dim)


def _arg_samples(make):
    yield from search_samples(make)
    yield (make(3, 4),), {"dim": None, "keepdim": True}


def _arg(name, word):
    def kernel(xp, out, moved, input, *, dim, keepdim):
        if not input.ndim:
            out.fill(0)
            return
        where = xp.argmax if word == "largest" else xp.argmin
        if dim is None:
            where(input.reshape(-1), axis=0, out=out.reshape(()))
        else:
            shape = reduced_shape(input.shape, (dim,), False)
            where(_along_last(xp, moved, input, dim), axis=-1, out=out.reshape(shape))

    kernel.__doc__ = f"Find where the {word} element along ``dim`` is first; None flattens."
    found = op(
        name=name,
        scratch=("moved",),
        infer=_argmax_infer,
        layout=_contiguous,
        half="exact",
        flops=per_element(1),
        samples=_arg_samples,
        real=True,
    )(kernel)

    @found.kernel("cpu", when=in_rows, layout=_contiguous, scratch=False)
    def _(xp, out, input, *, dim, keepdim):
        search_rows(None, out, input, dim, word == "largest")

    return found


index_of_largest = _arg("_argmax", "largest")
index_of_smallest = _arg("_argmin", "smallest")


def _arg_call(name, search, input, dim, keepdim, out):
    if dim is None:
        need_elements(name, input.shape, tuple(range(input.ndim)), IndexError)
        return search(input, dim=None, keepdim=keepdim, out=out)
    d = one_dim(name, dim, input.ndim)
    need_elements(name, input.shape, (d,), None)
    return search(input, dim=d, keepdim=keepdim, out=out)


@function(method=True)
def argmax(input, dim=None, keepdim=False, *, out=None):
    """Return the index of the maximum along ``dim``, or in the flattened tensor."""
    return _arg_call("argmax", index_of_largest, input, dim, keepdim, out)


@function(method=True)
def argmin(input, dim=None, keepdim=False, *, out=None):
    """Return the index of the minimum along ``dim``, or in the flattened tensor."""
    return _arg_call("argmin", index_of_smallest, input, dim, keepdim, out)
