"""What kernels run under: threads, BLAS, floating-point warnings."""
