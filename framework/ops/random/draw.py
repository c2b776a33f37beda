"""Random tensors: rand, randn, randint, randperm, normal, and their ``*_like``.

Every draw takes its place in a stream from a generator first (``framework/random/generator.py``)
and then fills memory as a pure function of that place. So a write in place is an ordinary op whose
input ``rng`` lets it be repeated, and a seed gives equal values on every device. Draws in place and
from distributions are in ``distributions.py``.
"""

from __future__ import annotations

import operator
from math import log, pi
from typing import Any

import numpy as np

from ...devices import backend, on_device
from ...dtypes import BOOL, COMPLEX, FLOAT, INT, float32, get_default_dtype, int64
from ...kernels.common.strided_ufuncs import negate
from ...memory.ledger import WORKSPACE
from ...modes import no_grad, run_kernel
from ...random import philox as stream
from ...random.generator import draw
from ...random.philox import Rng
from ...spec import Spec
from ...tensor import Tensor
from ..conversion.copy import zero_gradient
from ..creation.factory import (
    bounds_of,
    like,
    need_strided,
    scalar,
    shape_of,
    size_of,
    target,
    written,
)
from ..inplace import into
from ..limited_dtypes import refuse
from ..registry import function, op
from ..signatures import broadcast_shapes

# Filling: name -> function (xp, contiguous array, rng, a, b)


def _uniform(xp, out, rng, low, high):
    stream.uniform(xp, out, rng)
    if high - low != 1:
        xp.multiply(out, high - low, out=out)
    if low != 0:
        xp.add(out, low, out=out)
    if low != 0 or high != 1:  # rounding may reach the end, which does not belong to the range
        xp.minimum(out, _below(out.dtype, low, high), out=out)


def _below(dtype, low, high):
    # The largest number of a NumPy dtype below high.
    below = float(np.nextafter(dtype.type(high), dtype.type(low)))
    return below if below < high else high


def _exponential(xp, out, rng, rate, _):
    stream.uniform(xp, out, rng)
    negate(xp, out, out)
    xp.log1p(out, out=out)
    xp.multiply(out, -1.0 / rate, out=out)


def _log_normal(xp, out, rng, mean, std):
    stream.normal(xp, out, rng, mean, std)
    xp.exp(out, out=out)


def _cauchy(xp, out, rng, median, sigma):
    stream.uniform(xp, out, rng)
    xp.subtract(out, 0.5, out=out)
    xp.multiply(out, pi, out=out)
    xp.tan(out, out=out)
    xp.multiply(out, sigma, out=out)
    xp.add(out, median, out=out)


def _geometric(xp, out, rng, p, _):
    stream.uniform(xp, out, rng)
    negate(xp, out, out)
    xp.log1p(out, out=out)
    xp.multiply(out, 1 / log(1 - p) if p < 1 else 0.0, out=out)
    xp.ceil(out, out=out)
    xp.maximum(out, 1, out=out)


FILLERS = {
    "uniform": _uniform,
    "normal": stream.normal,
    "integers": stream.integers,
    "exponential": _exponential,
    "log_normal": _log_normal,
    "cauchy": _cauchy,
    "geometric": _geometric,
}


def _fill_new(out, xp, rng, kind, a, b):
    _fill(xp, out, rng, kind, a, b)


def _fill(xp, out, rng, kind, a, b):
    if out.dtype.kind == "c":
        out = out.reshape(-1).view(out.real.dtype)
        if kind == "normal":  # a complex normal's variance is that of both parts together
            b *= 0.5**0.5
    FILLERS[kind](xp, out, rng, a, b)


def words(kind: str, n: int, spec: Spec) -> int:
    """Return the number of random words that a draw of ``n`` elements takes."""
    if kind == "integers":
        return 2 * n
    n = 2 * n if spec.dtype.category == COMPLEX else n
    double = spec.dtype.to_real().itemsize == 8
    return (n + n % 2) * (2 if double else 1)


def _sample_samples(make):  # integers: the floating kinds draw other words for each dtype
    for shape in ((3, 5), (), (0, 2)):
        yield (make(*shape), Rng(3, 5)), {"kind": "integers", "a": -3, "b": 4}
    yield (make(2, 3), Rng(1, 8)), {"kind": "integers", "a": 0, "b": 2}


@op(
    inplace="_sample_",
    out=False,
    infer=lambda input, rng, **_: input,
    half="exact",
    samples=_sample_samples,
)
def _sample(xp, out, input, rng, *, kind, a, b):
    """Draw random values of the shape and dtype of ``input``."""
    _fill(xp, out, rng, kind, a, b)


@_sample.vjp("input")
def _(g, input_spec):
    return zero_gradient(g, input_spec)  # nothing of the old value is left


