"""How kernels here are compiled: once on a machine, by Numba, which later processes do not import.

A kernel file imports neither Numba nor llvmlite: it decorates functions with what is here, and
names the compiler's modules by :func:`deferred`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from ..compiler.kernel import Deferred, Kernel, Part, Spelled
from ..compiler.processor import has as has

F = TypeVar("F", bound=Callable[..., Any])

SUMS = {"reassoc", "contract"}  # sums may be split into lanes; NaN and infinity keep their meaning
FUSED = {"contract"}  # a product and a sum may round once


@overload
def compiled(function: F) -> F: ...
@overload
def compiled(
    *, fastmath: Any = False, signature: str | None = None, overlaps: bool = True
) -> Callable[[F], F]: ...
@overload
def compiled(function: F, *, signature: str, fastmath: Any = False) -> F: ...
def compiled(
    function: Any = None,
    *,
    fastmath: Any = False,
    signature: str | None = None,
    overlaps: bool = True,
) -> Any:
    """Compile on first call; releases the interpreter's lock, divides by zero as NumPy does.

    Args:
        function: Nothing but loops over arrays.
        fastmath: What the compiler may do to floating-point arithmetic: ``SUMS`` or ``FUSED``.
        signature: What it takes, in the words of ``compiler/signature.py``, instead of being
            compiled for whatever it is called with.
        overlaps: Arrays may overlap, so the compiler looks before it handles several elements at
            once. False lets it take them for apart. An array may then still *be* another one that
            is written, if each element that is written there depends on the element that it
            replaces: so that one is read before.
    """
    if function is None:
        return partial(_kernel, fastmath=fastmath, signature=signature, overlaps=overlaps)
    return _kernel(function, fastmath, signature, overlaps)


def _kernel(function: Any, fastmath: Any, signature: str | None, overlaps: bool = True) -> Any:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    return Kernel(function, options, signature, overlaps)


def inlined(function: F) -> F:
    """A function that is written into each kernel that calls it."""
    found: Any = Part(function, {"inline": "always"})
    return found  # type: ignore[no-any-return]


def part(function: F) -> F:
    """A function that kernels call."""
    found: Any = Part(function, {})
    return found  # type: ignore[no-any-return]


def spelled(function: Any) -> Any:
    """Let kernels call what ``function`` says how to write: its type, and a writer."""
    return Spelled(function)


def deferred(module: str, name: str = "") -> Any:
    """A module of the compiler, or a function of it, imported when it is used."""
    return Deferred(module, name)
