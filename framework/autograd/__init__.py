"""Gradients: modes, nodes, saved values, the engine."""
