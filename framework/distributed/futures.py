"""Values that are not there yet: futures that one thread fills and others wait for."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any


class Future:
    """A value that is set later, once.

    Args:
        devices: Ignored: what lies on a GPU is ready when it is set.
    """

    def __init__(self, *, devices: Any = None) -> None:
        self._future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._sources: list[Future] = []  # that it is made of

    def done(self) -> bool:
        """True once there is a value or an error."""
        return self._future.done()

    def wait(self) -> Any:
        """Wait for the value and return it; raise the error if there is one."""
        self.hasten()
        return self._future.result()

    def hasten(self) -> None:
        """Do what completes it, if a thread has to: a collective moves when something waits."""
        if not self._future.done():
            for source in self._sources:
                source.hasten()

    def value(self) -> Any:
        """Return the value without waiting.

        Raises:
            RuntimeError: There is none yet.
        """
        if not self.done():
            raise RuntimeError("Future.value: it is not completed yet. Call wait().")
        return self._future.result()

    def set_result(self, result: Any) -> None:
        """Set the value.

        Raises:
            RuntimeError: It is set already.
        """
        self._once("set_result")
        self._future.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Set the error that ``wait`` raises.

        Raises:
            RuntimeError: It is set already.
        """
        if not isinstance(result, BaseException):
            raise AssertionError(f"Future.set_exception takes an exception; got {result!r}.")
        self._once("set_exception")
        self._future.set_exception(result)

    def _once(self, name: str) -> None:
        if self.done():
            raise RuntimeError(f"Future.{name}: it is completed already. Make another future.")

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Return a future of what ``callback`` returns for this one, once it is completed."""
        following = Future()

        def proceed(_: Any) -> None:
            try:
                found = callback(self)
            except BaseException as error:  # it is the following future's, as the value would be
                following.set_exception(error)
                if not isinstance(error, Exception):
                    raise  # Ctrl-C is the program's too
            else:
                following.set_result(found)

        following._sources.append(self)
        self._future.add_done_callback(proceed)
        return following

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call ``callback`` with this future once it is completed; its errors are logged."""
        self._future.add_done_callback(lambda _: callback(self))


def collect_all(futures: list[Future]) -> Future:
    """Return a future of the list, completed once all are, with errors or without."""
    collected = Future()
    missing = len(futures)
    lock = threading.Lock()

    def completed(_: Future) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            last = missing == 0
        if last:
            collected.set_result(list(futures))

    collected._sources += futures
    if not futures:
        collected.set_result([])
    for future in futures:
        future.add_done_callback(completed)
    return collected


def wait_all(futures: list[Future]) -> list[Any]:
    """Wait for all values and return them; raise the first error."""
    return [future.wait() for future in collect_all(futures).wait()]
