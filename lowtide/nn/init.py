"""Initial values of parameters, under PyTorch's name for them."""

from lowtide.modules.init import *  # noqa: F403
from lowtide.modules.init import _calculate_correct_fan as _calculate_correct_fan
from lowtide.modules.init import _calculate_fan_in_and_fan_out as _calculate_fan_in_and_fan_out
