"""Data sets by index, iterable ones, and what is made of several."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.data.dataset import rows
from lowtide.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)


class Squares(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return i * i


class Count(IterableDataset):
    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __iter__(self):
        return iter(range(self.start, self.stop))

    def __len__(self):
        return self.stop - self.start


def test_the_base_class_asks_for_getitem() -> None:
    with pytest.raises(NotImplementedError, match="__getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(IterableDataset())


def test_a_tensor_dataset_gives_tuples_of_rows() -> None:
    x, y = lt.arange(6).reshape(3, 2), lt.tensor([7, 8, 9])
    ds = TensorDataset(x, y)
    assert len(ds) == 3
    assert [t.tolist() for t in ds[1]] == [[2, 3], 8]
    assert [t.tolist() for t in ds[-1]] == [[4, 5], 9]
    assert [t.tolist() for t in ds[1:]] == [[[2, 3], [4, 5]], [8, 9]]


def test_a_tensor_dataset_refuses_unequal_tensors() -> None:
    with pytest.raises(AssertionError, match="Size mismatch between tensors"):
        TensorDataset(lt.zeros(3), lt.zeros(2))


def test_a_gathered_batch_equals_the_collated_samples() -> None:
    ds = TensorDataset(lt.randn(9, 2, 3), lt.arange(9))
    for source in (ds, Subset(ds, [5, 3, 1, 0, 8, 8, -1])):
        gathered = rows(source, [0, 4, -1, 4])
        plain = default_collate([source[i] for i in (0, 4, -1, 4)])
        assert gathered is not None
        assert all(lt.equal(a, b) for a, b in zip(gathered, plain, strict=True))


def test_a_subclass_with_its_own_getitem_is_not_gathered() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, i):
            return tuple(2 * t for t in super().__getitem__(i))

    loader = DataLoader(Doubled(lt.arange(4)), batch_size=4)
    assert [b[0].tolist() for b in loader] == [[0, 2, 4, 6]]


def test_an_index_out_of_range_is_an_index_error_in_a_batch_too() -> None:
    loader = DataLoader(TensorDataset(lt.arange(3)), sampler=[0, 5], batch_size=2)
    with pytest.raises(IndexError):
        next(iter(loader))


def test_stacked_datasets_give_tuples_or_dicts() -> None:
    assert StackDataset(Squares(3), [5, 6, 7])[2] == (4, 7)
    named = StackDataset(a=Squares(3), b=[5, 6, 7])
    assert named[1] == {"a": 1, "b": 6}
    assert named.__getitems__([0, 2]) == [{"a": 0, "b": 5}, {"a": 4, "b": 7}]
    assert len(named) == 3


def test_stacking_refuses_unequal_lengths_nothing_and_both_kinds() -> None:
    with pytest.raises(ValueError, match="Size mismatch"):
        StackDataset([1], [1, 2])
    with pytest.raises(ValueError, match="At least one"):
        StackDataset()
    with pytest.raises(ValueError, match="by position"):
        StackDataset([1], a=[1])


def test_a_subset_asks_for_its_indices_at_once() -> None:
    asked = []

    class Recording(Squares):
        def __getitems__(self, indices):
            asked.append(indices)
            return [self[i] for i in indices]

    subset = Subset(Recording(10), [9, 7, 5])
    assert subset.__getitems__([0, 2]) == [81, 25]
    assert asked == [[9, 5]]
    assert (subset[1], len(subset)) == (49, 3)


def test_a_subset_with_getitem_but_no_getitems_is_refused() -> None:
    class Half(Subset):
        def __getitem__(self, i):
            return 0

    with pytest.raises(NotImplementedError, match="__getitems__"):
        Half(Squares(3), [0])


def test_concatenated_datasets_count_on() -> None:
    both = Squares(3) + Squares(4)
    assert isinstance(both, ConcatDataset)
    assert [both[i] for i in range(7)] == [0, 1, 4, 0, 1, 4, 9]
    assert both[-1] == 9
    assert both.cumulative_sizes == [3, 7]
    with pytest.raises(ValueError, match="absolute value of index"):
        both[-8]
    with pytest.raises(IndexError):
        both[7]


def test_concatenation_refuses_nothing_and_iterables() -> None:
    with pytest.raises(AssertionError, match="empty iterable"):
        ConcatDataset([])
    with pytest.raises(AssertionError, match="does not support IterableDataset"):
        ConcatDataset([Count(0, 1)])


def test_chained_iterables_follow_one_another() -> None:
    chain = Count(0, 2) + Count(5, 8)
    assert isinstance(chain, ChainDataset)
    assert list(chain) == [0, 1, 5, 6, 7]
    assert len(chain) == 5
    with pytest.raises(AssertionError, match="only supports IterableDataset"):
        list(ChainDataset([Squares(2)]))


@pytest.mark.parametrize(
    ("n", "lengths", "sizes"),
    [
        (10, [7, 3], [7, 3]),
        (10, [0.7, 0.3], [7, 3]),
        (10, [1 / 3, 1 / 3, 1 / 3], [4, 3, 3]),
        (7, [0.5, 0.5], [4, 3]),
        (10, [1.0], [10]),
        (3, [0, 3], [0, 3]),
    ],
)
def test_a_random_split_has_these_sizes_and_no_overlap(n, lengths, sizes) -> None:
    parts = random_split(Squares(n), lengths)
    assert [len(p) for p in parts] == sizes
    assert sorted(i for p in parts for i in p.indices) == list(range(n))


def test_a_random_split_follows_its_generator() -> None:
    splits = [
        random_split(range(50), [20, 30], lt.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    ]
    first, second, other = ([p.indices for p in s] for s in splits)
    assert first == second
    assert first != other


def test_a_random_split_refuses_lengths_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="Sum of input lengths"):
        random_split(range(5), [2, 2])
    with pytest.raises(ValueError, match="Fraction at index 0"):
        random_split(range(5), [1.5, -0.5])
    with pytest.warns(UserWarning, match="Length of split at index 1 is 0"):
        random_split(range(2), [0.9, 0.1])


def test_a_dataset_of_numpy_rows_loads() -> None:
    loader = DataLoader(np.arange(6.0).reshape(3, 2), batch_size=2)
    assert [b.tolist() for b in loader] == [[[0, 1], [2, 3]], [[4, 5]]]
