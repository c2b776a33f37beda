"""Functions that turn a function into its gradient."""

from lowtide.framework.autograd.functional_call import functional_call as functional_call
from lowtide.framework.autograd.transforms import grad as grad
from lowtide.framework.autograd.transforms import grad_and_value as grad_and_value
from lowtide.framework.autograd.transforms import hessian as hessian
from lowtide.framework.autograd.transforms import jacfwd as jacfwd
from lowtide.framework.autograd.transforms import jacrev as jacrev
from lowtide.framework.autograd.transforms import jvp as jvp
from lowtide.framework.autograd.transforms import linearize as linearize
from lowtide.framework.autograd.transforms import value_and_grad as value_and_grad
from lowtide.framework.autograd.transforms import vjp as vjp
from lowtide.framework.vmap.module_state import (
    replace_all_batch_norm_modules_ as replace_all_batch_norm_modules_,
)
from lowtide.framework.vmap.module_state import stack_module_state as stack_module_state
from lowtide.framework.vmap.transform import vmap as vmap
