"""Learning rate schedules, under PyTorch's names.

Every schedule is a function of the step wherever it can be: ``at(step, base_lr)`` says the rate,
and what a scheduler remembers is one integer. Because schedules may be combined on one optimizer
(``ChainedScheduler``, or two that you step yourself), most also know how the present rate becomes
the next, ``following(lr, base_lr, step)``; that form is what ``step()`` uses, as in PyTorch, and it
rounds differently by an ulp or two.
"""

from .base import LRScheduler as LRScheduler
from .base import _LRScheduler as _LRScheduler
from .combined import ChainedScheduler as ChainedScheduler
from .combined import SequentialLR as SequentialLR
from .cycles import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from .cycles import CyclicLR as CyclicLR
from .cycles import OneCycleLR as OneCycleLR
from .decay import ConstantLR as ConstantLR
from .decay import CosineAnnealingLR as CosineAnnealingLR
from .decay import ExponentialLR as ExponentialLR
from .decay import LambdaLR as LambdaLR
from .decay import LinearLR as LinearLR
from .decay import MultiplicativeLR as MultiplicativeLR
from .decay import MultiStepLR as MultiStepLR
from .decay import PolynomialLR as PolynomialLR
from .decay import StepLR as StepLR
from .plateau import ReduceLROnPlateau as ReduceLROnPlateau
