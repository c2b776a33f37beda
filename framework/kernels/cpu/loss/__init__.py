"""Compiled kernels of losses."""
