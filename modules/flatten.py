"""Flatten and Unflatten; both return views where possible."""

from __future__ import annotations

from collections.abc import Sequence

from ..framework.tensor import Tensor
from .module import Module


class Flatten(Module):
    """Flatten the dimensions from ``start_dim`` to ``end_dim``, both included, into one.

    Args:
        start_dim: The first of them.
        end_dim: The last of them.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        """Return a view if the strides allow it, else a copy."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The first and the last dimension."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split one dimension into several.

    Args:
        dim: The dimension, a number.
        unflattened_size: Sizes of the new dimensions; one may be -1.

    Raises:
        TypeError: The sizes are not ints in a list, tuple or Size, or ``dim`` is a name.
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(
                f"Unflatten: dim must be an int, since dimensions have no names here; got {dim!r}."
            )
        if not isinstance(unflattened_size, tuple | list):
            raise TypeError(
                "Unflatten: unflattened_size must be tuple of ints; got "
                f"{type(unflattened_size).__name__}."
            )
        for at, size in enumerate(unflattened_size):
            if not isinstance(size, int):
                raise TypeError(
                    "Unflatten: unflattened_size must be tuple of ints, but found element of type "
                    f"{type(size).__name__} at pos {at}."
                )
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """Return a view of ``input``."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The dimension and the sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
