"""Initial values of parameters, under PyTorch's name for them."""

from lowtide.modules.initialization.init import *  # noqa: F403
from lowtide.modules.initialization.init import (
    _calculate_correct_fan as _calculate_correct_fan,
)
from lowtide.modules.initialization.init import (
    _calculate_fan_in_and_fan_out as _calculate_fan_in_and_fan_out,
)
from lowtide.modules.initialization.old_init import constant as constant
from lowtide.modules.initialization.old_init import dirac as dirac
from lowtide.modules.initialization.old_init import eye as eye
from lowtide.modules.initialization.old_init import kaiming_normal as kaiming_normal
from lowtide.modules.initialization.old_init import kaiming_uniform as kaiming_uniform
from lowtide.modules.initialization.old_init import normal as normal
from lowtide.modules.initialization.old_init import orthogonal as orthogonal
from lowtide.modules.initialization.old_init import sparse as sparse
from lowtide.modules.initialization.old_init import uniform as uniform
from lowtide.modules.initialization.old_init import xavier_normal as xavier_normal
from lowtide.modules.initialization.old_init import xavier_uniform as xavier_uniform
