"""Sequences of different lengths: padding and packing.

A packed sequence holds the rows of the first step of every sequence, then those of the second, and
so on, the longest sequence first; a recurrent layer computes nothing for padding then. Packing and
padding gather or place rows by one index, so each is one copy, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ..framework.device import device as as_device
from ..framework.dtypes import int64
from ..framework.ops.creation.fill import full
from ..framework.ops.creation.from_data import tensor
from ..framework.ops.manipulation.cat import cat
from ..framework.tensor import Tensor


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """A batch of packed sequences, made by :func:`pack_padded_sequence`.

    Attributes:
        data: (rows, ...), all steps one after the other.
        batch_sizes: int64 on the CPU: how many sequences have each step.
        sorted_indices: Where each packed sequence stood among those given; None: as they are.
        unsorted_indices: The inverse of that.

    Raises:
        ValueError: ``batch_sizes`` is not on the CPU.
    """

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        """Construct, computing the inverse of ``sorted_indices`` if missing."""
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:
            data, batch_sizes = data
        if batch_sizes.device.type != "cpu":
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be "
                "created manually. They should be instantiated by functions like pack_sequence and "
                f"pack_padded_sequence; got {batch_sizes.device}."
            )
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Move or convert the data; the indices go to its device."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        moved = (None if i is None else i.to(data.device) for i in self[2:])
        return type(self)(data, self.batch_sizes, *moved)

    def cpu(self) -> PackedSequence:
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> PackedSequence:
        """Move to a CUDA device."""
        return self.to("cuda" if device is None else as_device(device))

    def _converted(self, name: str) -> PackedSequence:
        data = getattr(self.data, name)()
        return self if data is self.data else type(self)(data, *self[1:])

    def double(self) -> PackedSequence:
        """Convert the data to float64."""
        return self._converted("double")

    def float(self) -> PackedSequence:
        """Convert the data to float32."""
        return self._converted("float")

    def half(self) -> PackedSequence:
        """Convert the data to float16."""
        return self._converted("half")

    def long(self) -> PackedSequence:
        """Convert the data to int64."""
        return self._converted("long")

    def int(self) -> PackedSequence:
        """Convert the data to int32."""
        return self._converted("int")

    def pin_memory(self) -> PackedSequence:
        """Pin the data in page-locked memory, where supported."""
        return self._converted("pin_memory")

    def is_pinned(self) -> bool:
        """True if the data lies in page-locked memory."""
        return bool(self.data.is_pinned())

    @property
    def is_cuda(self) -> bool:
        """True if the data lies on a CUDA device."""
        return self.data.device.type == "cuda"


def runs_of(batch_sizes: Tensor) -> tuple[tuple[int, int], ...]:
    """Convert batch sizes to runs of equal ones, ((steps, rows), ..), for the recurrent ops."""
    return tuple((len(list(same)), n) for n, same in groupby(batch_sizes.tolist()))


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the inverse of a permutation; None for None."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack padded sequences.

    Args:
        input: (T, N, ...), or (N, T, ...) with ``batch_first``.
        lengths: The length of each sequence: a list, or a tensor on the CPU.
        batch_first: The first dimension counts sequences.
        enforce_sorted: Lengths must not increase; otherwise sequences are sorted here, and layers
            give results back in the order of ``input``.

    Raises:
        RuntimeError: Lengths do not fit the input, are not positive, or increase.
    """
    if not isinstance(lengths, Tensor):
        lengths = tensor([int(n) for n in lengths], dtype=int64, device="cpu")
    if lengths.ndim != 1 or lengths.device.type != "cpu":
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.ndim}D {lengths.device} {lengths.dtype} tensor."
        )
    batch, steps = input.shape[:2] if batch_first else input.shape[1::-1]
    given = lengths.to(int64).tolist()
    _check_lengths(given, batch, steps, enforce_sorted)
    order = np.argsort(np.negative(given), kind="stable")  # as they are, if sorted
    there = np.arange(max(given))[:, None] < np.asarray(given)[order]
    rows = _padded_rows(there, order, (batch, steps), batch_first)
    flat = input.reshape(batch * steps, *input.shape[2:])
    data = flat.index_select(0, _index(rows, input.device))
    moved = None if enforce_sorted else _index(order, input.device)
    return PackedSequence(data, _index(there.sum(1), "cpu"), moved)


def _padded_rows(there: Any, order: Any, sizes: tuple[int, int], batch_first: bool) -> Any:
    """Return the index of each packed row among the rows of the padded tensor.

    Args:
        there: (steps, batch): whether the packed sequence has the step.
        order: Where each packed sequence stands in the padded tensor.
        sizes: (batch, steps) of that.
        batch_first: Its rows are in the order (batch, steps).
    """
    t, n = np.nonzero(there)  # step by step
    n = np.asarray(order)[n]
    return n * sizes[1] + t if batch_first else t * sizes[0] + n


