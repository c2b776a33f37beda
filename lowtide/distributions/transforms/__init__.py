"""Functions with a known inverse and Jacobian, by which distributions are made of others."""

from lowtide.framework.distributions.composed_transforms import ComposeTransform as ComposeTransform
from lowtide.framework.distributions.composed_transforms import (
    IndependentTransform as IndependentTransform,
)
from lowtide.framework.distributions.composed_transforms import ReshapeTransform as ReshapeTransform
from lowtide.framework.distributions.composed_transforms import (
    identity_transform as identity_transform,
)
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

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "ComposeTransform",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]
