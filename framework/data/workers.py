"""DataLoader worker processes: fetch batches ahead, and end with the loader.

Each worker has one socket to the main process: tasks come in, batches go out (:mod:`transport`).
A thread of the worker takes tasks off the socket at once, so the main process never blocks on
giving one; and it notices when the main process is gone, and ends the worker even while the data
set is busy. The main process starts no thread.

**Start method.** On Linux workers are forked, as PyTorch's are: a data set defined in a script
needs no ``if __name__ == "__main__"``, need not be picklable, and is not copied. A fork of a
process with threads is safe only as far as no lock that the child needs is held by another thread.
The pool's lock is taken around a fork, and so is the compiler's, once imports of kernels have
ended; the threads of compiled kernels are forgotten by the child, OpenBLAS and Python's own locks
see to themselves, and a worker gives its generators new locks. What remains is whatever locks the
user's own threads hold: then pass
``multiprocessing_context="forkserver"`` or ``"spawn"``. A method chosen by
``multiprocessing.set_start_method`` is respected. A forked worker must not use CUDA.

**Randomness.** In batch ``n`` of a worker, every stream is a function of the base seed, the
worker's number and ``n``: a resumed run draws the same. Streams that ``worker_init_fn`` has seeded
are left as it left them, except that lowtide's moves to a separate place for each batch.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import pickle
import queue
import random
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NamedTuple

import numpy as np

from .. import devices
from ..devices import live_backends
from ..interrupts import defer_interrupts, finalizer
from ..kernels.runtime.threads import set_num_threads
from ..memory.ledger import NO_LIMIT
from ..random.generator import default_generator, manual_seed
from .fetch import FetchConfig, IterableFetcher, MapFetcher
from .shared_memory import SharedMemoryReceiver, SharedMemorySender

GRACE = 5.0  # seconds a worker has to end by itself
POLL = 5.0  # seconds between looks whether the main process is still there
PER_BATCH = 1 << 40  # counters of lowtide's stream that each batch has for itself

BATCH, END, ERROR = "batch", "end", "error"

_worker_info: WorkerInfo | None = None
_main_ends: weakref.WeakSet[Any] = weakref.WeakSet()  # what a forked worker must close
_crews: weakref.WeakSet[WorkerPool] = weakref.WeakSet()  # what must be closed at exit


@dataclass(frozen=True)
class WorkerInfo:
    """Number, seed and dataset of a worker.

    Attributes:
        id: Its number, from 0.
        num_workers: How many there are.
        seed: Of its streams in its first epoch: the base seed plus ``id``.
        dataset: Its copy of the data set.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """Return information about this worker; None in the main process."""
    return _worker_info


class WorkerSetup(NamedTuple):
    """The arguments with which a worker starts."""

    recipe: FetchConfig
    init_fn: Callable[[int], Any] | None
    number: int
    workers: int
    parent: int  # process id
    forked: bool


# In the main process


