"""Scalar functions, written once and printed for arrays: NumPy, compiled loops, CUDA C++."""
