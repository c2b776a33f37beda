"""Window functions: ``hann_window`` and relatives, and ``signal.windows``.

A window is written a tile at a time in float64 and rounded once. A periodic (not symmetric) window
of length n is the symmetric one of length n + 1 without its last point. Formulas: Harris 1978, "On
the use of windows for harmonic analysis with the discrete Fourier transform".
"""

from __future__ import annotations

import math
from typing import Any

from ...devices import backend
from ...dtypes import FLOAT, get_default_dtype
from ...kernels.common.special_functions import special
from ...tensor import Tensor
from ..creation.factory import dtype_of, need_strided, put, target
from ..creation.ranges import _ramp
from ..registry import function


def _made(
    name: str,
    length: int,
    symmetric: bool,
    formula: Any,
    dtype: Any,
    device: Any,
    requires_grad: bool,
    error: Any,
) -> Tensor:
    # formula(array module, positions, length of the symmetric window) -> values
    if length < 0:
        raise error(f"{name}: the window's length must be non-negative; got {length}.")
    wanted = get_default_dtype() if dtype is None else dtype_of(name, dtype)
    if wanted.category != FLOAT or (error is ValueError and wanted.is_half):
        takes = "float32 or float64" if error is ValueError else "a floating point dtype"
        raise error(f"{name}: expected {takes}; got {wanted}. Convert the window with .to().")
    t = target(name, (length,), wanted, wanted, device, None)
    if length == 1:
        put(t, 1)
    else:
        xp = backend(t.device).xp
        _ramp(t, lambda k: formula(xp, k, length if symmetric else length + 1))
    return t.requires_grad_() if requires_grad else t


def _cosines(*weights: float) -> Any:
    # a0 - a1 cos(2 pi k / (n - 1)) + a2 cos(4 pi k / (n - 1)) - ...
    def values(xp: Any, k: Any, n: int) -> Any:
        turn = k * (2 * math.pi / (n - 1))
        out = k * 0
        for i, a in enumerate(weights):
            out += (-1) ** i * a * xp.cos(i * turn)
        return out

    return values


def _kaiser(beta: float) -> Any:
    def values(xp: Any, k: Any, n: int) -> Any:
        half = (n - 1) / 2
        i0 = special(xp).i0
        inner = xp.maximum(1 - ((k - half) / half) ** 2, 0)
        return i0(beta * xp.sqrt(inner)) / i0(xp.asarray(float(beta)))

    return values


def _triangle(xp: Any, k: Any, n: int) -> Any:
    return 1 - xp.absolute(2 * k / (n - 1) - 1)


# As functions of lowtide: periodic unless told otherwise


@function()
def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Hann window: ``sin(pi k / n) ** 2``.

    Args:
        window_length: Number of points.
        periodic: One period of a periodic function, for transforms; else symmetric, for filters.
        dtype: Floating point; the default dtype if left out.
        layout: Accepted; strided.
        device: Of the result.
        pin_memory: Accepted; all host memory serves as well.
        requires_grad: Whether the result requires a gradient.

    Raises:
        RuntimeError: The length is negative, or the dtype not floating point.
    """
    if layout is not None:
        need_strided("hann_window", layout)
    return _made(
        "hann_window",
        window_length,
        not periodic,
        _cosines(0.5, 0.5),
        dtype,
        device,
        requires_grad,
        RuntimeError,
    )


@function()
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Hamming window: ``alpha - beta cos(2 pi k / n)``.

    The other arguments are those of :func:`hann_window`.
    """
    if layout is not None:
        need_strided("hamming_window", layout)
    return _made(
        "hamming_window",
        window_length,
        not periodic,
        _cosines(alpha, beta),
        dtype,
        device,
        requires_grad,
        RuntimeError,
    )


@function()
def blackman_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Blackman window; the arguments are those of :func:`hann_window`."""
    if layout is not None:
        need_strided("blackman_window", layout)
    return _made(
        "blackman_window",
        window_length,
        not periodic,
        _cosines(0.42, 0.5, 0.08),
        dtype,
        device,
        requires_grad,
        RuntimeError,
    )


@function()
def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Bartlett (triangular) window; the arguments are those of :func:`hann_window`."""
    if layout is not None:
        need_strided("bartlett_window", layout)
    return _made(
        "bartlett_window",
        window_length,
        not periodic,
        _triangle,
        dtype,
        device,
        requires_grad,
        RuntimeError,
    )


@function()
def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Kaiser window of shape ``beta``; other arguments as :func:`hann_window`."""
    if layout is not None:
        need_strided("kaiser_window", layout)
    return _made(
        "kaiser_window",
        window_length,
        not periodic,
        _kaiser(beta),
        dtype,
        device,
        requires_grad,
        RuntimeError,
    )


# As functions of signal.windows: symmetric unless told otherwise


@function(public=False)
def hann(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Hann window.

    Args:
        M: Number of points.
        sym: Symmetric, for filters; else one period of a periodic function, for transforms.
        dtype: Floating point; the default dtype if left out.
        layout: Accepted; strided.
        device: Of the result.
        requires_grad: Whether the result requires a gradient.

    Raises:
        ValueError: The length is negative, or the dtype not floating point.
    """
    if layout is not None:
        need_strided("hann", layout)
    return _made("hann", M, sym, _cosines(0.5, 0.5), dtype, device, requires_grad, ValueError)