def draw_into(input: Tensor, kind: str, a: Any, b: Any, generator: Any) -> Tensor:
    """Draw in place, through a contiguous tensor where the layout or dtype needs it."""
    if input.dtype.limited and (kind != "integers" or input.dtype.limited == "float8"):
        refuse(kind, input.dtype)
    rng = draw(words(kind, input.numel(), input._spec), input.device, generator)
    direct = kind in ("uniform", "normal", "integers") or not input.dtype.is_half
    direct = direct and (input.dtype.category >= FLOAT or kind == "integers")
    if input.is_contiguous() and direct:
        return input._sample_(rng, kind, a, b)
    dtype = input.dtype if direct else float32
    fresh = like(kind, input, dtype, None)
    _draw_new(fresh, kind, a, b, rng)
    return input.copy_(fresh)


def _draw_new(t: Tensor, kind: str, a: Any, b: Any, rng: Any) -> Tensor:
    # Fill memory that has no history.
    be = backend(t.device)
    if t.is_contiguous():
        written(t, _fill_new, be.xp, rng, kind, a, b)
    elif be.xp is not None:
        _held, array = be.empty(t._spec, WORKSPACE)
        run_kernel(on_device(be, _fill), be.xp, array, rng, kind, a, b)
        be.copy(t._array, array)
    return t


def _make(
    name: str,
    kind: str,
    a: Any,
    b: Any,
    shape: tuple[int, ...],
    generator: Any,
    out: Any,
    dtype: Any,
    device: Any,
    requires_grad: bool,
    default: Any = None,
) -> Tensor:
    t = target(name, shape, dtype, default or get_default_dtype(), device, out)
    return _draw_checked(name, t, kind, a, b, generator, requires_grad)


def _draw_checked(
    name: str, t: Tensor, kind: str, a: Any, b: Any, generator: Any, requires_grad: bool
) -> Tensor:
    if kind != "integers":
        need_floating(name, t)
    _draw_new(t, kind, a, b, draw(words(kind, t.numel(), t._spec), t.device, generator))
    return t.requires_grad_() if requires_grad else t


def need_floating(name: str, t: Tensor) -> None:
    """Raise an error for an integer dtype where fractions are drawn.

    Raises:
        NotImplementedError: They are.
    """
    if t.dtype.limited:
        refuse(name, t.dtype)
    if t.dtype.category < FLOAT:
        raise NotImplementedError(
            f'"{name}" not implemented for {t.dtype}: it needs a floating dtype. Draw in float32 '
            "and convert, or use random_ or randint."
        )


# New tensors


@function()
def rand(
    *size: Any,
    generator: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Sample from the uniform distribution on [0, 1)."""
    if layout is not None:
        need_strided("rand", layout)
    shape = size_of("rand", size, named)
    return _make("rand", "uniform", 0.0, 1.0, shape, generator, out, dtype, device, requires_grad)


@function()
def randn(
    *size: Any,
    generator: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    **named: Any,
) -> Tensor:
    """Sample from the standard normal distribution."""
    if layout is not None:
        need_strided("randn", layout)
    shape = size_of("randn", size, named)
    return _make("randn", "normal", 0.0, 1.0, shape, generator, out, dtype, device, requires_grad)


@function()
def randint(
    low: Any = None,
    high: Any = None,
    size: Any = None,
    *,
    generator: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Sample integers from ``low`` (default 0) to ``high``, excluded.

    Accepts ``randint(high, size)`` and ``randint(low, high, size)``.
    """
    if layout is not None:
        need_strided("randint", layout)
    if size is None:  # randint(high, size)
        low, high, size = 0, low, high
    elif high is None:  # randint(high, size=...)
        low, high = 0, low
    elif low is None:  # randint(high=..., size=...)
        low = 0
    if high is None or size is None:
        raise TypeError("randint() needs a bound and a size: randint(low, high, size).")
    shape = shape_of("randint", (size,))
    low, high = operator.index(scalar(low)), operator.index(scalar(high))
    t = target("randint", shape, dtype, int64, device, out)
    check_bounds(t, low, high)
    return _draw_checked("randint", t, "integers", low, high, generator, requires_grad)


def check_bounds(t: Tensor, low: int, high: int) -> None:
    """Raise an error for an empty range, or one that the dtype cannot represent.

    Raises:
        RuntimeError: It is.
    """
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}. "
            "The upper bound, also that of randint, is not drawn."
        )
    least, most = limits_of(t)
    for what, value in (("from", low), ("to - 1", high - 1)):
        if not least <= value <= most:
            raise RuntimeError(f"random_: {what} is out of bounds for {t.dtype}; got {value}.")


