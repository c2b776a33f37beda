"""Grad mode, inference mode, and the other thread-local modes.

One :class:`State` object per thread, so that the dispatcher reads one thread-local attribute per
op and plain slots after that.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar, overload

from . import execution
from .interrupts import RestoringExit
from .kernels.runtime.errstate import is_reentrancy_error, run_nested

F = TypeVar("F", bound=Callable[..., Any])


class State:
    """The modes of one thread.

    Attributes:
        grad: Ops record nodes.
        autocast: Inside an autocast region its dtypes by device type, or None
            (``amp/autocast.py``).
        inference: Results are inference tensors.
        levels: The calls of ``vmap`` that we are inside, the outermost first (``vmap/levels.py``).
        saver: Decides what becomes of values saved for backward; None keeps them as they are.
        anomaly: Nodes remember where they were made, and backward looks for NaN.
        check_nan: With ``anomaly``: look for NaN, and not only remember.
        hooks_disabled: The message with which ``saved_tensors_hooks`` is refused, or None.
        phase: "backward", "recompute" or "optimizer" while one of them runs; "forward" in that of
            a recorded ``autograd.Function``; or None.
        function: Name of the ``autograd.Function`` that is applied, or None.
        scope: The innermost module call or named scope we are in (``scopes.Scope``), or None.
        site: Where the op was recorded whose backward runs, while a profiler listens.
        running: The backward pass that runs, or None; the innermost, if one runs inside another.
        recorder: Notes every kernel call while a checkpointed region is open, or None
            (``autograd/remat/recorder.py``).
        dependence: Notes what the forward of a recorded ``autograd.Function`` computes from its
            inputs, or None (``autograd/dependence.py``).
        capture: Records the call of a compiled function, or None (``capture/recorder.py``).
        compiling: How many calls of compiled functions are under way.
        inner: Records the modules that are called, inside of a compiled function that runs as it is
            written, or None (``capture/inner_modules.py``).
        notes_results: ``inference``, a recorder or ``dependence``: results need more than a node.
        run: ``run(f, *args)`` calls a kernel with NumPy's floating-point warnings off: the
            executor's ``runner`` (``execution.py``).
    """

    __slots__ = (
        "anomaly",
        "autocast",
        "capture",
        "check_nan",
        "compiling",
        "dependence",
        "function",
        "grad",
        "hooks_disabled",
        "inference",
        "inner",
        "levels",
        "notes_results",
        "phase",
        "recorder",
        "run_kernel",
        "running",
        "saver",
        "scope",
        "site",
    )

    def __init__(self) -> None:
        self.grad = True
        self.autocast: dict[str, Any] | None = None
        self.inference = False
        self.levels: tuple[Any, ...] = ()
        self.saver: Any = None
        self.anomaly = False
        self.check_nan = True
        self.hooks_disabled: str | None = None
        self.phase: str | None = None
        self.function: str | None = None
        self.scope: Any = None
        self.site: tuple[str, str, str, Any] | None = None
        self.running: Any = None
        self.recorder: Any = None
        self.dependence: Any = None
        self.capture: Any = None
        self.compiling = 0
        self.inner: Any = None
        self.notes_results = False
        self.run_kernel = execution.current.runner()


class _Local(threading.local):
    def __init__(self) -> None:
        self.state = State()


local = _Local()


@execution.when_installed
def _run_by(executor: execution.Executor) -> None:
    local.state.run_kernel = executor.runner()


def run_kernel(f: Any, *args: Any) -> Any:
    """Run a kernel, or a function around one, with NumPy's floating-point warnings off.

    Whatever writes values goes through here or through ``State.run_kernel``, so that an executor
    can leave it out (``execution.py``). The first array among ``args`` is written.
    """
    try:
        return local.state.run_kernel(f, *args)
    except RuntimeError as error:
        if not is_reentrancy_error(error):
            raise
        return run_nested(f, *args)


def value_read(what: str) -> None:
    """Tell the recording of a compiled function that Python gets to know values of a tensor.

    Whatever the program does next may depend on them, and a replay would not ask.
    """
    capture = local.state.capture
    if capture is not None:
        capture.read(what)


def live_call(method: F) -> F:
    """Declare a method that replays of compiled functions call anew, such as an optimizer's step.

    Its class names in ``_captured_live`` the attributes that recorded kernel calls depend on.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture = local.state.capture
        if capture is None:
            return method(self, *args, **kwargs)
        return capture.live(method, self, args, kwargs)

    return call  # type: ignore[return-value]


