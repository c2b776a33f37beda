"""Functions that turn a function into its gradient."""

from lowtide.framework.autograd.functional_call import functional_call as functional_call
from lowtide.framework.autograd.transforms import grad as grad
from lowtide.framework.autograd.transforms import grad_and_value as grad_and_value
from lowtide.framework.autograd.transforms import hessian as hessian
from lowtide.framework.autograd.transforms import jacfwd as jacfwd
from lowtide.framework.autograd.transforms import jacrev as jacrev
from lowtide.framework.autograd.transforms import jvp as jvp
from lowtide.framework.autograd.transforms import value_and_grad as value_and_grad
from lowtide.framework.autograd.transforms import vjp as vjp
