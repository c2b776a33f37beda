"""Compiled kernels of pooling."""
