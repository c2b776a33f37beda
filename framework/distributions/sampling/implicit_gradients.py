"""Gradients of gamma and Dirichlet draws by their parameters, and of the gamma cdf by its shape.

A draw is made first, without a gradient; how it moves with its parameter follows from its
distribution function alone (``quadrature.py``). The two functions at the end join both: what they
return is the draw, and backward multiplies by that velocity. They can be differentiated twice.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...autograd.function import Function
from ...modes import is_grad_enabled, no_grad
from ...ops.elementwise.special import igamma
from ...ops.registry import op
from ...random.generator import Generator
from ...spec import Spec
from ...tensor import Tensor
from .draws import _sample_dirichlet, _standard_gamma, on_host, place_for
from .quadrature import beta_integrals, gamma_integrals, in_tiles


def _alike(*inputs: Any) -> Spec:
    first: Spec = inputs[0]
    for other in inputs[1:]:
        if other.shape != first.shape or other.dtype is not first.dtype:
            raise RuntimeError(
                f"gradients of draws: arguments must be alike; got {first.shape}, {first.dtype} "
                f"and {other.shape}, {other.dtype}."
            )
    return first


def _back(xp: Any, found: Any, like: Any) -> Any:
    return xp.asarray(found.astype(like.dtype))


class _Last(Function):
    # Passes a second derivative on, and refuses to be differentiated by what it depends on.

    @staticmethod
    def forward(ctx: Any, value: Tensor, *sources: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "draws of gamma, beta and Dirichlet distributions have two derivatives by their "
            "concentrations; a third was asked for. Leave create_graph=True out of the second."
        )


def _last(results: list[Any], *sources: Tensor) -> tuple[Any, ...]:
    if not is_grad_enabled():
        return tuple(results)
    return tuple(None if r is None else _Last.apply(r, *sources) for r in results)


# Gamma. With v = -F_a / p, and p_a / p = log x - psi(a), p_x / p = (a - 1) / x - 1:
# dv/da = -F_aa / p - v p_a / p, dv/dx = -p_a / p - v p_x / p


def _gamma_pairs(make: Any) -> Any:
    for shape in ((3, 4), (1,), (0, 2)):
        yield (make(*shape, low=0.3, high=3.0), make(*shape, low=0.3, high=3.0)), {}


@op(adopt=True, infer=_alike, samples=_gamma_pairs)
def _standard_gamma_grad(xp: Any, concentration: Any, sample: Any) -> Any:
    """Derivative of a gamma variable of rate 1 by its shape parameter, at a fixed quantile."""
    given = on_host(xp, concentration), on_host(xp, sample)
    (found,) = in_tiles(partial(gamma_integrals, second=False), 1, *given)
    return _back(xp, -found, concentration)


@op(adopt=True, infer=_alike, samples=_gamma_pairs)
def _standard_gamma_grad2(xp: Any, concentration: Any, sample: Any) -> Any:
    """Second derivative of the gamma distribution function by its shape, over the density."""
    given = on_host(xp, concentration), on_host(xp, sample)
    return _back(xp, in_tiles(gamma_integrals, 2, *given)[1], concentration)


class _GammaVelocity(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, sample: Tensor) -> Tensor:
        found = _standard_gamma_grad(concentration, sample)
        ctx.save_for_backward(concentration, sample, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,), needs = grad_outputs, ctx.needs_input_grad
        a, x, v = ctx.saved_tensors
        by_a = by_x = None
        with no_grad():
            drift = x.log() - a.digamma()
            if needs[0]:
                by_a = -g * (_standard_gamma_grad2(a, x) + v * drift)
            if needs[1]:
                by_x = -g * (drift + v * ((a - 1) / x - 1))
        return _last([by_a, by_x], g, a, x)


def standard_gamma_grad(concentration: Tensor, sample: Tensor) -> Tensor:
    """Derivative of a gamma variable of rate 1 by its shape parameter, at a fixed quantile.

    It has a first derivative; asking for a second raises an error.

    Args:
        concentration: The shape parameters.
        sample: The draws, of the same shape and dtype.
    """
    return _GammaVelocity.apply(concentration, sample)


# Beta, and by it Dirichlet. With u = v / (1 - x), v = -F_a / p; p_a / p = log x - mean_a,
# p_b / p = log(1 - x) - mean_b, p_x / p = (a - 1) / x - (b - 1) / (1 - x); b = total - a


def _beta_triples(make: Any) -> Any:
    for shape in ((3, 4), (1,), (0, 2)):
        a = make(*shape, low=0.3, high=3.0)
        yield (make(*shape, low=0.1, high=0.9), a, a + make(*shape, low=0.3, high=3.0)), {}


def _beta(xp: Any, x: Any, concentration: Any, total: Any, second: bool) -> list[Any]:
    a = on_host(xp, concentration)
    given = on_host(xp, x), a, on_host(xp, total) - a
    return in_tiles(partial(beta_integrals, second=second), 3 if second else 1, *given)


@op(adopt=True, infer=_alike, samples=_beta_triples)
def _dirichlet_grad(xp: Any, x: Any, concentration: Any, total: Any) -> Any:
    """Derivative of a beta variable by its first parameter at a fixed quantile, over ``1 - x``."""
    return _back(xp, -_beta(xp, x, concentration, total, False)[0], x)


@op(
    returns=("twice", "mixed"),
    adopt=True,
    infer=lambda *inputs: (_alike(*inputs),) * 2,
    samples=_beta_triples,
)
def _dirichlet_grad2(xp: Any, x: Any, concentration: Any, total: Any) -> Any:
    """Second derivatives of the beta distribution function, over the density and ``1 - x``.

    By ``a`` twice, and by ``a`` and ``b``, with ``a = concentration`` and ``b = total - a``.
    """
    _, twice, mixed = _beta(xp, x, concentration, total, True)
    return _back(xp, twice, x), _back(xp, mixed, x)


class _BetaVelocity(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, concentration: Tensor, total: Tensor) -> Tensor:
        found = _dirichlet_grad(x, concentration, total)
        ctx.save_for_backward(x, concentration, total, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,), needs = grad_outputs, ctx.needs_input_grad
        x, a, total, u = ctx.saved_tensors
        by_x = by_a = by_total = None
        with no_grad():
            b, rest = total - a, 1 - x
            drift_a = x.log() - a.digamma() + total.digamma()
            if needs[0]:
                by_x = -g * (drift_a / rest + u * ((a - 1) / x - b / rest))
            if needs[1] or needs[2]:
                twice, mixed = _dirichlet_grad2(x, a, total)
                by_b = mixed + u * ((-x).log1p() - b.digamma() + total.digamma())
                by_total = -g * by_b
                by_a = -g * (twice + u * drift_a - by_b)
        return _last([by_x, by_a, by_total], g, x, a, total)


def dirichlet_grad(x: Tensor, concentration: Tensor, total: Tensor) -> Tensor:
    """Derivative of a beta variable by its first parameter at a fixed quantile, over ``1 - x``.

    It has a first derivative; asking for a second raises an error.

    Args:
        x: The draws.
        concentration: The exponents of ``x``.
        total: The sums of both exponents.
    """
    return _BetaVelocity.apply(x, concentration, total)


# Draws with these gradients


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, generator: Generator | None) -> Tensor:
        found = _standard_gamma(concentration, place_for(concentration, generator))
        ctx.save_for_backward(concentration, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        concentration, found = ctx.saved_tensors
        return grad_outputs[0] * standard_gamma_grad(concentration, found), None


class _Dirichlet(Function):
    # The velocity field of the sources of quadrature.py: as one component follows its beta
    # marginal, the others shrink alike.

    @staticmethod
    def forward(ctx: Any, concentration: Tensor, generator: Generator | None) -> Tensor:
        found = _sample_dirichlet(concentration, place_for(concentration, generator))
        ctx.save_for_backward(concentration, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        concentration, x = ctx.saved_tensors
        total = concentration.sum(-1, True).expand(concentration.shape)
        along = g - (x * g).sum(-1, True)
        return dirichlet_grad(x, concentration, total) * along, None


def draw_gamma(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw gamma variables of rate 1, with a gradient by their shape parameters.

    Keeps the parameters and the draws.
    """
    return _StandardGamma.apply(concentration, generator)


def draw_dirichlet(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw from Dirichlet distributions along the last axis, with a gradient.

    Keeps the parameters and the draws.
    """
    return _Dirichlet.apply(concentration, generator)


class _GammaCdf(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(concentration, x)
        return igamma(concentration, x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        a, x = ctx.saved_tensors
        g = grad_outputs[0] * ((a - 1) * x.log() - x - a.lgamma()).exp()
        return -g * standard_gamma_grad(a, x), g


def gamma_cdf(concentration: Tensor, x: Tensor) -> Tensor:
    """Compute the gamma distribution function of rate 1, with gradients by shape and value.

    Args:
        concentration: The shape parameters.
        x: The values, of the same shape and dtype.
    """
    return _GammaCdf.apply(concentration, x)
