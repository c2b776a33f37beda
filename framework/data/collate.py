"""Collation of samples into a batch: tensors are stacked, numbers become a tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from ..dtypes import float64
from ..memory.ledger import INPUT, TEMPORARY
from ..ops.creation.from_data import as_tensor
from ..ops.creation.from_data import tensor as new_tensor
from ..ops.manipulation.cat import stack
from ..tensor import Tensor


def default_collate(batch: Sequence[Any]) -> Any:
    """Collate a list of samples into a batch.

    Tensors and NumPy arrays are stacked along a new first dimension; Python and NumPy numbers
    become a tensor (floats in float64); strings and bytes stay a list. Dicts, named tuples and
    sequences are collated element by element; a tuple becomes a list.

    Args:
        batch: Samples of one structure.

    Raises:
        TypeError: A sample is none of these.
        RuntimeError: Tensors of different shapes, or sequences of different lengths.

    Example:
        >>> default_collate([(1, "a"), (2, "b")])
        [tensor([1, 2]), ('a', 'b')]
    """
    first = batch[0]
    if isinstance(first, Tensor):
        if any(t.shape != first.shape for t in batch if isinstance(t, Tensor)):
            raise RuntimeError(
                "default_collate: stack expects each tensor to be equal size; got shapes "
                f"{sorted({tuple(t.shape) for t in batch})}. Pad them, or pass a collate_fn."
            )
        return stack(list(batch), 0)
    if isinstance(first, np.ndarray):
        _check_numeric(first)
        return default_collate([as_tensor(a) for a in batch])
    if isinstance(first, np.generic) and isinstance(first, np.bool_ | np.number):
        return as_tensor(np.asarray(batch))
    if isinstance(first, float):
        return new_tensor(batch, dtype=float64)
    if isinstance(first, int):
        return new_tensor(batch)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        return _like_mapping(
            first, {k: default_collate([sample[k] for sample in batch]) for k in first}
        )
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(default_collate, zip(*batch, strict=False)))
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError(
                "each element in list of batch should be of equal size; got lengths "
                f"{sorted({len(sample) for sample in batch})}. Pad them, or pass collate_fn."
            )
        return _like_sequence(first, [default_collate(c) for c in zip(*batch, strict=True)])
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first)}. Pass a collate_fn that makes a batch of them."
    )


def default_convert(data: Any) -> Any:
    """Convert NumPy arrays in a structure to tensors, without batching; leave all else.

    Args:
        data: One sample.
    """
    if isinstance(data, Tensor):
        return data
    if isinstance(data, np.ndarray | np.generic):
        if data.dtype.kind in "SUO":
            return data
        return as_tensor(data)
    if isinstance(data, Mapping):
        return _like_mapping(data, {k: default_convert(v) for k, v in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, tuple):
        return [default_convert(v) for v in data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _like_sequence(data, [default_convert(v) for v in data])
    return data


def _check_numeric(array: Any) -> None:
    if array.dtype.kind in "SUO":
        raise TypeError(
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
            f"found {array.dtype}"
        )


def _like_mapping(model: Any, found: dict[Any, Any]) -> Any:
    # In the mapping's own class where it can be made: by copying, for it may carry more than items.
    try:
        if isinstance(model, MutableMapping):
            out = copy.copy(model)
            out.update(found)
            return out
        return type(model)(found)
    except TypeError:
        return found


def _like_sequence(model: Any, found: list[Any]) -> Any:
    if isinstance(model, tuple):
        return found
    try:
        if isinstance(model, MutableSequence):
            out = copy.copy(model)
            for k, value in enumerate(found):
                out[k] = value
            return out
        return type(model)(found)
    except TypeError:
        return found


def claimed(batch: Any) -> Any:
    """Set the ledger role of a batch's tensors to input."""
    _each_tensor(batch, _claim)
    return batch


def _claim(t: Tensor) -> None:
    if t._storage.role == TEMPORARY:
        t._storage.set_role(INPUT)


def _each_tensor(batch: Any, act: Callable[[Tensor], None]) -> None:
    if isinstance(batch, Tensor):
        act(batch)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _each_tensor(value, act)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _each_tensor(value, act)
