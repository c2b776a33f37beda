"""Allocation events of the ledgers, published only while an observer is registered.

Observers get plain values, never a tensor or an array: a profiler must not keep alive what it
observes. What is booked is booked when they are told, so at every event the ledger's figures and
the sum of the events agree.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .ledger import Ledger

Observer = Callable[[str, str, int, int, int, int], None]
_changing = threading.RLock()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _changing
    _changing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def publish(ledger: Ledger, event: str, storage: Any, old: int | None = None) -> None:
    """Send (event, device, bytes, role number, address, previous role number) to each observer."""
    nbytes, role = storage.nbytes, storage.role
    address = storage.address
    for observer in ledger.observers:
        observer(event, ledger.name, nbytes, role, address, role if old is None else old)


def publish_eviction(ledger: Ledger, storage: Any) -> None:
    """Call ``observer.evicted(bytes, role number, address)`` of each observer that has it.

    A byte budget is about to drop the storage: its ``free`` follows.
    """
    for observer in ledger.observers:
        evicted = getattr(observer, "evicted", None)
        if evicted is not None:
            evicted(storage.nbytes, storage.role, storage.address)


def publish_replay(ledger: Ledger, storage: Any, nanoseconds: int) -> None:
    """Call ``observer.replayed(bytes, role number, address, nanoseconds)`` of those that have it.

    A byte budget has made a value again, and all that it is made from and was gone, in that time.
    """
    for observer in ledger.observers:
        replayed = getattr(observer, "replayed", None)
        if replayed is not None:
            replayed(storage.nbytes, storage.role, storage.address, nanoseconds)


def publish_overwrite(ledger: Ledger, storage: Any) -> None:
    """Call ``observer.overwritten(bytes, role number, address)`` of each observer that has it.

    The op that runs takes over the bytes of a value that is read no more
    (``autograd/overwriting.py``).
    """
    for observer in ledger.observers:
        overwritten = getattr(observer, "overwritten", None)
        if overwritten is not None:
            overwritten(storage.nbytes, storage.role, storage.address)


@contextmanager
def observe(ledger: Ledger, observer: Observer) -> Iterator[None]:
    """Call ``observer(event, device, nbytes, role, address, old)`` for each ledger event.

    Events are ``alloc``, ``free`` and ``role``, a change of role from ``old`` to ``role`` (for the
    others the two are equal). The event follows the booking; that of a free precedes the reuse of
    the block. An observer that raises makes the allocation fail; in a free Python can only print
    the error. One that knows who owns the live bytes says so by an attribute ``owners``, a function
    without arguments: the message of an allocation that fails asks it (``Ledger.exhausted``).
    One whose ``sees_replays`` is true lets compiled functions be replayed: a replay tells where it
    allocates. One that has ``evicted`` and ``replayed`` gets what a byte budget drops and
    recomputes (:func:`publish_eviction`, :func:`publish_replay`). One that has ``overwritten`` is
    told when a value takes the place of another (:func:`publish_overwrite`).
    """
    attach(ledger, observer)
    try:
        yield
    finally:
        detach(ledger, observer)


def attach(ledger: Ledger, observer: Observer) -> list[int]:
    """Register an observer; return the ledger's bytes by role at that moment."""
    with _changing:
        # No call between the two lines, so no other thread books anything there.
        ledger.observers = (*ledger.observers, observer)
        return ledger.roles[:]


def detach(ledger: Ledger, observer: Observer) -> None:
    """Remove an observer; does nothing if it is not registered."""
    with _changing:
        left = list(ledger.observers)
        if observer in left:
            left.remove(observer)  # one of them, should it have been registered twice
        ledger.observers = tuple(left)
