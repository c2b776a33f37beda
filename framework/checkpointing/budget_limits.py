"""The limits of open budgets, as the ledger knows them: of tensors, or of the process."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from .. import execution
from ..autograd.remat.evictor import Evictor
from ..errors import MemoryLimitError
from ..memory.ledger import format_bytes
from ..memory.machine import machine
from ..modes import local

MARGIN = 1 << 22  # bytes of a process's budget left for what grows between two looks


class TensorLimit:
    """A budget of the live bytes of a device.

    Args:
        limit: Bytes.
        where: The line that began it.
        evictor: Drops values for it.
        pages: Whether the pages behind the tensors are within it, too.

    Attributes:
        limit: Bytes that the device's tensors may have.
        pages: That.
    """

    def __init__(self, limit: int, where: str, evictor: Evictor, pages: bool = True) -> None:
        self.limit = limit
        self.pages = pages
        self.where = where
        self.evictor = evictor

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        """Drop values until so many more bytes fit; False if they never will."""
        return self.evictor.make_room(ledger, nbytes)

    def look(self, ledger: Any, again: bool = False) -> None:
        """Find out what is left for tensors: all of it."""

    def refusal(self, ledger: Any, nbytes: int) -> MemoryLimitError:
        """Build the error of an allocation that does not fit, though all that can go is dropped."""
        running = local.state.running
        node = None if running is None else running.node  # None before the first one runs
        doing = "" if node is None else f" in backward of {node.name()}"
        dropped = (
            "Everything that can be recomputed has been evicted."
            if self.evictor.thread == get_ident()
            else "Only the thread that entered the budget evicts values; this is another thread."
        )
        return ledger.exhausted(  # type: ignore[no-any-return]
            nbytes,
            f"{doing} would pass the budget of {self._described()}, begun at {self.where}, "
            f"by {format_bytes(ledger.live + nbytes - self.limit)}",
            f"{dropped} What lives is read by the op that runs, held "
            "by the program (parameters, gradients, inputs, tensors in variables, arrays of "
            ".numpy()), or saved by a Function or a hook. Raise the budget, use a smaller batch, "
            "or let go of tensors; lowtide.profiling.estimate(step) shows the line at the peak.",
            MemoryLimitError,
        )

    def _described(self) -> str:
        return format_bytes(self.limit)


class ProcessLimit(TensorLimit):
    """A budget of all that the process has in memory.

    What is no page of the device's pool (the interpreter, libraries, other devices' pools) is
    measured: when the budget begins, when a backward pass has ended, and whenever an allocation
    does not fit. Tensors have the rest.

    Args:
        total: Bytes of the process.
        where: The line that began it.
        evictor: Drops values for it.
        pool: Of the device.

    Attributes:
        others: Bytes of the process that are not the pool's, as last measured.
    """

    def __init__(self, total: int, where: str, evictor: Evictor, pool: Any) -> None:
        self.total = total
        self.pool = pool
        self.others = self._measure()
        super().__init__(self._rest(), where, evictor)

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        """Look again at what the rest of the process has, then drop values."""
        self.look(ledger)
        return super().make_room(ledger, nbytes)

    def look(self, ledger: Any, again: bool = False) -> None:
        """Find out what is left for tensors.

        Args:
            ledger: Of the device.
            again: Also if it is more than before. Otherwise not: blocks that have not been written
                yet are no pages of the process, though they are counted as the pool's.
        """
        if not execution.current.computes:  # nothing of what is imagined is in memory
            return
        others = self._measure()
        if again or others > self.others:
            self.others = others
            self.limit = self._rest()
            ledger.limits_changed()

    def _measure(self) -> int:
        return max(machine().resident() - int(self.pool.held), 0)

    def _rest(self) -> int:
        return max(self.total - self.others - MARGIN, 0)

    def _described(self) -> str:
        return (
            f"{format_bytes(self.total)} for the process (of which the interpreter and libraries "
            f"take {format_bytes(self.others)}, and {format_bytes(MARGIN)} are kept free)"
        )


__all__ = ["ProcessLimit", "TensorLimit"]
