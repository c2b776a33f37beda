"""Functions with a custom backward."""

from lowtide.framework.autograd.function import Function as Function
from lowtide.framework.autograd.once_differentiable import (
    once_differentiable as once_differentiable,
)
