"""Resizing and sampling: what is kept, and the messages; the numbers are in ``tests/parity``."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.kernels.runtime import thresholds
from lowtide.nn import functional as F


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_resizing_keeps_nothing_for_backward(mode):
    x = lt.rand(1, 2, 4, 5, requires_grad=True)
    assert testing.saved_of([F.interpolate(x, (8, 5), mode=mode)]) == []


def test_a_size_that_is_there_already_gives_a_copy():
    x = lt.rand(1, 1, 3, 3)
    y = F.interpolate(x, (3, 3), mode="bilinear")
    assert y.data_ptr() != x.data_ptr()
    np.testing.assert_array_equal(y.numpy(), x.numpy())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_constant_stays_constant(mode, antialias):
    x = lt.full((1, 1, 7, 9), 2.5, dtype=lt.float64)
    y = F.interpolate(x, (3, 20), mode=mode, antialias=antialias)
    np.testing.assert_allclose(y.numpy(), 2.5, rtol=1e-12)


@pytest.mark.parametrize("mode", ["linear", "bilinear"])
def test_as_many_rows_as_taps_are_resized_as_one_row_is(mode):
    shape = (1, 2, 1 << 20) if mode == "linear" else (1, 2, 8, 1 << 17)
    x = lt.randn(shape)
    both = F.interpolate(x, scale_factor=2, mode=mode)
    assert both.numel() >= 2 * thresholds.THREAD  # enough for two threads
    for k in range(2):
        one = F.interpolate(x[:, k : k + 1], scale_factor=2, mode=mode)
        assert np.array_equal(both[:, k].numpy(), one[:, 0].numpy())


def test_linear_modes_take_no_integers():
    with pytest.raises(NotImplementedError, match="not implemented for"):
        F.interpolate(lt.ones(1, 1, 3, dtype=lt.int64), 5, mode="linear")


def test_meta_resizes():
    x = lt.ones(2, 3, 8, 8, device="meta")
    assert tuple(F.interpolate(x, scale_factor=2.5, mode="bilinear").shape) == (2, 3, 20, 20)


def test_the_identity_grid_gives_the_image_back():
    x = lt.rand(2, 3, 4, 5, dtype=lt.float64)
    theta = lt.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=lt.float64).expand(2, 2, 3)
    grid = F.affine_grid(theta, x.shape, align_corners=True)
    y = F.grid_sample(x, grid, align_corners=True)
    np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 9000])  # few are sampled by plain ops
@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_position_that_is_nowhere_has_no_value(count, at):
    # Source: PyTorch 2.13 on the CPU. The image keeps a gradient of 0.
    x = lt.ones(1, 1, 2, 2, requires_grad=True)
    grid = lt.tensor([at, 0.3]).expand(1, 1, count, 2).clone().requires_grad_()
    for twice in (False, True):
        y = F.grid_sample(x, grid, align_corners=False)
        assert bool(y.isnan().all())
        of_x, of_grid = lt.autograd.grad(y.sum(), [x, grid], create_graph=twice)
        assert not of_x.any()
        assert of_grid[0, 0, 0, 0].item() == 0
        assert of_grid[0, 0, 0, 1].isnan()
    assert F.grid_sample(x, grid, mode="nearest", align_corners=False)[0, 0, 0, 0].item() == 0


def test_sampling_has_second_gradients():
    x = lt.rand(1, 2, 3, 4, dtype=lt.float64, requires_grad=True)
    grid = (lt.rand(1, 2, 2, 2, dtype=lt.float64) * 1.4 - 0.7).requires_grad_()
    testing.check_second_gradient(
        lambda xs: (F.grid_sample(*xs, mode="bicubic", align_corners=False),), [x, grid]
    )


def test_an_unsaid_alignment_warns():
    with pytest.warns(UserWarning, match="align_corners=False since"):
        F.grid_sample(lt.ones(1, 1, 2, 2), lt.zeros(1, 1, 1, 2))


@pytest.mark.parametrize(
    ("image", "grid", "message"),
    [
        ((1, 1, 2), (1, 1, 2), "4D or 5D"),
        ((1, 1, 2, 2), (2, 1, 1, 2), "same batch size"),
        ((1, 1, 2, 2), (1, 1, 1, 3), "size 2 in last dimension"),
        ((1, 1, 0, 2), (1, 1, 1, 2), "non-empty spatial"),
    ],
)
def test_grids_that_do_not_fit_are_refused(image, grid, message):
    with pytest.raises(RuntimeError, match=message):
        F.grid_sample(lt.ones(image), lt.zeros(grid), align_corners=False)


def test_half_precision_is_rounded_once_whatever_the_number_of_dims():
    x = lt.randn(1, 1, 4, 5).to(lt.bfloat16)
    got = F.interpolate(x, size=(7, 3), mode="bilinear")
    wide = F.interpolate(x.float(), size=(7, 3), mode="bilinear")
    assert got.equal(wide.to(lt.bfloat16))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_rounded_and_stay_within_bytes(mode, antialias):
    x = (lt.rand(2, 3, 9, 11) > 0.5).to(lt.uint8) * 255
    for size in ((9, 16), (5, 11)):  # one dim each: between two, cubic sums are cut to bytes
        got = F.interpolate(x, size=size, mode=mode, antialias=antialias)
        wide = F.interpolate(x.double(), size=size, mode=mode, antialias=antialias)
        assert got.dtype is lt.uint8
        assert float((got.double() - wide.clamp(0, 255)).abs().max()) <= 0.6
    assert F.interpolate(x, size=(9, 11), mode=mode, antialias=antialias).equal(x)


def test_bytes_of_a_bilinear_image():
    # By hand: halves are rounded up, width first.
    x = lt.tensor([[[[0, 255], [255, 0]]]], dtype=lt.uint8)
    got = F.interpolate(x, size=(2, 3), mode="bilinear", align_corners=True)
    assert got.tolist() == [[[[0, 128, 255], [255, 128, 0]]]]
