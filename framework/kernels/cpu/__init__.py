"""Kernels compiled by Numba, one file per family, imported on first use."""
