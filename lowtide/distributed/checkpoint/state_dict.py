"""States of models and optimizers, under PyTorch's names."""

from lowtide.framework.distributed.checkpoint.state_dicts import (
    StateDictOptions as StateDictOptions,
)
from lowtide.framework.distributed.checkpoint.state_dicts import (
    get_model_state_dict as get_model_state_dict,
)
from lowtide.framework.distributed.checkpoint.state_dicts import (
    get_optimizer_state_dict as get_optimizer_state_dict,
)
from lowtide.framework.distributed.checkpoint.state_dicts import get_state_dict as get_state_dict
from lowtide.framework.distributed.checkpoint.state_dicts import (
    set_model_state_dict as set_model_state_dict,
)
from lowtide.framework.distributed.checkpoint.state_dicts import (
    set_optimizer_state_dict as set_optimizer_state_dict,
)
from lowtide.framework.distributed.checkpoint.state_dicts import set_state_dict as set_state_dict
