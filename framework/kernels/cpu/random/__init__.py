"""Compiled kernels of random numbers and dropout."""
