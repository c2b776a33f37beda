"""From samples to a batch."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import lowtide as lt
from lowtide.utils.data import default_collate, default_convert

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("batch", "dtype", "values"),
    [
        ([1, 2], lt.int64, [1, 2]),
        ([1.5, 2], lt.float64, [1.5, 2]),
        ([True, False], lt.bool, [True, False]),
        ([np.float32(1), np.float32(2)], lt.float32, [1, 2]),
        ([np.float64(1)], lt.float64, [1]),
        ([np.int16(3)], lt.int16, [3]),
        ([np.bool_(True)], lt.bool, [True]),
        ([np.array(2.0)], lt.float64, [2]),
        ([np.array([1, 2], np.uint8)] * 2, lt.uint8, [[1, 2], [1, 2]]),
        ([lt.tensor([1.0, 2.0]), lt.tensor([3.0, 4.0])], lt.float32, [[1, 2], [3, 4]]),
    ],
)
def test_numbers_arrays_and_tensors_become_one_tensor(batch, dtype, values) -> None:
    out = default_collate(batch)
    assert out.dtype is dtype
    assert out.tolist() == values


def test_strings_and_bytes_stay_a_list() -> None:
    assert default_collate(["a", "b"]) == ["a", "b"]
    assert default_collate([b"a", b"b"]) == [b"a", b"b"]


def test_containers_are_collated_element_by_element() -> None:
    out = default_collate([{"a": (1, "x"), "b": [1.0]}, {"a": (2, "y"), "b": [2.0]}])
    assert out["a"][0].tolist() == [1, 2]
    assert out["a"][1] == ("x", "y")
    assert out["b"][0].tolist() == [1.0, 2.0]


def test_the_classes_of_mappings_and_named_tuples_are_kept() -> None:
    assert type(default_collate([OrderedDict(a=1), OrderedDict(a=2)])) is OrderedDict
    out = default_collate([Point(1, 2.0), Point(3, 4.0)])
    assert type(out) is Point
    assert out.y.tolist() == [2.0, 4.0]
    assert isinstance(default_collate([(1, 2), (3, 4)]), list)


def test_samples_are_not_changed() -> None:
    samples = [{"a": [1]}, {"a": [2]}]
    default_collate(samples)
    assert samples == [{"a": [1]}, {"a": [2]}]


def test_what_no_tensor_can_hold_is_a_type_error() -> None:
    for bad in (None, 1j, object(), np.array("x"), np.array([None])):
        with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
            default_collate([bad])


def test_unequal_lengths_and_shapes_are_runtime_errors() -> None:
    with pytest.raises(RuntimeError, match="should be of equal size"):
        default_collate([[1, 2], [3]])
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([lt.zeros(2), lt.zeros(3)])


def test_converting_makes_tensors_of_arrays_and_no_batch() -> None:
    out = default_convert(
        {"a": np.ones(2), "b": (1, "s", np.float32(2)), "c": Point(np.ones(1), 0)}
    )
    assert out["a"].dtype is lt.float64
    assert out["b"][:2] == [1, "s"]
    assert out["b"][2].item() == 2
    assert type(out["c"]) is Point
    assert out["c"].x.tolist() == [1]
    names = np.array(["a"])
    assert default_convert(names) is names
