"""Parameters as one vector, under PyTorch's name for it."""

from lowtide.modules.weights.vectors import *  # noqa: F403
