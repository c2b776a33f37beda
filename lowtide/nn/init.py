"""Initial values of parameters, under PyTorch's name for them."""

from lowtide.modules.init import *  # noqa: F403