def limits_of(t: Tensor) -> tuple[int, int]:
    """Return the least and the largest integer up to which the dtype represents all.

    Raises:
        NotImplementedError: The dtype is complex.
    """
    if t.dtype.limited == "float8":
        refuse("randint", t.dtype)
    if t.dtype.category == BOOL:
        return 0, 1
    if t.dtype.category == INT:
        info = np.iinfo(t.dtype.np)
        return int(info.min), int(info.max)
    if t.dtype.is_complex:
        raise NotImplementedError(
            f"random integers are not implemented for {t.dtype}. Draw them as int64 and convert."
        )
    most = 1 << {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[t.dtype.name]
    return -most, most


_SPREAD_FROM = 1 << 12  # keys from which spreading them over parts of their range beats sorting


def permute(out: Any, be: Any, rng: Rng) -> None:
    """Write a random permutation: the stable order of random keys, int64 of two words each."""
    xp, n = be.xp, out.size
    _held, keys = be.empty(Spec((n,), int64, be.device), WORKSPACE)
    stream.bits(xp, keys.view(xp.uint32), rng)
    if n < _SPREAD_FROM or not stream._compiled(xp, 2 * n):
        xp.copyto(out, xp.argsort(keys, kind="stable"), casting="unsafe")
        return
    from ...kernels.cpu.random import philox

    target = out
    if out.dtype.name != "int64" or not out.flags.c_contiguous:
        _also, target = be.empty(Spec((n,), int64, be.device), WORKSPACE)
    philox.order(target, keys, rng.seed, rng.offset)
    if target is not out:
        xp.copyto(out, target, casting="unsafe")


@function()
def randperm(
    n: int,
    *,
    generator: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create a random permutation of 0 .. n - 1."""
    if layout is not None:
        need_strided("randperm", layout)
    shape = shape_of("randperm", (n,))
    t = target("randperm", shape, dtype, int64, device, out)
    if t.dtype.category not in (INT, FLOAT):
        raise NotImplementedError(f'"randperm" not implemented for {t.dtype}. Convert with .to().')
    rng = draw(2 * n, t.device, generator)
    written(t, permute, backend(t.device), rng)
    return t.requires_grad_() if requires_grad else t


@function(deep=True)
def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Sample from normal distributions with given means and standard deviations.

    Args:
        mean: A number, or a tensor of one mean per element.
        std: The same for the standard deviation; not negative.
        size: Of the result, if both are numbers.
        generator: Where the numbers come from.
        out: Where to put them.
        dtype: As for ``randn``, and so on.
        layout: Accepted.
        device: Of the result, if both are numbers.
        requires_grad: Whether the result requires a gradient.
        pin_memory: Accepted.
    """
    if layout is not None:
        need_strided("normal", layout)
    least = float(std.min()) if isinstance(std, Tensor) and std.numel() else std
    if not isinstance(least, Tensor) and least < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {least}")
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        if size is None:
            raise TypeError("normal() of two numbers needs a size. Pass size=(...).")
        return _make(
            "normal",
            "normal",
            float(mean),
            float(std),
            shape_of("normal", (size,)),
            generator,
            out,
            dtype,
            device,
            requires_grad,
        )
    first = mean if isinstance(mean, Tensor) else std
    shape = broadcast_shapes("normal", *[v.shape for v in (mean, std) if isinstance(v, Tensor)])
    with no_grad():
        z = randn(shape, generator=generator, dtype=first.dtype, device=first.device)
        z.mul_(std).add_(mean)
    return into(out, z)


@function()
def rand_like(
    input: Tensor,
    *,
    generator: Any = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Sample uniforms of [0, 1) in another tensor's shape, dtype and device."""
    if layout is not None:
        need_strided("rand_like", layout)
    t = like("rand_like", input, dtype, device)
    return _draw_checked("rand_like", t, "uniform", 0.0, 1.0, generator, requires_grad)


@function()
def randn_like(
    input: Tensor,
    *,
    generator: Any = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Sample standard normals in another tensor's shape, dtype and device."""
    if layout is not None:
        need_strided("randn_like", layout)
    t = like("randn_like", input, dtype, device)
    return _draw_checked("randn_like", t, "normal", 0.0, 1.0, generator, requires_grad)


@function()
def randint_like(
    input: Tensor,
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Sample integers of [low, high) in another tensor's shape, dtype and device."""
    if layout is not None:
        need_strided("randint_like", layout)
    low, high = map(int, bounds_of("randint_like", "high", low, high))
    t = like("randint_like", input, dtype, device)
    check_bounds(t, low, high)
    return _draw_checked("randint_like", t, "integers", low, high, generator, requires_grad)
