"""Optimizers for several processes, under PyTorch's names."""

from lowtide.optim.zero_redundancy import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer

__path__: list[str] = []  # so that Python asks for modules below it: lowtide._torch_paths
