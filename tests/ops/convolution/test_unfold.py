"""Patches: adjoints of each other, inverses, and the messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.nn import functional as F


def test_unfold_and_fold_are_adjoint_and_keep_nothing():
    x = lt.rand(2, 3, 5, 6, dtype=lt.float64, requires_grad=True)
    columns = F.unfold(x, (2, 3), padding=1)
    c = lt.rand(*columns.shape, dtype=lt.float64)
    left = (columns * c).sum().item()
    right = (x * F.fold(c, (5, 6), (2, 3), padding=1)).sum().item()
    assert left == pytest.approx(right, rel=1e-12)
    assert testing.saved_of([columns]) == []


def test_fold_of_disjoint_windows_undoes_unfold():
    x = lt.rand(2, 3, 4, 6)
    np.testing.assert_array_equal(F.fold(F.unfold(x, 2, stride=2), (4, 6), 2, stride=2), x)


def test_an_image_without_a_batch_is_one():
    x = lt.rand(3, 4, 6)
    alone, batched = F.unfold(x, 2), F.unfold(x.unsqueeze(0), 2)
    np.testing.assert_array_equal(alone.numpy(), batched[0].numpy())
    assert tuple(F.fold(alone, (4, 6), 2).shape) == (3, 4, 6)


@pytest.mark.parametrize("shape", [(8, 4, 6), (2, 8, 4, 6), (2, 2, 8, 4, 6)])
def test_unshuffling_undoes_shuffling(shape):
    x = lt.rand(*shape)
    np.testing.assert_array_equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), x)


def test_channels_of_two_groups_alternate():
    x = lt.arange(6).reshape(1, 6, 1)
    assert F.channel_shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.unfold(lt.ones(2, 3), 2), "3D or 4D"),
        (lambda: F.unfold(lt.ones(1, 1, 3, 3), 4), "at least one"),
        (lambda: F.unfold(lt.ones(1, 1, 3, 3), 2, stride=0), "stride should be greater than zero"),
        (lambda: F.fold(lt.ones(1, 7, 4), (3, 3), 2), "divisible by the product"),
        (lambda: F.fold(lt.ones(1, 4, 5), (3, 3), 2), "sliding blocks 2 \\* 2 = 4"),
        (lambda: F.pixel_shuffle(lt.ones(3, 2, 2), 2), "square of upscale_factor"),
        (lambda: F.pixel_unshuffle(lt.ones(3, 3, 2), 2), "height to be divisible"),
        (lambda: F.channel_shuffle(lt.ones(3, 2), 2), "> 2 dims"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()


def test_a_replicated_edge_is_the_whole_inputs_even_where_it_is_cropped():
    x = lt.arange(4.0).reshape(1, 4)
    assert F.pad(x, (-4, 5), "replicate").tolist() == [[3.0] * 5]
    assert F.pad(x, (5, -4), "replicate").tolist() == [[0.0] * 5]
    assert F.pad(x, (-2, 1), "replicate").tolist() == [[2.0, 3.0, 3.0]]
    with pytest.raises(RuntimeError, match="less than nothing"):
        F.pad(x, (-3, -2), "replicate")
    with pytest.raises(RuntimeError, match="less than nothing"):
        F.pad(x, (-5, 6), "circular")
    assert lt.constant_pad_nd(x, (1, -1), 7.0).tolist() == [[7.0, 0.0, 1.0, 2.0]]
