"""Indexing: ``x[...]`` and ``x[...] = v``, with NumPy's rules as PyTorch reads them.

Ints, slices, None and the ellipsis give a view (``ops/views/slice.py``). Tensors, lists and masks
give a
copy: their indices are broadcast and put into one tensor, a row for each indexed dim, which is
all that the primitives in ``index_put.py`` need.

Where the indices come from dims side by side the result has theirs there, else in front. An int
beside them selects first, as in PyTorch; NumPy counts it as an index array.
"""

from __future__ import annotations

import warnings
from math import prod
from operator import index as as_index

import numpy as np

from ...dtypes import BOOL, INT, int64, uint8
from ...memory.short_traceback import shorten
from ...tensor import Tensor
from ..creation.from_data import tensor
from ..manipulation.cat import _stack
from ..registry import function
from ..signatures import broadcast_shapes
from ..views.expand import _expand
from ..views.reshape import _view, fits
from ..views.slice import _narrow, _select, _slice, in_range
from .index_put import _index, _index_put, _index_put_add, _mask_places, result_shape
from .masked import _index_masked

MOST_DIMS = 32  # a longer list is always an index array
_SEVERAL = (Tensor, list, tuple, range, slice, np.ndarray)


def _basic_range(part, size):
    """Return (start, stop, step) within bounds."""
    start, stop, step = part.indices(size)
    if step < 0:
        raise ValueError("step must be greater than zero; flip() reverses a dimension")
    return start, max(start, stop), step


def _as_index(part, input):
    """Convert an advanced part of a key to an index tensor."""
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
    if part.dtype.category > INT or part.dtype.limited:
        raise IndexError(
            "tensors used as indices must be long, int, byte or bool tensors; got "
            f"{part.dtype}. Convert it with .to(lowtide.int64)."
        )
    return part


def _parts(key):
    # A list is one index array, unless something in it is more than a number: then PyTorch reads it
    # as a tuple, as NumPy did once.
    if key.__class__ is tuple:
        return key
    if isinstance(key, list | tuple) and len(key) < MOST_DIMS:
        for part in key:
            if isinstance(part, _SEVERAL) or part is None or part is Ellipsis:
                warnings.warn(
                    "Using a non-tuple sequence for multidimensional indexing is deprecated: a "
                    "list of sequences is read as the tuple of them. Write x[tuple(key)] for that, "
                    "or x[lowtide.tensor(key)] for one index array.",
                    UserWarning,
                    stacklevel=3,
                )
                return tuple(key)
    return (key,)


def _split_key(input, key):
    """Apply the basic parts of a key; return (view, index tensor per dim)."""
    shape = input._spec.shape
    parts = _normalized(input, key)
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
                    f"the shape of the indexed tensor {list(shape)} at index {d + first}. "
                    "Compute the mask from that tensor, or index another dim."
                )
            found[place] = part
            basic += [(0, n, 1) for n in shape[d : d + count]]
            d += count
            place += count
    return _basic(input, basic), found


def _normalized(input, key):
    # A part for each dim of the input: int, slice or index tensor; and None and bools between them.
    parts = []
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
            elif not (part.ndim or part.is_meta or part._spec.runs):
                part = int(part.item())
                taken += 1
            else:
                taken += part.ndim if part.dtype.category == BOOL else 1
        elif isinstance(part, slice):
            taken += 1
        elif hasattr(part, "__index__"):
            part = as_index(part) if not isinstance(part, np.bool_) else bool(part)
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
            f"{tuple(shape)}. Leave some out."
        )
    if dots is None:
        dots = len(parts)
        parts.append(Ellipsis)
    parts[dots : dots + 1] = [slice(None)] * (len(shape) - taken)
    return parts


def _basic(input, key):
    """Apply a basic index by the cheapest view ops."""
    shape = input._spec.shape
    if all(k.__class__ is int for k in key):
        for k in key:
            input = _select(input, k, 0)
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
            return _select(input, part, d)
        if part[2] == 1:
            return _narrow(input, part[0], d, part[1] - part[0])
    return _slice(input, tuple(key))


