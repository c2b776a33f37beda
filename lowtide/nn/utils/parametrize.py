"""Parametrizations, under PyTorch's name for them."""

from lowtide.modules.parametrize import *  # noqa: F403
