"""Gradients, under PyTorch's names."""

from lowtide.autograd import function as function
from lowtide.autograd import functional as functional
from lowtide.autograd import graph as graph
from lowtide.framework.autograd.anomaly import detect_anomaly as detect_anomaly
from lowtide.framework.autograd.anomaly import set_detect_anomaly as set_detect_anomaly
from lowtide.framework.autograd.engine import backward as backward
from lowtide.framework.autograd.engine import grad as grad
from lowtide.framework.autograd.function import Function as Function
from lowtide.framework.autograd.gradcheck import GradcheckError as GradcheckError
from lowtide.framework.autograd.gradcheck import gradcheck as gradcheck
from lowtide.framework.autograd.gradcheck import gradgradcheck as gradgradcheck
from lowtide.framework.autograd.variable import Variable as Variable
from lowtide.framework.modes import enable_grad as enable_grad
from lowtide.framework.modes import inference_mode as inference_mode
from lowtide.framework.modes import no_grad as no_grad
from lowtide.framework.modes import set_grad_enabled as set_grad_enabled


def __getattr__(name: str) -> object:
    """Import ``profiler``, which few programs want, when it is first asked for."""
    if name == "profiler":
        return __import__("importlib").import_module("lowtide.autograd.profiler")
    raise AttributeError(f"module 'lowtide.autograd' has no attribute {name!r}")