def _gathered(view, found):
    """Return (view, index, dims, at) of an advanced index."""
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
        rows = _mask_places(part)
        for k in range(part.ndim):
            tensors.append(_select(rows, k, 0))
            dims.append(d + k)
    shape = broadcast_indices(tensors)
    rows = []
    for x in tensors:
        if x.dtype is not int64:
            x = x.to(int64)
        rows.append(x if tuple(x.shape) == shape else _expand(x, shape))
    if len(rows) == 1:
        index = rows[0].contiguous()
        index = _view(index, (1, *shape))
    else:
        index = _stack(*rows, dim=0)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return view, index, tuple(dims), dims[0] if adjacent else 0


def broadcast_indices(tensors):
    """Return the shape to which index tensors broadcast.

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
    """Merge the dims of a mask into one, and those of the tensor, if that is a view."""
    if len(found) == 1:
        ((d, part),) = found.items()
        if part.dtype.category == BOOL and part.ndim > 1:
            shape = input.shape
            merged = (*shape[:d], prod(part.shape), *shape[d + part.ndim :])
            if fits(input._array, merged):
                return _view(input, merged), {d: part.reshape(-1)}
    return input, found


@function(method="__getitem__")
def _getitem(self, key):
    """Return the elements of a key: a view for basic indices, else a copy.

    Args:
        self: A tensor.
        key: Ints, slices with positive steps, None, the ellipsis, booleans, integer tensors or
            lists, boolean masks, or a tuple of them. A list of these, other than of numbers, is
            read as the tuple.

    Raises:
        IndexError: An index is out of range or of the wrong type, or there are too many.
        ValueError: A slice has a negative step.

    Memory:
        A copy keeps its indices, and of a single mask the smaller of the mask and its places.
    """
    kind = key.__class__
    if kind is int:
        shape = self._spec.shape
        if not shape:
            raise IndexError(
                "invalid index of a 0-dim tensor. Use `tensor.item()` to convert it to a number"
            )
        return _select(self, in_range("", key, 0, shape[0]), 0)
    if kind is slice and self._spec.ndim:
        start, stop, step = _basic_range(key, self._spec.shape[0])
        if step == 1:
            return _narrow(self, start, 0, stop - start)
        return _slice(self, ((start, stop, step),))
    if kind is Tensor and self._spec.ndim:
        spec = key._spec
        if spec.dtype is int64 and spec.ndim and spec.device is self._spec.device:
            index = _view(key.contiguous(), (1, *spec.shape))  # the most frequent key
            return _index(self, index, dims=(0,), at=0)
    try:
        view, found = _split_key(self, key if kind is tuple else _parts(key))
    except MemoryError as error:
        shorten(error)
        raise
    if not found:
        return view if view is not self else _view(self, tuple(self.shape), "Alias")
    view, found = _one_mask(view, found)
    mask, *others = found.values()
    view, index, dims, at = _gathered(view, found)
    if not others and mask.dtype.category == BOOL and mask.nbytes < index.nbytes:
        return _index_masked(view, mask, index, count=index.shape[1], at=at)
    return _index(view, index, dims=dims, at=at)


@function(method="__setitem__")
def _setitem(self, key, value):
    """Write to the elements of a key.

    Raises:
        IndexError: As for reading.
        RuntimeError: The value does not broadcast to them.
    """
    view, found = _split_key(self, _parts(key))
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
        result = len(result_shape(view.shape, index.shape, dims, at))
        value = _without_leading_ones(value, result)
    view._index_put_(index, value, dims=dims, at=at)


def _without_leading_ones(value, ndim):
    shape = tuple(value.shape)
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return value if len(shape) == value.ndim else value.reshape(shape)


@function(method="__iter__")
def _iter(self):
    """Iterate over the first dim, as views."""
    if not self._spec.ndim:
        raise TypeError("iteration over a 0-d tensor. Use .item(), or .reshape(-1) first.")
    return iter(self.unbind(0))


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
    make = _index_put_add if accumulate else _index_put
    out = make(target, index, values, dims=dims, at=at)
    return out if target is input else _view(out, tuple(input.shape))


@function(method=True, autocast={"cuda": "promote"})
def index_put(input, indices, values, accumulate=False):
    """Write values at indices, in a copy.

    Args:
        input: A tensor.
        indices: A tensor (or None) for each dim, as in ``input[indices]``.
        values: A tensor that broadcasts to the indexing result.
        accumulate: Add to what is there; an index that occurs twice counts twice.
    """
    return _put("index_put", input, indices, values, accumulate, False)


@function(method=True)
def index_put_(input, indices, values, accumulate=False):
    """Write values at indices; the in-place version of ``index_put``."""
    return _put("index_put_", input, indices, values, accumulate, True)
