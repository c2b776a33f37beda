"""In-place random fills and sampling: ``uniform_`` to ``geometric_``, bernoulli, multinomial.

In place, each name gives its parameters to the one op of ``draw.py`` that fills memory. Where
they are a tensor (``bernoulli``, ``multinomial``, ``poisson``), the draw is an op that reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import execution
from ...dtypes import FLOAT, float32, int64
from ...kernels.common.strided_ufuncs import negate
from ...modes import no_grad, value_read
from ...random import philox
from ...random.generator import draw
from ...random.philox import Rng
from ...spec import Spec
from ...tensor import Tensor
from ..conversion.copy import zero_gradient
from ..creation.factory import leave_uninitialized, like, put, written
from ..inplace import into
from ..registry import function, op
from ..signatures import same
from .draw import check_bounds, draw_into, limits_of, need_floating

# In place


@function(method=True, public=False)
def uniform_(input: Tensor, *bounds: float, generator: Any = None, **named: float) -> Tensor:
    """Fill with values of the uniform distribution on [from, to), by default [0, 1)."""
    named = dict(zip(("from", "to"), bounds, strict=False)) | named
    low, high = float(named.pop("from", 0.0)), float(named.pop("to", 1.0))
    if named or len(bounds) > 2:
        raise TypeError(f"uniform_ takes from and to; got {[*bounds, *named]}.")
    need_floating("uniform_", input)
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    return draw_into(input, "uniform", low, high, generator)


@function(method=True, public=False)
def normal_(input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill with values of a normal distribution."""
    need_floating("normal_", input)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return draw_into(input, "normal", float(mean), float(std), generator)


@function(method=True, public=False)
def random_(input: Tensor, *bounds: int, generator: Any = None, **named: Any) -> Tensor:
    """Fill with random integers: ``random_()``, ``random_(to)`` or ``random_(from, to)``.

    Without bounds the range is what the dtype holds exactly, from 0 on.
    """
    names = ("to",) if len(bounds) == 1 else ("from", "to")
    named = dict(zip(names, bounds, strict=False)) | named
    low, high = int(named.get("from", 0)), named.get("to")
    if high is None:
        high = limits_of(input)[1] + 1
    check_bounds(input, low, int(high))
    return draw_into(input, "integers", low, int(high), generator)


