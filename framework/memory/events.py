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
    device, nbytes = str(ledger.device), storage.nbytes
    role, address = storage.role, storage.address
    for observer in ledger.observers:
        observer(event, device, nbytes, role, address)


@contextmanager
def observe(ledger: Ledger, observer: Observer) -> Iterator[None]:
    """Call ``observer(event, device, nbytes, role, address)`` on each allocation and free.

    The event of an allocation follows its booking, that of a free precedes the reuse of the block.
    An observer that raises makes the allocation fail; in a free Python can only print the error.
    """
    ledger.observers = (*ledger.observers, observer)
    try:
        yield
    finally:
        left = list(ledger.observers)
        left.remove(observer)  # one of them, should it have been registered twice
        ledger.observers = tuple(left)
