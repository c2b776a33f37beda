"""Start of several processes that run one function, and the errors of those that fail."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any


class ProcessException(Exception):
    """Base of what is raised here for a process that failed.

    Attributes:
        error_index: Its number among those that were started.
        pid: Its process number.
    """

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid


class ProcessRaisedException(ProcessException):
    """An exception that a process raised; its traceback is in the message."""


class ProcessExitedException(ProcessException):
    """A process that ended with a status other than 0, or by a signal.

    Attributes:
        exit_code: The status; minus the signal's number for a signal.
        signal_name: The signal's name, or None.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


class ProcessContext:
    """The processes that :func:`start_processes` started.

    Attributes:
        processes: Python's process objects.
    """

    def __init__(self, processes: list[Any], errors: list[Any]) -> None:
        self.processes = processes
        self._errors = errors
        self._running = {process.sentinel: i for i, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """Return the process numbers."""
        return [int(process.pid) for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for processes to end; when one fails, end the others and raise.

        Args:
            timeout: Seconds to wait at most; None waits for the next end.
            grace_period: Seconds that the others get to end by themselves after a failure.

        Returns:
            True once all have ended.

        Raises:
            ProcessRaisedException: A process raised an exception.
            ProcessExitedException: One ended otherwise.
        """
        if not self._running:
            return True
        ready = multiprocessing.connection.wait(list(self._running), timeout)
        failed = None
        for sentinel in ready:
            i = self._running.pop(sentinel)
            self.processes[i].join()
            if self.processes[i].exitcode != 0 and failed is None:
                failed = i
        if failed is None:
            return not self._running
        self.terminate(grace_period or 0.0)
        raise self._failure(failed)

    def terminate(self, grace: float = 0.0) -> None:
        """End all processes; those that do not within ``grace`` seconds are made to."""
        until = time.monotonic() + grace
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.terminate()
        for process in self.processes:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()

    def _failure(self, i: int) -> ProcessException:
        process, code = self.processes[i], self.processes[i].exitcode
        text = None
        if self._errors[i].poll():
            with contextlib.suppress(EOFError):  # it died without a word
                text = self._errors[i].recv()
        if text is not None:
            return ProcessRaisedException(
                f"process {i} raised this exception:\n{text}", i, process.pid
            )
        if code < 0:
            name = signal.Signals(-code).name
            return ProcessExitedException(
                f"process {i} ended by the signal {name}", i, process.pid, code, name
            )
        return ProcessExitedException(
            f"process {i} ended with the status {code}", i, process.pid, code
        )


def _run(function: Callable[..., Any], i: int, args: tuple[Any, ...], error: Any) -> None:
    try:
        function(i, *args)
    except KeyboardInterrupt:
        pass  # the parent has it too
    except Exception:
        error.send(traceback.format_exc())
        raise SystemExit(1) from None


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start processes that call ``fn(i, *args)``, i from 0.

    Args:
        fn: A function at the top of a module.
        args: What each is given besides its number; pickled.
        nprocs: How many processes.
        join: Wait for all of them.
        daemon: End them with this process.
        start_method: "spawn", "fork" or "forkserver".

    Returns:
        The processes, or None after waiting.

    Raises:
        ProcessRaisedException: With ``join``: one raised an exception; the others were ended.
        ProcessExitedException: With ``join``: one ended otherwise.
    """
    context: Any = multiprocessing.get_context(start_method)
    processes: list[Any] = []
    errors: list[Any] = []
    try:
        for i in range(nprocs):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(fn, i, args, theirs), daemon=daemon)
            with _main_as_torch():
                process.start()
            processes.append(process)
            errors.append(ours)
            theirs.close()
    except BaseException:  # one cannot be started, or Ctrl-C: those that were would stay
        ProcessContext(processes, errors).terminate(0.0)
        raise
    started = ProcessContext(processes, errors)
    if not join:
        return started
    while not started.join():
        pass
    return None


@contextlib.contextmanager
def _main_as_torch() -> Iterator[None]:
    # What Python tells a spawned process of its main module; see lowtide/as_torch/spawned_main.py.
    main = sys.modules["__main__"]
    if "lowtide.as_torch" not in sys.modules:
        yield
        return
    spec = getattr(main, "__spec__", None)
    os.environ["LOWTIDE_MAIN_PATH"] = getattr(main, "__file__", None) or ""
    os.environ["LOWTIDE_MAIN_NAME"] = spec.name if spec is not None else ""
    main.__spec__ = ModuleSpec("lowtide.as_torch.spawned_main", None)
    try:
        yield
    finally:
        main.__spec__ = spec


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start processes by spawning; see :func:`start_processes`.

    Raises:
        ValueError: ``start_method`` is another one: call start_processes.
    """
    if start_method != "spawn":
        raise ValueError(
            f"spawn: start_method={start_method!r}; call start_processes for another than 'spawn'."
        )
    return start_processes(fn, args, nprocs, join, daemon, start_method)
