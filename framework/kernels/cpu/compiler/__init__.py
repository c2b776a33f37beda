"""Kernels compiled once on a machine, and loaded without the compiler by every later process."""
