"""Jacobians, Hessians and products with them."""

from lowtide.framework.autograd.functional import hessian as hessian
from lowtide.framework.autograd.functional import hvp as hvp
from lowtide.framework.autograd.functional import jacobian as jacobian
from lowtide.framework.autograd.functional import jvp as jvp
from lowtide.framework.autograd.functional import vhp as vhp
from lowtide.framework.autograd.functional import vjp as vjp
