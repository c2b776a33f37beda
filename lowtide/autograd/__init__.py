"""Gradients, under PyTorch's names."""

from lowtide.autograd import graph as graph
from lowtide.framework.autograd.engine import backward as backward
from lowtide.framework.autograd.engine import grad as grad
from lowtide.framework.autograd.modes import enable_grad as enable_grad
from lowtide.framework.autograd.modes import inference_mode as inference_mode
from lowtide.framework.autograd.modes import no_grad as no_grad
from lowtide.framework.autograd.modes import set_grad_enabled as set_grad_enabled
