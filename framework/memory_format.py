"""PyTorch's memory formats and layouts, by name.

A tensor here is strided, and what an op makes is contiguous in C order. So these objects are there
for code that names them: a function takes any format and gives a C-contiguous result, and
``is_contiguous(memory_format=lowtide.channels_last)`` tells truly how the elements lie.
"""

from __future__ import annotations

from collections.abc import Sequence


class memory_format:
    """The order of a tensor's elements in memory; one object each, compared by identity.

    Attributes:
        name: PyTorch's name, ``"channels_last"``.
        order: The dims from the outermost to the innermost, or None for C order.
    """

    __slots__ = ("name", "order")
    home = "lowtide"  # "torch" in programs that are run as torch: they compare texts

    def __init__(self, name: str, order: tuple[int, ...] | None = None) -> None:
        self.name = name
        self.order = order

    def describes(self, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """True if a shape with these strides is dense in this order.

        Args:
            shape: Sizes.
            strides: Steps, counted in elements.
        """
        order = tuple(range(len(shape))) if self.order is None else self.order
        if len(order) != len(shape):
            return False
        step = 1
        for d in reversed(order):
            if shape[d] != 1:
                if strides[d] != step:
                    return False
                step *= shape[d]
        return True

    def __repr__(self) -> str:
        return f"{self.home}.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # pickled by reference, so that identity survives


class layout:
    """The layout of a tensor: strided, or one of the sparse ones; compared by identity.

    Attributes:
        name: PyTorch's name.
    """

    __slots__ = ("name",)
    home = "lowtide"  # "torch" in programs that are run as torch: they compare texts

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{self.home}.{self.name}"

    def __reduce__(self) -> str:
        return self.name


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last", (0, 2, 3, 1))
channels_last_3d = memory_format("channels_last_3d", (0, 2, 3, 4, 1))
strided = layout("strided")
sparse_coo = layout("sparse_coo")
sparse_csr = layout("sparse_csr")
sparse_csc = layout("sparse_csc")
sparse_bsr = layout("sparse_bsr")  # no tensor has this one or the next: programs compare with them
sparse_bsc = layout("sparse_bsc")
