"""Gradients of gamma and Dirichlet draws by their parameters, and of the gamma cdf by its shape.

A draw is made first, without a gradient; how it moves with its parameter follows from its
distribution function alone (``quadrature.py``). The two functions at the end join both: what they
return is the draw, and backward multiplies by that velocity. They can be differentiated twice.
"""

from __future__ import annotations

from typing import Any

from ..autograd.function import Function
from ..ops.elementwise.special import igamma
from ..ops.registry import op
from ..spec import Spec
from ..tensor import Tensor
from .draws import on_host, place_for, sample_dirichlet, standard_gamma
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


# Gamma


def _gamma_pairs(make: Any) -> Any:
    for shape in ((3, 4), (1,), (0, 2)):
        yield (make(*shape, low=0.3, high=3.0), make(*shape, low=0.3, high=3.0)), {}


@op(name="_standard_gamma_grad2", adopt=True, infer=_alike, samples=_gamma_pairs)
def _gamma_curvature(xp: Any, concentration: Any, sample: Any) -> Any:
    """Second derivative of the gamma distribution function by its shape, over the density."""
    given = on_host(xp, concentration), on_host(xp, sample)
    return _back(xp, in_tiles(gamma_integrals, 2, *given)[1], concentration)


@op(name="_standard_gamma_grad", adopt=True, infer=_alike, samples=_gamma_pairs)
def standard_gamma_grad(xp: Any, concentration: Any, sample: Any) -> Any:
    """Derivative of a gamma variable of rate 1 by its shape parameter, at a fixed quantile.

    Args:
        concentration: The shape parameters.
        sample: The draws, of the same shape and dtype.
    """
    given = on_host(xp, concentration), on_host(xp, sample)
    return _back(xp, -in_tiles(gamma_integrals, 2, *given)[0], concentration)


# With v = -F_a / p, and p_a / p = log x - psi(a), p_x / p = (a - 1) / x - 1:


@standard_gamma_grad.vjp("concentration")
def _(g: Any, concentration: Any, sample: Any, out: Any) -> Any:
    drift = sample.log() - concentration.digamma()
    return -g * (_gamma_curvature(concentration, sample) + out * drift)


@standard_gamma_grad.vjp("sample")
def _(g: Any, concentration: Any, sample: Any, out: Any) -> Any:
    drift = sample.log() - concentration.digamma()
    return -g * (drift + out * ((concentration - 1) / sample - 1))


# Beta, and by it Dirichlet


def _beta_triples(make: Any) -> Any:
    for shape in ((3, 4), (1,), (0, 2)):
        a = make(*shape, low=0.3, high=3.0)
        yield (make(*shape, low=0.1, high=0.9), a, a + make(*shape, low=0.3, high=3.0)), {}


def _beta(xp: Any, x: Any, concentration: Any, total: Any) -> list[Any]:
    a = on_host(xp, concentration)
    return in_tiles(beta_integrals, 3, on_host(xp, x), a, on_host(xp, total) - a)


@op(
    name="_dirichlet_grad2", returns=("twice", "mixed"), adopt=True,
    infer=lambda *inputs: (_alike(*inputs),) * 2, samples=_beta_triples,
)  # fmt: skip
def _beta_curvature(xp: Any, x: Any, concentration: Any, total: Any) -> Any:
    """Second derivatives of the beta distribution function, over the density and ``1 - x``.

    By ``a`` twice, and by ``a`` and ``b``, with ``a = concentration`` and ``b = total - a``.
    """
    _, twice, mixed = _beta(xp, x, concentration, total)
    return _back(xp, twice, x), _back(xp, mixed, x)


@op(name="_dirichlet_grad", adopt=True, infer=_alike, samples=_beta_triples)
def dirichlet_grad(xp: Any, x: Any, concentration: Any, total: Any) -> Any:
    """Derivative of a beta variable by its first parameter at a fixed quantile, over ``1 - x``.

    Args:
        x: The draws.
        concentration: The exponents of ``x``.
        total: The sums of both exponents.
    """
    return _back(xp, -_beta(xp, x, concentration, total)[0], x)


# With u = v / (1 - x), v = -F_a / p; p_a / p = log x - mean_a, p_b / p = log(1 - x) - mean_b,
# p_x / p = (a - 1) / x - (b - 1) / (1 - x); b = total - a depends on both.


@dirichlet_grad.vjp("x", "concentration", "total")
def _(g: Any, needs: Any, x: Any, concentration: Any, total: Any, out: Any) -> Any:
    a, b, rest = concentration, total - concentration, 1 - x
    drift_a = x.log() - a.digamma() + total.digamma()
    by_x = by_a = by_total = None
    if needs[0]:
        by_x = -g * (drift_a / rest + out * ((a - 1) / x - b / rest))
    if needs[1] or needs[2]:
        twice, mixed = _beta_curvature(x, concentration, total)
        drift_b = (-x).log1p() - b.digamma() + total.digamma()
        by_b = mixed + out * drift_b
        by_total = -g * by_b
        by_a = -g * (twice + out * drift_a - by_b)
    return by_x, by_a if needs[1] else None, by_total if needs[2] else None


# Draws with these gradients


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        found = standard_gamma(concentration, place_for(concentration))
        ctx.save_for_backward(concentration, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        concentration, found = ctx.saved_tensors
        return grad_outputs[0] * standard_gamma_grad(concentration, found)


class _Dirichlet(Function):
    # The velocity field of the sources of quadrature.py: as one component follows its beta
    # marginal, the others shrink alike.

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        found = sample_dirichlet(concentration, place_for(concentration))
        ctx.save_for_backward(concentration, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        concentration, x = ctx.saved_tensors
        total = concentration.sum(-1, True).expand(concentration.shape)
        along = g - (x * g).sum(-1, True)
        return dirichlet_grad(x, concentration, total) * along


def draw_gamma(concentration: Tensor) -> Tensor:
    """Draw gamma variables of rate 1, with a gradient by their shape parameters.

    Keeps the parameters and the draws.
    """
    return _StandardGamma.apply(concentration)


def draw_dirichlet(concentration: Tensor) -> Tensor:
    """Draw from Dirichlet distributions along the last axis, with a gradient.

    Keeps the parameters and the draws.
    """
    return _Dirichlet.apply(concentration)


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
