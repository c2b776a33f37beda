"""Functions with a known inverse and Jacobian, by which distributions are made of others."""

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
