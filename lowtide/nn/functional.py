"""Functions of neural networks, under PyTorch's name for them."""

from lowtide.modules.functional import *  # noqa: F403
