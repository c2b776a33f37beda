"""Part of ``lowtide.fx``, under the path where PyTorch has it."""

from lowtide.modules.fx.graph_module import GraphModule as GraphModule
