"""What compiled kernels are made of: the compiler, vector math, micro-kernels."""
