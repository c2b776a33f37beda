"""Bytes over time in characters."""

import pytest

from lowtide.profiling.analysis.terminal import tide


def test_what_is_stacked_is_drawn_from_the_bottom():
    lines = tide({"a": [0, 8, 8, 0], "b": [0, 0, 8, 16]}, height=2)
    assert lines == ["  ▓▓", " ██▓"]
    assert tide({"a": [0, 8, 8, 0], "b": [0, 0, 8, 16]}, height=2, plain=True) == ["  **", " ##*"]


def test_a_stretch_is_drawn_at_its_highest_instant():
    values = [0] * 100
    values[57] = 10
    (line,) = tide({"a": values}, width=10, height=1)
    assert line == "     █"


def test_the_scale_may_be_that_of_another_picture_and_what_is_there_is_seen():
    assert tide({"a": [1, 50, 100]}, height=2, top=1000) == ["", "███"]
    assert tide({"a": [100, 400]}, height=2, top=400) == [" █", "██"]


def test_nothing_and_too_much():
    assert tide({"a": []}, height=3) == ["", "", ""]
    assert tide({"a": [0, 0]}, height=1) == [""]
    with pytest.raises(ValueError, match="at most 4 series; got 5"):
        tide({str(k): [1] for k in range(5)})
