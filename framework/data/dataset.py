"""Datasets: map-style (samples by index) and iterable."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from ..dtypes import int64
from ..ops.creation.from_data import tensor as new_tensor
from ..ops.indexing.index_select import index_select
from ..ops.random.draw import randperm
from ..random.generator import Generator
from ..tensor import Tensor

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Base class of map-style datasets: define ``__getitem__``, and ``__len__`` for samplers.

    A subclass may define ``__getitems__(indices)`` too, which returns a list of samples at once.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__.")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Base class of iterable datasets: define ``__iter__``.

    With workers, each iterates over its copy: ``get_worker_info()`` says which, so that
    ``__iter__`` can take its share. A subclass with ``state_dict`` and ``load_state_dict`` is
    resumed by them: ``__iter__`` then goes on from the loaded state. Count a sample before it is
    yielded. Without them, a resumed loader passes over the samples that were seen.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__.")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """A dataset of tensors: sample ``i`` is the tuple of row ``i`` of each.

    Args:
        *tensors: Of equal first size.

    Raises:
        AssertionError: The first sizes differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise AssertionError(
                f"Size mismatch between tensors: {[t.shape[0] for t in tensors]} rows. "
                "Each row of one belongs to a row of the others."
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class StackDataset(Dataset[Any]):
    """Datasets stacked side by side: sample ``i`` is the tuple, or dict, of their samples ``i``.

    Args:
        *args: Data sets of one length, for tuples.
        **kwargs: The same, for dicts; one or the other.

    Raises:
        ValueError: None, both, or of different lengths.
    """

    datasets: tuple[Any, ...] | dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError(
                "StackDataset takes data sets either by position, for tuples, or by name, for "
                f"dicts: At least one dataset should be passed; got {len(args)} and {len(kwargs)}."
            )
        self.datasets = args or kwargs
        lengths = [len(d) for d in self._all()]
        if len(set(lengths)) > 1:
            raise ValueError(f"Size mismatch between datasets: {lengths}.")
        self._length = lengths[0]

    def _all(self) -> list[Any]:
        d = self.datasets
        return list(d.values()) if isinstance(d, dict) else list(d)

    def _assemble(self, parts: Iterable[Any]) -> Any:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, parts, strict=True))
        return tuple(parts)

    def __getitem__(self, index: Any) -> Any:
        return self._assemble([d[index] for d in self._all()])

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Return the samples of several indices, in one call per dataset where it can."""
        columns = [samples(d, indices) for d in self._all()]
        for column in columns:
            if len(column) != len(indices):
                raise ValueError(
                    "Nested dataset's output size mismatch. Expected "
                    f"{len(indices)}, got {len(column)}"
                )
        return [self._assemble(parts) for parts in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._length


class Subset(Dataset[T_co]):
    """A subset of a dataset at given indices.

    Args:
        dataset: The complete dataset.
        indices: Which of its samples, in order.

    Raises:
        NotImplementedError: A subclass has ``__getitem__`` of its own, and no ``__getitems__``.
    """

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        own = type(self)
        if own.__getitem__ is not Subset.__getitem__ and own.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{own.__name__} defines __getitem__ but not __getitems__, which a DataLoader "
                "asks. Define it: return [self[i] for i in indices]."
            )
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: list[int]) -> list[T_co]:
        """Return the samples of several indices."""
        return samples(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Any]):
    """The concatenation of several datasets.

    Args:
        datasets: With lengths.

    Raises:
        AssertionError: There is none, or one is an ``IterableDataset``.
    """

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise AssertionError(
                "ConcatDataset does not support IterableDataset. Use ChainDataset."
            )
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> Any:
        at = idx + len(self) if idx < 0 else idx
        if at < 0:
            raise ValueError(
                "absolute value of index should not exceed dataset length; got "
                f"{idx} for {len(self)} samples."
            )
        which = bisect_right(self.cumulative_sizes, at)
        return self.datasets[which][at - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset[Any]):
    """The chain of several iterable datasets.

    Args:
        datasets: ``IterableDataset`` instances.

    Raises:
        AssertionError: While iterating, at one that is none.
    """

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for d in self.datasets:
            assert isinstance(d, IterableDataset), "ChainDataset only supports IterableDataset"
            yield from d

    def __len__(self) -> int:
        total = 0
        for d in self.datasets:
            assert isinstance(d, IterableDataset), "ChainDataset only supports IterableDataset"
            total += len(d)  # type: ignore[arg-type]
        return total


def random_split(
    dataset: Dataset[T_co], lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[T_co]]:
    """Split a dataset at random into disjoint subsets.

    Args:
        dataset: With a length.
        lengths: Samples of each part; or fractions that add up to 1, rounded down, what is left
            over going to the first parts, one each.
        generator: Draws the permutation; the default one if None.

    Raises:
        ValueError: The lengths do not add up, or a fraction is outside [0, 1].

    Example:
        >>> parts = random_split(range(10), [0.7, 0.3], Generator().manual_seed(1))
        >>> [len(p) for p in parts], sorted(i for p in parts for i in p)
        ([7, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    total = len(dataset)  # type: ignore[arg-type]
    sizes: list[Any] = [*lengths]
    if math.isclose(sum(sizes), 1) and sum(sizes) <= 1:
        for k, fraction in enumerate(sizes):
            if not 0 <= fraction <= 1:
                raise ValueError(f"Fraction at index {k} is not between 0 and 1; got {fraction}.")
        sizes = [math.floor(total * f) for f in sizes]
        for k in range(total - sum(sizes)):
            sizes[k % len(sizes)] += 1
        for k, size in enumerate(sizes):
            if size == 0:
                warnings.warn(
                    f"Length of split at index {k} is 0. This might result in an empty dataset.",
                    stacklevel=2,
                )
    if sum(sizes) != total:
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset! "
            f"{sum(sizes)} and {total}. Fractions that add up to 1 do."
        )
    order = randperm(total, generator=generator).tolist()
    return [
        Subset(dataset, order[end - size : end])
        for end, size in zip(accumulate(sizes), sizes, strict=True)
    ]


# How a loader asks


def samples(dataset: Any, indices: list[Any]) -> list[Any]:
    """Return the samples of several indices, in one call where the dataset allows it."""
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__(indices)  # type: ignore[no-any-return]
    return [dataset[i] for i in indices]


def rows(dataset: Any, indices: list[Any]) -> list[Tensor] | None:
    """Gather the batch of some indices at once, as ``default_collate`` would make it, or None.

    For a TensorDataset, or a Subset of one, a batch is one gather from each tensor.
    """
    kind = type(dataset)
    if kind is Subset and all(type(i) is int for i in indices):
        return rows(dataset.dataset, [dataset.indices[i] for i in indices])
    if kind is not TensorDataset or not indices or not all(type(i) is int for i in indices):
        return None
    size = len(dataset)
    if not all(-size <= i < size for i in indices):
        return None  # the plain road words the error
    wanted = new_tensor([i % size for i in indices], dtype=int64, device="cpu")
    return [index_select(t, 0, wanted.to(t.device)) for t in dataset.tensors]
