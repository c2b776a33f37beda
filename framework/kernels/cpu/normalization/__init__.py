"""Compiled kernels of normalization."""
