"""Clipping of gradients, under PyTorch's name for it."""

from lowtide.modules.weights.clip import *  # noqa: F403
