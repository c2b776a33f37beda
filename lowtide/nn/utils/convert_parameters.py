"""Parameters as one vector, under PyTorch's name for it."""

from lowtide.modules.vectors import *  # noqa: F403
