"""Events of the ledger, published only while someone listens.

Observers get plain values, never a tensor or an array: a profiler must not keep alive what it
observes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .ledger import Ledger

Observer = Callable[[str, str, int, int, int], None]


def publish(ledger: Ledger, event: str, storage: Any) -> None:
    """Tell each observer (event, device, bytes, role number, address)."""
    address = storage.ctypes.data if hasattr(storage, "ctypes") else storage.address
    for observer in ledger.observers:
        observer(event, str(ledger.device), storage.nbytes, storage.role, address)  # type: ignore[operator]


@contextmanager
def observe(ledger: Ledger, observer: Observer) -> Iterator[None]:
    """Call ``observer(event, device, nbytes, role, address)`` on each allocation and free."""
    ledger.observers = (*ledger.observers, observer)
    try:
        yield
    finally:
        ledger.observers = tuple(o for o in ledger.observers if o is not observer)
