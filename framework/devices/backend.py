"""What a device has to offer: the interface of its backend.

``HostBackend`` (``host.py``), its stand-in for a GPU (``sim``), ``CudaBackend`` (``cuda.py``) and
the GPU of an estimate (``profiling/estimate/fake_cuda.py``) implement it. A new device is a class
with these attributes and methods, and a line in ``devices/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..device import device
from ..memory.ledger import Ledger
from ..spec import Spec


class Backend(Protocol):
    """Allocates on a device, copies, and says who computes.

    Attributes:
        device: The device.
        xp: The array module that kernels compute with; None: nothing is computed.
        kernel_key: Which fast kernels it takes: "cpu" or "cuda".
        ledger: Its live bytes.
        pool: Its addresses: ``used``, ``top``, ``peak`` and ``largest_free`` in bytes.
    """

    device: device
    xp: Any
    kernel_key: str
    ledger: Ledger
    pool: Any

    @property
    def several(self) -> bool:
        """True if the machine has several of the kind, so that kernels must select theirs."""
        ...

    def on_device(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``f``, which runs kernels, to run on this device."""
        ...

    def empty(self, spec: Spec, role: int = ...) -> tuple[Any, Any]:
        """Allocate an uninitialized contiguous array of ``spec``.

        Returns:
            (storage, array): the storage counts in the ledger while it lives.

        Raises:
            OutOfMemoryError: The device, or the limit set on it, has no room.
        """
        ...

    def strided_view(self, storage: Any, spec: Spec, place: Any) -> Any:
        """Return an array on bytes of a storage.

        Args:
            storage: One of this device.
            spec: Its shape and dtype.
            place: (offset in bytes, strides in bytes); None for the start, in C order.
        """
        ...

    def adopt(self, array: Any, role: int) -> tuple[Any, Any]:
        """Wrap an array that someone else owns, sharing its memory; returns as :meth:`empty`."""
        ...

    def from_host(self, array: Any, spec: Spec, role: int) -> tuple[Any, Any]:
        """Copy a NumPy array to the device; the caller may write it when this returns."""
        ...

    def to_host(self, array: Any) -> Any:
        """Return a NumPy array of the values; on the host without a copy."""
        ...

    def item(self, array: Any) -> Any:
        """Return the only element of an array as a Python scalar."""
        ...

    def copy(self, out: Any, array: Any) -> None:
        """Copy within the device, converting the dtype."""
        ...

    def address(self, array: Any) -> int:
        """Return the address of the first element."""
        ...

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        ...

    def release_cached(self) -> None:
        """Return memory that no tensor uses to the system, or to the driver."""
        ...

    def reserved_bytes(self) -> int:
        """Return the bytes that the process holds for this device."""
        ...

    def budget_opened(self) -> None:
        """Follow the beginning of a byte budget."""
        ...

    def budget_closed(self) -> None:
        """Follow the end of a byte budget."""
        ...