@function(method=True, public=False)
def exponential_(input: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill with values of the exponential distribution of rate ``lambd``."""
    need_floating("exponential_", input)
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return draw_into(input, "exponential", float(lambd), 0.0, generator)


@function(method=True, public=False)
def log_normal_(
    input: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None
) -> Tensor:
    """Fill with values of the log-normal distribution."""
    need_floating("log_normal_", input)
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return draw_into(input, "log_normal", float(mean), float(std), generator)


@function(method=True, public=False)
def cauchy_(
    input: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None
) -> Tensor:
    """Fill with values of the Cauchy distribution."""
    need_floating("cauchy_", input)
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return draw_into(input, "cauchy", float(median), float(sigma), generator)


@function(method=True, public=False)
def geometric_(input: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Fill with values of the geometric distribution: trials to a success of probability ``p``."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    return draw_into(input, "geometric", float(p), 0.0, generator)


# From distributions


def _bernoulli_infer(input, rng):
    if input.dtype.category != FLOAT:
        raise NotImplementedError(
            f'"bernoulli" not implemented for {input.dtype}: probabilities need a floating dtype. '
            "Convert with .to(lowtide.float32)."
        )
    return input, input.like(dtype=float32)


def _row_samples(make):
    yield (make(3, 5, low=0.1, high=0.9), Rng(3, 5)), {}
    yield (make(low=0.1, high=0.9), Rng(3, 5)), {}
    yield (make(0, 2), Rng(3, 5)), {}


@op(
    scratch=("noise",),
    infer=_bernoulli_infer,
    half="exact",
    samples=_row_samples,
)
def _bernoulli(xp, out, noise, input, rng):
    """Bernoulli sampling: 1 where a uniform number lies below ``input``, else 0."""
    philox.uniform(xp, noise, rng)
    xp.less(noise, input, out=noise)
    xp.copyto(out, noise, casting="unsafe")


@_bernoulli.vjp("input")
def _(g, input_spec):
    return zero_gradient(g, input_spec)


def _check_probabilities(p: Tensor) -> None:
    # On the host the values are at hand; elsewhere looking would wait for the device.
    if p.device.type == "cpu" and p.numel() and execution.current.knows(p):
        value_read("the range of probabilities")
        low, high = float(p._array.min()), float(p._array.max())
        if not (low >= 0 and high <= 1):
            raise RuntimeError(
                f"bernoulli: Expected p_in >= 0 && p_in <= 1; got values in [{low}, {high}]."
            )


@function(method=True)
def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Any = None, out: Tensor | None = None
) -> Tensor:
    """Sample 1 with the probability given by each element (or by ``p``), else 0."""
    if p is not None:
        empty = written(like("bernoulli", input, None, None), leave_uninitialized)
        result = empty.bernoulli_(p, generator=generator)
        return into(out, result)
    _check_probabilities(input)
    rng = draw(input.numel(), input.device, generator)
    return _bernoulli(input, rng, out=out)


@function(method=True, public=False)
def bernoulli_(input: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """Fill with 1 with probability ``p`` (a number or a tensor), else 0."""
    with no_grad():
        if not isinstance(p, Tensor):
            if not 0 <= p <= 1:
                raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
            chance = put(like("bernoulli_", input, float32, None), float(p))
        else:
            chance = p.detach().expand(input.shape)
            if chance.dtype.category != FLOAT:
                chance = chance.to(float32)
        drawn = bernoulli(chance, generator=generator)
    return input.copy_(drawn)


def _multinomial_infer(input, rng, *, num_samples, replacement):
    if input.ndim not in (1, 2):
        raise RuntimeError(
            f"multinomial: prob_dist must be 1 or 2 dim; got shape {tuple(input.shape)}."
        )
    if input.dtype.category != FLOAT:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {input.dtype}. "
            "Convert with .to(lowtide.float32)."
        )
    if num_samples <= 0:
        raise RuntimeError(f"multinomial: cannot sample n_sample <= 0 samples; got {num_samples}.")
    if not replacement and num_samples > input.shape[-1]:
        raise RuntimeError(
            "multinomial: cannot sample n_sample > prob_dist.size(-1) samples without "
            f"replacement; got {num_samples} of {input.shape[-1]}. Pass replacement=True."
        )
    return Spec((*input.shape[:-1], num_samples), int64)


_WEIGHTS = (((5,), 3, False), ((2, 4), 6, True), ((2, 3), 2, False), ((0, 3), 2, True))


def _multinomial_samples(make):
    for shape, n, replacement in _WEIGHTS:
        weights = make(*shape, low=0.1, high=2.0)
        yield (weights, Rng(3, 5)), {"num_samples": n, "replacement": replacement}


@op(
    adopt=True,
    infer=_multinomial_infer,
    half="exact",
    samples=_multinomial_samples,
)
def _multinomial(xp, input, rng, *, num_samples, replacement):
    """Sample indices with the weights in each row."""
    k = input.shape[-1]
    weights = xp.zeros((input.size // k, k), dtype=xp.float64)
    xp.copyto(weights, input.reshape(-1, k), casting="unsafe")
    if not bool(xp.isfinite(weights).all()) or bool((weights < 0).any()):
        raise RuntimeError(
            "multinomial: probability tensor contains either `inf`, `nan` or element < 0. "
            "Pass softmax's result, not logits."
        )
    if bool((weights.sum(axis=1) <= 0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    rows = len(weights)
    if replacement:
        noise = xp.empty((rows, num_samples), dtype=xp.float64)
        philox.uniform(xp, noise, rng)
        edges = xp.cumsum(weights, axis=1)
        edges /= edges[:, -1:].copy()
        found = [xp.searchsorted(edges[r], noise[r], side="right") for r in range(rows)]
        picked = xp.stack(found) if found else xp.empty((0, num_samples), dtype=xp.int64)
    else:  # the weights' own exponential race: the first arrivals
        noise = xp.empty((rows, k), dtype=xp.float64)
        philox.uniform(xp, noise, rng)
        negate(xp, noise, noise)
        xp.log1p(noise, out=noise)
        xp.minimum(noise, -1e-300, out=noise)
        xp.divide(weights, noise, out=noise)  # minus the speed of each
        picked = _least(xp, noise, num_samples)
    return picked.reshape((*input.shape[:-1], num_samples))


def _least(xp, values, n):
    # Where the n least of each row are, in their order; a row of less than n that count is sorted.
    if n == 1:
        return xp.argmin(values, axis=1)[:, None]
    if 4 * n <= values.shape[1]:
        found = xp.argpartition(values, n - 1, axis=1)[:, :n]
        least = xp.take_along_axis(values, found, axis=1)
        if bool((least < 0).all()):
            return xp.take_along_axis(found, xp.argsort(least, axis=1), axis=1)
    return xp.argsort(values, axis=1)[:, :n]


@function(method=True)
def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sample indices with the (not necessarily normalized) weights of each row.

    Args:
        input: Weights (k,) or (rows, k), floating, not negative.
        num_samples: Indices for each row.
        replacement: Whether an index may come twice.
        generator: Where the randomness comes from.
        out: Where to put the result.

    Returns:
        int64 tensor (num_samples,) or (rows, num_samples).
    """
    n = max(input.numel(), num_samples * (input.numel() // max(input.shape[-1:] or (1,))))
    if out is not None and out.dtype is not int64:
        raise RuntimeError(
            f"multinomial expects Long tensor out, got: {out.dtype}. Pass an int64 tensor."
        )
    rng = draw(2 * n, input.device, generator)
    result = _multinomial(input, rng, num_samples, bool(replacement))
    return into(out, result)


@op(adopt=True, infer=same, half="exact", samples=_row_samples)
def _poisson(xp, input, rng):
    """Sample Poisson counts, on the host, so that all devices agree."""
    rates = np.asarray(input if xp is np else input.get(), dtype=np.float64)
    if not (rates >= 0).all():
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    draws = np.random.Generator(np.random.Philox(key=rng.seed, counter=rng.offset))
    return xp.asarray(np.asarray(draws.poisson(rates), dtype=input.dtype))


@_poisson.vjp("input")
def _(g, input_spec):
    return zero_gradient(g, input_spec)


@function()
def poisson(input: Tensor, generator: Any = None) -> Tensor:
    """Sample from the Poisson distribution with the rate given by each element."""
    if input.dtype.category != FLOAT:
        raise NotImplementedError(
            f'"poisson" not implemented for {input.dtype}: rates need a floating dtype.'
        )
    return _poisson(input, draw(4 * input.numel(), input.device, generator))