def _index(values: Any, device: Any) -> Tensor:
    return tensor(values, dtype=int64, device=device)


def _check_lengths(lengths: list[int], batch: int, steps: int, in_order: bool) -> None:
    if len(lengths) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} "
            f"(batch_size={batch})."
        )
    if not lengths:
        raise RuntimeError("Cannot pack empty tensors: there is no sequence in the batch.")
    if min(lengths) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            f"that is <= 0: {min(lengths)}."
        )
    if in_order and lengths != sorted(lengths, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
            "You can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence."
        )
    if max(lengths) > steps:
        raise RuntimeError(
            f"pack_padded_sequence: a length of {max(lengths)} exceeds the {steps} steps of input. "
            "Pass lengths up to input's size."
        )


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Undo :func:`pack_padded_sequence`.

    Args:
        sequence: What it returned, or what a recurrent layer made of that.
        batch_first: Return (N, T, ...) instead of (T, N, ...).
        padding_value: What stands after the end of each sequence.
        total_length: T, if not the longest length.

    Returns:
        (padded, lengths): the lengths are int64, on the CPU.

    Raises:
        ValueError: ``total_length`` is less than the longest length.
    """
    sizes = np.asarray(sequence.batch_sizes.tolist())
    batch, longest = int(sizes[0]), len(sizes)
    steps = longest if total_length is None else total_length
    if steps < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but "
            f"got total_length={steps} and max sequence length being {longest}."
        )
    moved = sequence.sorted_indices
    if moved is not None and moved.device.type == "meta":
        raise NotImplementedError(
            "pad_packed_sequence on meta: where rows go depends on the values of sorted_indices, "
            "and meta has none. Pack with enforce_sorted=True."
        )
    order = np.arange(batch) if moved is None else np.asarray(moved.tolist())
    there = np.arange(batch) < sizes[:, None]
    rows = _padded_rows(there, order, (batch, steps), batch_first)
    lengths = np.empty(batch, np.int64)
    lengths[order] = there.sum(0)
    data = sequence.data
    out = _placed(data, rows, (batch, steps), batch_first, padding_value)
    return out, _index(lengths, "cpu")


def _placed(
    data: Tensor, rows: Any, sizes: tuple[int, int], batch_first: bool, value: float
) -> Tensor:
    """Return a padded tensor with ``data`` in the given rows."""
    like: Any = {"dtype": data.dtype, "device": data.device}
    rest = data.shape[1:]
    out = full((sizes[0] * sizes[1], *rest), value, **like)
    out.index_copy_(0, _index(rows, data.device), data)
    return out.reshape(*(sizes if batch_first else sizes[::-1]), *rest)


def pad_sequence(
    sequences: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Pad tensors to the length of the longest and stack them.

    Args:
        sequences: Tensors (length, ...), alike in all but length and of one dtype.
        batch_first: Return (N, T, ...) instead of (T, N, ...).
        padding_value: What fills up.
        padding_side: "right" fills after the end, "left" before the beginning.

    Raises:
        RuntimeError: ``sequences`` is empty or no iterable, or the side is neither.
    """
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            "pad_sequence: Expected iterable for input sequences, but got arg of type: "
            f"{type(sequences)}."
        )
    if padding_side not in ("left", "right"):
        raise RuntimeError(
            f"Expected padding_side to be one of left or right, but got {padding_side}."
        )
    given = list(sequences)
    if not given:
        raise RuntimeError("received an empty list of sequences; pad_sequence needs at least one.")
    lengths = [s.shape[0] for s in given]
    batch, steps, rest = len(given), max(lengths), given[0].shape[1:]
    for s in given:
        if s.shape[1:] != rest:
            raise RuntimeError(
                "pad_sequence: sequences may differ in their first dimension only; got shapes "
                f"{tuple(given[0].shape)} and {tuple(s.shape)}."
            )
    rows = []
    for n, length in enumerate(lengths):
        t = np.arange(length) + (steps - length if padding_side == "left" else 0)
        rows.append(n * steps + t if batch_first else t * batch + n)
    return _placed(cat(given), np.concatenate(rows), (batch, steps), batch_first, padding_value)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Any, batch_first: bool = False
) -> list[Tensor]:
    """Undo :func:`pad_sequence`: return views of the sequences without padding.

    Raises:
        ValueError: There is not one length for each sequence.
    """
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    ends = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if len(ends) != padded_sequences.shape[0]:
        raise ValueError(
            f"unpad_sequence: needs a length for each of {padded_sequences.shape[0]} sequences; "
            f"got {len(ends)}. Pass batch_first as it was for pad_sequence."
        )
    return [s[:end] for s, end in zip(padded_sequences.unbind(0), ends, strict=True)]


def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of tensors (length, ...); see :func:`pack_padded_sequence`."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Undo :func:`pack_sequence`."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
