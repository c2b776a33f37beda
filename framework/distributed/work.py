"""Handles of collectives that have begun: ``async_op=True`` returns one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .channel import Call
from .futures import Future


class Work:
    """Handle of a collective.

    Args:
        call: What is under way; None for what is done.
        result: The tensors that it writes.
        held: What lives until it was waited for.
    """

    def __init__(
        self, call: Call | None = None, result: Sequence[Any] = (), held: Any = None
    ) -> None:
        self._call = call
        self._result = list(result)
        self._held = held

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, then return True.

        Args:
            timeout: How long; the group's timeout if None.

        Raises:
            DistBackendError: It failed, or a deadline passed.
        """
        if self._call is not None:
            self._call.wait(timeout)
        self._held = None
        return True

    def is_completed(self) -> bool:
        """Whether the collective has ended, well or not."""
        if self._call is not None and not self._call.done:
            self._call.channel.poll()
        return self._call is None or self._call.done

    def progress(self) -> None:
        """Move messages for a moment, or wait for some."""
        if self._call is not None:
            self._call.channel.wait_a_moment(self._call)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error that it ended with, or None."""
        return None if self._call is None else self._call.error

    def result(self) -> list[Any]:
        """Return the tensors that the collective writes."""
        return self._result

    def source_rank(self) -> int:
        """Return the rank that sent what was received; this rank if nothing was."""
        return 0 if self._call is None else self._call.rank

    def get_future(self) -> Future:
        """Return the result as a future."""
        future = WorkFuture(self)
        if self._call is None or self._call.done:
            future.complete()
        else:
            self._call.callbacks.append(future.complete)
        return future


class WorkFuture(Future):
    """The result of a collective. Who waits for it moves the messages."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def done(self) -> bool:
        """True once there is a value or an error."""
        return super().done() or (self._work.is_completed() and super().done())

    def hasten(self) -> None:
        """Move the messages until the collective has ended."""
        while not self._work.is_completed():
            self._work.progress()

    def complete(self) -> None:
        """Take over what the collective ended with."""
        error = self._work.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._work.result())
