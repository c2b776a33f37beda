"""Hooks: the handle that removes one."""

from lowtide.framework.autograd.removable_handle import RemovableHandle as RemovableHandle
