"""Parametrizations, under PyTorch's name for them."""

from lowtide.modules.parametrization.parametrize import *  # noqa: F403
