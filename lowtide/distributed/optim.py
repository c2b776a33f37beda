"""Optimizers for several processes, under PyTorch's names."""

from lowtide.optim.zero_redundancy import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer
