"""Mixtures of distributions of one family."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ...modes import no_grad
from ...ops.activation.softmax import log_softmax
from ...ops.reduction.var_norm import logsumexp
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..discrete.categorical import Categorical
from ..distribution import Distribution


class MixtureSameFamily(Distribution):
    """Mixture: a component is drawn from a categorical distribution, then the value from it.

    Args:
        mixture_distribution: Categorical over k components.
        component_distribution: Whose last batch axis counts them: of size k.
        validate_args: Whether parameters and values are checked.

    Raises:
        ValueError: They are of other kinds, or their shapes do not match.
    """

    arg_constraints: Any = {}
    has_rsample = False

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        for role, given, kind in (
            ("mixture_distribution", mixture_distribution, Categorical),
            ("component_distribution", component_distribution, Distribution),
        ):
            if not isinstance(given, kind):
                raise ValueError(
                    f"MixtureSameFamily: the {role} needs to be an instance of {kind.__name__}; "
                    f"got {type(given).__name__}."
                )
        batch = component_distribution.batch_shape[:-1]
        pairs = zip(reversed(mixture_distribution.batch_shape), reversed(batch), strict=False)
        if any(a != 1 and b != 1 and a != b for a, b in pairs):
            raise ValueError(
                "MixtureSameFamily: `mixture_distribution.batch_shape` "
                f"({tuple(mixture_distribution.batch_shape)}) is not compatible with "
                f"`component_distribution.batch_shape` without its last axis ({tuple(batch)})."
            )
        k = mixture_distribution.logits.shape[-1]
        if component_distribution.batch_shape[-1:] != (k,):
            raise ValueError(
                f"MixtureSameFamily: `mixture_distribution component` ({k}) does not equal "
                "`component_distribution.batch_shape[-1]` "
                f"({component_distribution.batch_shape[-1:]})."
            )
        self._num_component = k
        event = component_distribution.event_shape
        self._event_ndims = len(event)
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(MixtureSameFamily, _instance)
        batch = Size(batch_shape)
        components = Size((*batch, self._num_component))
        new._component_distribution = self._component_distribution.expand(components)
        new._mixture_distribution = self._mixture_distribution.expand(batch)
        new._num_component, new._event_ndims = self._num_component, self._event_ndims
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution of the component."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components, along the last batch axis."""
        return self._component_distribution

    def _weights(self) -> Tensor:
        # The mixture's probabilities, with axes of size 1 for the event.
        probs = self._mixture_distribution.probs
        return cast(Tensor, probs.reshape(*probs.shape, *[1] * self._event_ndims))

    def _with_components(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1 - self._event_ndims)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self._component_distribution.mean).sum(-1 - self._event_ndims)

    @property
    def variance(self) -> Tensor:
        # within the components, and between them
        axis, parts = -1 - self._event_ndims, self._component_distribution
        away = (parts.mean - self._with_components(self.mean)).square()
        return (self._weights() * (parts.variance + away)).sum(axis)

    def cdf(self, value: Tensor) -> Tensor:
        each = self._component_distribution.cdf(self._with_components(value))
        return (each * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        each = self._component_distribution.log_prob(self._with_components(value))
        return cast(
            Tensor, logsumexp(each + log_softmax(self._mixture_distribution.logits, -1), -1)
        )

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        with no_grad():
            sample_shape = Size(sample_shape)
            chosen = self._mixture_distribution.sample(sample_shape)
            drawn = self._component_distribution.sample(sample_shape)
            axis = len(sample_shape) + len(self._batch_shape)
            index = chosen.reshape(*chosen.shape, *[1] * (self._event_ndims + 1))
            shape = (*sample_shape, *self._batch_shape, 1, *self._event_shape)
            return drawn.gather(axis, index.expand(shape)).squeeze(axis)

    def __repr__(self) -> str:
        return (
            f"MixtureSameFamily(\n  {self._mixture_distribution!r},\n  "
            f"{self._component_distribution!r})"
        )
