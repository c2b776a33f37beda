"""Numba's dispatcher of a kernel; where there are no libraries, its code lies in files of ours.

Numba's own cache is named after a source file and stamped with its time. So it loads code that was
compiled from other text, code that calls functions which have changed since, and files that are
damaged or that another user may have written. Here the code lies in the files of :mod:`.library`,
under the identity of the kernel as it was imported, and is checked as libraries are.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import update_wrapper
from types import CodeType, FunctionType
from typing import Any

from numba import njit as _njit
from numba.core import caching as _caching
from numba.core import compiler as _compiler
from numba.core import dispatcher as _dispatcher
from numba.core import serialize as _serialize

from . import library

_base: Any = _caching._Cache
_dispatching: Any = _dispatcher
_function_compiler: Any = _dispatching._FunctionCompiler
_result: Any = _compiler.CompileResult
_dumps: Any = _serialize.dumps
_make: Any = _njit


def dispatcher(kernel: Any) -> Any:
    """Return what compiles a kernel for each signature that it is called with, and calls it."""
    made = _make(**kernel.options)(with_numba_objects(kernel.py_func))
    if not kernel.overlaps:
        usual = made._compiler
        options = usual.py_func, usual.targetdescr, usual.targetoptions
        made._compiler = _Apart(*options, usual.locals, usual.pipeline_class)
    if not library.supported():
        made._cache = KernelCache(kernel)
    return made


class _Apart(_function_compiler):  # type: ignore[misc]
    # Compiles a kernel whose arrays count as apart (``support.jit.compiled``).

    def _customize_flags(self, flags: Any) -> Any:
        flags.noalias = True
        return flags


class KernelCache(_base):  # type: ignore[misc]
    """What a dispatcher of Numba asks before it compiles, and tells afterwards.

    Args:
        kernel: The kernel that the dispatcher belongs to.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """The folder, or nothing."""
        return str(library.folder() or "")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code of a signature, or None."""
        target_context.refresh()  # it must be set up before code is loaded into it
        if not self._enabled:
            return None
        data = library.load_data(self._kernel, _words(sig, target_context.codegen()))
        if data is None:
            return None
        try:
            return _result._rebuild(target_context, *pickle.loads(data))
        except ImportError:  # its module was made by a program, and cannot be imported
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code of a signature, if it can live in another process."""
        lifted = any(not part.can_cache for part in data.lifted)
        if self._enabled and not lifted and not data.library.has_dynamic_globals:
            words = _words(sig, data.codegen)
            library.keep_data(self._kernel, words, _dumps(data._reduce()))

    def enable(self) -> None:
        """Ask and tell from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither ask nor tell from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Do nothing: ``lowtide compile --clear`` removes what is kept."""


def _words(sig: Any, codegen: Any) -> str:
    # With the processor as Numba sees it: where there are no libraries, ours is not known.
    return f"{sig} for {codegen.magic_tuple()}"


def with_numba_objects(function: Any) -> Any:
    """Return the function, with what its names mean to Numba."""
    known = function.__globals__
    meant = {
        name: known[name].numba_object()
        for name in set(_names(function.__code__))
        if hasattr(type(known.get(name)), "numba_object")
    }
    if not meant:
        return function
    made = FunctionType(
        function.__code__,
        {**known, **meant},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return update_wrapper(made, function)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
