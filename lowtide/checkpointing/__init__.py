"""Activation checkpointing: ``with lowtide.checkpointing(policy):``, and what goes with it.

The module can be called: it is then :class:`checkpointing`, the context manager and decorator.
"""

import sys as _sys
import types as _types
from typing import Any as _Any

from lowtide.framework.checkpointing.regions import checkpoint as checkpoint
from lowtide.framework.checkpointing.regions import checkpoint_sequential as checkpoint_sequential
from lowtide.framework.checkpointing.regions import checkpointing as checkpointing


class _Callable(_types.ModuleType):
    def __call__(self, policy: _Any = None) -> checkpointing:
        """Open a region (:class:`checkpointing`)."""
        return checkpointing(policy)


_sys.modules[__name__].__class__ = _Callable
