"""How kernels here are compiled: once per machine where that can be kept, else once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

SUMS = {"reassoc", "contract"}  # sums may be split into lanes; NaN and infinity keep their meaning
FUSED = {"contract"}  # a product and a sum may round once


@overload
def compiled(function: F) -> F: ...
@overload
def compiled(*, fastmath: Any) -> Callable[[F], F]: ...
@overload
def compiled(function: F, *, signature: Any, fastmath: Any = False) -> F: ...
def compiled(function: Any = None, *, fastmath: Any = False, signature: Any = None) -> Any:
    """Compile on first call; releases the interpreter's lock, divides by zero as NumPy does.

    Args:
        function: Nothing but loops over arrays.
        fastmath: What the compiler may do to floating-point arithmetic: ``SUMS`` or ``FUSED``.
        signature: Compile for these argument types at once, and for no others.
    """
    if function is None:
        return lambda f: _compile(f, fastmath, signature)
    return _compile(function, fastmath, signature)


def _compile(function: Any, fastmath: Any, signature: Any) -> Any:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    make: Any = njit
    types = () if signature is None else (signature,)
    try:
        return make(*types, cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in can be written
        return make(*types, **options)(function)
