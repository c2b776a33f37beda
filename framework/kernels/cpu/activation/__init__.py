"""Compiled kernels of activation functions."""
