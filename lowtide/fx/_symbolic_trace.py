"""Part of ``lowtide.fx``, under the path where PyTorch has it."""

from lowtide.modules.fx.tracer import Tracer as Tracer
from lowtide.modules.fx.tracer import is_fx_tracing as is_fx_tracing
from lowtide.modules.fx.tracer import symbolic_trace as symbolic_trace
from lowtide.modules.fx.tracer import wrap as wrap
