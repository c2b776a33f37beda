"""Compiled kernels of convolution."""
