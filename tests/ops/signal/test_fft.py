"""Fourier transforms: identities, what they keep, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad

X = np.random.default_rng(0).standard_normal((4, 6))


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize(
    ("there", "back"), [("fft", "ifft"), ("rfft", "irfft"), ("ihfft", "hfft"), ("fft2", "ifft2")]
)
def test_a_transform_and_its_inverse_give_the_signal_back(there, back, norm):
    x = lt.tensor(X)
    again = getattr(lt.fft, back)(getattr(lt.fft, there)(x, norm=norm), norm=norm)
    np.testing.assert_allclose(again.numpy(), X, atol=1e-12)


def test_an_odd_size_comes_back_if_it_is_told():
    x = lt.tensor(X[:, :5])
    np.testing.assert_allclose(lt.fft.irfft(lt.fft.rfft(x), 5).numpy(), x.numpy(), atol=1e-12)


def test_orthonormal_transforms_keep_the_norm():
    x = lt.tensor(X)
    spectrum = lt.fft.fftn(x, norm="ortho")
    np.testing.assert_allclose(spectrum.abs().square().sum().item(), (X**2).sum())


def test_float32_stays_single_precision():
    x = lt.tensor(X, dtype=lt.float32)
    assert lt.fft.rfft(x).dtype is lt.complex64
    assert lt.fft.irfft(lt.fft.rfft(x)).dtype is lt.float32


def test_backward_keeps_no_values():
    y = lt.fft.rfft(lt.tensor(X, requires_grad=True))
    assert testing.saved_of([y]) == []


def test_a_shift_and_its_inverse_cancel_for_odd_sizes():
    x = lt.tensor(X[:, :5])
    assert lt.fft.ifftshift(lt.fft.fftshift(x)).equal(x)


def test_shapes_on_meta_are_those_of_the_cpu():
    there = lt.fft.rfftn(lt.ones(3, 4, 5, device="meta"), (2, 7), dim=(0, 2))
    assert (tuple(there.shape), there.dtype) == ((2, 4, 4), lt.complex64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lt.fft.fft(lt.ones(3), 0), RuntimeError, "Invalid number of data points"),
        (lambda: lt.fft.fft(lt.ones(3), norm="x"), RuntimeError, "normalization mode"),
        (lambda: lt.fft.rfft(lt.ones(3) * 1j), RuntimeError, "rfft expects a real input"),
        (lambda: lt.fft.fft(lt.ones(3).half()), RuntimeError, "half precision"),
        (lambda: lt.fft.fftn(lt.ones(3, 3), dim=(0, -2)), RuntimeError, "dims must be unique"),
        (lambda: lt.fft.fftn(lt.ones(3), (2, 2)), RuntimeError, "only has 1 dimensions"),
        (lambda: lt.fft.irfftn(lt.ones(3), dim=()), RuntimeError, "at least one axis"),
        (lambda: lt.fft.fft(lt.ones(3), dim=2), IndexError, "out of range"),
    ],
)
def test_errors_say_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.quick(2)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("shape", [(130, 127), (4, 60, 77), (20000,)])
def test_large_single_precision_transforms_are_those_of_double(shape, norm):
    x = np.random.default_rng(0).standard_normal(shape)
    single = lt.tensor(x, dtype=lt.float32, requires_grad=True)
    double = lt.tensor(x, requires_grad=True)
    results = []
    for t in (single, double):
        half = lt.fft.rfftn(t, norm=norm)
        back = lt.fft.irfftn(half * (1 + 0.5j), s=shape, norm=norm)
        whole = lt.fft.ifft(lt.fft.fft2(t, norm=norm) if t.ndim > 1 else t, norm=norm)
        total = back.square().mean() + whole.abs().square().mean()
        total.backward()
        results.append([v.detach().numpy() for v in (half, back, whole, t.grad)])
    for a, b in zip(*results, strict=True):
        assert a.dtype in (np.float32, np.complex64)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * np.abs(b).max())


def test_a_gradient_through_half_a_spectrum_has_no_mirror_images():
    x = lt.rand(6, dtype=lt.float64, requires_grad=True)
    half = lt.fft.rfft(x)
    (g,) = grad(half, [x], [lt.tensor([1, 0, 0, 0], dtype=lt.complex128)])
    assert g.tolist() == [1] * 6
    (g,) = grad(lt.fft.rfft(x), [x], [lt.tensor([0, 0, 0, 1], dtype=lt.complex128)])
    assert g.tolist() == pytest.approx([1, -1] * 3)
    (g,) = grad(lt.fft.rfft(x), [x], [lt.tensor([0, 1j, 0, 0], dtype=lt.complex128)])
    assert g.tolist() == pytest.approx((-np.sin(2 * np.pi * np.arange(6) / 6)).tolist(), abs=1e-12)
