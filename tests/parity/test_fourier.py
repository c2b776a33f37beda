"""Fourier transforms against PyTorch: values, dtypes, two orders of gradient, error types."""

import warnings

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

ONE = "fft ifft rfft irfft hfft ihfft".split()
SEVERAL = "fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn".split()
NEEDS_REAL = ("rfft", "ihfft")


def numbers(shape, kind=float, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if kind is complex else x


def close(mine, reference):
    assert tuple(mine.shape) == tuple(reference.shape)
    assert mine.dtype.name == str(reference.dtype).removeprefix("torch.")
    a, b = mine.detach().numpy(), reference.detach().resolve_conj().numpy()
    np.testing.assert_allclose(a, b, atol=1e-5 if a.dtype.itemsize == 4 else 1e-9, rtol=1e-5)


def compare(name, x, *args, **kwargs):
    a, b = lt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    mine = getattr(lt.fft, name)(a, *args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = getattr(torch.fft, name)(b, *args, **kwargs)
    close(mine, reference)
    kind = complex if mine.is_complex() else float
    u = numbers(tuple(mine.shape), kind, 1)
    w = numbers(x.shape, complex if np.iscomplexobj(x) else float, 2)
    ua = lt.tensor(u, requires_grad=True)
    ub = torch.tensor(u, requires_grad=True)
    (ga,) = grad(mine, a, ua, create_graph=True)
    (gb,) = torch.autograd.grad(reference, b, ub, create_graph=True)
    close(ga, gb)
    (ha,) = grad(ga, ua, lt.tensor(w))
    (hb,) = torch.autograd.grad(gb, ub, torch.tensor(w))
    close(ha, hb)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ONE)
def test_transforms_of_one_dim_match(name, norm):
    kinds = (float,) if name in NEEDS_REAL else (float, complex)
    for shape, n, dim in (
        ((6,), None, -1), ((3, 5), None, 0), ((3, 5), 4, 1), ((2, 3, 4), 7, -2), ((2, 2), 1, 1),
    ):  # fmt: skip
        for kind in kinds:
            compare(name, numbers(shape, kind), n, dim, norm)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", SEVERAL)
def test_transforms_of_several_dims_match(name, norm):
    kinds = (float,) if name[:-1] in NEEDS_REAL else (float, complex)
    for kind in kinds:
        compare(name, numbers((3, 4), kind), norm=norm)
        compare(name, numbers((2, 3, 4), kind), (3, 5), norm=norm, dim=(0, 2))
        compare(name, numbers((2, 3, 4), kind), (-1, 2), norm=norm, dim=(-1, 0))
        if name.endswith("n"):
            compare(name, numbers((2, 3, 4), kind), norm=norm)
            compare(name, numbers((2, 3, 4), kind), (4, 5), norm=norm)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "bool"])
@pytest.mark.parametrize("name", ["fft", "irfft", "hfft", "fftn", "rfft", "ihfftn"])
def test_result_dtypes_match(name, dtype):
    if dtype == "complex64" and name in ("rfft", "ihfftn"):
        return
    x = (numbers((3, 4)) * 3).astype(dtype)
    close(getattr(lt.fft, name)(lt.tensor(x)), getattr(torch.fft, name)(torch.tensor(x)))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_match(n):
    for name in ("fftfreq", "rfftfreq"):
        close(getattr(lt.fft, name)(n), getattr(torch.fft, name)(n))
        mine = getattr(lt.fft, name)(n, 0.25, dtype=lt.float64)
        close(mine, getattr(torch.fft, name)(n, 0.25, dtype=torch.float64))


def test_shifts_match():
    for shape, dim in (((5,), None), ((4, 3), None), ((4, 3), 1), ((2, 3, 4), (0, -1))):
        for name in ("fftshift", "ifftshift"):
            x = numbers(shape)
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


def error_of(f, module):
    try:
        f(module)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", WRONG)
def test_errors_match_in_type(name):
    theirs, ours = error_of(WRONG[name], torch), error_of(WRONG[name], lt)
    assert theirs is not None
    assert isinstance(ours, type(theirs))
