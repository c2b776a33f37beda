"""Parameter: a tensor that a module registers when it is assigned."""

from __future__ import annotations

from typing import Any

from ..framework.memory.ledger import PARAMETER
from ..framework.ops.creation import empty
from ..framework.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that counts as part of a module, and as role *parameter* in the ledger.

    Args:
        data: Its values, shared, not copied; None for an empty tensor.
        requires_grad: Whether backward accumulates into its ``.grad``.
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Parameter:
        """Wrap ``data`` as a leaf of its own."""
        source = empty(0) if data is None else data.detach()
        self: Parameter = object.__new__(cls)
        self._array, self._spec, self._storage = source._array, source._spec, source._storage
        self._node, self._index = None, 0
        self._grad, self._viewed, self._extra = None, None, None
        self._requires_grad = False
        self.requires_grad = requires_grad
        self._storage.set_role(PARAMETER)
        return self

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()
