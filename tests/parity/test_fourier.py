"""Fourier transforms against PyTorch: values, dtypes, two orders of gradient, error types."""

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

from tests.parity.comparing import close, compare, numbers, refuse_alike  # noqa: E402  # it imports torch

pytestmark = pytest.mark.parity

ONE = "fft ifft rfft irfft hfft ihfft".split()
SEVERAL = "fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn".split()
NEEDS_REAL = ("rfft", "ihfft")


def transform(name, shape, kind, *args, **kwargs):
    x = numbers(*shape, kind=kind)
    compare(lambda m, x: getattr(m.fft, name)(x, *args, **kwargs), x, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ONE)
def test_transforms_of_one_dim_match(name, norm):
    kinds = (float,) if name in NEEDS_REAL else (float, complex)
    for shape, n, dim in (
        ((6,), None, -1),
        ((3, 5), None, 0),
        ((3, 5), 4, 1),
        ((2, 3, 4), 7, -2),
        ((2, 2), 1, 1),
    ):
        for kind in kinds:
            transform(name, shape, kind, n, dim, norm)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", SEVERAL)
def test_transforms_of_several_dims_match(name, norm):
    kinds = (float,) if name[:-1] in NEEDS_REAL else (float, complex)
    for kind in kinds:
        transform(name, (3, 4), kind, norm=norm)
        transform(name, (2, 3, 4), kind, (3, 5), norm=norm, dim=(0, 2))
        transform(name, (2, 3, 4), kind, (-1, 2), norm=norm, dim=(-1, 0))
        if name.endswith("n"):
            transform(name, (2, 3, 4), kind, norm=norm)
            transform(name, (2, 3, 4), kind, (4, 5), norm=norm)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "bool"])
@pytest.mark.parametrize("name", ["fft", "irfft", "hfft", "fftn", "rfft", "ihfftn"])
def test_result_dtypes_match(name, dtype):
    if dtype == "complex64" and name in ("rfft", "ihfftn"):
        return
    x = (numbers(3, 4) * 3).astype(dtype)
    compare(lambda m, x: getattr(m.fft, name)(x), x, order=0, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_match(n):
    for name in ("fftfreq", "rfftfreq"):
        close(getattr(lt.fft, name)(n), getattr(torch.fft, name)(n))
        mine = getattr(lt.fft, name)(n, 0.25, dtype=lt.float64)
        close(mine, getattr(torch.fft, name)(n, 0.25, dtype=torch.float64))


def test_shifts_match():
    for shape, dim in (((5,), None), ((4, 3), None), ((4, 3), 1), ((2, 3, 4), (0, -1))):
        for name in ("fftshift", "ifftshift"):
            x = numbers(*shape)
            mine = getattr(lt.fft, name)(lt.tensor(x), dim)
            close(mine, getattr(torch.fft, name)(torch.tensor(x), dim))


WRONG = {
    "no points": lambda m: m.fft.fft(m.ones(3), 0),
    "one point of half a spectrum": lambda m: m.fft.irfft(m.ones(1)),
    "0-d": lambda m: m.fft.fft(m.tensor(1.0)),
    "dim": lambda m: m.fft.fft(m.ones(3), dim=1),
    "norm": lambda m: m.fft.fft(m.ones(3), norm="other"),
    "complex": lambda m: m.fft.rfft(m.ones(3, dtype=m.complex64)),
    "dims twice": lambda m: m.fft.fftn(m.ones(3, 3), dim=(0, 0)),
    "lengths": lambda m: m.fft.fftn(m.ones(3, 3), (2,), (0, 1)),
    "too many sizes": lambda m: m.fft.fftn(m.ones(3), (2, 2)),
    "no dims": lambda m: m.fft.rfftn(m.ones(3), dim=()),
    "half": lambda m: m.fft.fft(m.ones(3, dtype=m.float16)),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_match_in_type(name):
    refuse_alike(WRONG[name])
