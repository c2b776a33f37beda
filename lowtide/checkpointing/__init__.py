"""Activation checkpointing: ``with lowtide.checkpointing(policy):``, and what goes with it.

The module can be called: it is then :class:`checkpointing`, the context manager and decorator.
"""

import sys as _sys
import types as _types
from typing import Any as _Any

from lowtide.checkpointing import policies as policies
from lowtide.framework.checkpointing.disk import offload_to_disk as offload_to_disk
from lowtide.framework.checkpointing.jax_policies import checkpoint_name as checkpoint_name
from lowtide.framework.checkpointing.offload import offload as offload
from lowtide.framework.checkpointing.packing import pack as pack
from lowtide.framework.checkpointing.policies import everything as everything
from lowtide.framework.checkpointing.policies import policy as policy
from lowtide.framework.checkpointing.policies import save_every as save_every
from lowtide.framework.checkpointing.policies import save_matmuls as save_matmuls
from lowtide.framework.checkpointing.regions import checkpoint as checkpoint
from lowtide.framework.checkpointing.regions import checkpoint_sequential as checkpoint_sequential
from lowtide.framework.checkpointing.regions import checkpointing as checkpointing
from lowtide.framework.checkpointing.stash import Stash as Stash
from lowtide.framework.checkpointing.verify import Verification as Verification
from lowtide.framework.checkpointing.verify import verify as verify


class _Callable(_types.ModuleType):
    def __call__(self, policy: _Any = None) -> checkpointing:
        """Open a region (:class:`checkpointing`)."""
        return checkpointing(policy)


_sys.modules[__name__].__class__ = _Callable
