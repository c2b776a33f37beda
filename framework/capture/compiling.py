"""``compile`` and what ``lowtide.compiler`` offers: PyTorch's names.

A compiled function is recorded and replayed (``compiled.py``). No code is generated, so
``backend``, ``mode``, ``dynamic`` and ``options`` change nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any

from ..modes import local
from . import call
from .compiled import CompiledFunction

module_compilers: list[tuple[type, Callable[..., Any]]] = []  # modules/compiled.py
_compiled: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
    check: int = 0,
) -> Any:
    """Return a function or module that is recorded twice and replayed afterwards.

    The first call of a kind runs as written, the second and the third are recorded. Compile a whole
    training step: ``zero_grad``, forward, backward, clipping and the optimizer's step. Of a module,
    forward is replayed, and the backward of its results. A replay runs the recorded kernel calls on
    new inputs and gives the same bits. Python code of the function does not run again, but for the
    steps of optimizers, schedulers and scalers. A replay happens only if two recordings have agreed
    and what they depended on is unchanged. A call that cannot be recorded runs as it is written,
    and a warning says why.

    Args:
        model: A function or a module; without it, a decorator is returned.
        fullgraph: Raise :class:`~lowtide.errors.CaptureError` where a call cannot be recorded.
        dynamic: Accepted; each combination of shapes has a separate recording.
        backend: Accepted; there is one.
        mode: Accepted.
        options: Accepted.
        disable: Return ``model`` as it is.
        check: Every so many replays run both ways, and everything is compared bit for bit: a
            difference is an AssertionError. Of a module that is forward.

    Raises:
        TypeError: ``model`` cannot be called.

    Example:
        >>> import lowtide as lt
        >>> @lt.compile
        ... def double(x):
        ...     return x + x
        >>> [double(lt.tensor(float(k))).item() for k in range(5)]
        [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, disable=disable, check=check)
    if not callable(model):
        raise TypeError(
            f"compile: takes a module or a function; got {type(model).__name__}. Pass options "
            "by name."
        )
    if disable or isinstance(model, CompiledFunction | type):
        return model
    for kind, wrap in module_compilers:
        if isinstance(model, kind):
            return wrap(model, fullgraph, check)
    return compiled_function(model, fullgraph, check)


def compiled_function(
    function: Callable[..., Any], fullgraph: bool = False, check: int = 0, module: Any = None
) -> CompiledFunction:
    """Return a compiled function that ``reset`` knows."""
    compiled = CompiledFunction(function, fullgraph, check, module)
    _compiled.add(compiled)
    return compiled


def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """Keep a function out of recordings: a call that comes by it runs as it is written."""
    if fn is None:
        return lambda f: disable(f, recursive)
    if not callable(fn) or isinstance(fn, type):
        return fn

    @functools.wraps(fn)
    def kept_out(*args: Any, **kwargs: Any) -> Any:
        capture = local.state.capture
        if capture is not None:
            name = getattr(fn, "__name__", type(fn).__name__)
            capture.refuse(f"it calls {name}, which compiler.disable keeps out")
        state = local.state
        before = state.compiling, state.inner
        state.compiling, state.inner = 0, None
        try:
            return fn(*args, **kwargs)
        finally:
            state.compiling, state.inner = before

    return kept_out


def is_compiling() -> bool:
    """True within a call of a compiled function, whether it is recorded or runs as it is written.

    A library may choose another algorithm then; so all calls of a function choose the same.
    """
    return local.state.compiling > 0


def reset() -> None:
    """Forget all recordings."""
    for function in list(_compiled):
        function.forget()


class set_stance(ContextDecorator):
    """Set what compiled functions do; a context manager and a decorator restore what was set.

    Args:
        stance: "force_eager" lets every compiled function run as it is written. All other names of
            PyTorch's stances are taken as "default".
        **options: Accepted.
    """

    def __init__(self, stance: str = "default", **options: Any) -> None:
        self._stance = "force_eager" if stance == "force_eager" else "default"
        self._before = [call.stance[0]]
        call.stance[0] = self._stance

    def __call__(self, function: Any) -> Any:
        """Decorate a function; outside of it the stance is what it was before."""
        call.stance[0] = self._before[0]
        return super().__call__(function)

    def __enter__(self) -> None:
        self._before.append(call.stance[0])
        call.stance[0] = self._stance

    def __exit__(self, *exc: object) -> None:
        self._before.pop()
        call.stance[0] = self._before[0]


def explain(fn: Any, *args: Any, **kwargs: Any) -> str:
    """Call a function as ``compile`` would, and say what was recorded, and what was not and why.

    Args:
        fn: A function, or one that is compiled.
        *args: What it is called with: three times, and three times more as long as statements or
            modules inside are found that are recorded apart.
        **kwargs: Likewise.

    Returns:
        A text: kernel calls, bytes, live calls; or the reason and the line.
    """
    compiled = _compiled_in(fn)
    if compiled is None:
        fn = compiled = CompiledFunction(fn)
    quiet, compiled.quiet = compiled.quiet, True
    try:
        parts = -1
        while parts != (parts := compiled.progress()):  # each part is recorded at its third call
            for _ in range(3):
                fn(*args, **kwargs)
    finally:
        compiled.quiet = quiet
    return compiled.explain()


def _compiled_in(fn: Any) -> CompiledFunction | None:
    # What makes the calls of a compiled function, or of a compiled module.
    of_wrapper = getattr(fn, "_compiled", None)  # lt.compile(module)
    in_place = getattr(getattr(fn, "_call_hooks", None), "compiled", None)  # module.compile()
    for found in (fn, of_wrapper, in_place):
        if isinstance(found, CompiledFunction):
            return found
    return None
