"""Symbolic traces of modules, as graphs that can be read, changed and run: PyTorch's ``fx``."""

from lowtide.modules.fx import graph as graph
from lowtide.modules.fx import graph_module as graph_module
from lowtide.modules.fx import interpreter as interpreter
from lowtide.modules.fx import node as node
from lowtide.modules.fx import proxy as proxy
from lowtide.modules.fx.graph import Graph as Graph
from lowtide.modules.fx.graph import PythonCode as PythonCode
from lowtide.modules.fx.graph_module import GraphModule as GraphModule
from lowtide.modules.fx.interpreter import Interpreter as Interpreter
from lowtide.modules.fx.interpreter import Transformer as Transformer
from lowtide.modules.fx.node import Node as Node
from lowtide.modules.fx.proxy import Proxy as Proxy
from lowtide.modules.fx.tracer import Tracer as Tracer
from lowtide.modules.fx.tracer import symbolic_trace as symbolic_trace
from lowtide.modules.fx.tracer import wrap as wrap