def state_of_thread() -> State:
    """Return the modes of the current thread."""
    return local.state


class _Mode:
    """A context manager that is also a decorator, for functions and generators."""

    def __call__(self, function: F) -> F:
        if inspect.isclass(function):
            raise TypeError(
                f"{type(self).__name__} decorates functions; got the class {function.__name__}. "
                "Decorate its methods."
            )
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                # The mode holds while the generator runs, not while its consumer does.
                inner = function(*args, **kwargs)
                try:
                    with self._again():
                        item = next(inner)
                    while True:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            inner.close()
                            raise
                        except BaseException as error:
                            with self._again():
                                item = inner.throw(error)
                        else:
                            with self._again():
                                item = inner.send(sent)
                except StopIteration as stop:
                    return stop.value

            return generator  # type: ignore[return-value]

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def _again(self) -> Any:
        return type(self)()

    def __enter__(self) -> Any:
        raise NotImplementedError

    __exit__: Any


class _Optional(_Mode):
    """A mode that also decorates without parentheses: ``@no_grad``."""

    @overload
    def __new__(cls, function: None = None) -> Self: ...

    @overload
    def __new__(cls, function: F) -> F: ...  # type: ignore[misc]

    def __new__(cls, function: Any = None) -> Any:
        self = object.__new__(cls)
        self._before = [None]
        return self if function is None else self(function)

    _before: list[Any]


class no_grad(_Optional):
    """Disable gradient recording: results do not require grad, and nothing is saved.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(2, requires_grad=True)
        >>> with lt.no_grad():
        ...     (x * 2).requires_grad
        False
    """

    def __enter__(self) -> None:
        state = local.state
        self._before[0] = state.grad  # no calls: see RestoringExit
        state.grad = False

    __exit__ = RestoringExit(state_of_thread, "grad")


class enable_grad(_Optional):
    """Enable gradient recording, also within ``no_grad``; no effect in ``inference_mode``."""

    def __enter__(self) -> None:
        state = local.state
        self._before[0] = state.grad
        state.grad = not state.inference

    __exit__ = RestoringExit(state_of_thread, "grad")


class set_grad_enabled(_Mode):
    """Enable or disable gradient recording; a function, and a context manager."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        state = local.state
        self._before = [state.grad]
        state.grad = self.mode and not state.inference

    def __call__(self, function: F) -> F:
        """Decorate ``function``; the mode outside is restored."""
        local.state.grad = self._before[0]
        return super().__call__(function)

    def _again(self) -> Any:
        return set_grad_enabled(self.mode)

    def __enter__(self) -> None:
        local.state.grad = self.mode and not local.state.inference

    __exit__ = RestoringExit(state_of_thread, "grad")


class inference_mode(_Mode):
    """Disable gradient recording, and mark results as inference tensors.

    Args:
        mode: False turns the mode off inside.
    """

    def __new__(cls, mode: Any = True) -> Any:
        """Return the context manager, or the decorated function for ``@inference_mode``."""
        self = object.__new__(cls)
        self.mode = mode if isinstance(mode, bool) else True
        self._before = [None] * 3
        return self if isinstance(mode, bool) else self(mode)

    mode: bool
    _before: list[Any]

    def _again(self) -> Any:
        return inference_mode(self.mode)

    def __enter__(self) -> None:
        state, mode = local.state, self.mode
        self._before[:] = state.grad, state.inference, state.notes_results
        state.inference = mode
        # Here and elsewhere written out: during a call an interrupt could fall between two modes.
        state.notes_results = mode or state.recorder is not None or state.dependence is not None
        state.grad = not mode  # False ends no_grad too, as in PyTorch

    __exit__ = RestoringExit(state_of_thread, "grad", "inference", "notes_results")


def is_grad_enabled() -> bool:
    """True if gradient recording is enabled in this thread."""
    return local.state.grad


def is_inference_mode_enabled() -> bool:
    """True inside ``inference_mode``."""
    return local.state.inference