class WorkerPool:
    """The workers of one DataLoader.

    Args:
        recipe: How batches are made.
        count: How many workers.
        init_fn: Called in each with its number, once.
        context: A ``multiprocessing`` context, or None for the default.
        timeout: Seconds to wait for a batch; 0 waits for ever.
    """

    def __init__(
        self,
        recipe: FetchConfig,
        count: int,
        init_fn: Callable[[int], Any] | None,
        context: Any,
        timeout: float,
    ) -> None:
        self.timeout = timeout
        self.closed = False
        self.disowned = False
        self._process = os.getpid()
        self._epoch = 0
        self._workers: list[Any] = []
        self._inboxes: list[SharedMemoryReceiver] = []
        self._method = (context := context or default_context()).get_start_method()
        if not _crews:
            atexit.unregister(close_all)
            atexit.register(close_all)  # before multiprocessing's own: it was registered later
        _crews.add(self)
        try:
            for number in range(count):
                setup = WorkerSetup(
                    recipe, init_fn, number, count, os.getpid(), self._method == "fork"
                )
                self._start(setup, context)
        except BaseException:
            self.close()
            raise

    def _start(self, setup: WorkerSetup, context: Any) -> None:
        ours, theirs = context.Pipe(duplex=True)
        _main_ends.add(ours)
        self._inboxes.append(SharedMemoryReceiver(ours))
        worker = context.Process(target=run_worker, args=(setup, theirs), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork of a process with threads; see above
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            worker.start()
        self._workers.append(worker)
        theirs.close()

    def begin(self, base_seed: int, states: list[Any]) -> None:
        """Start an epoch; pending results of the last one are dropped."""
        self._epoch += 1
        for number, state in enumerate(states):
            self._give(number, ("epoch", self._epoch, base_seed, state))

    def give(self, number: int, batch: int, index: Any) -> None:
        """Assign batch ``batch`` of the epoch to a worker."""
        self._give(number, (BATCH, self._epoch, batch, index))

    def _give(self, number: int, task: Any) -> None:
        self._check_open()
        inbox = self._inboxes[number]
        try:
            inbox.conn.send_bytes(pickle.dumps((task, inbox.read())))
        except (BrokenPipeError, ConnectionResetError):
            self._died(number)

    def take(self, number: int) -> tuple[str, Any, Any]:
        """Wait for a worker's next result of this epoch.

        Returns:
            (BATCH, batch, state), (END, None, state) or (ERROR, (class, message), state).

        Raises:
            RuntimeError: The worker is gone, or the timeout is over.
        """
        inbox = self._inboxes[number]
        while True:
            self._await(number)
            try:
                message = inbox.receive()
            except (EOFError, ConnectionResetError):
                self._died(number)
            except BaseException:  # half a message was read: nothing after it makes sense
                self.close()
                raise
            epoch, kind, value, state = inbox.open(message)
            if epoch == self._epoch:
                return kind, value, state

    def _await(self, number: int) -> None:
        self._check_open()
        worker, conn = self._workers[number], self._inboxes[number].conn
        ready = connection.wait([conn, worker.sentinel], self.timeout or None)
        if not ready:
            self.close()
            raise RuntimeError(
                f"DataLoader timed out after {self.timeout} seconds waiting for worker {number}."
            )

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("the loader's workers have been shut down. Start a new loop.")

    def _died(self, number: int) -> None:
        worker = self._workers[number]
        worker.join(GRACE)
        code = worker.exitcode
        how = (
            f"killed by signal {signal.Signals(-code).name}"
            if code and code < 0
            else (f"exit code {code}")
        )
        self.close()
        hint = (
            ""
            if self._method == "fork"
            else f" With start method {self._method}, the script needs "
            "`if __name__ == '__main__':`."
        )
        raise RuntimeError(
            f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly: {how}. A signal KILL "
            f"often means that memory ran out.{hint}"
        )

    def close(self) -> None:
        """Stop the workers, by force if they do not stop when asked. Safe to call again."""
        if os.getpid() != self._process:  # a forked copy of the main process's object
            return
        self.closed = True
        for inbox in self._inboxes:
            with contextlib.suppress(OSError, ValueError):
                inbox.conn.send_bytes(pickle.dumps((None, [])))
            inbox.conn.close()
            inbox.forget()
        deadline = time.monotonic() + GRACE
        for end in (None, "terminate", "kill"):
            for worker in self._workers:
                if worker.is_alive():
                    if end is not None:
                        getattr(worker, end)()
                    worker.join(max(0.1, deadline - time.monotonic()))
            deadline = time.monotonic() + 1.0
        for worker in self._workers:
            if not worker.is_alive():
                worker.join()
        self._workers = [w for w in self._workers if w.is_alive()]

    @finalizer
    def __del__(self) -> None:
        with contextlib.suppress(Exception), defer_interrupts():  # at exit, modules may be gone
            self.close()


def close_all() -> None:
    """Stop the workers of all loaders."""
    for crew in list(_crews):
        crew.close()


def disown_all() -> None:
    """Forget the workers of all loaders, in a forked process: they belong to the parent.

    An epoch that is under way goes on with others, which start when its next batch is asked for.
    """
    for crew in list(_crews):
        crew.closed = crew.disowned = True


def default_context() -> Any:
    """Return the multiprocessing context: the chosen start method, else fork if available."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen is None and "fork" in multiprocessing.get_all_start_methods():
        chosen = "fork"
    return multiprocessing.get_context(chosen)


def reraise(kind: type[BaseException], message: str) -> None:
    """Raise a worker's exception in this process, with its traceback in the message."""
    error: BaseException
    if issubclass(kind, KeyError):
        error = kind(_VerbatimMessage(message))
    else:
        try:
            error = kind(message)
        except Exception:  # a constructor that wants other arguments
            error = RuntimeError(message)
    try:
        raise error
    finally:
        del error  # else it and this frame would keep each other, and the loop's frame, alive


class _VerbatimMessage(str):
    """A message that KeyError prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# In a worker


def run_worker(setup: WorkerSetup, conn: Any) -> None:
    """Run the loop of a worker process: serve tasks until told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if setup.forked:
        _after_fork()
    for be in live_backends():  # what is allocated here is none of the main process's business
        be.ledger.close_budgets()
        be.ledger.own_limit, be.ledger.observers = NO_LIMIT, ()
    set_num_threads(1)  # as in PyTorch: a worker is one of several
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    latest = [0]
    listener = threading.Thread(
        target=_listen, args=(conn, tasks, latest, setup.parent, setup.forked), daemon=True
    )
    listener.start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nothing waits any more
        _Worker(setup, SharedMemorySender(conn)).run(tasks, latest)


def _after_fork() -> None:
    gc.freeze()  # what the main process left is not ours to collect
    for end in list(_main_ends):  # else no other worker would see that the main process is gone
        end.close()
    for d in [d for d in devices._backends if d is not None and d.type == "cuda"]:
        devices._backends[d] = _NoCuda()


class _NoCuda:
    """The replacement of the CUDA backend in a forked worker, where CUDA is unusable."""

    ledger: Any = type("Nothing", (), {"limit": NO_LIMIT, "observers": ()})

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. Keep data sets on the cpu, or pass "
            "multiprocessing_context='spawn'."
        )


