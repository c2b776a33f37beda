"""``Variable``: PyTorch's old name for a tensor that can require grad."""

from __future__ import annotations

from typing import Any

from ..tensor import Tensor


class _VariableMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_VariableMeta):
    """A tensor: ``Variable(t, requires_grad=True)`` is ``t`` outside its graph, as a leaf.

    Kept for old programs; every Tensor is an instance of it.

    Raises:
        TypeError: ``data`` is no tensor.
    """

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Any:
        """Return a leaf that shares memory with ``data``."""
        del volatile
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}.")
        out = data.detach()
        return out.requires_grad_(requires_grad)
