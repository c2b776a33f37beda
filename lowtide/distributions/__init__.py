"""Probability distributions: samples, log densities, gradients through draws, divergences."""

# Namespaces
from lowtide.distributions import constraint_registry as constraint_registry
from lowtide.distributions import constraints as constraints
from lowtide.distributions import kl as kl
from lowtide.distributions import transforms as transforms
from lowtide.distributions import utils as utils

# Divergences of pairs: importing these registers them
from lowtide.framework.distributions import kl_continuous as _kl_continuous  # noqa: F401
from lowtide.framework.distributions import kl_discrete as _kl_discrete  # noqa: F401
from lowtide.framework.distributions import kl_structured as _kl_structured  # noqa: F401
from lowtide.framework.distributions.bernoulli import Bernoulli as Bernoulli
from lowtide.framework.distributions.bernoulli import ContinuousBernoulli as ContinuousBernoulli
from lowtide.framework.distributions.bernoulli import Geometric as Geometric
from lowtide.framework.distributions.beta import Beta as Beta
from lowtide.framework.distributions.beta import Dirichlet as Dirichlet
from lowtide.framework.distributions.beta import Kumaraswamy as Kumaraswamy
from lowtide.framework.distributions.categorical import Categorical as Categorical
from lowtide.framework.distributions.categorical import Multinomial as Multinomial
from lowtide.framework.distributions.categorical import OneHotCategorical as OneHotCategorical
from lowtide.framework.distributions.categorical import (
    OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
)
from lowtide.framework.distributions.composed_transforms import ComposeTransform as ComposeTransform
from lowtide.framework.distributions.composed_transforms import (
    IndependentTransform as IndependentTransform,
)
from lowtide.framework.distributions.composed_transforms import ReshapeTransform as ReshapeTransform
from lowtide.framework.distributions.composed_transforms import (
    identity_transform as identity_transform,
)
from lowtide.framework.distributions.constraint_registry import biject_to as biject_to
from lowtide.framework.distributions.constraint_registry import transform_to as transform_to
from lowtide.framework.distributions.counts import Binomial as Binomial
from lowtide.framework.distributions.counts import NegativeBinomial as NegativeBinomial
from lowtide.framework.distributions.counts import Poisson as Poisson
from lowtide.framework.distributions.distribution import Distribution as Distribution
from lowtide.framework.distributions.distribution import ExponentialFamily as ExponentialFamily
from lowtide.framework.distributions.elementwise_transforms import AbsTransform as AbsTransform
from lowtide.framework.distributions.elementwise_transforms import (
    AffineTransform as AffineTransform,
)
from lowtide.framework.distributions.elementwise_transforms import (
    CumulativeDistributionTransform as CumulativeDistributionTransform,
)
from lowtide.framework.distributions.elementwise_transforms import ExpTransform as ExpTransform
from lowtide.framework.distributions.elementwise_transforms import PowerTransform as PowerTransform
from lowtide.framework.distributions.elementwise_transforms import (
    SigmoidTransform as SigmoidTransform,
)
from lowtide.framework.distributions.elementwise_transforms import (
    SoftplusTransform as SoftplusTransform,
)
from lowtide.framework.distributions.elementwise_transforms import TanhTransform as TanhTransform
from lowtide.framework.distributions.gamma import Chi2 as Chi2
from lowtide.framework.distributions.gamma import Exponential as Exponential
from lowtide.framework.distributions.gamma import FisherSnedecor as FisherSnedecor
from lowtide.framework.distributions.gamma import Gamma as Gamma
from lowtide.framework.distributions.gamma import InverseGamma as InverseGamma
from lowtide.framework.distributions.gamma import StudentT as StudentT
from lowtide.framework.distributions.kl import kl_divergence as kl_divergence
from lowtide.framework.distributions.kl import register_kl as register_kl
from lowtide.framework.distributions.location_scale import Cauchy as Cauchy
from lowtide.framework.distributions.location_scale import Gumbel as Gumbel
from lowtide.framework.distributions.location_scale import HalfCauchy as HalfCauchy
from lowtide.framework.distributions.location_scale import Laplace as Laplace
from lowtide.framework.distributions.location_scale import Uniform as Uniform
from lowtide.framework.distributions.matrices import LKJCholesky as LKJCholesky
from lowtide.framework.distributions.matrices import Wishart as Wishart
from lowtide.framework.distributions.mixture import MixtureSameFamily as MixtureSameFamily
from lowtide.framework.distributions.multivariate_normal import (
    LowRankMultivariateNormal as LowRankMultivariateNormal,
)
from lowtide.framework.distributions.multivariate_normal import (
    MultivariateNormal as MultivariateNormal,
)
from lowtide.framework.distributions.normal import HalfNormal as HalfNormal
from lowtide.framework.distributions.normal import LogisticNormal as LogisticNormal
from lowtide.framework.distributions.normal import LogNormal as LogNormal
from lowtide.framework.distributions.normal import Normal as Normal
from lowtide.framework.distributions.pareto import GeneralizedPareto as GeneralizedPareto
from lowtide.framework.distributions.pareto import Pareto as Pareto
from lowtide.framework.distributions.pareto import Weibull as Weibull
from lowtide.framework.distributions.relaxed import RelaxedBernoulli as RelaxedBernoulli
from lowtide.framework.distributions.relaxed import (
    RelaxedOneHotCategorical as RelaxedOneHotCategorical,
)
from lowtide.framework.distributions.transformed_distribution import Independent as Independent
from lowtide.framework.distributions.transformed_distribution import (
    TransformedDistribution as TransformedDistribution,
)
from lowtide.framework.distributions.transforms import Transform as Transform
from lowtide.framework.distributions.vector_transforms import CatTransform as CatTransform
from lowtide.framework.distributions.vector_transforms import (
    CorrCholeskyTransform as CorrCholeskyTransform,
)
from lowtide.framework.distributions.vector_transforms import (
    LowerCholeskyTransform as LowerCholeskyTransform,
)
from lowtide.framework.distributions.vector_transforms import (
    PositiveDefiniteTransform as PositiveDefiniteTransform,
)
from lowtide.framework.distributions.vector_transforms import SoftmaxTransform as SoftmaxTransform
from lowtide.framework.distributions.vector_transforms import StackTransform as StackTransform
from lowtide.framework.distributions.vector_transforms import (
    StickBreakingTransform as StickBreakingTransform,
)
from lowtide.framework.distributions.von_mises import VonMises as VonMises

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
