"""The recorded graph: its nodes, and hooks on what they save."""

from lowtide.framework.autograd.hooks import (
    disable_saved_tensors_hooks as disable_saved_tensors_hooks,
)
from lowtide.framework.autograd.hooks import increment_version as increment_version
from lowtide.framework.autograd.hooks import register_multi_grad_hook as register_multi_grad_hook
from lowtide.framework.autograd.hooks import saved_tensors_hooks as saved_tensors_hooks
from lowtide.framework.autograd.node import Node as Node
from lowtide.framework.autograd.node import SavedValue as SavedValue
from lowtide.framework.checkpointing.offload import save_on_cpu as save_on_cpu
