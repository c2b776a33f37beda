"""Rematerialization: record the kernels of a region, and run them again in backward."""
