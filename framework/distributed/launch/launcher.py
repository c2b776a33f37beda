"""Workers started, watched and ended: one loop that reads pipes and waits for ends and signals."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import guard as sessions
from . import worker
from .environment import Job, cores_of, free_port, variables
from .failures import Failure, culprit, last_words
from .output import Stream, write

STDOUT, STDERR = 1, 2
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
TOGETHER = 0.2  # seconds in which other workers fail because the first one did
POLL = 0.02  # seconds between looks at what workers have left behind, of which there is no notice
TOLD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BROKEN_PIPE = 128 + signal.SIGPIPE
ISOLATED = (sys.executable, "-I", "-S")  # Python without site packages starts in milliseconds


class Worker:
    """A process of the job.

    It leads a session, so that a signal reaches it with all that it started, and Ctrl-C in the
    terminal reaches the launcher alone. It is waited for at the very end: until then no other
    process can have its id.

    Attributes:
        rank: Its rank in the world.
        pid: Its process id, and that of its session.
        streams: Its stdout and stderr.
        code: None while it runs; its exit code; minus the signal, if one ended it.
    """

    def __init__(
        self, job: Job, local_rank: int, command: Sequence[str], told: dict[str, str], prefix: bool
    ) -> None:
        self.rank = job.rank(local_rank)
        self.code: int | None = None
        cores = ",".join(map(str, cores_of(job, local_rank))) or "all"
        alone = job.local_size == 1
        self._process = subprocess.Popen(
            [*ISOLATED, worker.__file__, str(os.getpid()), cores, *command],
            env={**os.environ, **told},
            stdin=None if alone else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        shown = f"[{self.rank}]: " if prefix and not alone else ""
        pipes = (self._process.stdout, STDOUT), (self._process.stderr, STDERR)
        self.streams = [
            Stream(pipe.fileno(), sink, shown, alone) for pipe, sink in pipes if pipe is not None
        ]

    def has_ended(self) -> bool:
        """True when it has ended; it is not waited for yet."""
        if self.code is None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            found = os.waitid(os.P_PID, self.pid, options)
            if found is not None:
                exited = found.si_code == os.CLD_EXITED
                self.code = found.si_status if exited else -found.si_status
        return self.code is not None

    def failure(self) -> Failure:
        """How it failed; all that it wrote has been passed on then."""
        for stream in self.streams:
            stream.drain()
        return Failure(self.rank, self.pid, self.code or 0, tuple(self.streams[1].tail))

    def forget(self) -> None:
        """Wait for it, and close its pipes."""
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class Launcher:
    """Runs a command as the workers of a job, on this node.

    Args:
        job: Who the workers are.
        command: What each of them runs.
        grace: Seconds that workers have to end when they are told to, before they are killed.
        prefix: Whether lines begin with the rank of the worker that wrote them.
    """

    def __init__(
        self, job: Job, command: Sequence[str], grace: float = GRACE, prefix: bool = True
    ) -> None:
        self._job, self._command, self._grace, self._prefix = job, list(command), grace, prefix
        self._workers: list[Worker] = []
        self._failures: list[Failure] = []
        self._told: int | None = None  # the signal that ends the job
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Start the workers and stay until all have ended, and all that they started.

        It must be called in the main thread, which signals reach.

        Returns:
            0 if all went well; the exit code of the worker that failed first, or 128 + the signal
            that ended it; 128 + the signal, if the launcher itself was told to end.
        """
        with _Guard() as self._guard, self._signals():
            for restarts in range(self._job.max_restarts + 1):
                try:
                    self._start(restarts)
                    self._watch()
                except BrokenPipeError:
                    self._end(signal.SIGTERM, quiet=True)
                    return BROKEN_PIPE
                finally:
                    killed = self._end(self._told or signal.SIGTERM)
                if self._told is not None:
                    return self._ended_by_signal(killed)
                if not self._failures:
                    return 0
                failure = culprit(self._failures)
                if restarts < self._job.max_restarts:
                    _say(
                        f"lowtide launch: rank {failure.rank} failed: {failure.how}. Restart "
                        f"{restarts + 1} of {self._job.max_restarts} of all "
                        f"{self._job.local_size} workers.\n"
                    )
            _say(last_words(failure, self._job.local_size))
            return failure.exit_code

    def _start(self, restarts: int) -> None:
        self._failures = []
        port = free_port() if self._job.master_port is None else self._job.master_port
        for local_rank in range(self._job.local_size):
            if self._told is not None:
                return
            told = variables(self._job, local_rank, port, restarts)
            started = Worker(self._job, local_rank, self._command, told, self._prefix)
            self._workers.append(started)
            self._guard.watch(started.pid)
            for stream in started.streams:
                self._selector.register(stream.source or 0, selectors.EVENT_READ, stream)

    def _watch(self) -> None:
        # Until all have ended well, or one has failed, or the launcher is told to end.
        running = list(self._workers)
        until: float | None = None  # after a failure: how long others may still fail first
        while running and self._told is None:
            wait = None if until is None else until - time.monotonic()
            if wait is not None and wait <= 0:
                return
            self._turn(wait)
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                if one.code:
                    self._failures.append(one.failure())
                    until = until or time.monotonic() + TOGETHER

    def _turn(self, seconds: float | None) -> None:
        # Wait for output, a worker's end or a signal, and pass on the output.
        for key, _ in self._selector.select(seconds):
            if isinstance(key.data, Stream):
                if not key.data.pump():
                    self._selector.unregister(key.fd)
            else:
                with contextlib.suppress(BlockingIOError):
                    key.data.recv(4096)

    def _end(self, number: int, quiet: bool = False) -> int:
        # End all workers, and what they left behind. Returns how many had to be killed.
        leaders = [one.pid for one in self._workers]
        running = [one for one in self._workers if not one.has_ended()]
        killed = 0
        if running or sessions.members(leaders):
            sessions.send(leaders, number)
            until = time.monotonic() + self._grace
            while running or sessions.members(leaders):
                if time.monotonic() > until:
                    killed = len(running)
                    break
                self._pass_on(POLL, quiet)
                running = [one for one in running if not one.has_ended()]
            sessions.kill(leaders)
        for one in self._workers:
            while not one.has_ended():
                self._pass_on(POLL, quiet)
        for key in [*self._selector.get_map().values()]:
            if isinstance(key.data, Stream):
                self._selector.unregister(key.fd)
        for one in self._workers:
            for stream in one.streams:
                with contextlib.suppress(BrokenPipeError):
                    stream.drain()
            self._guard.forget(one.pid)
            one.forget()
        self._workers = []
        return killed

    def _pass_on(self, seconds: float, quiet: bool) -> None:
        if quiet:
            time.sleep(seconds)
            return
        with contextlib.suppress(BrokenPipeError):
            self._turn(seconds)

    def _ended_by_signal(self, killed: int) -> int:
        number = self._told or 0
        text = f"lowtide launch: ended by {signal.Signals(number).name}."
        if killed:
            text += (
                f" {killed} of {self._job.local_size} workers did not end within {self._grace:g} s "
                "and were killed; --grace SECONDS gives them longer."
            )
        _say(f"{text}\n")
        return 128 + number

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        # Let signals, also of the end of a child, wake the loop.
        def told(number: int, frame: Any) -> None:
            if self._told is not None:  # the second one does not wait
                sessions.kill([one.pid for one in self._workers])
            self._told = self._told or number

        asleep, alarm = socket.socketpair()
        asleep.setblocking(False)
        alarm.setblocking(False)
        before: dict[int, Any] = {}
        handlers: dict[int, Callable[[int, Any], None]] = dict.fromkeys(TOLD, told)
        for number, handler in {**handlers, signal.SIGCHLD: _wake}.items():
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                before[number] = signal.signal(number, handler)  # nohup has SIGHUP ignored
        wakeup = signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
        self._selector.register(asleep, selectors.EVENT_READ, asleep)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            asleep.close()
            alarm.close()


class _Guard:
    """The process that ends the workers if the launcher cannot."""

    def __enter__(self) -> _Guard:
        self._process = subprocess.Popen(
            [*ISOLATED, str(Path(sessions.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def watch(self, session: int) -> None:
        """Kill this session if the launcher goes away."""
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        """Leave this session to itself: it has ended."""
        self._tell(f"-{session}\n")

    def _tell(self, text: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # someone has killed it
                os.write(self._process.stdin.fileno(), text.encode())

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def _wake(number: int, frame: Any) -> None:
    """Do nothing: that there is a handler is what lets the signal wake the loop."""


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError, OSError):
        write(STDERR, text.encode())
