"""Fork sandbox: run a function in a forked copy of the process, isolating its side effects.

``fork`` gives a copy of everything there is, memory included, at the price of its page tables: the
pages themselves are shared until one side writes. So whatever the function closes over, and
whatever it changes, the original knows nothing of it. What comes back is plain data through a pipe,
or an exception.

The copy keeps its hands off what is shared all the same: standard output and error are thrown away,
files that were open for writing become the null device, those open for reading are opened anew, so
that the original goes on where it was, what is done to other files is done beside the disk
(``overlay_files.py``), and mapped files are mapped privately (``private_mmap.py``). It ignores
Ctrl-C, which is the original's to handle, and ends when the original is gone. Programs that the
function starts end with it.

Not undone: what reaches others through sockets and pipes that were open before, such as a database;
what those programs did meanwhile. Only the calling thread exists in the copy: a step
that waits for another thread would wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import select
import signal
import stat
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ...framework.interrupts import WholeContext, defer_interrupts
from ...framework.kernels.runtime import cores
from . import overlay_calls, overlay_files, private_mmap

T = TypeVar("T")
POLL = 0.2  # seconds between looks whether the original is still there, or has been interrupted
MOST_AT_ONCE = 8  # copies


def run_apart(work: Callable[[], T]) -> T:
    """Call ``work()`` in a forked copy of this process and return its result, pickled in between.

    Raises:
        Exception: What ``work`` raised, with the copy's traceback as a note.
        NotImplementedError: The system has no ``fork``.
        RuntimeError: The copy ended without an answer: killed, say.
    """
    return run_each_apart([work])[0]


def run_each_apart(works: Iterable[Callable[[], T]]) -> list[T]:
    """Call functions in forked copies, several at a time; return their results in order.

    Raises:
        Exception: The first that one of them raised, as :func:`run_apart`; the others are ended.
    """
    most = min(MOST_AT_ONCE, cores.usable())
    running: deque[Branch] = deque()
    results: list[T] = []
    try:
        for work in works:
            if len(running) == most:
                results.append(running[0].answer())
                running.popleft()
            _start(work, running)
        while running:
            results.append(running[0].answer())
            running.popleft()
    finally:
        while running:  # one has failed, or the wait was interrupted
            running.popleft().end()
    return results


def _start(work: Callable[[], Any], running: deque[Branch]) -> None:
    # Fork. The original's branch is in `running` before an interrupt may come.
    original = os.getpid()
    try:
        with defer_interrupts():
            branch = Branch()
            if branch.pid:
                running.append(branch)
        if branch.pid == 0:
            branch.begin()
            try:
                branch.give(work())
            except BaseException as error:
                branch.fail(error)
    finally:
        if os.getpid() != original:
            os._exit(1)


class branched(WholeContext):
    """Fork the process for a block: ``with branched() as branch``.

    At its end the original ends a copy that has not given its answer.
    """

    def _enter(self) -> Branch:
        self._branch = Branch()
        return self._branch

    def _leave(self) -> None:
        if self._branch.pid:
            self._branch.end()


class Branch:
    """A fork of the process: the original waits for what the copy gives.

    Attributes:
        pid: 0 in the copy, which calls :meth:`begin`, and ends with :meth:`give` or :meth:`fail`.

    Raises:
        NotImplementedError: The system has no ``fork``.
    """

    def __init__(self) -> None:
        _must_fork()
        self._status: int | None = None
        self._original = os.getpid()
        self._reader, self._writer = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # else the copy would have the same text to write
            with contextlib.suppress(Exception):
                stream.flush()
        self._drawn = random.getstate()
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork of a process with threads; see the head of this file.
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            self.pid = os.fork()
        if self.pid:  # a copy that is forked next must not keep it open
            os.close(self._writer)
        _lead(self.pid)  # both say so: neither knows who comes first

    def begin(self) -> None:
        """In the copy: keep off what is shared with the original, and end with it."""
        os.close(self._reader)
        random.setstate(self._drawn)  # Python seeds it anew in whatever is forked
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(self._original,), daemon=True).start()
        _write_nothing(self._writer)

    def give(self, value: Any) -> None:
        """In the copy: give the answer and end."""
        try:
            text = pickle.dumps((None, value))
        except Exception as error:
            text = pickle.dumps((_described(error), None))
        self._end(text)

    def fail(self, error: BaseException) -> None:
        """In the copy: give an exception and end."""
        self._end(pickle.dumps((_described(error), None)))

    def _end(self, text: bytes) -> None:
        with open(self._writer, "wb", closefd=False) as pipe:  # `open` of a number is left alone
            pipe.write(len(text).to_bytes(8, "little") + text)
        os._exit(0)

    def answer(self) -> Any:
        """In the original: wait for the answer, and return or raise it."""
        answer = b""
        ready = select.poll()
        ready.register(self._reader, select.POLLIN)
        try:
            # A signal that comes just before a wait begins does not end it: wait in short turns.
            while not ready.poll(POLL * 1000):
                pass
            with open(self._reader, "rb", closefd=False) as pipe:
                # Not to its end: others may inherit it.
                answer = pipe.read(int.from_bytes(pipe.read(8), "little"))
        finally:  # interrupted, perhaps
            status = self._kill()
        try:
            error, value = pickle.loads(answer)
        except (EOFError, pickle.UnpicklingError):
            code = os.waitstatus_to_exitcode(status)
            how = (
                f"killed by signal {signal.Signals(-code).name}"
                if code < 0
                else f"exit code {code}"
            )
            raise RuntimeError(
                f"the copy of the process that ran the step ended without an answer: {how}. Signal "
                "KILL often means that memory ran out."
            ) from None
        if error is None:
            return value
        raise _rebuilt(error)

    def end(self) -> None:
        """In the original: end the copy, if it has not ended; its answer is not wanted."""
        self._kill()

    def _kill(self) -> int:
        with defer_interrupts():
            if self._status is None:
                os.close(self._reader)
                for end in (os.killpg, os.kill):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        end(self.pid, signal.SIGKILL)
                self._status = os.waitpid(self.pid, 0)[1]
        return self._status


def _must_fork() -> None:
    if not hasattr(os, "fork"):
        raise NotImplementedError(
            "an estimate runs the step in a forked copy of the process, and this system has no "
            "fork. Use Linux or macOS, or build the model on meta and run the step there."
        )


# In the copy


def _end_with(original: int) -> None:
    while os.getppid() == original:
        time.sleep(POLL)
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _write_nothing(keep: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(overlay_files.HANDLES):
        number = int(name)
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            if number not in (keep, nothing):
                _take_over(number, nothing)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    private_mmap.make_private()
    overlay_calls.lay()


def _lead(pid: int) -> None:
    # The copy and what it starts are a group of processes, which ends as one.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def _take_over(number: int, nothing: int) -> None:
    # A descriptor of the original's: what is read or written by it must not be, by both.
    import fcntl  # not on every system

    found, flags = os.fstat(number), fcntl.fcntl(number, fcntl.F_GETFL)
    access = flags & os.O_ACCMODE
    with_proc = overlay_files.HANDLES.startswith("/proc")
    place = os.readlink(f"{overlay_files.HANDLES}/{number}") if with_proc else ""
    on_disk = stat.S_ISREG(found.st_mode) and not place.startswith("/memfd:")
    silent = number in (1, 2) or (number == 0 and not on_disk)
    if silent or (access == os.O_WRONLY and on_disk):
        os.dup2(nothing, number)
    elif on_disk and with_proc:
        if access == os.O_RDONLY:
            mine = os.open(f"{overlay_files.HANDLES}/{number}", os.O_RDONLY)
        elif found.st_size <= overlay_files.LARGEST:
            mine = overlay_files.private(number, found.st_size)
        else:
            return
        os.lseek(mine, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(mine, number, inheritable=os.get_inheritable(number))
        os.close(mine)


# Exceptions on their way


def _described(error: BaseException) -> dict[str, Any]:
    # Its class by name and by identity: the original knows classes of functions and scripts too.
    args: Any = error.__reduce__()[1] if isinstance(error, OSError) else error.args  # with names
    where = error.__traceback__
    while where is not None and os.path.dirname(where.tb_frame.f_code.co_filename) == _HERE:
        where = where.tb_next  # what called the step says nothing
    return {
        "kinds": [(c.__module__, c.__qualname__, id(c)) for c in type(error).__mro__],
        "args": tuple(a if _travels(a) else str(a) for a in args),
        "state": {k: v for k, v in vars(error).items() if k != "__notes__" and _travels(v)},
        "text": "".join(traceback.format_exception(type(error), error, where)),
    }


_HERE = os.path.dirname(os.path.abspath(__file__))


def _travels(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def _rebuilt(described: dict[str, Any]) -> BaseException:
    known = {(c.__module__, c.__qualname__, id(c)): c for c in _below(BaseException)}
    kind = next(known[k] for k in described["kinds"] if k in known)
    args = described["args"]
    try:
        error = kind(*args)
        if error.args != args:
            raise TypeError
    except Exception:  # a constructor that wants other arguments
        error = kind.__new__(kind, *args)
    vars(error).update(described["state"])
    error.add_note("The step ran in a forked copy of the process, where it raised:\n")
    error.add_note(described["text"])
    return error


def _below(kind: type[BaseException]) -> list[type[BaseException]]:
    found = [kind]
    for c in type.__subclasses__(kind):
        found += _below(c)
    return found
