"""Parameter and Buffer: tensors that a module registers when they are assigned.

Each counts under its own role in the ledger: a parameter from its birth, a buffer once a module has
it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ..framework.memory.ledger import BUFFER, INPUT, PARAMETER, SAVED, TEMPORARY
from ..framework.memory_format import strided
from ..framework.ops.creation.fill import empty
from ..framework.serialization.json_structure import restores
from ..framework.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that modules register as a parameter (ledger role *parameter*).

    Args:
        data: Its values, shared, not copied; None for an empty tensor.
        requires_grad: Whether backward accumulates into its ``.grad``.

    Raises:
        TypeError: ``data`` is no Tensor.
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Parameter:
        """Wrap ``data`` as a new leaf."""
        if data is not None and not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter: argument 'data' must be Tensor, not {type(data).__name__}. "
                "Make one with lowtide.tensor()."
            )
        if data is not None and data.layout is not strided:
            raise TypeError(
                f"Parameter: a parameter of layout {data.layout} is not supported. Make one of the "
                "values, and the sparse tensor of it in forward, or use .to_dense()."
            )
        source = empty(0) if data is None else data.detach()
        self: Parameter = object.__new__(cls)
        self._array, self._spec, self._storage = source._array, source._spec, source._storage
        self._node, self._index = None, 0
        self._grad, self._viewed, self._extra = None, None, None
        self._requires_grad = False
        self.requires_grad = requires_grad
        self._storage.set_role(PARAMETER)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy values and attributes to new memory, without the gradient.

        As in PyTorch the copy has separate memory, and none for the rest of a larger base.
        """
        found = memo.get(id(self))
        if found is None:
            copied = (
                self.detach().clone()
            )  # a leaf of its own: the gradient is not copied even once
            found = memo[id(self)] = type(self)(copied, self.requires_grad)
            if self.__dict__:
                found.__dict__.update(deepcopy(self.__dict__, memo))
        return found

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that modules register as a buffer.

    Args:
        data: Its values, shared, not copied; None for an empty tensor.
        persistent: Whether it is part of ``state_dict``.
    """

    persistent: bool

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Buffer:
        """Wrap ``data``."""
        if data is not None and not isinstance(data, Tensor):
            raise TypeError(
                f"Buffer: argument 'data' must be Tensor, not {type(data).__name__}. "
                "Make one with lowtide.tensor()."
            )
        source = empty(0) if data is None else data.detach()
        self: Buffer = object.__new__(cls)
        self._array, self._spec, self._storage = source._array, source._spec, source._storage
        self._node, self._index = None, 0
        self._grad, self._viewed, self._extra = None, None, None
        self._requires_grad = bool(data is not None and data.requires_grad)
        self.persistent = persistent
        return self


def keep_buffer(module: Any, name: str, value: Tensor | None) -> None:
    """Register a tensor as a buffer, and set the role of its bytes if they have none."""
    if value is not None and value._storage.role in (TEMPORARY, SAVED, INPUT):
        value._storage.set_role(BUFFER)
    module._buffers[name] = value


# What a training checkpoint says of a tensor's class is a name; these are the names it knows.
restores("Parameter", Parameter)
restores("Buffer", lambda t, requires_grad: Buffer(t.requires_grad_(requires_grad)))
