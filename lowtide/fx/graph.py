"""Part of ``lowtide.fx``, under the path where PyTorch has it."""

from lowtide.modules.fx.graph import Graph as Graph
from lowtide.modules.fx.graph import Namespace as Namespace
from lowtide.modules.fx.graph import PythonCode as PythonCode