def _listen(conn: Any, tasks: Any, latest: list[int], parent: int, forked: bool) -> None:
    # Takes tasks as they come. None in the queue ends the worker.
    while True:
        try:
            while not conn.poll(POLL):
                if _orphaned(parent, forked):
                    os._exit(1)
            task = pickle.loads(conn.recv_bytes())
        except (EOFError, OSError):
            # The loader was closed without a word, or the main process dies: a dying process loses
            # its sockets first, and only then its children.
            tasks.put((None, []))
            while not _orphaned(parent, forked):
                time.sleep(0.05)
            os._exit(1)
        if task[0] is not None and task[0][0] == "epoch":
            latest[0] = task[0][1]
        tasks.put(task)
        if task[0] is None:
            return


def _orphaned(parent: int, forked: bool) -> bool:
    if forked:
        return os.getppid() != parent
    main = multiprocessing.parent_process()
    return main is None or not main.is_alive()


class _Worker:
    """Serves tasks, one after another."""

    def __init__(self, setup: WorkerSetup, outbox: SharedMemorySender) -> None:
        self.setup, self.outbox = setup, outbox
        self.fetcher: MapFetcher | IterableFetcher | None = None
        self.failed: tuple[Any, str] | None = None  # the epoch could not begin
        self.seed = 0
        self.seeds_python = self.seeds_numpy = self.seeds_own = True
        self.first = True

    def run(self, tasks: Any, latest: list[int]) -> None:
        while True:
            task, freed = tasks.get()
            self.outbox.freed(freed)
            if task is None:
                return
            kind, epoch, *rest = task
            if kind == "epoch":
                self.begin(*rest)
            elif epoch == latest[0]:  # else the loop it was asked for is over
                self.answer(epoch, *rest)

    def begin(self, base_seed: int, state: Any) -> None:
        global _worker_info
        number = self.setup.number
        self.seed = base_seed + number
        self.failed = None
        try:
            if self.first:
                recipe = self.setup.recipe
                _worker_info = WorkerInfo(number, self.setup.workers, self.seed, recipe.dataset)
                self._initialize()
                self.first = False
            self._sow(-1)
            self.fetcher = self.setup.recipe.fetcher(state)
        except Exception as error:
            self.failed = self._described(error)

    def _initialize(self) -> None:
        manual_seed(self.seed)
        self._sow(-1)
        before = random.getstate(), _numpy_state()
        if self.setup.init_fn is not None:
            self.setup.init_fn(self.setup.number)
        self.seeds_python = random.getstate() == before[0]
        self.seeds_numpy = _numpy_state() == before[1]
        self.seeds_own = default_generator.initial_seed() == self.seed

    def _sow(self, batch: int) -> None:
        # Streams of one batch: a function of the seed and the batch's number.
        if self.seeds_own and default_generator.initial_seed() != self.seed:
            manual_seed(self.seed)
        default_generator.set_offset((batch + 1) * PER_BATCH)
        if self.seeds_python:
            random.seed(self.seed * (1 << 64) + batch + 1)
        if self.seeds_numpy:
            words = np.random.SeedSequence([self.seed, batch + 1]).generate_state(4)
            np.random.seed(words)  # noqa: NPY002

    def answer(self, epoch: int, batch: int, index: Any) -> None:
        state = None
        try:
            if self.failed is not None:
                answer: tuple[str, Any] = (ERROR, self.failed)
            else:
                assert self.fetcher is not None
                self._sow(batch)
                answer = (BATCH, self.fetcher.fetch(index))
                state = self.fetcher.state()
            self.outbox.send((epoch, *answer, state))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except StopIteration:
            assert self.fetcher is not None
            self.outbox.send((epoch, END, None, self.fetcher.state()))
        except Exception as error:
            self.outbox.send((epoch, ERROR, self._described(error), state))

    def _described(self, error: Exception) -> tuple[Any, str]:
        # The class, or the nearest that can be sent, and a message with the traceback.
        kind = next(c for c in type(error).__mro__ if _sendable(c))
        text = "".join(traceback.format_exception(error))
        return kind, (
            f"Caught {type(error).__name__} in DataLoader worker process {self.setup.number}.\n"
            f"Original {text}"
        )


def _numpy_state() -> tuple[Any, bytes, int]:
    kind, words, position, *_ = np.random.get_state()  # noqa: NPY002
    return kind, np.asarray(words).tobytes(), int(position)


def _sendable(kind: type) -> bool:
    try:
        return pickle.loads(pickle.dumps(kind)) is kind
    except Exception:  # local to a function, say
        return False