@function(public=False)
def hamming(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Hamming window; the arguments are those of :func:`hann`."""
    if layout is not None:
        need_strided("hamming", layout)
    return _made("hamming", M, sym, _cosines(0.54, 0.46), dtype, device, requires_grad, ValueError)


@function(public=False)
def general_hamming(
    M: int,
    *,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create the window ``alpha - (1 - alpha) cos(2 pi k / n)``; other arguments: :func:`hann`."""
    if layout is not None:
        need_strided("general_hamming", layout)
    return _made(
        "general_hamming",
        M,
        sym,
        _cosines(alpha, 1 - alpha),
        dtype,
        device,
        requires_grad,
        ValueError,
    )


@function(public=False)
def blackman(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Blackman window; the arguments are those of :func:`hann`."""
    if layout is not None:
        need_strided("blackman", layout)
    return _made(
        "blackman", M, sym, _cosines(0.42, 0.5, 0.08), dtype, device, requires_grad, ValueError
    )


@function(public=False)
def nuttall(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Nuttall window; the arguments are those of :func:`hann`."""
    if layout is not None:
        need_strided("nuttall", layout)
    weights = (0.3635819, 0.4891775, 0.1365995, 0.0106411)
    return _made("nuttall", M, sym, _cosines(*weights), dtype, device, requires_grad, ValueError)


@function(public=False)
def general_cosine(
    M: int,
    *,
    a: Any,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a sum of cosines of alternating signs and weights ``a``.

    The other arguments are those of :func:`hann`.

    Raises:
        TypeError: ``a`` is no sequence.
        ValueError: ``a`` is empty.
    """
    if layout is not None:
        need_strided("general_cosine", layout)
    try:
        weights = [float(w) for w in a]
    except TypeError:
        raise TypeError(f"general_cosine: Coefficients must be a list/tuple; got {a!r}.") from None
    if not weights:
        raise ValueError("general_cosine: Coefficients cannot be empty. Pass at least one.")
    return _made(
        "general_cosine", M, sym, _cosines(*weights), dtype, device, requires_grad, ValueError
    )


@function(public=False)
def bartlett(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Bartlett (triangular) window; the arguments are those of :func:`hann`."""
    if layout is not None:
        need_strided("bartlett", layout)
    return _made("bartlett", M, sym, _triangle, dtype, device, requires_grad, ValueError)


@function(public=False)
def kaiser(
    M: int,
    *,
    beta: float = 12.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Kaiser window of shape ``beta >= 0``; other arguments as :func:`hann`."""
    if layout is not None:
        need_strided("kaiser", layout)
    if beta < 0:
        raise ValueError(f"kaiser: beta must be non-negative; got {beta}.")
    return _made("kaiser", M, sym, _kaiser(beta), dtype, device, requires_grad, ValueError)


@function(public=False)
def cosine(
    M: int,
    *,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a cosine (half sine) window; the arguments are those of :func:`hann`."""
    if layout is not None:
        need_strided("cosine", layout)
    return _made(
        "cosine",
        M,
        sym,
        lambda xp, k, n: xp.sin(math.pi / n * (k + 0.5)),
        dtype,
        device,
        requires_grad,
        ValueError,
    )


@function(public=False)
def gaussian(
    M: int,
    *,
    std: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create a Gaussian window of standard deviation ``std``; other arguments as :func:`hann`."""
    if layout is not None:
        need_strided("gaussian", layout)
    if std <= 0:
        raise ValueError(f"gaussian: Standard deviation must be positive; got {std}.")
    return _made(
        "gaussian",
        M,
        sym,
        lambda xp, k, n: xp.exp(-0.5 * ((k - (n - 1) / 2) / std) ** 2),
        dtype,
        device,
        requires_grad,
        ValueError,
    )


@function(public=False)
def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Create the window ``exp(-abs(k - center) / tau)``; other arguments as :func:`hann`.

    Raises:
        ValueError: ``tau`` is not positive, or a symmetric window is given a center.
    """
    if layout is not None:
        need_strided("exponential", layout)
    if tau <= 0:
        raise ValueError(f"exponential: Tau must be positive; got {tau}.")
    if sym and center is not None:
        raise ValueError("exponential: Center must be None for symmetric windows. Pass sym=False.")

    def values(xp: Any, k: Any, n: int) -> Any:
        return xp.exp(-xp.absolute(k - ((n - 1) / 2 if center is None else center)) / tau)

    return _made("exponential", M, sym, values, dtype, device, requires_grad, ValueError)
