"""Kernels that are faster than the plain ones, by device."""
