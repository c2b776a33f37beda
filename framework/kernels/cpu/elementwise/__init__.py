"""Compiled elementwise kernels."""
