"""Clipping of gradients, under PyTorch's name for it."""

from lowtide.modules.clip import *  # noqa: F403
