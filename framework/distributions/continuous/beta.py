"""Distributions on [0, 1] and the simplex: beta, Dirichlet, Kumaraswamy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...ops.elementwise.binary import xlogy
from ...ops.indexing.nonzero import one_hot
from ...ops.manipulation.cat import stack
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..derived.transformed_distribution import TransformedDistribution, filled
from ..distribution import Distribution, ExponentialFamily
from ..parameters import batch_shape_of, broadcast_all, need_vector
from ..sampling.implicit_gradients import draw_dirichlet
from ..transforms.elementwise import AffineTransform, PowerTransform
from .location_scale import EULER, Uniform


class Dirichlet(ExponentialFamily):
    """Dirichlet distribution: density ``prod x_i^(a_i - 1) Gamma(sum a) / prod Gamma(a_i)``.

    Draws have implicit gradients by the concentration (``implicit_gradients.py``).

    Args:
        concentration: a (..., n), positive; a draw is n probabilities.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = shaped_constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        need_vector("Dirichlet", "concentration", concentration)
        self.concentration = concentration
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Dirichlet, _instance)
        batch = Size(batch_shape)
        new.concentration = self.concentration.expand(Size((*batch, *self._event_shape)))
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        return draw_dirichlet(self.concentration.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        a = self.concentration
        normalizer = a.lgamma().sum(-1) - a.sum(-1).lgamma()
        return cast(Tensor, xlogy(a - 1, value).sum(-1) - normalizer)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        a = self.concentration
        above = (a - 1).clamp(min=0)
        found = above / above.sum(-1, True)
        # where all are below 1 the density has a pole in each corner: one of them, as in PyTorch
        corner = one_hot(found.argmax(-1), a.shape[-1]).to(a.dtype)
        return corner.where((a < 1).all(-1, keepdim=True), found)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        total = a.sum(-1, True)
        return a * (total - a) / (total.square() * (total + 1))

    def entropy(self) -> Tensor:
        a = self.concentration
        n, total = a.shape[-1], a.sum(-1)
        return (
            a.lgamma().sum(-1)
            - total.lgamma()
            - (n - total) * total.digamma()
            - ((a - 1) * a.digamma()).sum(-1)
        )

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration,)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        (x,) = natural_params
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()


class Beta(ExponentialFamily):
    """Beta distribution: density ``x^(a-1) (1-x)^(b-1) Gamma(a+b) / (Gamma(a) Gamma(b))``.

    Args:
        concentration1: a, positive, a number or a tensor.
        concentration0: b, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        both = broadcast_all(concentration1, concentration0)
        self._dirichlet = Dirichlet(stack(both, -1), validate_args=False)
        batch = batch_shape_of(both[0], concentration1, concentration0)
        super().__init__(batch, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Beta, _instance)
        batch = Size(batch_shape)
        new._dirichlet = self._dirichlet.expand(batch)
        Distribution.__init__(new, batch, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def concentration1(self) -> Tensor:
        """The exponent of ``x``, plus 1."""
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self) -> Tensor:
        """The exponent of ``1 - x``, plus 1."""
        return self._dirichlet.concentration[..., 1]

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        total = a + b
        return a * b / (total.square() * (total + 1))

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self._dirichlet.log_prob(cast(Tensor, stack([value, 1.0 - value], -1)))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.concentration1, self.concentration0

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        return x.lgamma() + y.lgamma() - (x + y).lgamma()


class Kumaraswamy(TransformedDistribution):
    """Kumaraswamy's distribution on [0, 1]: distribution function ``1 - (1 - x^a)^b``.

    Args:
        concentration1: a, positive, a number or a tensor.
        concentration0: b, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        low, high = (filled(self.concentration0.shape, v, self.concentration0) for v in (0.0, 1.0))
        parts = [
            PowerTransform(self.concentration0.reciprocal()),
            AffineTransform(1.0, -1.0),
            PowerTransform(self.concentration1.reciprocal()),
        ]
        base = Uniform(low, high, validate_args=False)
        super().__init__(base, parts, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Kumaraswamy, _instance)
        batch = Size(batch_shape)
        new.concentration1 = self.concentration1.expand(batch)
        new.concentration0 = self.concentration0.expand(batch)
        return super().expand(batch, new)

    def _moment(self, n: int) -> Tensor:
        # E[x^n] = b B(1 + n / a, b)
        a, b = self.concentration1, self.concentration0
        p = n / a + 1
        return (p.lgamma() + b.lgamma() - (p + b).lgamma()).exp() * b

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        found = ((a - 1) / (a * b - 1)) ** a.reciprocal()
        return found.masked_fill((a < 1) | (b < 1) | ((a == 1) & (b == 1)), math.nan)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1).square()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
