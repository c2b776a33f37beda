"""Kernels in NumPy, and how calls are cut into chunks: no compiled loop is here."""
