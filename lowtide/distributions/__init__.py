"""Probability distributions: samples, log densities, gradients through draws, divergences.

PyTorch has one file for each: ``lowtide.distributions.normal`` and so on are in the table
``COLLECTIONS`` of ``_torch_homes.py``.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from lowtide._torch_homes import COLLECTIONS as _COLLECTIONS

# Namespaces
from lowtide.distributions import constraint_registry as constraint_registry
from lowtide.distributions import constraints as constraints
from lowtide.distributions import kl as kl
from lowtide.distributions import transforms as transforms
from lowtide.distributions import utils as utils
from lowtide.framework.distributions.constraints.registry import biject_to as biject_to
from lowtide.framework.distributions.constraints.registry import transform_to as transform_to
from lowtide.framework.distributions.continuous.beta import Beta as Beta
from lowtide.framework.distributions.continuous.beta import Dirichlet as Dirichlet
from lowtide.framework.distributions.continuous.beta import Kumaraswamy as Kumaraswamy
from lowtide.framework.distributions.continuous.gamma import Chi2 as Chi2
from lowtide.framework.distributions.continuous.gamma import Exponential as Exponential
from lowtide.framework.distributions.continuous.gamma import FisherSnedecor as FisherSnedecor
from lowtide.framework.distributions.continuous.gamma import Gamma as Gamma
from lowtide.framework.distributions.continuous.gamma import InverseGamma as InverseGamma
from lowtide.framework.distributions.continuous.gamma import StudentT as StudentT
from lowtide.framework.distributions.continuous.location_scale import Cauchy as Cauchy
from lowtide.framework.distributions.continuous.location_scale import Gumbel as Gumbel
from lowtide.framework.distributions.continuous.location_scale import HalfCauchy as HalfCauchy
from lowtide.framework.distributions.continuous.location_scale import Laplace as Laplace
from lowtide.framework.distributions.continuous.location_scale import Uniform as Uniform
from lowtide.framework.distributions.continuous.normal import HalfNormal as HalfNormal
from lowtide.framework.distributions.continuous.normal import LogisticNormal as LogisticNormal
from lowtide.framework.distributions.continuous.normal import LogNormal as LogNormal
from lowtide.framework.distributions.continuous.normal import Normal as Normal
from lowtide.framework.distributions.continuous.pareto import (
    GeneralizedPareto as GeneralizedPareto,
)
from lowtide.framework.distributions.continuous.pareto import Pareto as Pareto
from lowtide.framework.distributions.continuous.pareto import Weibull as Weibull
from lowtide.framework.distributions.continuous.von_mises import VonMises as VonMises
from lowtide.framework.distributions.derived.mixture import (
    MixtureSameFamily as MixtureSameFamily,
)
from lowtide.framework.distributions.derived.relaxed import (
    RelaxedBernoulli as RelaxedBernoulli,
)
from lowtide.framework.distributions.derived.relaxed import (
    RelaxedOneHotCategorical as RelaxedOneHotCategorical,
)
from lowtide.framework.distributions.derived.transformed_distribution import (
    Independent as Independent,
)
from lowtide.framework.distributions.derived.transformed_distribution import (
    TransformedDistribution as TransformedDistribution,
)
from lowtide.framework.distributions.discrete.bernoulli import Bernoulli as Bernoulli
from lowtide.framework.distributions.discrete.bernoulli import (
    ContinuousBernoulli as ContinuousBernoulli,
)
from lowtide.framework.distributions.discrete.bernoulli import Geometric as Geometric
from lowtide.framework.distributions.discrete.categorical import Categorical as Categorical
from lowtide.framework.distributions.discrete.categorical import Multinomial as Multinomial
from lowtide.framework.distributions.discrete.categorical import (
    OneHotCategorical as OneHotCategorical,
)
from lowtide.framework.distributions.discrete.categorical import (
    OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
)
from lowtide.framework.distributions.discrete.counts import Binomial as Binomial
from lowtide.framework.distributions.discrete.counts import (
    NegativeBinomial as NegativeBinomial,
)
from lowtide.framework.distributions.discrete.counts import Poisson as Poisson
from lowtide.framework.distributions.distribution import Distribution as Distribution
from lowtide.framework.distributions.distribution import ExponentialFamily as ExponentialFamily

# Divergences of pairs: importing these registers them
from lowtide.framework.distributions.kl import continuous as _kl_continuous  # noqa: F401
from lowtide.framework.distributions.kl import discrete as _kl_discrete  # noqa: F401
from lowtide.framework.distributions.kl import structured as _kl_structured  # noqa: F401
from lowtide.framework.distributions.kl.registry import kl_divergence as kl_divergence
from lowtide.framework.distributions.kl.registry import register_kl as register_kl
from lowtide.framework.distributions.multivariate.matrices import LKJCholesky as LKJCholesky
from lowtide.framework.distributions.multivariate.matrices import Wishart as Wishart
from lowtide.framework.distributions.multivariate.multivariate_normal import (
    LowRankMultivariateNormal as LowRankMultivariateNormal,
)
from lowtide.framework.distributions.multivariate.multivariate_normal import (
    MultivariateNormal as MultivariateNormal,
)
from lowtide.framework.distributions.transforms.composed import (
    ComposeTransform as ComposeTransform,
)
from lowtide.framework.distributions.transforms.composed import (
    IndependentTransform as IndependentTransform,
)
from lowtide.framework.distributions.transforms.composed import (
    ReshapeTransform as ReshapeTransform,
)
from lowtide.framework.distributions.transforms.composed import (
    identity_transform as identity_transform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    AbsTransform as AbsTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    AffineTransform as AffineTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    CumulativeDistributionTransform as CumulativeDistributionTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    ExpTransform as ExpTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    PowerTransform as PowerTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    SigmoidTransform as SigmoidTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    SoftplusTransform as SoftplusTransform,
)
from lowtide.framework.distributions.transforms.elementwise import (
    TanhTransform as TanhTransform,
)
from lowtide.framework.distributions.transforms.transform import Transform as Transform
from lowtide.framework.distributions.transforms.vector import CatTransform as CatTransform
from lowtide.framework.distributions.transforms.vector import (
    CorrCholeskyTransform as CorrCholeskyTransform,
)
from lowtide.framework.distributions.transforms.vector import (
    LowerCholeskyTransform as LowerCholeskyTransform,
)
from lowtide.framework.distributions.transforms.vector import (
    PositiveDefiniteTransform as PositiveDefiniteTransform,
)
from lowtide.framework.distributions.transforms.vector import (
    SoftmaxTransform as SoftmaxTransform,
)
from lowtide.framework.distributions.transforms.vector import StackTransform as StackTransform
from lowtide.framework.distributions.transforms.vector import (
    StickBreakingTransform as StickBreakingTransform,
)


def __getattr__(name: str) -> _ModuleType:
    if f"distributions.{name}" in _COLLECTIONS:
        return _import_module(f"lowtide.distributions.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "CatTransform",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "ContinuousBernoulli",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "ExponentialFamily",
    "FisherSnedecor",
    "Gamma",
    "GeneralizedPareto",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "Wishart",
    "biject_to",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transform_to",
]
