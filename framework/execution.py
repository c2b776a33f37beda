"""The executor: runs kernels, creates backends, and reads tensor values for Python.

There is one for the process. The usual one, :class:`Executor`, computes; :func:`install` puts
another in its place. That of an estimate (``profiling/estimate/fake_kernels.py``) computes nothing
and books all memory as ever. Each method says what the framework asks it for; what a subclass
leaves alone goes on as usual.

Nothing that is called for every op asks the executor: what the hot path uses is bound when it is
made. A thread's ``State.run_kernel`` is the executor's ``runner``, and a plan and a backend were
shown to it. So the usual executor costs nothing, and :func:`install` has these bound anew, by the
functions that modules declared with :func:`when_installed`.

What has no separate method goes through one of these: writing outside of ops and random draws
are calls of the runner (``modes.run_kernel``), copies between devices are methods of the backends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .kernels.runtime.errstate import quiet_runner

READ = object()  # an answer of Executor.read
Follow = Callable[["Executor"], None]
F = TypeVar("F", bound=Follow)


class Executor:
    """The default executor, which computes everything.

    Attributes:
        computes: Kernels write what they should. If not, nothing looks for NaN or damage in what
            they left, and tensors on meta may be asked for values.
        counts_replays: It does not compute, and counts the kernel calls of replays.
    """

    computes = True
    counts_replays = False

    def runner(self) -> Callable[..., Any]:
        """Return ``run(f, *args)``, through which a thread calls whatever writes values.

        The first array among ``args`` is written. It is asked for once per thread.
        """
        return quiet_runner()

    def plan_made(self, plan: Any) -> None:
        """Observe a new plan (``ops/plan.py``), whose functions may be replaced."""

    def new_backend(self, d: Any, make: Callable[[Any], Any]) -> Any:
        """Return the backend for the first use of a device: ``make(d)``."""
        return make(d)

    def known_backend(self, d: Any, be: Any) -> Any:
        """Return the replacement of a backend that was created under another executor."""
        return be

    def read(self, tensor: Any, name: str) -> Any:
        """Return what a method of Tensor that reads values returns; ``READ`` for what memory holds.

        Asked only where kernels do not compute.

        Args:
            tensor: Of which Python wants the values.
            name: "item", "tolist" or "numpy".
        """
        return READ

    def knows(self, tensor: Any) -> bool:
        """True if the framework may decide by the values of a tensor."""
        return True

    def count_row(self, row: Any) -> None:
        """Count a kernel call of a compiled function's replay (``capture/program.py``)."""

    def now_unknown(self, array: Any) -> None:
        """Note that a kernel that was left out would have written an array."""

    def tiles(self, cut: Callable[..., Any], views: list[Any], limit: int) -> Any:
        """Return an iterator over the tiles of matching views (``ops/views/tiled.py``)."""
        return cut(views, limit)

    def replacing(self, usual: Callable[[Any], Any], path: Any) -> Any:
        """Return the context in which the file that replaces ``path`` is written."""
        return usual(path)

    def device_count(self, ask: Callable[[], int]) -> int:
        """Return the number of GPUs; ``ask()`` queries the driver."""
        return ask()


current: Executor = Executor()
_followers: list[Follow] = []


def when_installed(follow: F) -> F:
    """Register ``follow(executor)``, called with each executor that is installed.

    For a module that has bound something an executor returned.
    """
    _followers.append(follow)
    if type(current) is not Executor:  # the module was imported late
        follow(current)
    return follow


def install(executor: Executor) -> Executor:
    """Install an executor and return the one before.

    It holds for this thread and for those that begin later; of the plans and backends there are,
    it is shown each. What it exchanges in them stays: an executor that does so is for a process
    that will end with it, such as a forked copy.
    """
    global current
    before, current = current, executor
    for follow in _followers:
        follow(executor)
    return before
