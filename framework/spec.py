"""Tensor specs: shape, dtype and device, interned.

Equal specs are one object. So a dispatcher's cache key is a tuple of specs, compared and hashed
by identity, and "does this gradient fit that input" is one ``is``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from math import prod
from typing import Any

from .device import device as _device
from .dtypes import BOOL, COMPLEX, FLOAT, INT
from .dtypes import dtype as _dtype
from .memory.pool import ALIGNMENT


class Size(tuple):  # type: ignore[type-arg]
    """The shape of a tensor: a tuple of ints that prints as PyTorch's and slices to a ``Size``."""

    __slots__ = ()
    home = "lowtide"  # "torch" in programs that are run as torch: they compare texts

    def numel(self) -> int:
        """The number of elements of that shape."""
        return prod(self)

    def __getitem__(self, index: Any) -> Any:
        item = tuple.__getitem__(self, index)
        return Size(item) if isinstance(index, slice) else item

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, tuple(other)))

    def __mul__(self, count: Any) -> Size:
        return Size(tuple.__mul__(self, count))

    def __repr__(self) -> str:
        return f"{self.home}.Size({list(self)})"


_interned: weakref.WeakValueDictionary[Any, Spec] = weakref.WeakValueDictionary()


class Spec:
    """Shape, dtype and device of a tensor; equal specs are one object.

    Attributes:
        shape: The sizes (a :class:`Size`).
        dtype: The element type.
        device: Where; None where a spec stands for any device. Only scratch may depend on it.
        ndim: Number of dimensions.
        numel: Number of elements.
        nbytes: Bytes of a contiguous tensor of this spec.
        block: The same, rounded up to what a pool hands out.
        flat: Its shape as bytes: ``(nbytes,)``.
        np_dtype: The NumPy dtype.
    """

    __slots__ = (
        "__weakref__",
        "block",
        "device",
        "dtype",
        "flat",
        "nbytes",
        "ndim",
        "np_dtype",
        "numel",
        "shape",
    )
    shape: Size
    dtype: _dtype
    device: _device | None
    runs: Any = None  # what runs calls of a tensor inside vmap, or of a sparse one, in our place
    ndim: int
    numel: int
    nbytes: int
    block: int
    flat: tuple[int]
    np_dtype: Any

    def __new__(cls, shape: Iterable[int], dtype: _dtype, device: _device | None = None) -> Spec:
        """Return the unique spec of these values."""
        key = (tuple(shape), dtype, device)
        self = _interned.get(key)
        if self is None:
            self = object.__new__(cls)
            self.shape = Size(key[0])
            self.dtype = dtype
            self.device = device
            self.ndim = len(key[0])
            self.numel = prod(key[0])
            self.nbytes = self.numel * dtype.itemsize
            self.block = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            self.flat = (self.nbytes,)
            self.np_dtype = dtype.np
            self = _interned.setdefault(key, self)
        return self

    def like(self, shape: Iterable[int] | None = None, dtype: _dtype | None = None) -> Spec:
        """Return this spec with another shape or dtype."""
        return Spec(self.shape if shape is None else shape, dtype or self.dtype, self.device)

    def on(self, device: _device | None) -> Spec:
        """Return this spec on another device."""
        return self if self.device is device else Spec(self.shape, self.dtype, device)

    @property
    def on_host(self) -> bool:
        """True on the CPU, and on meta, which foretells what the CPU does."""
        return self.device is None or self.device.type in ("cpu", "meta")

    def __repr__(self) -> str:
        where = "" if self.device is None else f", {self.device}"
        return f"Spec({tuple(self.shape)}, {self.dtype.name}{where})"

    def __reduce__(self) -> Any:
        return Spec, (tuple(self.shape), self.dtype, self.device)


class ScalarSpec:
    """The spec of a Python scalar in a cache key: its category without its value.

    A scalar takes part in promotion weakly and has the shape of a 0-d tensor.
    """

    __slots__ = ("category", "name")
    shape = Size(())
    ndim = 0
    numel = 1
    nbytes = 0
    device = None
    runs = None

    def __init__(self, name: str, category: int) -> None:
        self.name = name
        self.category = category

    def __repr__(self) -> str:
        return f"ScalarSpec({self.name})"


NONE = ScalarSpec("None", -1)
SCALARS: dict[type, ScalarSpec] = {
    bool: ScalarSpec("bool", BOOL),
    int: ScalarSpec("int", INT),
    float: ScalarSpec("float", FLOAT),
    complex: ScalarSpec("complex", COMPLEX),
    type(None): NONE,
}
