"""Tensors as memory that messages are sent from and received into."""

from __future__ import annotations

from typing import Any

from ..autograd.saved import count_write
from ..tensor import Tensor


class Buffer:
    """The elements of a tensor as a flat, contiguous tensor on the CPU.

    That is a view of the tensor where it is contiguous and on the CPU, else a copy.

    Args:
        tensor: The tensor.
        writer: The name of what will write it; None if it is read only.

    Attributes:
        flat: The flat tensor.
    """

    def __init__(self, tensor: Tensor, writer: str | None = None) -> None:
        plain = tensor.detach()
        self._copied_to: Any = None
        if plain.device.type == "cpu" and plain.is_contiguous():
            self.flat = plain.view(-1)
        else:
            self.flat = plain.to("cpu").contiguous().view(-1)
            self._copied_to = plain if writer else None
        if writer and self._copied_to is None:
            count_write(plain._storage, writer)

    def settle(self) -> None:
        """Write what came into a copy back to the tensor."""
        if self._copied_to is not None:
            self._copied_to.copy_(self.flat.view(self._copied_to.shape))


class Parts(Buffer):
    """A tensor whose elements belong to the ranks one after the other.

    Args:
        tensor: The tensor.
        sizes: How many elements each rank has.
        writer: The name of what will write it; None if it is read only.

    Attributes:
        parts: A flat tensor for each rank.
    """

    def __init__(self, tensor: Tensor, sizes: list[int], writer: str | None = None) -> None:
        super().__init__(tensor, writer)
        self.parts: list[Tensor] = []
        start = 0
        for size in sizes:
            self.parts.append(self.flat[start : start + size])
            start += size
