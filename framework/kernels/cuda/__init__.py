"""Kernels for NVIDIA GPUs: in CUDA C++, or printed as such from the loops of ``kernels/cpu``."""
