"""The recorded graph: its nodes, and hooks on what they save."""

from lowtide.framework.autograd.hooks import saved_tensors_hooks as saved_tensors_hooks
from lowtide.framework.autograd.node import Node as Node
