"""Symbolic traces of modules: a graph of calls that can be read, changed and run (``lowtide.fx``).

A module is called with proxies in place of tensors. What is done to them is noted, node by node, in
a :class:`~.graph.Graph`; a :class:`~.graph_module.GraphModule` runs it as Python code made of it.
Names and behaviour are those of PyTorch's ``torch.fx``.
"""

from . import tracer as tracer  # what is pickled of a graph needs it
