"""as_strided at the ends of memory."""

import pytest

import lowtide as lt


@pytest.mark.parametrize(
    ("size", "stride", "start"), [((0,), (9,), 5), ((2, 0), (3, 1), 7), ((0,), (1,), 100)]
)
def test_a_view_without_elements_may_lie_anywhere(size, stride, start):
    view = lt.ones(4).as_strided(size, stride, start)
    assert view.shape == size
    assert view.stride() == stride


def test_a_view_with_elements_may_not():
    with pytest.raises(RuntimeError, match="out of bounds for storage of 4 elements"):
        lt.ones(4).as_strided((2,), (1,), 3)
