"""Rematerialization: a region's kernels are recorded, and run again in backward."""
