"""Autograd: grad modes, graph nodes, saved tensors, the engine."""
