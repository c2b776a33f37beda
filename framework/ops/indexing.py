"""Indexing: ``x[...]`` and ``x[...] = v``, with NumPy's rules as PyTorch reads them.

Ints, slices, None and the ellipsis give a view (``slicing.py``). Tensors, lists and masks give a
copy: their indices are broadcast and put into one tensor, a row for each indexed dim, which is
all that the one primitive and its partners need. The gradient of a copy adds up where an index
occurs twice, and is the copy of a gradient again.

Where the indices come from dims side by side the result has theirs there, else in front. An int
beside them selects first, as in PyTorch; NumPy counts it as an index array.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..devices.scatter import scatter_add
from ..dtypes import BOOL, INT, int64, uint8
from ..tensor import Tensor
from .creation import tensor
from .joining import stack_along
from .registry import broadcast_shapes, function, op
from .selecting import masks
from .shaping import expand_shape, fits, view_shape
from .slicing import in_range, narrow_range, select_index, slice_view

_CHUNK = 1 << 15  # bytes of a temporary inside a kernel


# Kernels. Everywhere ``index`` is (k, *B): row j holds the indices of dim ``dims[j]``.


def check_bounds(xp, index, shape, dims, error=IndexError):
    """Refuse indices out of range. A GPU is not waited for: there they wrap around.

    Raises:
        IndexError: An index is out of range (or ``error``).
    """
    if xp is not np or not index.size:
        return
    for row, dim in zip(index, dims, strict=True):
        size = shape[dim]
        low, high = int(row.min()), int(row.max())
        if low < -size or high >= size:
            raise error(
                f"index {high if high >= size else low} is out of bounds for dimension {dim} "
                f"with size {size}"
            )


def _lead(array, dims):
    """The array with some dims in front."""
    return array.transpose((*dims, *[k for k in range(array.ndim) if k not in dims]))


def _result_shape(shape, index_shape, dims, at):
    rest = [n for k, n in enumerate(shape) if k not in dims]
    return (*rest[:at], *index_shape[1:], *rest[at:])


def _values_first(xp, values, target, index, at):
    """Values broadcast to the indexing result, the dims of the indices in front."""
    if not hasattr(values, "shape") or not values.ndim:
        return values
    b = index.ndim - 1
    rest = target.shape[index.shape[0] :]
    values = xp.broadcast_to(values, (*rest[:at], *index.shape[1:], *rest[at:]))
    return values.transpose((*range(at, at + b), *range(at), *range(at + b, values.ndim)))


def take(xp, array, index, axis, out):
    """``xp.take`` into ``out``; negative indices count from the end."""
    if xp is np:
        np.take(array, index, axis, out=out, mode="wrap")  # mode "raise" would copy `out`
    else:
        xp.take(array, index, axis, out=out)


def _index_infer(input, index, *, dims, at):
    return input.like(_result_shape(input.shape, index.shape, dims, at))


def positions(rows, *shape):
    """Indices for samples: row k counts through ``range(rows[k])`` in steps of 2, twice or more."""
    count = prod(shape)
    found = [[(k + 2 * i) % n - (n if i % 3 == 2 else 0) for i in range(count)]
             for k, n in enumerate(rows)]  # fmt: skip
    return tensor(np.array(found, np.int64).reshape(len(rows), *shape))


def _index_samples(make):
    x = make(3, 4)
    yield (x, positions(x.shape[:1], 5)), {"dims": (0,), "at": 0}
    y = make(2, 3, 4)
    yield (y, positions(y.shape[1:], 2, 2)), {"dims": (1, 2), "at": 1}
    yield (y, positions((y.shape[0], y.shape[2]), 3)), {"dims": (0, 2), "at": 0}
    yield (y, positions((y.shape[2],), 0)), {"dims": (2,), "at": 2}


@op(name="_index", method=False, public=False, infer=_index_infer, samples=_index_samples)
def index_elements(xp, out, input, index, *, dims, at):
    """The elements of ``input`` at ``index``."""
    check_bounds(xp, index, input.shape, dims)
    if not out.size:
        return
    n = prod(index.shape[1:])
    flat = out.reshape((*out.shape[:at], n, *out.shape[at + index.ndim - 1 :]))
    index = index.reshape((len(dims), n))
    if dims == (at,) and input.flags.c_contiguous:
        take(xp, input, index[0], at, flat)
        return
    source = _lead(input, dims)
    target = _lead(flat, (at,))
    row_bytes = prod(target.shape[1:]) * out.dtype.itemsize
    if xp is not np:
        target[...] = source[tuple(index)]
    elif row_bytes > 4096:
        for k in range(n):
            target[k] = source[tuple(index[:, k])]
    else:
        step = _CHUNK // row_bytes
        for k in range(0, n, step):
            target[k : k + step] = source[tuple(index[:, k : k + step])]


@index_elements.vjp("input")
def _(g, index, input_spec, dims, at):
    return index_sum(g, index, shape=tuple(input_spec.shape), dims=dims, at=at)


def accumulate(xp, target, index, values):
    """Add ``values`` (*B, ...) to ``target`` at ``index`` (k, *B), as often as each occurs."""
    where = tuple(index)
    row = prod(target.shape[len(where) :])
    if xp is np and row >= 64 and hasattr(values, "shape") and values.ndim:
        # np.add.at takes 9 ns an element where it is not one-dimensional; np.add 0.3.
        places = index.reshape((len(where), -1)) if index.ndim != 2 else index
        for k, b in enumerate(np.ndindex(index.shape[1:])):
            place = target[tuple(places[:, k])]
            np.add(place, values[b], out=place)
    else:
        scatter_add(xp, target, where, values)


def _index_sum_samples(make):
    x = make(5, 4)
    yield (x, positions((3,), x.shape[0])), {"shape": (3, x.shape[1]), "dims": (0,), "at": 0}
    y = make(2, 3)
    m, n = y.shape
    yield (y, positions((3, 2), m)), {"shape": (3, n, 2), "dims": (0, 2), "at": 0}
    yield (make(2, 5), positions((3,), 5)), {"shape": (2, 3), "dims": (1,), "at": 1}
    yield (make(0, 5), positions((3,), 5)), {"shape": (0, 3), "dims": (1,), "at": 1}


@op(
    name="_index_sum", method=False, public=False, half="float32", samples=_index_sum_samples,
    infer=lambda input, index, *, shape, dims, at: input.like(shape),
)  # fmt: skip
def index_sum(xp, out, input, index, *, shape, dims, at):
    """Zeros of ``shape`` with ``input`` added at ``index``: the transpose of indexing."""
    check_bounds(xp, index, shape, dims)
    out.fill(0)
    target = _lead(out, dims)
    accumulate(xp, target, index, _values_first(xp, input, target, index, at))


@index_sum.vjp("input")
def _(g, index, dims, at):
    return index_elements(g, index, dims=dims, at=at)


def _put_infer(input, index, values, *, dims, at):
    shape = _result_shape(input.shape, index.shape, dims, at)
    try:
        fits_in = broadcast_shapes("index_put", shape, values.shape) == tuple(shape)
    except RuntimeError:
        fits_in = False
    if not fits_in:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(shape)}"
        )
    return input


def _put_samples(make):
    x = make(5, 4)
    index = tensor(np.array([[3, 0, -1]], np.int64))  # no index twice: the winner is nobody's
    yield (x, index, make(1, 4)), {"dims": (0,), "at": 0}
    yield (x, index, 2.0), {"dims": (1,), "at": 1}
    yield (make(0, 4), index, make(0, 3)), {"dims": (1,), "at": 1}


@op(
    name="_index_put", method=False, public=False, inplace="_index_put_", infer=_put_infer,
    samples=_put_samples,
    autocast="promote",
)  # fmt: skip
def index_assign(xp, out, input, index, values, *, dims, at):
    """``input`` with ``values`` at ``index``; of several for one element the last stays."""
    check_bounds(xp, index, input.shape, dims)
    if out is not input:
        xp.copyto(out, input)
    target = _lead(out, dims)
    target[tuple(index)] = _values_first(xp, values, target, index, at)


@index_assign.vjp("input")
def _(g, index, dims, at):
    return index_assign(g, index, 0, dims=dims, at=at)


@index_assign.vjp("values")
def _(g, index, dims, at):
    return index_elements(g, index, dims=dims, at=at)


def _put_add_samples(make):
    x = make(3, 4)
    yield (x, positions(x.shape[:1], 5), make(1, 4)), {"dims": (0,), "at": 0}
    yield (x, positions(x.shape, 6), make()), {"dims": (0, 1), "at": 0}
    y = make(2, 5)
    yield (y, positions(y.shape[1:], 3), make(1, 3)), {"dims": (1,), "at": 1}
    yield (make(0, 4), positions((4,), 2), make()), {"dims": (1,), "at": 1}


@op(
    name="_index_put_add", method=False, public=False, inplace="_index_put_add_", half="float32",
    infer=_put_infer, samples=_put_add_samples,
)  # fmt: skip
def index_accumulate(xp, out, input, index, values, *, dims, at):
    """``input`` with ``values`` added at ``index``, as often as each occurs."""
    check_bounds(xp, index, input.shape, dims)
    if out is not input:
        xp.copyto(out, input)
    target = _lead(out, dims)
    accumulate(xp, target, index, _values_first(xp, values, target, index, at))


@index_accumulate.vjp("input")
def _(g):
    return g


@index_accumulate.vjp("values")
def _(g, index, dims, at):
    return index_elements(g, index, dims=dims, at=at)


@op(
    name="_mask_places", method=False, public=False, adopt=True,
    samples=masks,
)  # fmt: skip
def mask_places(xp, mask):
    """Where a mask is True: (ndim, count)."""
    if not mask.ndim:
        return xp.zeros((0, int(mask)), dtype=xp.int64)
    return xp.stack(xp.nonzero(mask))


# From a key to a view and indices


def _basic_range(part, size):
    """(start, stop, step) within bounds."""
    start, stop, step = part.indices(size)
    if step < 0:
        raise ValueError("step must be greater than zero; flip() reverses a dimension")
    return start, max(start, stop), step


def _as_index(part, input):
    """An advanced part of a key as a tensor of its own."""
    if not isinstance(part, Tensor):
        if isinstance(part, list | tuple):
            part = [p.tolist() if isinstance(p, Tensor) else p for p in part]
        array = np.asarray(part)
        if not array.size and array.dtype.kind == "f":
            array = array.astype(np.int64)
        part = tensor(array, device=input.device)
    if part.device is not input.device:
        part = part.to(input.device)
    if part.dtype is uint8:
        return part != 0
    if part.dtype.category > INT:
        raise IndexError(
            "tensors used as indices must be long, int, byte or bool tensors; got "
            f"{part.dtype}. Convert it with .to(lowtide.int64)."
        )
    return part


def _split_key(input, key):
    """(view, found): the basic parts applied; ``found[d]`` indexes dim d of the view."""
    parts = []  # normalized: int, range, None, or (tensor, dims it takes)
    taken = 0
    dots = None
    for part in key:
        kind = part.__class__
        if part is None or kind is bool:
            pass
        elif kind is int or kind is slice:
            taken += 1
        elif part is Ellipsis:
            if dots is not None:
                raise IndexError("an index can only have a single ellipsis ('...')")
            dots = len(parts)
        elif isinstance(part, Tensor | list | tuple | np.ndarray | range):
            part = _as_index(part, input)
            if not part.ndim and part.dtype.category == BOOL:
                part = bool(part)
            elif not part.ndim and not part.is_meta:
                part = int(part.item())
                taken += 1
            else:
                taken += part.ndim if part.dtype.category == BOOL else 1
        elif isinstance(part, slice):
            taken += 1
        elif hasattr(part, "__index__"):
            part = part.__index__() if not isinstance(part, np.bool_) else bool(part)
            taken += part.__class__ is int
        elif isinstance(part, np.bool_):
            part = bool(part)
        elif kind is str:
            raise TypeError(f"a tensor has no named dimensions or fields; got the index {part!r}.")
        else:
            raise IndexError(
                "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables "
                f"are valid indices (got {kind.__name__})"
            )
        parts.append(part)
    shape = input._spec.shape
    if taken > len(shape):
        raise IndexError(
            f"too many indices for tensor of dimension {len(shape)}: got {taken} for shape "
            f"{tuple(shape)}"
        )
    if dots is None:
        dots = len(parts)
        parts.append(Ellipsis)
    parts[dots : dots + 1] = [slice(None)] * (len(shape) - taken)
    basic, found = [], {}
    d = 0  # dim of the input
    place = 0  # dim of the view
    for part in parts:
        kind = part.__class__
        if kind is int:
            basic.append(in_range("", part, d, shape[d]))
            d += 1
        elif kind is slice:
            start, stop, step = _basic_range(part, shape[d])
            basic.append((start, stop, step))
            d += 1
            place += 1
        elif part is None:
            basic.append(None)
            place += 1
        elif kind is bool:
            basic.append(None)
            found[place] = tensor([0] if part else [], dtype=int64, device=input.device)
            place += 1
        else:
            count = part.ndim if part.dtype.category == BOOL else 1
            if part.dtype.category == BOOL and tuple(part.shape) != tuple(shape[d : d + count]):
                first = next(k for k in range(count) if part.shape[k] != shape[d + k])
                raise IndexError(
                    f"The shape of the mask {list(part.shape)} at index {first} does not match "
                    f"the shape of the indexed tensor {list(shape)} at index {d + first}"
                )
            found[place] = part
            basic += [(0, n, 1) for n in shape[d : d + count]]
            d += count
            place += count
    return _basic(input, basic), found


def _basic(input, key):
    """A basic index as the cheapest view ops that give it."""
    shape = input._spec.shape
    if all(k.__class__ is int for k in key):
        for k in key:
            input = select_index(input, k, 0)
        return input
    if key.count(None) == 1 and all(
        k == (0, n, 1) for k, n in zip([k for k in key if k is not None], shape, strict=True)
    ):
        return input.unsqueeze(key.index(None))
    rest = []
    dim = 0
    for k in key:
        if k.__class__ is not tuple or k != (0, shape[dim], 1):
            rest.append(dim)
        dim += k is not None
    if not rest:
        return input
    if len(rest) == 1 and None not in key:
        (d,) = rest
        part = key[d]
        if part.__class__ is int:
            return select_index(input, part, d)
        if part[2] == 1:
            return narrow_range(input, part[0], d, part[1] - part[0])
    return slice_view(input, tuple(key))


def _gathered(view, found):
    """(view, index, dims, at) of an advanced index."""
    tensors, dims = [], []
    for d, part in found.items():
        if part.dtype.category != BOOL:
            tensors.append(part)
            dims.append(d)
            continue
        if part.is_meta:
            raise NotImplementedError(
                "indexing by a boolean mask on meta: the shape of the result depends on values, "
                "and meta has none. Use where or masked_fill, or run it on cpu or cuda."
            )
        rows = mask_places(part)
        for k in range(part.ndim):
            tensors.append(select_index(rows, k, 0))
            dims.append(d + k)
    shape = broadcast_indices(tensors)
    rows = []
    for x in tensors:
        if x.dtype is not int64:
            x = x.to(int64)
        rows.append(x if tuple(x.shape) == shape else expand_shape(x, shape))
    if len(rows) == 1:
        index = rows[0].contiguous()
        index = view_shape(index, (1, *shape))
    else:
        index = stack_along(*rows, dim=0)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return view, index, tuple(dims), dims[0] if adjacent else 0


def broadcast_indices(tensors):
    """The shape that index tensors broadcast to.

    Raises:
        IndexError: They do not.
    """
    try:
        return tuple(broadcast_shapes("index", *[x.shape for x in tensors]))
    except RuntimeError:
        raise IndexError(
            "shape mismatch: indexing tensors could not be broadcast together with shapes "
            + ", ".join(str(list(x.shape)) for x in tensors)
        ) from None


def _one_mask(input, found):
    """A mask over several dims as one over the merged dim, where that is a view."""
    if len(found) == 1:
        ((d, part),) = found.items()
        if part.dtype.category == BOOL and part.ndim > 1:
            shape = input.shape
            merged = (*shape[:d], prod(part.shape), *shape[d + part.ndim :])
            if fits(input._array, merged):
                return view_shape(input, merged), {d: part.reshape(-1)}
    return input, found


def _getitem(self, key):
    """The elements that a key names: a view for basic indices, else a copy.

    Args:
        self: A tensor.
        key: Ints, slices with positive steps, None, the ellipsis, booleans, integer tensors or
            lists, boolean masks, or a tuple of them.

    Raises:
        IndexError: An index is out of range or of the wrong type, or there are too many.
        ValueError: A slice has a negative step.
    """
    kind = key.__class__
    if kind is int:
        shape = self._spec.shape
        if not shape:
            raise IndexError(
                "invalid index of a 0-dim tensor. Use `tensor.item()` to convert it to a number"
            )
        return select_index(self, in_range("", key, 0, shape[0]), 0)
    if kind is slice and self._spec.ndim:
        start, stop, step = _basic_range(key, self._spec.shape[0])
        if step == 1:
            return narrow_range(self, start, 0, stop - start)
        return slice_view(self, ((start, stop, step),))
    view, found = _split_key(self, key if kind is tuple else (key,))
    if not found:
        return view if view is not self else view_shape(self, tuple(self.shape), "Alias")
    view, found = _one_mask(view, found)
    view, index, dims, at = _gathered(view, found)
    return index_elements(view, index, dims=dims, at=at)


def _setitem(self, key, value):
    """Write into the elements that a key names.

    Raises:
        IndexError: As for reading.
        RuntimeError: The value does not broadcast to them.
    """
    view, found = _split_key(self, key if key.__class__ is tuple else (key,))
    if not isinstance(value, Tensor | int | float | complex):
        value = tensor(np.asarray(value), device=self.device).to(self.dtype)
    if isinstance(value, Tensor) and value.device is not self.device:
        value = value.to(self.device)
    if not found:
        if isinstance(value, Tensor):
            view.copy_(_without_leading_ones(value, view.ndim))
        else:
            view.fill_(value)
        return
    if len(found) == 1:
        ((d, mask),) = found.items()
        single = not isinstance(value, Tensor) or value.numel() == 1
        if mask.dtype.category == BOOL and single:
            if isinstance(value, Tensor) and value.ndim:
                value = value.reshape(())
            after = view.ndim - d - mask.ndim
            view.masked_fill_(mask.view((*mask.shape, *(1,) * after)), value)
            return
    view, found = _one_mask(view, found)
    if isinstance(value, Tensor) and value.dtype is not self.dtype:
        raise _mismatch(self, value)
    view, index, dims, at = _gathered(view, found)
    if isinstance(value, Tensor):
        result = len(_result_shape(view.shape, index.shape, dims, at))
        value = _without_leading_ones(value, result)
    view._index_put_(index, value, dims=dims, at=at)


def _without_leading_ones(value, ndim):
    shape = tuple(value.shape)
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return value if len(shape) == value.ndim else value.reshape(shape)


def _iter(self):
    """The indices of the first dim, as views."""
    if not self._spec.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return iter(self.unbind(0))


Tensor.__getitem__ = _getitem  # type: ignore[method-assign]
Tensor.__setitem__ = _setitem  # type: ignore[method-assign]
Tensor.__iter__ = _iter  # type: ignore[method-assign]


def _mismatch(input, values):
    return RuntimeError(
        "Index put requires the source and destination dtypes match, got "
        f"{input.dtype} for the destination and {values.dtype} for the source. Convert one."
    )


def _put(name, input, indices, values, accumulate, in_place):
    key = tuple([slice(None) if i is None else i for i in indices])
    if not isinstance(values, Tensor):
        raise TypeError(f"{name}: values must be a Tensor; got {type(values).__name__}.")
    if values.dtype is not input.dtype:
        raise _mismatch(input, values)
    view, found = _split_key(input, key)
    merged, found = _one_mask(view, found)
    target, index, dims, at = _gathered(merged, found)
    if in_place:
        write = target._index_put_add_ if accumulate else target._index_put_
        write(index, values, dims=dims, at=at)
        return input
    make = index_accumulate if accumulate else index_assign
    out = make(target, index, values, dims=dims, at=at)
    return out if target is input else view_shape(out, tuple(input.shape))


@function(method=True)
def index_put(input, indices, values, accumulate=False):
    """Put values at indices, in a copy.

    Args:
        input: A tensor.
        indices: A tensor (or None) for each dim, as in ``input[indices]``.
        values: A tensor that broadcasts to the indexing result.
        accumulate: Add to what is there; an index that occurs twice counts twice.
    """
    return _put("index_put", input, indices, values, accumulate, False)


@function(method=True)
def index_put_(input, indices, values, accumulate=False):
    """Put values at indices; the in-place twin of ``index_put``."""
    return _put("index_put_", input, indices, values, accumulate, True)
