"""Discrete Fourier transforms; ``lowtide.fft`` names them.

Three primitives, from complex to complex, from real to half a spectrum, and from half a spectrum
to real, serve all eighteen functions. Each one's gradient is a transform the other way, and needs
no value of the forward.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import COMPLEX, FLOAT, complex128, float64, get_default_dtype
from ...kernels.runtime import threads, thresholds
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CPU
from ..creation.factory import need_strided
from ..creation.from_data import tensor
from ..inplace import into
from ..manipulation.pad import _pad
from ..registry import function, op
from ..views.reshape import normal_dim
from ..views.slice import _narrow

# The scale of a transform's adjoint: what "backward" leaves out, "forward" divides by.
_ADJOINT = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _cost(shape, dims):
    n = lines = 1
    for d, size in enumerate(shape):
        if d in dims:
            n *= size
        else:
            lines *= size
    return 5 * lines * n * max(n.bit_length(), 1)


def _c2c_samples(make):
    x = make(3, 4).to(complex128) * (1 + 0.5j)
    yield (x,), {"dims": (1,), "norm": "backward", "inverse": False}
    yield (x + 1j * make(3, 4).to(complex128),), {"dims": (0, 1), "norm": "ortho", "inverse": True}
    yield (x.reshape(2, 3, 2),), {"dims": (1,), "norm": "forward", "inverse": True}
    yield (make(0, 2).to(complex128),), {"dims": (1,), "norm": "forward", "inverse": False}


@op(
    adopt=True,
    samples=_c2c_samples,
    infer=lambda input, *, dims, norm, inverse: input,
    flops=lambda input, *, dims, norm, inverse: _cost(input.shape, dims),
)
def _fft_c2c(xp, input, *, dims, norm, inverse):
    """Complex-to-complex Fourier transform over some dims."""
    if not input.size:
        return xp.zeros(input.shape, input.dtype)
    transform = xp.fft.ifftn if inverse else xp.fft.fftn
    return transform(input, axes=dims, norm=norm)


def _single(input, **_):
    return input.numel >= thresholds.COMPILED_MOVE and input.dtype.name in ("float32", "complex64")


def _by_scipy(op, name):
    """Transform large single-precision arrays by SciPy."""

    # NumPy's transforms without a factor convert to double and back, and take seven times as long.
    @op.kernel("cpu", when=_single)
    def _(xp, input, *, dims, norm, inverse=False, **given):
        from scipy import fft

        workers = max(1, threads.workers(input.size, input.size))
        if "size" in given:
            given = {"s": (*[input.shape[d] for d in dims[:-1]], given["size"])}
        transform = getattr(fft, f"i{name}" if inverse else name)
        return transform(input, axes=dims, norm=norm, workers=workers, **given)


_by_scipy(_fft_c2c, "fftn")


@_fft_c2c.vjp("input")
def _(g, dims, norm, inverse):
    return _fft_c2c(g, dims=dims, norm=_ADJOINT[norm], inverse=not inverse)


def _half_of(shape, dim):
    return (*shape[:dim], shape[dim] // 2 + 1, *shape[dim + 1 :])


def _r2c_samples(make):
    x = make(3, 4).to(float64)
    yield (x,), {"dims": (1,), "norm": "backward"}
    yield (x.reshape(2, 2, 3),), {"dims": (0, 2), "norm": "ortho"}
    yield (make(5).to(float64),), {"dims": (0,), "norm": "forward"}
    yield (make(0, 2).to(float64),), {"dims": (1,), "norm": "forward"}


@op(
    adopt=True,
    samples=_r2c_samples,
    infer=lambda input, *, dims, norm: Spec(
        _half_of(input.shape, dims[-1]), input.dtype.to_complex()
    ),
    flops=lambda input, *, dims, norm: _cost(input.shape, dims) // 2,
)
def _fft_r2c(xp, input, *, dims, norm):
    """Real-to-complex Fourier transform; the last dim keeps its non-negative frequencies."""
    if not input.size:
        kind = "complex128" if input.dtype.itemsize == 8 else "complex64"
        return xp.zeros(_half_of(input.shape, dims[-1]), kind)
    return xp.fft.rfftn(input, axes=dims, norm=norm)


_by_scipy(_fft_r2c, "rfftn")


@_fft_r2c.vjp("input")
def _(g, input_spec, dims, norm):
    # The real part of a transform whose frequencies have no mirror images. The way back to real
    # numbers adds these, which doubles all but zero and the middle.
    size = input_spec.shape[dims[-1]]
    half = g * _mirrored(g, dims[-1], size, 0.5)
    return _fft_c2r(half, dims=dims, size=size, norm=_ADJOINT[norm])


def _mirrored(half, dim, size, factor):
    # ``factor`` for each frequency that stands for its mirror image, too, and 1 for the others.
    weights = np.full(half.shape[dim], factor)
    weights[:1] = 1.0
    if size % 2 == 0:
        weights[-1:] = 1.0
    shape = (-1,) + (1,) * (half.ndim - 1 - dim)
    return tensor(weights, dtype=half.dtype.to_real(), device=half.device).reshape(shape)


def _c2r_samples(make):
    x = make(3, 4).to(complex128) * (1 - 0.5j)
    yield (x,), {"dims": (1,), "size": 6, "norm": "backward"}
    yield (x,), {"dims": (0, 1), "size": 7, "norm": "ortho"}
    yield (make(1).to(complex128),), {"dims": (0,), "size": 1, "norm": "forward"}
    yield (make(0, 2).to(complex128),), {"dims": (1,), "size": 2, "norm": "forward"}


@op(
    adopt=True,
    samples=_c2r_samples,
    infer=lambda input, *, dims, size, norm: Spec(
        (*input.shape[: dims[-1]], size, *input.shape[dims[-1] + 1 :]), input.dtype.to_real()
    ),
    flops=lambda input, *, dims, size, norm: _cost(input.shape, dims),
)
def _fft_c2r(xp, input, *, dims, size, norm):
    """Complex-to-real Fourier transform, to ``size`` real numbers in the last of some dims."""
    if not input.size:
        shape = (*input.shape[: dims[-1]], size, *input.shape[dims[-1] + 1 :])
        return xp.zeros(shape, input.real.dtype)
    sizes = (*[input.shape[d] for d in dims[:-1]], size)
    return xp.fft.irfftn(input, s=sizes, axes=dims, norm=norm)


_by_scipy(_fft_c2r, "irfftn")


@_fft_c2r.vjp("input")
def _(g, input_spec, dims, size, norm):
    half = _fft_r2c(g, dims=dims, norm=_ADJOINT[norm])
    return half * _mirrored(half, dims[-1], size, 2.0)


# Arguments


def _norm_of(norm):
    if norm is None:
        return "backward"
    if norm not in _ADJOINT:
        raise RuntimeError(
            f'Invalid normalization mode: "{norm}". Pass "backward", "ortho" or "forward".'
        )
    return norm


def _promoted(name, input, to_complex):
    """Convert integers to the default float type, and to complex if asked."""
    if input.dtype.is_half:
        raise RuntimeError(
            f"Unsupported dtype {input.dtype}: {name} has no half precision. Convert with "
            ".to(float32)."
        )
    if input.dtype.category < FLOAT:
        input = input.to(get_default_dtype())
    if not to_complex and input.dtype.category == COMPLEX:
        raise RuntimeError(
            f"{name} expects a real input tensor, but got {input.dtype}. Use the complex "
            "transform, or pass .real."
        )
    return input.to(input.dtype.to_complex()) if to_complex else input


def _positive(n):
    if n < 1:
        raise RuntimeError(f"Invalid number of data points ({n}) specified")
    return n


def _fit(input, dims, sizes):
    """Truncate or zero-pad the input to ``sizes`` in ``dims``."""
    after = [0] * input.ndim
    for d, n in zip(dims, sizes, strict=True):
        if n < input.shape[d]:
            input = _narrow(input, 0, d, n)
        after[d] = n - input.shape[d]
    if not any(after):
        return input
    return _pad(input, before=(0,) * input.ndim, after=tuple(after), value=0.0)


def _one_dim(name, input, dim):
    if not input.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    return normal_dim(name, dim, input.ndim)


def _dims_and_sizes(name, input, s, dim):
    if dim is not None:
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        dims = tuple([normal_dim(name, d, input.ndim) for d in dims])
        if len(set(dims)) != len(dims):
            raise RuntimeError("FFT dims must be unique")
    if s is None:
        dims = tuple(range(input.ndim)) if dim is None else dims
        return dims, tuple([_positive(input.shape[d]) for d in dims])
    s = (s,) if isinstance(s, int) else tuple(s)
    if dim is None:
        if len(s) > input.ndim:
            raise RuntimeError(
                f"Got shape with {len(s)} values but input tensor only has {input.ndim} dimensions."
            )
        dims = tuple(range(input.ndim - len(s), input.ndim))
    elif len(s) != len(dims):
        raise RuntimeError("When given, dim and shape arguments must have the same length")
    sizes = [_positive(input.shape[d] if n == -1 else n) for d, n in zip(dims, s, strict=True)]
    return dims, tuple(sizes)


def _half_sizes(name, input, s, dim):
    """Like :func:`_dims_and_sizes`, where the input's last dim is half a spectrum."""
    whole = s
    if s is not None:
        whole = [s] if isinstance(s, int) else list(s)
        whole[-1:] = [-1] * bool(whole)
    dims, sizes = _dims_and_sizes(name, input, whole, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    given = -1 if s is None else (s if isinstance(s, int) else tuple(s)[-1])
    last = 2 * (input.shape[dims[-1]] - 1) if given == -1 else given
    return dims, sizes, _positive(last)


# One dim


def _complex_1d(name, input, n, dim, norm, inverse, out):
    x = _promoted(name, input, True)
    d = _one_dim(name, x, dim)
    x = _fit(x, (d,), (_positive(x.shape[d] if n is None else n),))
    return into(out, _fft_c2c(x, dims=(d,), norm=_norm_of(norm), inverse=inverse))


@function(public=False, autocast=WIDE_ON_CPU)
def fft(input, n=None, dim=-1, norm=None, *, out=None):
    """Compute the discrete Fourier transform along one dim.

    Args:
        input: Real or complex.
        n: Cut or zero-pad the dim to this size first.
        dim: Along which.
        norm: What to divide by: "backward" (None) by nothing, "ortho" by the root of n, "forward"
            by n.
        out: Where to leave the result.

    Returns:
        Complex tensor, size n along ``dim``.

    Memory:
        Keeps nothing for backward.

    Example:
        >>> import lowtide as lt
        >>> lt.fft.fft(lt.tensor([1.0, 0.0, 0.0, 0.0])).real.tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    return _complex_1d("fft", input, n, dim, norm, False, out)


@function(public=False, autocast=WIDE_ON_CPU)
def ifft(input, n=None, dim=-1, norm=None, *, out=None):
    """Compute the inverse Fourier transform along one dim; "backward" (None) divides by n."""
    return _complex_1d("ifft", input, n, dim, norm, True, out)


@function(public=False, autocast=WIDE_ON_CPU)
def rfft(input, n=None, dim=-1, norm=None, *, out=None):
    """Compute the Fourier transform of real input along one dim: frequencies 0 to n // 2."""
    x = _promoted("rfft", input, False)
    d = _one_dim("rfft", x, dim)
    x = _fit(x, (d,), (_positive(x.shape[d] if n is None else n),))
    return into(out, _fft_r2c(x, dims=(d,), norm=_norm_of(norm)))


def _real_1d(name, x, n, d, norm):
    n = _positive(2 * (x.shape[d] - 1) if n is None else n)
    return _fft_c2r(_fit(x, (d,), (n // 2 + 1,)), dims=(d,), size=n, norm=norm)


@function(public=False, autocast=WIDE_ON_CPU)
def irfft(input, n=None, dim=-1, norm=None, *, out=None):
    """Compute the inverse of ``rfft``: ``n`` real numbers (by default an even number)."""
    x = _promoted("irfft", input, True)
    return into(out, _real_1d("irfft", x, n, _one_dim("irfft", x, dim), _norm_of(norm)))


@function(public=False, autocast=WIDE_ON_CPU)
def hfft(input, n=None, dim=-1, norm=None, *, out=None):
    """Compute the Fourier transform of a Hermitian signal given by its first half; it is real."""
    x = _promoted("hfft", input, True).conj()
    d = _one_dim("hfft", x, dim)
    return into(out, _real_1d("hfft", x, n, d, _ADJOINT[_norm_of(norm)]))


@function(public=False, autocast=WIDE_ON_CPU)
def ihfft(input, n=None, dim=-1, norm=None, *, out=None):
    """Compute the inverse of ``hfft``: the first half of the signal."""
    x = _promoted("ihfft", input, False)
    d = _one_dim("ihfft", x, dim)
    x = _fit(x, (d,), (_positive(x.shape[d] if n is None else n),))
    return into(out, _fft_r2c(x, dims=(d,), norm=_ADJOINT[_norm_of(norm)]).conj())


# Several dims


def _complex_nd(name, input, s, dim, norm, inverse, out):
    x = _promoted(name, input, True)
    dims, sizes = _dims_and_sizes(name, x, s, dim)
    norm = _norm_of(norm)
    x = _fit(x, dims, sizes)
    return into(out, _fft_c2c(x, dims=dims, norm=norm, inverse=inverse) if dims else x.clone())


@function(public=False, autocast=WIDE_ON_CPU)
def fftn(input, s=None, dim=None, norm=None, *, out=None):
    """Compute the discrete Fourier transform over several dims.

    Args:
        input: Real or complex.
        s: Cut or zero-pad the dims to these sizes first; -1 leaves one as it is.
        dim: Which; by default all, or the last ``len(s)``.
        norm: "backward" (None), "ortho" or "forward": see :func:`fft`.
        out: Where to leave the result.
    """
    return _complex_nd("fftn", input, s, dim, norm, False, out)


@function(public=False, autocast=WIDE_ON_CPU)
def ifftn(input, s=None, dim=None, norm=None, *, out=None):
    """Compute the inverse Fourier transform over several dims."""
    return _complex_nd("ifftn", input, s, dim, norm, True, out)


def _half_nd(name, input, s, dim, norm):
    x = _promoted(name, input, False)
    dims, sizes = _dims_and_sizes(name, x, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    return _fft_r2c(_fit(x, dims, sizes), dims=dims, norm=norm)


def _real_nd(name, x, s, dim, norm):
    dims, sizes, last = _half_sizes(name, x, s, dim)
    x = _fit(x, dims, (*sizes[:-1], last // 2 + 1))
    return _fft_c2r(x, dims=dims, size=last, norm=norm)


@function(public=False, autocast=WIDE_ON_CPU)
def rfftn(input, s=None, dim=None, norm=None, *, out=None):
    """Compute the Fourier transform of real input over several dims; half the last dim is kept."""
    return into(out, _half_nd("rfftn", input, s, dim, _norm_of(norm)))


@function(public=False, autocast=WIDE_ON_CPU)
def irfftn(input, s=None, dim=None, norm=None, *, out=None):
    """Compute the inverse of ``rfftn``; ``s[-1]`` tells an odd last size from an even one."""
    x = _promoted("irfftn", input, True)
    return into(out, _real_nd("irfftn", x, s, dim, _norm_of(norm)))


@function(public=False)
def hfftn(input, s=None, dim=None, norm=None, *, out=None):
    """Compute the Fourier transform of a signal that is Hermitian in the last dim; it is real."""
    x = _promoted("hfftn", input, True).conj()
    return into(out, _real_nd("hfftn", x, s, dim, _ADJOINT[_norm_of(norm)]))


@function(public=False)
def ihfftn(input, s=None, dim=None, norm=None, *, out=None):
    """Compute the inverse of ``hfftn``."""
    return into(out, _half_nd("ihfftn", input, s, dim, _ADJOINT[_norm_of(norm)]).conj())


def _over_two(name, general):
    def over_two(input, s=None, dim=(-2, -1), norm=None, *, out=None):
        return general(input, s, dim, norm, out=out)

    over_two.__name__ = over_two.__qualname__ = name
    over_two.__doc__ = f"Apply ``{general.__name__}`` over two dims, by default the last ones."
    return function(public=False)(over_two)


fft2, ifft2 = _over_two("fft2", fftn), _over_two("ifft2", ifftn)
rfft2, irfft2 = _over_two("rfft2", rfftn), _over_two("irfft2", irfftn)
hfft2, ihfft2 = _over_two("hfft2", hfftn), _over_two("ihfft2", ihfftn)


# Frequencies


def _frequencies(counts, n, d, dtype, device, requires_grad, out):
    values = counts / (n * d)
    found = tensor(values, dtype=dtype or get_default_dtype(), device=device)
    found = into(out, found)
    return found.requires_grad_() if requires_grad else found


@function(public=False)
def fftfreq(n, d=1.0, *, out=None, dtype=None, layout=None, device=None, requires_grad=False):
    """Return the frequencies of ``fft``, for ``n`` samples with spacing ``d``."""
    if layout is not None:
        need_strided("fftfreq", layout)
    counts = np.concatenate((np.arange((n + 1) // 2), np.arange(-(n // 2), 0))).astype(np.float64)
    return _frequencies(counts, n, d, dtype, device, requires_grad, out)


@function(public=False)
def rfftfreq(n, d=1.0, *, out=None, dtype=None, layout=None, device=None, requires_grad=False):
    """Return the frequencies of ``rfft``, for ``n`` samples with spacing ``d``."""
    if layout is not None:
        need_strided("rfftfreq", layout)
    counts = np.arange(n // 2 + 1).astype(np.float64)
    return _frequencies(counts, n, d, dtype, device, requires_grad, out)


def _shifted(name, input, dim, steps):
    if dim is None:
        dims = tuple(range(input.ndim))
    else:
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        dims = tuple([normal_dim(name, d, input.ndim) for d in dims])
    return input.roll(tuple([steps(input.shape[d]) for d in dims]), dims) if dims else input.clone()


@function(public=False)
def fftshift(input, dim=None):
    """Shift the zero frequency to the center of dims (of all, by default)."""
    return _shifted("fftshift", input, dim, lambda n: n // 2)


@function(public=False)
def ifftshift(input, dim=None):
    """Compute the inverse of ``fftshift``."""
    return _shifted("ifftshift", input, dim, lambda n: (n + 1) // 2)
