"""Saving in a thread: copies of what a file will hold, and a future of its path.

The copies are in the pool of the CPU, so the ledger counts them. They live until the file is
written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..dtypes import uint8
from ..modes import no_grad, run_kernel
from ..ops.creation.fill import empty
from .json_structure import Values
from .save_load import Encoded

T = TypeVar("T")


class Saving(Future[Path]):
    """The future of a file that a thread writes.

    Attributes:
        is_known: Whether :meth:`result` or :meth:`exception` has told the program how it ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_known = False
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> Path:
        """Wait for the file; return its path, or raise what failed."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the file; return what failed, or None."""
        self._wait(timeout)
        return super().exception(0)

    def settle(self) -> None:
        """Wait for the file, and raise what failed unless the program knows it.

        A fork of the process that writes has nothing to wait for.
        """
        if self._process == os.getpid() and not self.is_known:
            self.result()

    def _wait(self, timeout: float | None) -> None:
        super().exception(timeout)  # raises TimeoutError
        self.is_known = True


def copied(encoded: Encoded) -> Encoded:
    """Return copies of what a file will hold.

    Raises:
        OutOfMemoryError: There is no room for them.
    """
    return Encoded({k: _copied(v) for k, v in encoded.arrays.items()}, encoded.metadata)


def start(held: list[T], write: Callable[[T], Path]) -> Saving:
    """Call ``write`` in a thread with what ``held`` holds, and let go of that afterwards."""
    saving = Saving()
    saving.set_running_or_notify_cancel()  # it cannot be cancelled any more
    threading.Thread(target=_run, args=(saving, held, write), name="lowtide save").start()
    return saving


def _run(saving: Saving, held: list[T], write: Callable[[T], Path]) -> None:
    try:
        path = write(held[0])
    except BaseException as error:
        held.clear()  # the copies go before the program hears of it
        saving.set_exception(error.with_traceback(None))
    else:
        held.clear()
        saving.set_result(path)


def _copied(values: Values) -> Values:
    # Complex numbers are pairs already.
    with no_grad():
        copy = empty(values.nbytes, dtype=uint8, device="cpu")
    array: Any = copy._array.view(values.dtype).reshape(values.shape)
    run_kernel(np.copyto, array, values.values())
    return Values(values.dtype, values.shape, lambda: array)


__all__ = ["Saving", "copied", "start"]
